"""A reply that is being generated, and what its listener hears of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tessera.models.blocks import Array
from tessera.models.sampling import Sampling
from tessera.models.text import TextStream


@dataclass(frozen=True)
class ReplyToken:
    """One more token: the text that is certain with it, and its log-probability beside the likeliest ones."""

    token: int
    text: str
    logprob: float | None = None
    top: Sequence[tuple[int, float]] = ()


@dataclass(frozen=True)
class ReplyDone:
    """The end of a reply: stop, length, or error with a status and a message; and the last text."""

    reason: str
    text: str = ""
    status: int = 200
    message: str = ""
    shared: int = 0  # tokens of the prompt that were found in the prefix cache


Event = ReplyToken | ReplyDone
Rule = Callable[[Array, Sequence[int], int], Array]  # logits, new tokens, tokens left: other logits


@dataclass(eq=False)
class ReplyJob:
    """A prompt, how its reply is chosen, and how far it is."""

    prompt: list[int]
    limit: int
    sampling: Sampling
    listener: Callable[[Event], None]
    text: TextStream
    rules: Sequence[Rule] = ()
    logprobs: int | None = (
        None  # how many of the likeliest tokens are told; None: no log-probabilities
    )
    deadline: float = float("inf")
    ended: Callable[[Sequence[int]], bool] | None = (
        None  # whether a reply is complete with its tokens
    )

    arrival: int = 0
    submitted: float = 0.0
    new: list[int] = field(default_factory=list)
    computed: int = 0  # positions whose keys and values are in pages
    shared: int = 0  # positions of the prompt that others had computed
    pages: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)  # of full pages that have been named
    cancelled: bool = False

    @property
    def length(self) -> int:
        """Tokens of prompt and reply so far."""
        return len(self.prompt) + len(self.new)

    def tokens(self, start: int, end: int) -> list[int]:
        """Tokens of prompt and reply between two places."""
        first = len(self.prompt)
        if end <= first:
            return self.prompt[start:end]
        return self.prompt[start:first] + self.new[max(start - first, 0) : end - first]

    @property
    def pending(self) -> int:
        """Tokens that the model has not seen."""
        return self.length - self.computed


def ruled(rules: Sequence[Rule], logits: Array, new: Sequence[int], left: int) -> Array:
    """Logits after all rules."""
    for rule in rules:
        logits = rule(logits, new, left)
    return logits
