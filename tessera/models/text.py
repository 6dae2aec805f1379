"""Text of tokens as they come: whole characters at a time, up to the first stop string."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.models.tokenizer import Tokenizer

UNFINISHED = "\ufffd"  # what the bytes of half a character are decoded to


class TextStream:
    """Tokens in, text out; each token decodes the few before it again, never the whole text."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()):
        self.stopped = False
        self._tokenizer, self._stop = tokenizer, stop
        self._ids: list[int] = []  # from the last but one place between whole characters
        self._whole = 0  # tokens up to the last such place
        self._taken = 0  # characters of their text that are in the buffer or given
        self._buffer = ""  # what may begin a stop string

    def push(self, token: int) -> str:
        """The text that is certain once this token is known."""
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids)
        whole = text.rstrip(UNFINISHED)
        self._take(whole)
        if len(whole) == len(text):
            self._ids, self._whole = self._ids[self._whole :], len(self._ids) - self._whole
            self._taken = len(self._tokenizer.decode(self._ids))
        return self._certain()

    def finish(self) -> str:
        """The rest of the text when no token follows."""
        if self.stopped:
            return ""
        self._take(self._tokenizer.decode(self._ids))
        out, self._buffer = self._buffer, ""
        return out

    def _take(self, text: str) -> None:
        self._buffer += text[self._taken :]
        self._taken = max(self._taken, len(text))

    def _certain(self) -> str:
        found = [at for s in self._stop if (at := self._buffer.find(s)) >= 0]
        if found:
            self.stopped = True
            return self._buffer[: min(found)]
        starts = (n for s in self._stop for n in range(1, len(s)) if self._buffer.endswith(s[:n]))
        keep = len(self._buffer) - max(starts, default=0)
        out, self._buffer = self._buffer[:keep], self._buffer[keep:]
        return out
