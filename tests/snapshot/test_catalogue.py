"""Many snapshots in one store: a directory, memory, a real S3 server on this machine."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import re
from pathlib import Path
from typing import IO

import fsspec
import pytest
from made_up_run import CASES, make_run

from firstlight.snapshot.archive import write_archive
from firstlight.snapshot.catalogue import ALL, Catalogue
from firstlight.snapshot.errors import StorageError, UnusableSnapshotError
from firstlight.snapshot.keys import PrivateKey
from firstlight.snapshot.layout import INDEX
from firstlight.snapshot.opening import open_snapshot
from firstlight.snapshot.publishing import Published, publish
from firstlight.snapshot.storage import LocalStore, Store, open_store
from firstlight.snapshot.verifying import verify

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    base = tmp_path_factory.mktemp("runs")
    return [make_run(base / str(n), number=n, cases=CASES[:1]) for n in range(4)]


@pytest.fixture(params=["directory", "memory"])
def near(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "directory":
        return str(tmp_path / "results")
    fsspec.filesystem("memory").rm("/", recursive=True)
    return "memory://results"


@pytest.fixture(params=["directory", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "directory":
        return str(tmp_path / "results")
    if request.param == "memory":
        fsspec.filesystem("memory").rm("/", recursive=True)
        return "memory://results"
    url: str = request.getfixturevalue("s3")
    return f"{url}/{tmp_path.name}"


def write(store: Store, name: str, data: bytes) -> None:
    store.write(name, data)


def test_snapshots_work_in_every_kind_of_store(
    place: str, runs: list[Path], key: PrivateKey
) -> None:
    store = open_store(place)
    done = publish(runs[:2], store, key=key, archive=True)
    assert done.location == f"{place}/{done.id}" and done.new
    assert not publish(runs[:2], store, key=key).new
    here = open_snapshot(done.location)
    assert here.id == done.id and len(here.runs) == 2
    for where in (done.location, str(done.archive)):
        result = verify(where)
        assert result.findings == () and result.signature == "valid", result
    write(store, f"{done.id}/more.txt", b"more")
    assert "'more.txt' is not in the index" in verify(done.location).findings[0].message


def test_a_changed_file_is_found_in_every_kind_of_store(near: str, runs: list[Path]) -> None:
    store = open_store(near)
    done = publish(runs[:1], store)
    write(store, f"{done.id}/snippet.md", b"other words")
    assert "snippet.md" in verify(done.location).findings[0].message


def test_the_list_shows_what_was_published_newest_first(
    place: str, runs: list[Path], key: PrivateKey
) -> None:
    store = open_store(place)
    assert Catalogue(place).list() == []
    done = [publish([run], store, key=key if n else None) for n, run in enumerate(runs)]
    entries = Catalogue(place).list()
    assert [e.id for e in entries] == [d.id for d in done][::-1]
    newest = entries[0]
    assert newest.created_at.startswith("2026-03-01T09:18:0")
    assert newest.cases == ("matmul[small]/numpy/none",)
    assert (newest.cases_total, newest.cases_passed) == (1, 1)
    assert newest.machine == "Made-up CPU, 8 cores" and newest.harness == "0.1.0"
    assert newest.signer == key.public.id and entries[-1].signer is None
    assert newest.files == done[-1].files - 2  # the index and the signature are not in the index


def test_the_catalogue_is_only_a_cache(near: str, runs: list[Path]) -> None:
    """The list is right however its files are damaged."""
    store = open_store(near)
    done = [publish([run], store) for run in runs[:3]]
    ids = {d.id for d in done}
    catalogue = Catalogue(store)
    before = catalogue.list()
    catalogue.gather()
    assert catalogue.list() == before
    entry = f"catalogue/entries/{done[0].id}.json"
    one = store.read(entry, 1 << 20)
    assert one is not None
    for damage in (b"", b"not json\n", one, one.replace(b'"id":"', b'"id":"0'), b'{"id": 5}\n'):
        write(store, ALL, damage)
        assert catalogue.list() == before, damage
    write(store, entry, b"damaged")
    write(store, ALL, b"")
    assert catalogue.look() == (before, {})  # the missing entry is made from its snapshot
    assert store.read(entry, 1 << 20) == b"damaged"  # and a listing writes nothing
    assert {e.id for e in before} == ids
    rebuilt, refused = catalogue.rebuild()
    assert rebuilt == before and refused == {} and catalogue.list() == before


def test_a_half_written_snapshot_is_not_listed(near: str, runs: list[Path]) -> None:
    store = open_store(near)
    done = publish(runs[:1], store)
    half = "ab" * 32
    write(store, f"{half}/snippet.md", b"words")
    entries, refused = Catalogue(store).look()
    assert [e.id for e in entries] == [done.id] and "interrupted" in refused[half]
    _, refused = Catalogue(store).rebuild()
    assert "interrupted" in refused[half]
    with pytest.raises(UnusableSnapshotError, match="interrupted"):
        verify(f"{near}/{half}")


def test_a_listing_makes_only_a_few_of_many_missing_entries_and_names_the_rest(
    runs: list[Path], store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    from firstlight.snapshot import catalogue

    ids = sorted(publish([run], store).id for run in runs[:3])
    shutil.rmtree(store.path / "catalogue")
    monkeypatch.setattr(catalogue, "_MAX_MADE", 2)
    entries, refused = Catalogue(store).look()
    assert sorted(e.id for e in entries) == ids[:2]
    assert list(refused) == ids[2:] and "--rebuild" in refused[ids[2]]


def test_publishing_over_a_damaged_snapshot_is_refused_and_changes_nothing(
    place: str, runs: list[Path], key: PrivateKey
) -> None:
    store = open_store(place)
    done = publish(runs[:1], store, key=key)
    manifest = store.read(f"{done.id}/manifest.json", 1 << 24)
    assert manifest is not None
    for name, data in (("manifest.json", manifest + b"x"), ("more.txt", b"more")):
        write(store, f"{done.id}/{name}", data)
        with pytest.raises(StorageError, match=f"exists but is damaged.*{name}.*Move it away"):
            publish(runs[:1], store, key=key)
        assert store.read(f"{done.id}/{name}", 1 << 24) == data
        write(store, f"{done.id}/manifest.json", manifest)
        assert name == "more.txt" or not publish(runs[:1], store, key=key).new


def test_a_folder_without_its_index_is_reported_as_damaged(
    runs: list[Path], store: LocalStore
) -> None:
    folder = Path(publish(runs[:1], store).location)
    (folder / INDEX).unlink()
    with pytest.raises(StorageError, match=r"damaged: index\.json is missing"):
        publish(runs[:1], store)
    folder.rename(store.path / "away")
    assert publish(runs[:1], store).new
    (store.path / "away").rename(store.path / "further")
    import shutil

    shutil.rmtree(folder)
    folder.write_text("in the way")
    with pytest.raises(StorageError, match="not a folder"):
        publish(runs[:1], store)


def test_an_archive_that_cannot_be_written_leaves_a_listed_snapshot_and_nothing_else(
    runs: list[Path], store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = os.fsync

    def full(descriptor: int) -> None:
        if os.fstat(descriptor).st_size > 100_000:  # only the archive is so large
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        synced(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"No space left.*The snapshot itself was written"):
        publish(runs[:1], store, archive=True)
    (entry,) = Catalogue(store).list()
    assert sorted(os.listdir(store.path)) == sorted([entry.id, "catalogue"])
    assert (store.path / "catalogue" / "entries" / f"{entry.id}.json").is_file()
    monkeypatch.undo()
    assert publish(runs[:1], store, archive=True).archive is not None


def test_leftovers_of_a_killed_publisher_are_removed_after_a_day(
    runs: list[Path], store: LocalStore
) -> None:
    dead, young, file = (store.path / f".publishing-{name}" for name in ("dead", "young", "file"))
    for folder in (dead, young):
        (folder / "runs").mkdir(parents=True)
        (folder / "runs" / "x").write_text("half")
    file.write_text("half an archive")
    for path in (dead, file):
        os.utime(path, (0, 0))
    publish(runs[:1], store)
    assert [path.exists() for path in (dead, young, file)] == [False, True, False]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("s3:/bucket/x", "s3://bucket/x"),
        ("s3:bucket/x", "s3://bucket/x"),
        ("https:/example.org/x", "https://example.org/x"),
        ("file:/tmp/x", "/tmp/x"),
        ("file:x", "x"),
        ("file://localhost/tmp/x", "/tmp/x"),
        ("file://results/x", "results/x"),
        ("", "Give a directory"),
    ],
)
def test_a_malformed_url_is_refused_instead_of_naming_a_folder(
    text: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = meant if not text else f"(?i)did you mean {re.escape(meant)}\\?"
    for opening in (open_store, verify):
        with pytest.raises(StorageError, match=said):
            opening(text)
    assert not list(tmp_path.iterdir())


def test_folders_with_colons_and_file_urls_can_be_published_to(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for place, path in (("./s3:/x", "s3:/x"), (f"file://{tmp_path}/y", "y"), ("a:b", "a:b")):
        done = publish(runs[:1], open_store(place))
        assert (tmp_path / path / done.id / INDEX).is_file()


def test_a_server_that_does_not_answer_is_not_a_missing_file(runs: list[Path]) -> None:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound, but not listening
        url = f"http://127.0.0.1:{free.getsockname()[1]}/x"
        for where in (url, f"{url}.tar"):
            with pytest.raises(StorageError, match="cannot be reached: connection refused"):
                verify(where)
        with pytest.raises(StorageError, match="read-only"):
            publish(runs[:1], open_store(url))


def test_an_unreadable_file_is_reported_with_its_snapshot(
    runs: list[Path], store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from firstlight.snapshot.sources import Directory

    done = publish(runs[:1], store)
    really = Directory._open

    def refusing(self: Directory, path: str) -> IO[bytes]:
        if path == "manifest.json":  # not by its mode: root may read everything
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return really(self, path)

    monkeypatch.setattr(Directory, "_open", refusing)
    for reading in (verify, open_snapshot):
        with pytest.raises(StorageError) as said:
            reading(done.location)
        assert (
            str(said.value) == f"{done.location}/manifest.json: cannot be read: Permission denied."
        )


def test_an_archive_with_the_name_of_another_is_found_and_errors_name_the_file(
    runs: list[Path], store: LocalStore, tmp_path: Path
) -> None:
    one, other = (publish([run], store, archive=True) for run in runs[:2])
    data = Path(str(one.archive)).read_bytes()
    for name in (f"{other.id}.tar", f"{'0' * 64}.tar.gz"):
        (tmp_path / name).write_bytes(data)
        assert "its id is " + one.id in verify(tmp_path / name).findings[0].message
    (tmp_path / "paper.tar").write_bytes(data)
    assert verify(tmp_path / "paper.tar").findings == ()
    # Its own name with the id of another in every header is not valid either.
    forged = tmp_path / f"{one.id}.tar"
    with open(forged, "wb") as file:
        files = {item.path: item.content.read(1 << 24)
                 for item in store.source(one.id).walk() if item.content is not None}  # fmt: skip
        write_archive(file, other.id, files)
    assert verify(forged).findings != ()
    for cut in (100, 700, len(data) // 2):
        (tmp_path / "cut.tar").write_bytes(data[:cut])
        with pytest.raises(UnusableSnapshotError, match=r"cut\.tar: the archive is truncated"):
            verify(tmp_path / "cut.tar")


def test_an_entry_of_a_deleted_snapshot_is_not_listed(runs: list[Path], store: LocalStore) -> None:
    import shutil

    done = [publish([run], store) for run in runs[:2]]
    Catalogue(store).gather()
    shutil.rmtree(done[0].location)
    assert [e.id for e in Catalogue(store).list()] == [done[1].id]


def test_a_folder_with_the_index_of_another_is_not_rebuilt(
    runs: list[Path], store: LocalStore
) -> None:
    done = [publish([run], store) for run in runs[:2]]
    index = (Path(done[0].location) / INDEX).read_bytes()
    (Path(done[1].location) / INDEX).write_bytes(index)
    _, refused = Catalogue(store).rebuild()
    assert list(refused) == [done[1].id]


def _publish_one(run: Path, place: Path) -> str:
    """Publish and gather every time: the worst case for concurrent publishers."""
    store = LocalStore(place)
    done: Published = publish([run], store)
    Catalogue(store).gather()
    return done.id


def test_concurrent_publishers_lose_nothing(runs: list[Path], tmp_path: Path) -> None:
    jobs = [(run, tmp_path / "store") for run in runs * 3]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        ids = pool.starmap(_publish_one, jobs)
    assert {e.id for e in Catalogue(tmp_path / "store").list()} == set(ids)
    for snapshot_id in set(ids):
        assert verify(tmp_path / "store" / snapshot_id).findings == ()
    assert not list((tmp_path / "store").glob(".*"))


def test_links_and_pipes_in_a_store_do_not_mislead_the_catalogue(
    runs: list[Path], store: LocalStore, tmp_path: Path
) -> None:
    """Links are not written through, pipes are not waited for."""
    (tmp_path / "elsewhere").mkdir()
    store.path.mkdir()
    (store.path / "catalogue").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="leads out"):
        publish(runs[:1], store)
    assert not list((tmp_path / "elsewhere").rglob("*.json"))
    (store.path / "catalogue").unlink()
    done = publish(runs[:1], store)
    (store.path / ALL).unlink(missing_ok=True)  # one publisher of 64 gathers the entries
    os.mkfifo(store.path / ALL)
    assert [e.id for e in Catalogue(store).list()] == [done.id]


def test_an_unwritable_place_is_reported(runs: list[Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="cannot be written"):
        publish(runs[:1], LocalStore(tmp_path / "file" / "store"))
    with pytest.raises(StorageError, match="nonsense"):
        open_store("nonsense://x")


def test_a_missing_bucket_is_not_created(runs: list[Path], s3: str) -> None:
    with pytest.raises(StorageError, match="cannot be written"):
        publish(runs[:1], open_store("s3://nobody/results"))
    assert not fsspec.filesystem("s3").exists("nobody")


def test_over_http_verify_reports_that_it_cannot_list_files(
    runs: list[Path], store: LocalStore, tmp_path: Path
) -> None:
    """A plain file server, like that of a static site."""
    import functools
    import http.server
    import threading

    done = publish(runs[:1], store)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(store.path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        result = verify(f"http://127.0.0.1:{server.server_port}/{done.id}")
        server.shutdown()
    assert result.findings == ()
    assert any("further files" in text for text in result.not_checked)


def test_the_json_of_the_list_has_the_ids_of_the_folders(
    runs: list[Path], store: LocalStore, capsys: pytest.CaptureFixture[str]
) -> None:
    from firstlight.cli import main

    done = publish(runs[:1], store)
    assert main(["snapshots", str(store.path), "--json", "--case", "matmul"]) == 0
    assert [e["id"] for e in json.loads(capsys.readouterr().out)] == [done.id]
    assert main(["snapshots", str(store.path), "--case", "nothing"]) == 0
    assert "No snapshots" in capsys.readouterr().err
