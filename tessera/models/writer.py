"""The model that users hold: a language model that writes text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tessera.core.errors import OperandError
from tessera.lang.create import tensor
from tessera.lang.tensor import Tensor
from tessera.models import generation
from tessera.models.blocks import Array
from tessera.models.model import LanguageModel
from tessera.models.sampling import Sampling

LIMIT = 128  # new tokens unless told


class Writer(LanguageModel):
    """A language model with generation, chat and perplexity."""

    def generate(
        self,
        prompt: str | Sequence[int],
        max_new_tokens: int = LIMIT,
        temperature: float = 0.0,
        *,
        beams: int = 1,
        stop: str | Sequence[str] = (),
        draft: LanguageModel | None = None,
        schema: Any = None,
        **sampling: Any,
    ) -> Any:
        """A continuation: text for a text, tokens for tokens.

        Sampling: temperature (0 takes the likeliest token), top_k, top_p, min_p, repetition_penalty,
        presence_penalty, frequency_penalty, seed.  `stop` ends a text; `draft` is a smaller model that
        proposes tokens; `schema` is a JSON schema that the text follows.
        """
        if beams != 1:
            if temperature or sampling or draft is not None or stop or schema is not None:
                raise OperandError("generate: beams goes with max_new_tokens only")
            found = generation.beams(self, self.tokens_of(prompt), max_new_tokens, beams)
            return self.tokenizer.decode(found) if isinstance(prompt, str) else found
        new = self._new(prompt, max_new_tokens, temperature, draft, schema, sampling)
        if not isinstance(prompt, str):
            if stop:
                raise OperandError("generate: stop strings need a prompt that is text")
            return list(new)
        return "".join(generation.pieces(self, new, _strings(stop)))

    def stream(
        self,
        prompt: str | Sequence[int],
        max_new_tokens: int = LIMIT,
        temperature: float = 0.0,
        *,
        stop: str | Sequence[str] = (),
        draft: LanguageModel | None = None,
        schema: Any = None,
        **sampling: Any,
    ) -> Iterator[str]:
        """The text of a continuation piece by piece, as it is generated."""
        new = self._new(prompt, max_new_tokens, temperature, draft, schema, sampling)
        return generation.pieces(self, new, _strings(stop))

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Iterator[str]:
        """The reply to messages, {"role": ..., "content": ...} each, piece by piece."""
        return self.stream(generation.chat_prompt(self, messages), **options)

    def perplexity(self, text: str | Sequence[int]) -> float:
        """exp of the mean surprise at each token of a text but the first."""
        return generation.perplexity(self, self.tokens_of(text))

    def embed(self, texts: str | Sequence[str]) -> Tensor:
        """Embeddings (texts, width) of length one, or (width,) of a single text: means of hidden states."""
        if isinstance(texts, str):
            return tensor(self.embed_tokens(self.tokens_of(texts)))
        return tensor(np.stack([self.embed_tokens(self.tokens_of(t)) for t in texts]))

    def embed_tokens(self, ids: Sequence[int]) -> Array:
        """The embedding of one text's tokens."""
        mean = self.hidden(ids).numpy().mean(0, dtype=np.float32)
        out: Array = mean / max(np.sqrt((mean * mean).sum()), np.float32(1e-12))
        return out

    def _new(
        self,
        prompt: Any,
        limit: int,
        temperature: float,
        draft: LanguageModel | None,
        schema: Any,
        sampling: dict[str, Any],
    ) -> Iterator[int]:
        known = set(Sampling.__dataclass_fields__)
        unknown = sampling.keys() - known
        if unknown:
            raise OperandError(
                f"generate: got {min(unknown)!r}, expected options among {', '.join(sorted(known))}"
            )
        chosen = Sampling(temperature=temperature, **sampling)
        return generation.tokens(self, self.tokens_of(prompt), limit, chosen, draft, schema)


def _strings(stop: str | Sequence[str]) -> list[str]:
    out = [stop] if isinstance(stop, str) else list(stop)
    if not all(out):
        raise OperandError(f"generate: stop is {stop!r}, expected texts that are not empty")
    return out
