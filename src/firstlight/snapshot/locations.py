"""How a user names a snapshot or a place: a path, an archive, a URL, the beginning of an id."""

from __future__ import annotations

import os
import re
from pathlib import Path

from firstlight.snapshot.archive import Archive
from firstlight.snapshot.errors import StorageError, UnusableSnapshotError
from firstlight.snapshot.layout import is_id
from firstlight.snapshot.sources import Directory, Source

#: So many digits of an id, and it is asked which one is meant.
_BEGINNING = re.compile(r"[0-9a-f]{4,63}")
ARCHIVES = (".tar", ".tar.gz", ".tgz")
#: A URL that lacks a slash, which would be the name of a folder here.
_NEARLY_URL = re.compile(
    r"(?:[A-Za-z][A-Za-z0-9+.-]+:/|(?:s3a?|gc?s|az|abfs|https?|file|memory):)(?!/)", re.IGNORECASE
)


def full_location(location: str | Path) -> str:
    """The location with the beginning of an id, its last part, completed from what lies there."""
    text = os.fspath(location)
    folder, slash, name = text.rstrip("/").rpartition("/")
    beginning, dot, ending = name.partition(".")
    if not _BEGINNING.fullmatch(beginning):
        return text
    path = local_path(text)
    if path is not None:
        names = [] if path.exists() or not path.parent.is_dir() else os.listdir(path.parent)
    else:
        from firstlight.snapshot.remote import RemoteStore

        names = [f"{found}{dot}{ending}" for found in RemoteStore(folder).ids()]
    fitting = sorted(
        n for n in names if n.startswith(beginning) and is_id(n[:64]) and n[64:] == dot + ending
    )
    if len(fitting) > 1:
        raise UnusableSnapshotError(
            f"{text}: {len(fitting)} snapshots there begin with this ({fitting[0][:16]}…, "
            f"{fitting[1][:16]}…). Give more digits."
        )
    return f"{folder}{slash}{fitting[0]}" if fitting else text


def open_source(location: str | Path) -> Source:
    """The source for a directory, an archive, or a URL that fsspec knows."""
    text = full_location(location)
    path = local_path(text)
    if path is None:
        from firstlight.snapshot.remote import open_remote

        return open_remote(text)
    if path.is_dir():
        return Directory(path)
    if not path.is_file():
        raise UnusableSnapshotError(f"{path}: no such directory or archive.")
    if path.name.endswith(ARCHIVES):
        return Archive(str(path), lambda: open(path, "rb"))
    raise UnusableSnapshotError(
        f"{path}: not an archive. Give the directory of a snapshot, or its .tar."
    )


def local_path(text: str) -> Path | None:
    """The path of a place on this machine, or None for a URL; refuses what is nearly one."""
    if not text:
        raise StorageError("'' names no place. Give a directory (. for this one) or a URL.")
    nearly = _NEARLY_URL.match(text)
    if nearly is not None:
        scheme, slash = nearly.group().split(":")
        rest = text[nearly.end() :]
        meant = slash + rest if scheme.lower() == "file" else f"{scheme}://{rest}"
        raise StorageError(f"{text}: did you mean {meant}? (For a folder of that name: ./{text})")
    if not text.lower().startswith("file://"):
        return None if "://" in text else Path(text)
    rest = text[len("file://") :]
    if not rest.startswith("/"):
        meant = rest.partition("/")[2] if rest.startswith("localhost/") else rest
        raise StorageError(
            f"{text}: a path after file:// begins with a slash. Did you mean "
            f"{'/' if meant != rest else ''}{meant}?"
        )
    return Path(rest)
