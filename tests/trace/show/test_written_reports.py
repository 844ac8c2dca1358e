"""--json and --html write to what is there (a link, a pipe, a device) and do not replace it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from firstlight.records import write_text


def test_writing_to_a_link_writes_its_target(tmp_path: Path) -> None:
    target, link = tmp_path / "real" / "a.json", tmp_path / "a.json"
    target.parent.mkdir()
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink() and target.read_text() == "new"
    assert sorted(p.name for p in target.parent.iterdir()) == ["a.json"]


def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    write_text(pipe, "all of it")
    reader.join(10)
    assert read == ["all of it"] and pipe.is_fifo()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no such device here")
def test_a_full_device_is_an_error_and_stays(tmp_path: Path) -> None:
    link = tmp_path / "full"
    link.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space"):
        write_text(link, "x")
    assert link.is_symlink()


def test_a_file_is_complete_or_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")

    def fails(_: int) -> None:
        raise OSError("disk")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="disk"):
        write_text(path, "new")
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1
