"""A place that machines share: what is trusted is loaded, anything else is compiled."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from firstlight.snapshot.keys import PrivateKey
from firstlight.snapshot.trust import TrustedKeys
from firstlight.warmstart import sealed
from firstlight.warmstart.cache_server.served_entries import Refusal
from firstlight.warmstart.cache_server.server import CacheServer, Tokens
from firstlight.warmstart.caches import cache_at
from firstlight.warmstart.entries import Entries, name_of
from firstlight.warmstart.leases import Leases
from firstlight.warmstart.sharing import http_place, shared, uploads
from firstlight.warmstart.sharing.http_place import HttpPlace
from firstlight.warmstart.sharing.place import LeaseState, Place, PlaceError, Trouble
from firstlight.warmstart.sharing.places import FolderPlace, ObjectPlace
from firstlight.warmstart.sharing.shared import Shared
from firstlight.warmstart.signing import Signatures
from firstlight.warmstart.store import Store

VALUE = bytes(range(256)) * 4
NAME = f"kind/{name_of('key')}"


def stop(server: CacheServer) -> None:
    server.shutdown()
    server.server_close()


def machine(root: Path, place: Place, signatures: Signatures, **how: object) -> Store:
    """A store with a folder of its own, in front of the place."""
    joined = Shared(place, signatures, **how)  # type: ignore[arg-type]
    return Store(Entries(str(root), "kind", 2**30), Leases(), open_shared=lambda: joined)


def sent(store: Store) -> None:
    assert store._shared is not None
    store._shared.flush(20.0)


def test_a_machine_loads_what_another_compiled_and_then_needs_no_network(
    tmp_path: Path, serve: Callable[..., CacheServer], signatures: Signatures
) -> None:
    server = serve()
    first = machine(tmp_path / "1", HttpPlace(server.url), signatures)
    assert first.get("key") is None
    first.put("key", VALUE)
    sent(first)
    second = machine(tmp_path / "2", HttpPlace(server.url), signatures)
    assert second.get("key") == VALUE
    stop(server)
    assert second.get("key") == VALUE
    again = machine(tmp_path / "2", HttpPlace(server.url), signatures)
    assert again.get("key") == VALUE


#: Two children, one of multiprocessing, store a program each and end at once.
FORKS = """
import multiprocessing, os, sys
from firstlight.warmstart.entries import Entries
from firstlight.warmstart.leases import Leases
from firstlight.warmstart.sharing.shared import open_shared
from firstlight.warmstart.store import Store

folder, url = sys.argv[1:]
store = Store(Entries(folder, "kind", 2**30), Leases(), open_shared=lambda: open_shared(url))
store.put("of the parent", b"program")
fork = multiprocessing.get_context("fork")
worker = fork.Process(target=store.put, args=("of a worker", b"program"))
worker.start()
worker.join()
if (child := os.fork()) == 0:
    store.put("of a child", b"program")
    sys.exit()
os.waitpid(child, 0)
"""


def test_forked_children_send_what_they_compiled_before_they_end(
    tmp_path: Path, serve: Callable[..., CacheServer], signatures: Signatures
) -> None:
    url = serve().url
    arguments = [str(tmp_path / "own"), url]
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKS, *arguments], check=True)
    there = {entry.key for entry in cache_at(url).entries()}
    assert there == {"of the parent", "of a worker", "of a child"}


def test_eight_machines_with_one_server_compile_each_program_once(
    tmp_path: Path, serve: Callable[..., CacheServer], signatures: Signatures
) -> None:
    server, compiled, begin = serve(), Counter[str](), threading.Barrier(8)
    found: list[bytes | None] = []

    def run(number: int) -> None:
        store = machine(tmp_path / str(number), HttpPlace(server.url), signatures)
        begin.wait()
        for key in ("a", "b", "c"):
            value = store.get(key)
            if value is None:
                compiled[key] += 1
                value = VALUE
                store.put(key, value)
            found.append(value)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert compiled == {"a": 1, "b": 1, "c": 1}
    assert found == [VALUE] * 24


@pytest.fixture
def memory(request: pytest.FixtureRequest) -> ObjectPlace:
    return ObjectPlace(f"memory://{request.node.name}")


def refuses(place: Place, signatures: Signatures, root: Path) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return machine(root, place, signatures).get("key") is None


def test_no_entry_with_a_flipped_bit_is_loaded_from_elsewhere(
    tmp_path: Path, memory: ObjectPlace, signatures: Signatures
) -> None:
    entry = signatures.sign(sealed.seal("kind", "key", VALUE, b'{"function": "f"}'))
    memory.store(NAME, entry)
    assert not refuses(memory, signatures, tmp_path / "untouched")
    draw, loaded = Random(18), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(1000):
            changed = bytearray(entry)
            changed[draw.randrange(len(entry))] ^= 1 << draw.randrange(8)
            memory.store(NAME, bytes(changed))
            loaded += Shared(memory, signatures).get("kind", "key") is not None
    assert loaded == 0


def test_no_entry_of_another_key_kind_or_signer_is_loaded(
    tmp_path: Path,
    memory: ObjectPlace,
    signatures: Signatures,
    new_key: Callable[[Path], PrivateKey],
) -> None:
    stranger = new_key(tmp_path / "stranger")
    theirs = Signatures(stranger, frozenset())
    ours = sealed.seal("kind", "key", VALUE)
    forged = sealed.signed(ours, next(iter(signatures.trusted)), stranger.sign)
    attempts = {
        "replayed under another key": signatures.sign(sealed.seal("kind", "other key", VALUE)),
        "replayed for another machine": signatures.sign(sealed.seal("other kind", "key", VALUE)),
        "unsigned": ours,
        "of a foreign key": theirs.sign(ours),
        "forged in our name": forged,
        "a pickle": b"\x80\x04.",
        "nothing": b"",
    }
    for what, entry in attempts.items():
        memory.store(NAME, entry)
        assert refuses(memory, signatures, tmp_path / what), what
    memory.store(NAME, theirs.sign(ours))
    command = re.escape(f"keys trust --programs {stranger.public.base64}")
    with pytest.warns(RuntimeWarning, match=command):
        assert Shared(memory, signatures).get("kind", "key") is None
    trusting = replace(signatures, trusted=signatures.trusted | {stranger.public.raw})
    assert not refuses(memory, trusting, tmp_path / "trusted")


def test_a_folder_that_others_can_write_to_serves_signed_entries(
    tmp_path: Path, signatures: Signatures
) -> None:
    group = tmp_path / "group"
    group.mkdir()
    group.chmod(0o2775)
    place = FolderPlace(str(group))
    first = machine(tmp_path / "1", place, signatures)
    assert first.get("key") is None
    first.put("key", VALUE)
    sent(first)
    assert machine(tmp_path / "2", place, signatures).get("key") == VALUE
    assert not [*group.rglob("*.unfinished")]
    made = [path for path in group.rglob("*") if path.is_dir()]
    assert {path.stat().st_mode & 0o7777 for path in made} == {0o2775}


def test_machines_share_through_an_object_store(
    tmp_path: Path, s3: str, signatures: Signatures
) -> None:
    first = machine(tmp_path / "1", ObjectPlace(s3), signatures)
    assert first.get("key") is None
    first.put("key", VALUE)
    sent(first)
    assert machine(tmp_path / "2", ObjectPlace(s3), signatures).get("key") == VALUE
    cache = cache_at(s3)
    (one,) = cache.entries()
    assert (one.key, cache.trouble(one)) == ("key", None)
    cache.remove(one)
    assert cache.entries() == []


def test_a_reader_without_a_key_of_its_own_sends_nothing(
    tmp_path: Path, serve: Callable[..., CacheServer], signatures: Signatures
) -> None:
    server = serve()
    reader = Signatures(None, signatures.trusted)
    store = machine(tmp_path / "1", HttpPlace(server.url), reader)
    assert store.get("key") is None
    store.put("key", VALUE)
    sent(store)
    assert HttpPlace(server.url).fetch(NAME) is None


class Broken:
    """A place that fails in one way, and counts how often it was asked."""

    url, has_leases = "http://broken", False

    def __init__(self, trouble: Trouble) -> None:
        self.trouble, self.asked = trouble, 0

    def fetch(self, name: str) -> bytes | None:
        self.asked += 1
        raise PlaceError(self.trouble, "broken")

    def store(self, name: str, entry: bytes) -> None:
        self.fetch(name)

    def forget_connections(self) -> None: ...


def test_a_place_that_is_down_causes_one_warning_and_a_pause(
    tmp_path: Path, signatures: Signatures
) -> None:
    now = [0.0]
    place = Broken(Trouble.DOWN)
    store = machine(tmp_path, place, signatures, clock=lambda: now[0])  # type: ignore[arg-type]
    with pytest.warns(RuntimeWarning) as said:
        for key in "abcdef":
            assert store.get(key) is None
            store.put(key, VALUE)
            sent(store)
            assert store.get(key) == VALUE
        assert place.asked == 1
        now[0] = 21.0
        assert store.get("g") is None and place.asked == 2
        now[0] = 60.0  # the second rest is twice as long
        assert store.get("h") is None and place.asked == 2
    assert len(said) == 1 and "tried again later" in str(said[0].message)


def test_a_wrong_token_causes_one_warning_and_is_not_tried_again(
    tmp_path: Path, serve: Callable[..., CacheServer], signatures: Signatures
) -> None:
    server = serve(Tokens(read=("r" * 16,), write=("w" * 16,)))
    with pytest.warns(RuntimeWarning, match="FIRSTLIGHT_CACHE_TOKEN_FILE") as said:
        store = machine(tmp_path / "1", HttpPlace(server.url, "wrong" * 4), signatures)
        for key in "abc":
            assert store.get(key) is None
            store.put(key, VALUE)
    assert len(said) == 1
    assert 'code="401",method="GET"} 1.0\n' in HttpPlace(server.url, "r" * 16).text("/metrics")
    # One that may only read, does.
    with pytest.warns(RuntimeWarning, match="nothing more is sent"):
        reader = machine(tmp_path / "2", HttpPlace(server.url, "r" * 16), signatures)
        assert reader.get("key") is None
        reader.put("key", VALUE)
        sent(reader)
    writer = machine(tmp_path / "3", HttpPlace(server.url, "w" * 16), signatures)
    assert writer.get("key") is None
    writer.put("key", VALUE)
    sent(writer)
    reader = machine(tmp_path / "4", HttpPlace(server.url, "r" * 16), signatures)
    assert reader.get("key") == VALUE


def test_a_missing_shared_folder_causes_one_warning_about_the_folder(
    tmp_path: Path, signatures: Signatures
) -> None:
    store = machine(tmp_path / "own", FolderPlace(str(tmp_path / "nowhere")), signatures)
    with pytest.warns(RuntimeWarning, match="No such file.*Make this folder") as said:
        for key in ("a", "b"):
            assert store.get(key) is None
            store.put(key, VALUE)
            sent(store)
    assert len(said) == 1 and "TOKEN" not in str(said[0].message)


def test_a_server_that_never_answers_is_given_up(
    tmp_path: Path, signatures: Signatures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_place, "_SILENCE_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        store = machine(tmp_path, HttpPlace(url), signatures)
        with pytest.warns(RuntimeWarning, match="no answer in time"):
            assert [store.get(key) for key in "abc"] == [None] * 3


def test_an_answer_that_is_cut_off_is_blamed_on_the_server_not_the_entry(
    signatures: Signatures,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nfew bytes")

        thread = threading.Thread(target=answer)
        thread.start()
        joined = Shared(HttpPlace(f"http://127.0.0.1:{server.getsockname()[1]}"), signatures)
        with pytest.warns(RuntimeWarning, match="cut off"):
            assert joined.get("kind", "key") is None
        thread.join()


def test_a_server_that_was_killed_and_started_again_is_used_again(
    tmp_path: Path, serve: Callable[..., CacheServer], signatures: Signatures
) -> None:
    now, server = [0.0], serve()
    place = HttpPlace(server.url)
    store = machine(tmp_path / "1", place, signatures, clock=lambda: now[0])
    assert store.get("before") is None
    stop(server)  # while this machine holds its lease
    place.forget_connections()  # a killed process takes its connections with it
    with pytest.warns(RuntimeWarning, match="trouble with"):
        store.put("before", VALUE)
        sent(store)
    assert store.get("meanwhile") is None
    store.put("meanwhile", VALUE)
    serve(port=server.server_address[1])
    now[0] = 1000.0
    assert store.get("after") is None
    store.put("after", VALUE)
    sent(store)
    other = machine(tmp_path / "2", HttpPlace(server.url), signatures)
    assert other.get("after") == VALUE and store.get("meanwhile") == VALUE


def test_without_any_key_a_url_is_not_used_and_the_warning_says_what_to_do(
    tmp_path: Path,
    config: Path,
    new_key: Callable[[Path], PrivateKey],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.warns(RuntimeWarning, match="firstlight keys generate"):
        assert shared.open_shared("memory://nowhere") is None
    with pytest.warns(RuntimeWarning, match=r"chmod go-w.*keys trust --programs"):
        assert shared.open_shared(str(tmp_path), "It is open to others (chmod go-w).") is None
    monkeypatch.setenv("FIRSTLIGHT_SIGNING_KEY", str(tmp_path / "missing.pem"))
    with pytest.warns(RuntimeWarning, match=r"missing\.pem"):
        assert shared.open_shared("memory://nowhere") is None
    monkeypatch.delenv("FIRSTLIGHT_SIGNING_KEY")
    new_key(config)
    for url, why in (("nosuch://x", "protocol"), ("http://user:word@host", "token in a file")):
        with pytest.warns(RuntimeWarning, match=why):
            assert shared.open_shared(url) is None
    monkeypatch.setenv("FIRSTLIGHT_CACHE_TOKEN", "a\nb: é")
    with pytest.warns(RuntimeWarning, match="no header can have"):
        assert shared.open_shared("http://127.0.0.1:9") is None


def test_a_server_without_room_is_still_read_from(
    tmp_path: Path,
    serve: Callable[..., CacheServer],
    signatures: Signatures,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = serve()
    store = machine(tmp_path / "1", HttpPlace(server.url), signatures)
    assert store.get("a") is None
    store.put("a", VALUE)
    sent(store)
    monkeypatch.setattr(server.entries, "_place", lambda *entry: Refusal.NO_ROOM)
    with pytest.warns(RuntimeWarning, match="no room"):
        for key in "bc":
            assert store.get(key) is None
            store.put(key, VALUE)
            sent(store)
    assert machine(tmp_path / "2", HttpPlace(server.url), signatures).get("a") == VALUE
    assert server.leases.count() == 0


def test_a_folder_of_keys_that_others_can_write_to_is_refused(
    config: Path, signatures: Signatures, new_key: Callable[[Path], PrivateKey], tmp_path: Path
) -> None:
    keys = TrustedKeys.for_programs()
    keys.add(new_key(tmp_path / "ci").public, "CI")
    assert len(Signatures.of_user().trusted) == 2
    keys.folder.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="chmod go-w"):
        assert shared.open_shared("memory://somewhere") is None


class Waiting(Broken):
    """A server whose lease another machine holds for a while, and then has stored the entry."""

    has_leases = True

    def __init__(self, entry: bytes, held: int) -> None:
        self.entry, self.left = entry, held

    def fetch(self, name: str) -> bytes | None:
        return None if self.left else self.entry

    def lease(self, name: str, action: str, holder: str) -> LeaseState:
        self.left -= 1
        return LeaseState.HELD if self.left else LeaseState.STORED


def test_while_another_machine_compiles_the_lease_of_this_one_is_kept_alive(
    tmp_path: Path, signatures: Signatures
) -> None:
    place = Waiting(signatures.sign(sealed.seal("kind", "key", VALUE)), held=4)
    joined = Shared(place, signatures, sleep=lambda seconds: None)  # type: ignore[arg-type]
    leases, renewed = Leases(), []
    entries = Entries(str(tmp_path), "kind", 2**30)
    really = leases.renew

    def renew() -> None:
        os.utime(entries.path("key") + ".lease", (0, 0))
        really()
        renewed.append(os.stat(entries.path("key") + ".lease").st_mtime > 0)

    leases.renew = renew  # type: ignore[method-assign]
    assert Store(entries, leases, open_shared=lambda: joined).get("key") == VALUE
    assert renewed == [True] * 3
    assert not os.path.exists(entries.path("key") + ".lease")


def test_a_failed_compile_releases_its_lease_at_once(
    tmp_path: Path, serve: Callable[..., CacheServer], signatures: Signatures
) -> None:
    server = serve()
    store = machine(tmp_path / "1", HttpPlace(server.url), signatures)
    assert store.get("key") is None and server.leases.count() == 1
    store.release()
    sent(store)
    assert server.leases.count() == 0
    assert machine(tmp_path / "2", HttpPlace(server.url), signatures).get("key") is None
    # Of two programs in a row that a thread looked for, it compiles the last one.
    assert store.get("a") is None and store.get("b") is None
    assert server.leases.count() == 1


def test_uploads_beyond_the_bound_are_dropped_and_their_leases_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(uploads, "_MAX_WAITING_BYTES", 10)
    done, begin = [], threading.Event()

    def send(name: str, entry: bytes, lease: str | None) -> None:
        begin.wait()
        done.append((name, len(entry), lease))

    queue = uploads.Uploads(send)
    for name in "abc":
        queue.add(name, bytes(5), name)
    queue.flush(0.0)  # for no longer than that
    begin.set()
    queue.flush(20.0)
    assert done == [("a", 5, "a"), ("b", 5, "b"), ("", 0, "c")]
