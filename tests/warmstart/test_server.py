"""`firstlight cache serve`: who may do what, what is stored, and who compiles."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from firstlight.cli import main
from firstlight.token_file import TokenError, read_tokens
from firstlight.warmstart import sealed
from firstlight.warmstart.cache_server import server
from firstlight.warmstart.cache_server.lease_book import LeaseBook
from firstlight.warmstart.cache_server.served_entries import Refusal, ServedEntries
from firstlight.warmstart.cache_server.server import Access, CacheServer, Tokens
from firstlight.warmstart.entries import name_of
from firstlight.warmstart.sharing.http_place import HttpPlace, own_token
from firstlight.warmstart.sharing.place import LeaseState, PlaceError, Trouble
from firstlight.warmstart.signing import Signatures

Serve = Callable[..., CacheServer]
NAME = f"kind/{name_of('key')}"


def asked(served: CacheServer, method: str, path: str, body: bytes = b"", **headers: str) -> int:
    connection = http.client.HTTPConnection(*served.server_address[:2], timeout=10)
    try:
        connection.request(method, path, body, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_only_signed_entries_of_their_own_name_are_stored(
    serve: Serve, signatures: Signatures
) -> None:
    served = serve()
    entry = signatures.sign(sealed.seal("kind", "key", b"value"))
    path = f"/v1/entries/{NAME}"
    assert asked(served, "PUT", path, sealed.seal("kind", "key", b"value")) == 422
    assert asked(served, "PUT", path, entry[:-1] + b"x") == 422
    assert asked(served, "PUT", path, b"a pickle") == 422
    assert asked(served, "PUT", path[:-1] + "0", entry) == 422
    # Of its length only: the server does not read the rest, and may close before it was sent.
    assert asked(served, "PUT", path, **{"Content-Length": str(2**20 + 1)}) == 413
    assert asked(served, "GET", path) == 404
    assert asked(served, "PUT", path, entry) == 201
    assert HttpPlace(served.url).fetch(NAME) == entry


def test_an_entry_that_is_too_large_is_refused_and_not_blamed_on_the_server(serve: Serve) -> None:
    """Although the server closes the connection while the client is still sending."""
    with pytest.raises(PlaceError, match="the entry is too large") as refused:
        HttpPlace(serve().url).store(NAME, bytes(2**24))
    assert refused.value.trouble is Trouble.REFUSED


@pytest.mark.parametrize(
    "path",
    ["/v1/entries/../../etc/passwd", f"/v1/entries/../{NAME}", f"/v1/entries/.{NAME}", "/",
     f"/v1/entries/{NAME}/x", f"/v1/entries/%2e%2e/{NAME}", f"/v1/leases/{NAME}/steal"],
)  # fmt: skip
def test_other_paths_are_refused(path: str, serve: Serve, tmp_path: Path) -> None:
    served = serve()
    assert asked(served, "GET", path) == 404
    assert asked(served, "PUT", path, b"x") == 400
    assert asked(served, "POST", path) == 400
    assert not (tmp_path / "served").exists()


def test_a_server_with_keys_stores_only_what_they_signed(
    tmp_path: Path, signatures: Signatures, new_key: Callable[[Path], object]
) -> None:
    stranger = Signatures(new_key(tmp_path / "stranger"), frozenset())  # type: ignore[arg-type]
    entries = ServedEntries(str(tmp_path / "served"), 2**20, 2**20, signatures.verdict)
    entry = sealed.seal("kind", "key", b"value")
    assert entries.store(NAME, stranger.sign(entry)) is Refusal.NOT_TRUSTED
    assert entries.store(NAME, signatures.sign(entry)) is None


def test_reading_and_writing_need_their_tokens_and_health_needs_none(serve: Serve) -> None:
    served = serve(Tokens(read=("r" * 16,), write=("w" * 16,)))
    entry, lease = f"/v1/entries/{NAME}", f"/v1/leases/{NAME}"

    def codes(token: str) -> list[int]:
        header = {"Authorization": f"Bearer {token}"}
        return [
            asked(served, "GET", entry, **header),
            asked(served, "PUT", entry, b"x", **header),
            asked(served, "POST", f"{lease}/look", **header),
            asked(served, "POST", f"{lease}/take", **header),
            asked(served, "GET", "/metrics", **header),
            asked(served, "GET", "/v1/entries", **header),
            asked(served, "GET", "/health", **header),
        ]

    assert codes("") == codes("r" * 15) == codes("é") == [401] * 6 + [200]
    assert codes("r" * 16) == [404, 403, 200, 403, 200, 200, 200]
    assert codes("w" * 16) == [404, 422, 200, 200, 200, 200, 200]


def test_tokens_are_read_from_a_pipe_as_a_shell_makes_one() -> None:
    """`--write-tokens <(secret-store get …)`"""
    end, other = os.pipe()
    os.write(other, b"a" * 16 + b"\n")
    os.close(other)
    assert read_tokens(f"/dev/fd/{end}") == ("a" * 16,)
    os.close(end)


def test_token_files_that_others_can_read_or_that_are_short_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokens"
    path.write_text("# of CI\n" + "a" * 16 + "\n\n" + "b" * 16 + "\n")
    path.chmod(0o640)
    with pytest.raises(TokenError, match="chmod 600"):
        read_tokens(str(path))
    monkeypatch.setenv("FIRSTLIGHT_CACHE_TOKEN_FILE", str(path))
    with pytest.raises(PlaceError, match="chmod 600"):
        own_token()
    path.chmod(0o600)
    tokens = Tokens(write=read_tokens(str(path)))
    assert tokens.write == ("a" * 16, "b" * 16)
    assert tokens.access("b" * 16) is Access.WRITE and tokens.access("") is Access.NONE
    path.write_text("short")
    with pytest.raises(TokenError, match="16 to 4096"):
        read_tokens(str(path))
    path.write_text(("c" * 31 + "\n") * 2**15 + "d" * 31)  # a part of the last one would be one
    with pytest.raises(TokenError, match="at most"):
        read_tokens(str(path))
    monkeypatch.setenv("FIRSTLIGHT_CACHE_TOKEN_FILE", str(tmp_path / "none"))
    with pytest.raises(PlaceError, match=r"none: No such file.*\(FIRSTLIGHT_CACHE_TOKEN_FILE\)"):
        own_token()


def test_serving_to_other_machines_needs_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["cache", "serve", "--host", "0.0.0.0", "--port", "0"])
    assert "--write-tokens" in capsys.readouterr().err


def test_the_longest_unused_entries_are_evicted_at_the_bound(
    tmp_path: Path, signatures: Signatures
) -> None:
    entries = ServedEntries(str(tmp_path), 20_000, 20_000)

    def name(number: int) -> str:
        return f"kind/{name_of(f'key {number}')}"

    for number in range(30):
        entry = signatures.sign(sealed.seal("kind", f"key {number}", bytes(1000)))
        assert entries.store(name(number), entry) is None
        os.utime(tmp_path / name(number), (number, number))
        if (file := entries.open(name(0))) is not None:
            file.close()  # used after every store
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) == entries.bytes <= 20_000
    assert entries.is_stored(name(0)) and not entries.is_stored(name(1))
    assert entries.is_stored(name(29))


def test_metrics_are_in_the_format_of_prometheus(serve: Serve, signatures: Signatures) -> None:
    served = serve()
    place = HttpPlace(served.url)
    entry = signatures.sign(sealed.seal("kind", "key", b"value"))
    place.store(NAME, entry)
    place.fetch(NAME)
    place.fetch(f"kind/{name_of('other')}")
    lines = place.text("/metrics").splitlines()
    samples = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    prefix = "firstlight_cache_server_"
    for result in ("hit", "miss"):
        assert samples[f'{prefix}lookups_total{{result="{result}"}}'] == "1.0"
    assert float(samples[f"{prefix}stored_bytes"]) == len(entry)
    assert samples[f'{prefix}requests_total{{code="201",method="PUT"}}'] == "1.0"
    families = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert families >= {name.partition("{")[0] for name in samples}


def test_a_client_that_sends_slowly_is_cut_off(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_REQUEST_SECONDS", 0.2)
    served = serve()
    with socket.create_connection(served.server_address[:2], timeout=10) as slow:
        slow.sendall(b"GET / HT")
        assert slow.recv(100) == b""  # closed, before a word was said
    assert asked(served, "GET", "/health") == 200


def test_more_connections_than_allowed_are_closed_at_once(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_MAX_CONNECTIONS", 0)
    with socket.create_connection(serve().server_address[:2], timeout=10) as one_too_many:
        assert one_too_many.recv(100) == b""


def certificate(folder: Path) -> Path:
    """Of 127.0.0.1, signed by itself, with its key in the same file."""
    from ipaddress import ip_address

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "cache")])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), False
        )
        .add_extension(x509.BasicConstraints(True, None), True)
        .sign(key, hashes.SHA256())
    )
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path = folder / "certificate.pem"
    path.write_bytes(
        made.public_bytes(pem) + key.private_bytes(pem, form, serialization.NoEncryption())
    )
    return path


def test_over_tls_a_client_talks_only_to_the_server_it_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    entries = ServedEntries(str(tmp_path / "served"), 2**20, 2**20)
    with CacheServer(("127.0.0.1", 0), entries, Tokens(), context) as served:
        threading.Thread(target=served.serve_forever, args=(0.01,), daemon=True).start()
        with pytest.raises(PlaceError, match="certificate"):
            HttpPlace(served.url).text("/health")
        monkeypatch.setenv("SSL_CERT_FILE", str(path))
        assert served.url.startswith("https://")
        assert HttpPlace(served.url).text("/health") == "ok\n"
        served.shutdown()


def test_leases_expire_by_the_clock_of_the_server_and_survive_its_restart() -> None:
    now, stored = [0.0], set[str]()
    book = LeaseBook(lambda name: name in stored, lambda: now[0])
    assert book.act("x", "take", "a") is LeaseState.GRANTED
    assert book.act("x", "take", "b") is book.act("x", "look", "") is LeaseState.HELD
    assert book.act("x", "take", "a") is LeaseState.GRANTED  # asked again, by the same one
    now[0] = 4.0
    assert book.act("x", "renew", "a") is LeaseState.GRANTED
    now[0] = 8.0
    assert book.act("x", "take", "b") is LeaseState.HELD and book.count() == 1
    now[0] = 9.1  # five seconds after the last renewal
    assert book.act("x", "take", "b") is LeaseState.GRANTED
    assert book.act("x", "renew", "a") is LeaseState.HELD
    restarted = LeaseBook(lambda name: name in stored, lambda: now[0])
    assert restarted.act("x", "renew", "b") is LeaseState.GRANTED
    assert restarted.act("x", "take", "a") is LeaseState.HELD
    stored.add("x")
    assert restarted.act("x", "release", "b") is LeaseState.FREE
    assert restarted.act("x", "take", "a") is LeaseState.STORED
    assert book.act("x", "steal", "a") is None


def test_nobody_waits_for_a_program_that_was_compiled_and_not_stored() -> None:
    now = [0.0]
    book = LeaseBook(lambda name: False, lambda: now[0])
    assert book.act("x", "take", "a") is LeaseState.GRANTED
    book.act("x", "release", "stranger")
    assert book.act("x", "take", "b") is LeaseState.HELD
    book.act("x", "release", "a")
    assert [book.act("x", "take", holder) for holder in "bc"] == [LeaseState.FREE] * 2
    now[0] = 61.0
    assert book.act("x", "take", "b") is LeaseState.GRANTED


def test_a_waiter_is_answered_when_the_lease_is_released() -> None:
    book, states = LeaseBook(lambda name: False), []
    book.act("x", "take", "a")
    waiting = threading.Thread(target=lambda: states.append(book.act("x", "look", "", 60.0)))
    waiting.start()
    while waiting.is_alive():
        book.act("x", "release", "a")
        waiting.join(0.01)
    assert states == [LeaseState.FREE]
