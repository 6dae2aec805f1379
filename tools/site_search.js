// The search of the documentation's site. It asks for no server and starts no worker, neither of which a page
// that is read from disk can have: the index is a script, which the page of results alone loads.
"use strict";
(() => {
  const MOST = 50; // results
  const AROUND = 120; // characters before a word that was found, and as many from it on
  const input = document.getElementById("mkdocs-search-query");
  const results = document.getElementById("mkdocs-search-results");
  if (!input || !results) return;

  // How well a section answers: 0 unless it has every word; words of its title say more than those of its text.
  function score(section, words) {
    let total = 0;
    for (const word of words) {
      const times = section.folded.split(word, 11).length - 1;
      const named = section.name === word ? 60 : section.name.includes(word) ? 25 : 0;
      if (!times && !named) return 0;
      total += named + times;
    }
    return total;
  }

  function element(kind, text) {
    const e = document.createElement(kind);
    e.textContent = text;
    return e;
  }

  // What stands around the first word that the text has, with all words marked.
  function summary(section, words) {
    const places = words.map((w) => section.folded.indexOf(w)).filter((i) => i >= 0);
    const first = places.length ? Math.min(...places) : 0;
    const from = Math.max(0, first - AROUND), to = from + 2 * AROUND;
    const p = document.createElement("p");
    if (from) p.append("… ");
    let at = from;
    while (at < to && at < section.text.length) {
      const next = words.map((w) => [section.folded.indexOf(w, at), w]).filter(([i]) => i >= 0 && i < to);
      if (!next.length) break;
      const [i, word] = next.reduce((a, b) => (b[0] < a[0] ? b : a));
      p.append(section.text.slice(at, i), element("mark", section.text.slice(i, i + word.length)));
      at = i + word.length;
    }
    p.append(section.text.slice(at, to));
    if (to < section.text.length) p.append(" …");
    return p;
  }

  function search() {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = !words.length ? [] : window.searchIndex
      .map((s) => [score(s, words), s]).filter(([n]) => n).sort((a, b) => b[0] - a[0]);
    const shown = found.slice(0, MOST).map(([, s]) => {
      const article = document.createElement("article"), link = element("a", s.title);
      link.href = `${base_url}/${s.location}`;
      const title = document.createElement("h3");
      title.append(link);
      article.append(title, summary(s, words));
      return article;
    });
    const said = !words.length ? "" : found.length > MOST ? `The first ${MOST} of ${found.length} results`
      : found.length === 1 ? "1 result" : `${found.length || "No"} results`;
    results.replaceChildren(element("p", said), ...shown);
  }

  const script = document.createElement("script");
  script.src = `${base_url}/search/index.js`;
  script.onload = () => {
    for (const s of window.searchIndex) {
      s.name = s.title.toLowerCase();
      s.folded = s.text.toLowerCase();
    }
    input.value = new URLSearchParams(location.search).get("q") || "";
    input.addEventListener("input", search);
    results.setAttribute("aria-live", "polite");
    search();
  };
  document.head.append(script);
})();
