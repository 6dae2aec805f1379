"""Checkpoints of a run: one file a step in a folder, the last few of which are kept."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

from tessera.core.blame import blames_arguments
from tessera.core.errors import FileError, OperandError
from tessera.core.public import public
from tessera.core.ranks import engine
from tessera.core.source import warn_caller
from tessera.files.atomic import claim, clear_abandoned
from tessera.files.index import INDEX, shards_of
from tessera.files.load import load
from tessera.files.save import save
from tessera.files.sharded import agree, told_all

_NAME = re.compile(r"step-(\d{8,})\.safetensors(\.index\.json)?")
_SHARD = re.compile(r"step-\d{8,}\.[0-9a-f]{8}-\d{5}-of-\d{5}\.safetensors")


_INSTEAD = {
    "load": "checkpoints.restore(like)",
    "restore_checkpoint": "checkpoints.restore(like)",
    "latest_step": "checkpoints.steps()[-1]",
    "all_steps": "checkpoints.steps()",
    "latest": "checkpoints.restore(like)",
    "save_checkpoint": "checkpoints.save(step, tree)",
    "state_dict": "checkpoints.save(step, tree)",
    "close": "nothing: a checkpoint is on the disk when save returns",
    "wait_until_finished": "nothing: a checkpoint is on the disk when save returns",
}


@public("checkpoints", _INSTEAD)
class Checkpoints:
    """Files step-00000100.safetensors in a folder: saved every so many steps or seconds, the last `keep`
    are kept.
    """

    @blames_arguments
    def __init__(
        self,
        folder: str | os.PathLike[str],
        every: int | None = None,
        seconds: float | None = None,
        keep: int = 3,
    ):
        for name, x in (("every", every), ("seconds", seconds), ("keep", keep)):
            if x is not None and x <= 0:
                raise OperandError(f"Checkpoints: {name} is {x}, expected a positive number")
        self.folder, self.every, self.seconds, self.keep = Path(folder), every, seconds, keep
        self._last = time.monotonic()
        self._claimed = False

    def path(self, step: int) -> Path:
        """The file of a step."""
        return self.folder / f"step-{step:08d}.safetensors"

    def steps(self) -> list[int]:
        """The steps whose files are there, in order."""
        if not self.folder.is_dir():
            return []
        found = (_NAME.fullmatch(p.name) for p in self.folder.iterdir())
        return sorted({int(m[1]) for m in found if m})

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint should be saved after this many steps."""
        if self.every is not None and step % self.every == 0:
            return True
        if self.seconds is None:
            return False
        late = time.monotonic() - self._last >= self.seconds
        return late if engine().size == 1 else told_all("clock", str(int(late)))[0] == "1"

    def save(self, step: int, tree: Any) -> None:
        """Save the file of a step, then remove those that are too old."""
        self._claim()
        save(self.path(step), tree)
        self._last = time.monotonic()
        if engine().rank == 0:
            for old in self.steps()[: -self.keep]:
                self._remove(self.path(old))
            self._remove_abandoned()

    def _claim(self) -> None:
        """Refuse a folder that another run saves in, on all ranks."""
        if self._claimed:
            return
        error = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if engine().rank == 0:
                claim(self.folder)
        except OSError as e:
            error = f"save: cannot make {self.folder}: {e.strerror or e}"
        except FileError as e:
            error = e.message
        if engine().size > 1:
            agree("claim", error)
        elif error is not None:
            raise FileError(error)
        self._claimed = True

    def _remove(self, path: Path) -> None:
        """Take away a file, or an index and then what it names."""
        index = path.with_name(path.name + INDEX)
        shards = shards_of(index)
        index.unlink(missing_ok=True)
        for name in (path.name, *shards):
            path.with_name(name).unlink(missing_ok=True)

    def _remove_abandoned(self) -> None:
        """Take away shards that no index names: their ranks were killed before all of them were there."""
        named = {n for s in self.steps() for n in shards_of(self._index(s))}
        for p in list(self.folder.iterdir()):
            if _SHARD.fullmatch(p.name) and p.name not in named:
                p.unlink(missing_ok=True)

    def _index(self, step: int) -> Path:
        path = self.path(step)
        return path.with_name(path.name + INDEX)

    def restore(self, like: Any) -> Any | None:
        """The newest tree that can be read; files that are damaged are passed over with a warning.

        A rank reads its own shards alone: what one of them finds damaged, all of them pass over.
        """
        for step in reversed(self._steps_of_all()):
            clear_abandoned(self.path(step))
            found, own = None, None
            try:
                found = load(self.path(step), like=like)
            except FileError as e:
                own = e
            errors = [t for t in told_all("restore", own.message if own else "") if t.strip()]
            if not errors:
                return found
            for text in errors:
                if "damaged" not in text and "truncated" not in text:
                    raise own or FileError(text)
            warn_caller(f"train: {errors[0]}; an older checkpoint is used")
        return None

    def _steps_of_all(self) -> list[int]:
        """The steps that the first rank finds."""
        told = told_all("steps", " ".join(map(str, self.steps())))[0]
        return [int(s) for s in told.split()]
