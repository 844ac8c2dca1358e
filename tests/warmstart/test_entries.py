"""An entry is served as it was stored, by its own user, or not at all; old ones make room."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from firstlight.warmstart.entries import LEASE, Entries
from firstlight.warmstart.store import Store

VALUE = bytes(range(256)) * 4


def file_of(entries: Entries, key: str) -> Path:
    return Path(entries.path(key))


def test_an_entry_is_served_under_its_own_key_only(entries: Entries) -> None:
    stored = {f"jit_f-{number}": os.urandom(number * 100) for number in range(20)}
    for key, value in stored.items():
        entries.write(key, value)
    assert {key: entries.read(key) for key in stored} == stored
    assert entries.read("jit_g-1") is None


def test_an_entry_with_a_flipped_bit_is_removed_and_not_served(store: Store) -> None:
    draw = random.Random(1)
    path = file_of(store._entries, "key")
    for _ in range(1000):
        store.put("key", VALUE)
        content = bytearray(path.read_bytes())
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
        assert store.get("key") is None  # and this thread has the lease to compile it
        assert not path.exists()
    store.put("key", VALUE)
    assert store.get("key") == VALUE


def test_a_truncated_or_extended_entry_is_not_served(entries: Entries) -> None:
    path = file_of(entries, "key")
    entries.write("key", VALUE)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert entries.read("key") is None
    path.write_bytes(whole + b"\0")
    assert entries.read("key") is None


def test_an_entry_under_the_name_of_another_key_is_not_served(entries: Entries) -> None:
    entries.write("key", VALUE)
    entries.write("other", b"another program")
    os.replace(entries.path("other"), entries.path("key"))
    assert entries.read("key") is None


def test_an_entry_that_another_user_wrote_or_could_have_written_is_not_served(
    entries: Entries, belongs_to_another: Callable[[Path], None]
) -> None:
    for key, change in (
        ("writable by all", lambda path: path.chmod(0o666)),
        ("writable by the group", lambda path: path.chmod(0o620)),
        ("of another user", belongs_to_another),
    ):
        entries.write(key, VALUE)
        change(file_of(entries, key))
        assert entries.read(key) is None


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_folder_or_a_pipe_in_place_of_an_entry_does_not_block(
    make: Callable[[str], None], entries: Entries
) -> None:
    entries.write("key", VALUE)
    os.unlink(entries.path("key"))
    make(entries.path("key"))
    assert entries.read("key") is None


def test_a_link_to_an_entry_is_not_followed(entries: Entries, tmp_path: Path) -> None:
    entries.write("key", VALUE)
    path = file_of(entries, "key")
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert entries.read("key") is None
    assert (tmp_path / "elsewhere").exists() and not path.is_symlink()


def test_only_the_user_can_read_what_is_stored(entries: Entries) -> None:
    entries.write("key", VALUE)
    path = file_of(entries, "key")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_hits_misses_and_puts_read_no_folder(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a folder was read")

    monkeypatch.setattr("firstlight.warmstart.entries.random", lambda: 0.999)
    for name in ("scandir", "listdir", "walk"):
        monkeypatch.setattr(os, name, refuse)
    for number in range(300):
        assert store.get(f"key {number}") is None
        store.put(f"key {number}", VALUE)
        assert store.get(f"key {number}") == VALUE


def test_the_size_bound_holds_and_the_least_recently_used_entries_go_first(tmp_path: Path) -> None:
    """Every put is more than a sixteenth of the bound, so that each one counts the entries."""
    entries = Entries(str(tmp_path), "kind", max_bytes=10_000)
    other = Entries(str(tmp_path), "a JAX of last year", max_bytes=10_000)
    other.write("old", bytes(1000))
    os.utime(other.path("old"), (0, 0))
    for number in range(30):
        entries.write(f"key {number}", bytes(1000))
        os.utime(entries.path(f"key {number}"), (number + 1, number + 1))
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in files) <= 10_000
        assert entries.read("key 0") is not None  # which is a use of it
        assert entries.read(f"key {number}") is not None
    assert other.read("old") is None
    assert entries.read("key 1") is None


def test_a_value_larger_than_the_bound_is_not_stored(tmp_path: Path) -> None:
    entries = Entries(str(tmp_path), "kind", max_bytes=100)
    entries.write("key", bytes(101))
    assert entries.read("key") is None


def test_files_that_killed_processes_left_are_removed_after_a_day(entries: Entries) -> None:
    entries.write("key", VALUE)
    path = entries.path("key")
    for suffix in (LEASE, ".1234.unfinished"):
        for age, stays in ((2 * 86_400, False), (60, True)):
            remains = Path(path + suffix)
            remains.touch()
            now = remains.stat().st_mtime
            os.utime(remains, (now - age, now - age))
            entries.sweep()
            assert remains.exists() is stays
    assert entries.read("key") == VALUE
