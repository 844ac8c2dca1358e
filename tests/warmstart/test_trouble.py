"""Whatever is wrong with the folder of the cache, the program runs, after one warning."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firstlight.warmstart import folder
from firstlight.warmstart.entries import Entries
from firstlight.warmstart.leases import Leases
from firstlight.warmstart.store import Store


def used(store: Store) -> list[bytes | None]:
    """What a program that compiles two things, twice each, is given."""
    found = []
    for key in ("a", "a", "b", "b"):
        value = store.get(key)
        found.append(value)
        if value is None:
            store.put(key, b"program " + key.encode())
    return found


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_a_folder_that_is_not_writable_causes_one_warning(
    number: int, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.open

    def refuse(path: str, flags: int, *more: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(number, os.strerror(number))
        return really(path, flags, *more)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.warns(RuntimeWarning) as said:
        assert used(store) == [None] * 4
    assert len(said) == 1
    text = str(said[0].message)
    assert os.strerror(number) in text and "FIRSTLIGHT_CACHE_DIR" in text


def test_a_disk_that_fills_up_within_an_entry_leaves_nothing_of_it(
    store: Store, entries: Entries, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.get("key") is None

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(RuntimeWarning, match="No space left"):
        store.put("key", b"program")
    assert os.listdir(os.path.dirname(entries.path("key"))) == []


def test_a_file_system_that_gives_new_files_to_others_causes_one_warning(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firstlight.warmstart.entries.is_trusted", lambda status: False)
    with pytest.warns(RuntimeWarning, match="others could change") as said:
        assert used(store) == [None] * 4
    assert len(said) == 1


def test_a_read_only_folder_still_serves_its_entries(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("a", b"program a")

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "utime", refuse)
    assert store.get("a") == b"program a"  # and warnings are errors here


def test_the_program_runs_where_warnings_are_errors(
    entries: Entries, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(entries.folder).parent.mkdir(parents=True)
    Path(entries.folder).write_text("not a folder")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert used(Store(entries, Leases())) == [None] * 4
    assert capsys.readouterr().err.count("firstlight: compilation cache: nothing more") == 1


def test_an_unusable_folder_is_refused_with_what_to_do(
    tmp_path: Path, belongs_to_another: Callable[[Path], None]
) -> None:
    file, foreign, shared = tmp_path / "file", tmp_path / "foreign", tmp_path / "shared"
    file.write_text("")
    foreign.mkdir()
    shared.mkdir()
    shared.chmod(0o775)
    for path, why in (
        (file, "is not a folder"),
        (file / "below", "cannot be made: Not a directory"),
        (shared, "is open to others.*chmod go-w"),
        (foreign, "belongs to another user"),
    ):
        if path == foreign:  # last: this test may be another user from here on
            belongs_to_another(foreign)
        with pytest.raises(folder.CacheFolderError, match=f"{why}.*FIRSTLIGHT_CACHE_DIR"):
            folder.opened(str(path))


def test_a_users_folder_is_private_and_in_the_place_for_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    path = Path(folder.of_user())
    assert path == tmp_path / "caches" / "firstlight"
    assert Path(folder.opened(str(path))).parent == path
    assert path.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/ones/are/ignored")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert folder.of_user() == str(tmp_path / ".cache" / "firstlight")


def test_the_bound_of_the_folder_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder.max_bytes() == 4 * 2**30
    monkeypatch.setenv("FIRSTLIGHT_CACHE_MAX_BYTES", "1000")
    assert folder.max_bytes() == 1000
    monkeypatch.setenv("FIRSTLIGHT_CACHE_MAX_BYTES", "1G")
    with pytest.raises(folder.CacheFolderError, match="whole number of bytes"):
        folder.max_bytes()


def test_kinds_of_machines_differ_in_versions_and_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = folder.kind_name("0.10.2", "0.10.2")
    assert here == folder.kind_name("0.10.2", "0.10.2")
    names = {here, folder.kind_name("0.11.0", "0.10.2"), folder.kind_name("0.10.2", "0.10.1")}
    monkeypatch.setattr(folder, "_processor", lambda: "another")
    names.add(folder.kind_name("0.10.2", "0.10.2"))
    assert len(names) == 4
