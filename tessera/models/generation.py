"""Text from a model: sampling, streaming, stop strings, beams, speculative decoding, perplexity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.core.errors import OperandError, ShapeError
from tessera.models.blocks import Array
from tessera.models.guide import Guide, guide
from tessera.models.model import CHUNKS, LanguageModel, State
from tessera.models.sampling import Sampling, choose
from tessera.models.template import render
from tessera.models.text import TextStream

DRAFTED = (
    7  # tokens that a draft runs ahead: with the last one known they fill the step of eight rows
)


def tokens(
    model: LanguageModel,
    prompt: Sequence[int],
    limit: int,
    sampling: Sampling,
    draft: LanguageModel | None = None,
    schema: Any = None,
) -> Iterator[int]:
    """New tokens one after the other, until an end token, the limit, or the end of what a schema allows."""
    if not prompt:
        raise ShapeError("generate: the prompt has no tokens")
    if type(limit) is not int or limit < 0:
        raise OperandError(f"generate: max_new_tokens is {limit!r}, expected an integer from 0")
    ends = model.ends
    limit = min(limit, model.context - len(prompt))
    guided = None if schema is None else guide(model, schema, limit)
    pick = TokenPick(sampling, len(prompt), limit, guided)
    steps = (
        _plain(model, prompt, limit, pick)
        if draft is None
        else _drafted(model, draft, prompt, limit, pick)
    )
    new: list[int] = []
    for token in steps:
        if token in ends:
            return
        new.append(token)
        yield token
        if guided is not None and guided.complete(new):
            return


@dataclass(frozen=True)
class TokenPick:
    """How the next token of a text is chosen: a function of its logits and of the text."""

    sampling: Sampling
    first: int  # tokens of the prompt
    limit: int
    guide: Guide | None

    def __call__(self, logits: Array, seen: Sequence[int]) -> int:
        """The token after those seen."""
        new = seen[self.first :]
        if self.guide is not None:
            logits = self.guide.masked(logits, new, self.limit - len(new))
        return choose(logits, seen, new, self.sampling)


def _plain(
    model: LanguageModel, prompt: Sequence[int], limit: int, pick: TokenPick
) -> Iterator[int]:
    """One step of the model for each token."""
    seen, state, more = list(prompt), model.start(len(prompt)), list(prompt)
    for _ in range(limit):
        logits, state = model.advance(state, more)
        token = pick(logits, seen)
        seen.append(token)
        yield token
        more = [token]


def _drafted(
    model: LanguageModel,
    draft: LanguageModel,
    prompt: Sequence[int],
    limit: int,
    pick: TokenPick,
) -> Iterator[int]:
    """The same tokens, several to a step: the model checks at once what a smaller one proposes.

    The choice at a place depends on logits and seed only, so a proposal is kept exactly where the model
    would have chosen it.
    """
    seen, first = list(prompt), len(prompt)
    logits, state = model.advance(model.start(first), prompt)
    _, ahead = (
        draft.advance(draft.start(first), prompt[:-1]) if first > 1 else (None, draft.start())
    )
    seen.append(pick(logits, seen))
    yield seen[-1]
    while len(seen) - first < limit:
        count = min(DRAFTED, limit - (len(seen) - first), model.context - len(seen))
        ahead, proposed = _proposed(draft, ahead, seen, count, pick)
        every, state = model.advance(state, [seen[-1], *proposed], every=True)
        for row, guess in zip(every, [*proposed, None], strict=True):
            token = pick(row, seen)
            seen.append(token)
            yield token
            if token != guess or len(seen) - first >= limit:
                break
        state.length = len(seen) - 1  # positions of refused tokens are written over


def _proposed(
    draft: LanguageModel,
    ahead: State,
    seen: Sequence[int],
    count: int,
    pick: TokenPick,
) -> tuple[State, list[int]]:
    ahead.length = min(ahead.length, len(seen) - 1)
    out: list[int] = []
    more = list(seen[ahead.length :])
    for _ in range(count):
        logits, ahead = draft.advance(ahead, more)
        more = [pick(logits, [*seen, *out])]
        out += more
    return ahead, out


def pieces(model: LanguageModel, new: Iterable[int], stop: Sequence[str]) -> Iterator[str]:
    """The text of tokens as it grows, whole characters at a time, up to the first stop string."""
    text = TextStream(model.tokenizer, stop)
    for token in new:
        piece = text.push(token)
        if piece:
            yield piece
        if text.stopped:
            return
    rest = text.finish()
    if rest:
        yield rest


def beams(model: LanguageModel, prompt: Sequence[int], limit: int, width: int) -> list[int]:
    """The likeliest continuation that a beam search of some width finds, by its mean log-probability."""
    if type(width) is not int or width < 1:
        raise OperandError(f"generate: beams is {width!r}, expected an integer from 1")
    live: list[tuple[float, list[int], State]] = [(0.0, [], model.start(len(prompt)))]
    done: list[tuple[float, list[int]]] = []
    for step in range(min(limit, model.context - len(prompt))):
        options: list[tuple[float, list[int], State]] = []
        for total, out, state in live:
            logits, state = model.advance(state, prompt if step == 0 else out[-1:])
            scores = log_probabilities(logits)
            for token in np.argsort(-scores, kind="stable")[: 2 * width].tolist():
                options.append((total + float(scores[token]), [*out, token], state))
        options.sort(key=lambda o: -o[0])
        best = options[: 2 * width]
        done += [
            (total / len(out), out[:-1]) for total, out, _ in best[:width] if out[-1] in model.ends
        ]
        live = [(t, out, state.copy()) for t, out, state in best if out[-1] not in model.ends][
            :width
        ]
        if len(done) >= width:
            break
    done += [(total / max(len(out), 1), out) for total, out, _ in live] if len(done) < width else []
    return max(done, key=lambda d: d[0])[1]


def log_probabilities(logits: Array) -> Array:
    """log softmax along the last axis in f64."""
    x = logits.astype(np.float64)
    x = x - x.max(-1, keepdims=True)
    out: Array = x - np.log(np.exp(x).sum(-1, keepdims=True))
    return out


def perplexity(model: LanguageModel, ids: Sequence[int]) -> float:
    """exp of the mean surprise at each token but the first."""
    if len(ids) < 2:
        raise ShapeError("perplexity: needs two tokens or more")
    state, total, last = model.start(len(ids)), 0.0, None
    for at in range(0, len(ids), CHUNKS[-1]):
        part = np.asarray(ids[at : at + CHUNKS[-1]])
        rows, state = model.advance(state, part, every=True)
        if last is not None:
            total -= float(log_probabilities(last)[part[0]])
        scores = log_probabilities(rows[:-1])
        total -= float(np.take_along_axis(scores, part[1:, None], -1).sum())
        last = rows[-1]
    return float(np.exp(total / (len(ids) - 1)))


def chat_prompt(
    model: LanguageModel, messages: Sequence[Mapping[str, Any]], **more: Any
) -> list[int]:
    """The tokens of a chat, which end where the reply begins; `more` are further names of its template,
    such as tools.
    """
    t = model.tokenizer
    if t.template is None:
        raise OperandError(
            f"{model.name}: the model has no chat template; use generate with a prompt"
        )
    names = {
        "bos_token": "" if t.bos is None else t.name(t.bos),
        "eos_token": t.name(min(t.eos)) if t.eos else "",
    }
    ids = t.encode(render(t.template, messages, add_generation_prompt=True, **names, **more))
    twice = len(ids) > 1 and ids[0] == ids[1] == t.bos  # by the template and by the tokenizer
    return ids[1:] if twice else ids
