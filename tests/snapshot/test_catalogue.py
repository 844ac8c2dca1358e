"""Many snapshots in one place: a directory, memory, a real S3 server on this machine."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from made_up_run import CASES, make_run

from firstlight.snapshot.catalogue import ALL, Catalogue
from firstlight.snapshot.errors import StorageError, UnusableSnapshotError
from firstlight.snapshot.keys import PrivateKey
from firstlight.snapshot.layout import INDEX
from firstlight.snapshot.opening import open_snapshot
from firstlight.snapshot.publishing import Published, publish
from firstlight.snapshot.storage import LocalStore, Store, open_store
from firstlight.snapshot.verifying import verify


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    base = tmp_path_factory.mktemp("runs")
    return [make_run(base / str(n), number=n, cases=CASES[:1], calls=8) for n in range(4)]


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The URL of a bucket on a server that speaks S3 over HTTP."""
    moto = pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        }.items():
            patch.setenv(name, value)
        fsspec.filesystem("s3").mkdir("bucket")
        yield "s3://bucket/results"
        fsspec.filesystem("s3").clear_instance_cache()
    server.stop()


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


def test_a_snapshot_can_live_anywhere(place: str, runs: list[Path], key: PrivateKey) -> None:
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


def test_a_changed_file_is_found_anywhere(near: str, runs: list[Path]) -> None:
    store = open_store(near)
    done = publish(runs[:1], store)
    write(store, f"{done.id}/snippet.md", b"other words")
    assert "snippet.md" in verify(done.location).findings[0].message


def test_the_list_has_what_was_published_newest_first(
    place: str, runs: list[Path], key: PrivateKey
) -> None:
    store = open_store(place)
    assert Catalogue(place).list() == []
    done = [publish([run], store, key=key if n else None) for n, run in enumerate(runs)]
    entries = Catalogue(place).list()
    assert [e.id for e in entries] == [d.id for d in done][::-1]
    newest = entries[0]
    assert newest.created_at.startswith("2026-03-01T09:18:50")
    assert newest.cases == ("matmul[small]/numpy/none",)
    assert (newest.cases_total, newest.cases_passed) == (1, 1)
    assert newest.machine == "Made-up CPU, 8 cores" and newest.harness == "0.1.0"
    assert newest.signer == key.public.id and entries[-1].signer is None
    assert newest.files == done[-1].files - 2  # the index and the signature are not in the index


def test_the_catalogue_is_only_a_cache(near: str, runs: list[Path]) -> None:
    """Whatever happens to its files, what is listed is what is there."""
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
    entries, unlisted = catalogue.look()
    assert {e.id for e in entries} == ids - {done[0].id} and unlisted == [done[0].id]
    rebuilt, refused = catalogue.rebuild()
    assert rebuilt == before and refused == {} and catalogue.list() == before


def test_a_half_written_snapshot_is_not_listed(near: str, runs: list[Path]) -> None:
    store = open_store(near)
    done = publish(runs[:1], store)
    half = "ab" * 32
    write(store, f"{half}/snippet.md", b"words")
    entries, unlisted = Catalogue(store).look()
    assert [e.id for e in entries] == [done.id] and unlisted == [half]
    _, refused = Catalogue(store).rebuild()
    assert "interrupted" in refused[half]
    with pytest.raises(UnusableSnapshotError, match="interrupted"):
        verify(f"{near}/{half}")


def test_an_entry_for_a_snapshot_that_is_gone_is_not_shown(
    runs: list[Path], store: LocalStore
) -> None:
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
    """Gathers every time: the worst that publishers can do to each other."""
    store = LocalStore(place)
    done: Published = publish([run], store)
    Catalogue(store).gather()
    return done.id


def test_publishers_at_the_same_time_lose_nothing(runs: list[Path], tmp_path: Path) -> None:
    jobs = [(run, tmp_path / "store") for run in runs * 3]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        ids = pool.starmap(_publish_one, jobs)
    assert {e.id for e in Catalogue(tmp_path / "store").list()} == set(ids)
    for snapshot_id in set(ids):
        assert verify(tmp_path / "store" / snapshot_id).findings == ()
    assert not list((tmp_path / "store").glob(".*"))


def test_a_store_cannot_lead_the_catalogue_elsewhere(
    runs: list[Path], store: LocalStore, tmp_path: Path
) -> None:
    """Neither a link that would be written through, nor a pipe that would be waited for."""
    (tmp_path / "elsewhere").mkdir()
    store.path.mkdir()
    (store.path / "catalogue").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="leads out"):
        publish(runs[:1], store)
    assert not list((tmp_path / "elsewhere").rglob("*.json"))
    (store.path / "catalogue").unlink()
    done = publish(runs[:1], store)
    os.mkfifo(store.path / ALL)
    assert [e.id for e in Catalogue(store).list()] == [done.id]


def test_a_place_that_cannot_be_written_says_so_and_keeps_nothing(
    runs: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="cannot be written"):
        publish(runs[:1], LocalStore(tmp_path / "file" / "store"))
    with pytest.raises(StorageError, match="nonsense"):
        open_store("nonsense://x")


def test_a_bucket_that_is_not_there_is_not_made(runs: list[Path], s3: str) -> None:
    with pytest.raises(StorageError, match="cannot be written"):
        publish(runs[:1], open_store("s3://nobody/results"))
    assert not fsspec.filesystem("s3").exists("nobody")


def test_over_http_it_says_that_it_cannot_see_all_files(
    runs: list[Path], store: LocalStore, tmp_path: Path
) -> None:
    """A plain file server, as a static site has it."""
    import functools
    import http.server
    import threading

    pytest.importorskip("aiohttp")
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
    assert any("no further file" in text for text in result.not_checked)


def test_ids_in_the_json_of_the_list_are_those_of_the_folders(
    runs: list[Path], store: LocalStore, capsys: pytest.CaptureFixture[str]
) -> None:
    from firstlight.cli import main

    done = publish(runs[:1], store)
    assert main(["snapshots", str(store.path), "--json", "--case", "matmul"]) == 0
    assert [e["id"] for e in json.loads(capsys.readouterr().out)] == [done.id]
    assert main(["snapshots", str(store.path), "--case", "nothing"]) == 0
    assert "No snapshots" in capsys.readouterr().err
