"""Look at every page of the documentation's site: axe-core, the console, and whether it fits a phone.

    make docs
    python -m tools.look_at_site build/site --axe axe.min.js [--record record.json]

Pages are opened from disk in Chromium, in light and in dark at 1,400 pixels and in light at 390.  axe-core is
that of the npm package axe-core, or of a Python package that carries it; its rules of serious and critical
faults count.  The exit status is 1 where anything is found.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tools.browser import Browser
from tools.gallery import AXE

LOOKS = {"light": (1400, False), "dark": (1400, True), "phone": (390, False)}


def look_at(b: Browser, page: Path, axe: str) -> list[str]:
    """What is wrong with a page."""
    found = []
    for look, (width, dark) in LOOKS.items():
        with b.page(page, width, 900, dark) as p:
            p.evaluate(axe + "; 0")
            found += [f"{look}: {x}" for x in p.evaluate(AXE)]
            wide = p.evaluate("document.documentElement.scrollWidth - innerWidth")
            found += [f"{look}: {wide} pixels wider than the window"] if wide > 0 else []
            found += [f"{look}: {x}" for x in p.console]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("site", type=Path)
    parser.add_argument("--axe", type=Path, required=True, help="axe.min.js")
    parser.add_argument("--record", type=Path, help="write what was found as JSON")
    given = parser.parse_args()
    axe = given.axe.read_text()
    # 404.html is for servers: its paths are absolute.
    pages = [p for p in sorted(given.site.absolute().rglob("*.html")) if p.name != "404.html"]
    found = {}
    with Browser() as b:
        for page in pages:
            name = page.relative_to(given.site.absolute()).as_posix()
            if wrong := look_at(b, page, axe):
                found[name] = wrong
                print(name, *wrong, sep="\n    ", flush=True)
    print(f"{len(pages)} pages, {len(found)} with faults")
    if given.record:
        record = {"pages": len(pages), "looks": list(LOOKS), "found": found}
        given.record.write_text(json.dumps(record, indent=1) + "\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
