"""Which pages of the pool are whose: pages in use are counted, full ones are found again
by what they hold.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

ROOT = b""  # the key of no page: what the first page of a text follows


def key_of(before: bytes, tokens: Sequence[int]) -> bytes:
    """The key of a full page: a hash of its tokens and of all before them."""
    return hashlib.sha256(before + np.asarray(tokens, np.int64).tobytes()).digest()


class PageTable:
    """Pages 0 to count - 1: free, in use, or idle, which is free but still holds what its key says.

    Keys and values of a page are a function of its tokens and those before, bit for bit, so it does not
    matter who computed them.
    """

    def __init__(self, count: int):
        self.count = count
        self._free = list(range(count - 1, -1, -1))
        self._users = [0] * count
        self._keys: list[bytes | None] = [None] * count
        self._found: dict[bytes, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # least recently used first

    @property
    def available(self) -> int:
        """Pages that can be taken now."""
        return len(self._free) + len(self._idle)

    @property
    def used(self) -> int:
        """Pages that sequences hold."""
        return self.count - self.available

    def unused(self) -> list[int]:
        """Pages that hold nothing that anybody will read."""
        return self._free[::-1]

    def take(self) -> int | None:
        """A free page, or None; evict an idle one when no page is free."""
        if self._free:
            page = self._free.pop()
        elif self._idle:
            page, _ = self._idle.popitem(last=False)
            self._forget(page)
        else:
            return None
        self._users[page] = 1
        return page

    def share(self, key: bytes) -> int | None:
        """The page that holds what a key says, with one user more, or None."""
        page = self._found.get(key)
        if page is not None:
            self._idle.pop(page, None)
            self._users[page] += 1
        return page

    def holds(self, key: bytes) -> int | None:
        """The page that holds what a key says, as it is."""
        return self._found.get(key)

    def idle(self, page: int) -> bool:
        """Whether no sequence uses a page."""
        return self._users[page] == 0

    def name(self, page: int, key: bytes) -> None:
        """Say what a page holds from now on; the first page of a key keeps it."""
        if key not in self._found:
            self._found[key], self._keys[page] = page, key

    def give(self, page: int) -> None:
        """One user less; a page without users is idle where it has a key, else free."""
        assert self._users[page] > 0, page
        self._users[page] -= 1
        if self._users[page]:
            return
        if self._keys[page] is None:
            self._free.append(page)
        else:
            self._idle[page] = None

    def _forget(self, page: int) -> None:
        key, self._keys[page] = self._keys[page], None
        assert key is not None, page
        del self._found[key]
