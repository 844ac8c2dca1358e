"""The folder of a site: written beside the old one, swapped in when complete."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Self

from firstlight.errors import FirstlightError
from firstlight.site.snapshot_facts import Facts


class SiteFolderError(FirstlightError):
    """The folder for the site cannot be used."""


class SiteFolder:
    """A new site, which replaces the one at `out` with `swap_in`."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self._old = _record_of(out)
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            self._new = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
            os.chmod(self._new, 0o755)
        except OSError as error:
            raise SiteFolderError(f"{out}: cannot be written: {error.strerror}.") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self._new, ignore_errors=True)

    def earlier(self, circumstances: Facts) -> Facts:
        """The old site's records by snapshot; {} if it was built under other circumstances."""
        same = self._old.get("circumstances") == circumstances
        snapshots = self._old.get("snapshots") if same else None
        return snapshots if isinstance(snapshots, dict) else {}

    def write(self, path: str, data: bytes) -> None:
        """Write a file of the new site."""
        target = self._new / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        except OSError as error:
            raise SiteFolderError(f"{target}: cannot be written: {error.strerror}.") from None

    def keep(self, path: str) -> bool:
        """Take a file over from the old site; False if that is not possible."""
        target = self._new / path
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            _link_or_copy(str(self.out / path), str(target))
        except OSError:
            return False
        return True

    def take_over(self, path: str) -> Facts | None:
        """Take a folder over from the old site; its `data.json`, or None if not possible."""
        source, target = self.out / path, self._new / path
        try:
            facts: Facts = json.loads((source / "data.json").read_bytes())
            if not (source / "index.html").is_file():
                return None
            # Hard links are safe: nothing ever writes into a file of an existing site.
            shutil.copytree(source, target, copy_function=_link_or_copy)
        except (OSError, ValueError, shutil.Error):
            shutil.rmtree(target, ignore_errors=True)
            return None
        return facts

    def swap_in(self) -> None:
        """Replace the old site with the new one."""
        aside = self._new.with_name(f"{self._new.name}-old")
        try:
            with contextlib.suppress(FileNotFoundError):
                os.rename(self.out, aside)
            os.rename(self._new, self.out)
        except OSError as error:
            if aside.exists():
                os.rename(aside, self.out)
            raise SiteFolderError(f"{self.out}: cannot be replaced: {error.strerror}.") from None
        shutil.rmtree(aside, ignore_errors=True)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copyfile(source, target)


def _record_of(out: Path) -> Facts:
    """`build.json` of the site at `out`; {} if `out` is empty or absent. Refuses other folders."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return {}
    try:
        record: Facts = json.loads((out / "build.json").read_bytes())
        if record["schema"] != "firstlight.site.build":
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError):
        raise SiteFolderError(
            f"{out}: exists and is not a site built by Firstlight. Nothing is overwritten: give "
            "another --out."
        ) from None
    return record
