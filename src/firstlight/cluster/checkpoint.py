"""Finished pieces of a job in a folder, each written atomically, so that a kill loses none.

checkpoint.json     what the job is
piece-000042.npz    the arrays of one piece; the zip format has their checksums
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from firstlight.cluster.errors import CheckpointError
from firstlight.folder_lock import hold
from firstlight.whole_files import write_bytes, write_text

FORMAT = 1
#: In every piece: which job it belongs to.
_OF = "_of"
Arrays = dict[str, np.ndarray[Any, Any]]


class Checkpoint:
    """The folder of one job, locked by one process at a time."""

    def __init__(self, path: Path, identity: Mapping[str, str], resume: bool) -> None:
        """Begin in a new folder, or continue what is there.

        identity: what the results depend on, by name; a checkpoint of another job is refused.
        """
        self.path = path
        self._of = hashlib.sha256(json.dumps([*identity.items()]).encode()).hexdigest()[:16]
        known = path / "checkpoint.json"
        if resume and not known.is_file():
            raise CheckpointError(
                f"{path}: there is no checkpoint to resume. Leave out --resume to begin one."
            )
        if not resume and path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise CheckpointError(
                f"{path} exists and is not empty. Continue what is there with --resume, or give "
                "another folder."
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = hold(path)
        except OSError as error:
            raise self._unwritable(error) from None
        if lock is None:
            raise CheckpointError(f"{path}: another process is working on it.")
        self._lock = lock
        try:
            if resume:
                self._require_same(known, identity)
                for unfinished in path.glob(".piece-*.tmp"):
                    unfinished.unlink(missing_ok=True)
            else:
                write_text(known, json.dumps({"format": FORMAT, **identity}, indent=1) + "\n")
        except BaseException as error:
            self.close()
            raise self._unwritable(error) if isinstance(error, OSError) else error from None

    def close(self) -> None:
        self._lock.close()

    def finished(self) -> set[int]:
        """The numbers of the finished pieces."""
        return {int(file.stem.removeprefix("piece-")) for file in self.path.glob("piece-*.npz")}

    def keep(self, number: int, arrays: Arrays) -> None:
        content = io.BytesIO()
        np.savez(content, **arrays, **{_OF: np.array(self._of)})  # type: ignore[arg-type]
        try:
            write_bytes(self._file(number), content.getvalue())
        except OSError as error:
            raise self._unwritable(error) from None

    def load(self, number: int) -> Arrays:
        try:
            content = io.BytesIO(self._file(number).read_bytes())
            with np.load(content, allow_pickle=False) as stored:
                arrays = dict(stored)
            if str(arrays.pop(_OF)) != self._of:
                raise ValueError("it belongs to another checkpoint")
        except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
            raise CheckpointError(
                f"{self._file(number)} is damaged ({error}). Delete this file, then continue with "
                "--resume: only this piece is computed again."
            ) from None
        return arrays

    def _file(self, number: int) -> Path:
        return self.path / f"piece-{number:06d}.npz"

    def _require_same(self, known: Path, identity: Mapping[str, str]) -> None:
        try:
            before = json.loads(known.read_text())
        except ValueError:
            before = None
        if not isinstance(before, dict) or before.get("format") != FORMAT:
            raise CheckpointError(
                f"{known} is damaged or was written by another version of Firstlight. Start again "
                "in another folder."
            )
        now = {"format": FORMAT, **identity}
        differing = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        if differing:
            shown = "; ".join(f"{n}: {before.get(n)} there, {now.get(n)} here" for n in differing)
            raise CheckpointError(
                f"{self.path} is a checkpoint of something else ({shown}). Repeat the original "
                "command with --resume, or give another folder."
            )

    def _unwritable(self, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"{self.path}: {error.strerror or error}. What is finished is safe there: free some "
            "space or check its permissions, then continue with --resume."
        )
