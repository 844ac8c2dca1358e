"""Keys and signatures, compared with OpenSSL and with the arithmetic of RFC 8032."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import stat
import subprocess
import unicodedata
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from firstlight.cli import main
from firstlight.snapshot.errors import KeyFileError, UnusableSnapshotError
from firstlight.snapshot.keys import (
    PrivateKey,
    PublicKey,
    generate,
    load_private,
    load_public,
    sign,
    signed_by,
)
from firstlight.snapshot.layout import INDEX, SIGNATURE
from firstlight.snapshot.manifest import Creator
from firstlight.snapshot.opening import open_snapshot
from firstlight.snapshot.publishing import Published, PublishOptions, publish
from firstlight.snapshot.storage import LocalStore
from firstlight.snapshot.trust import (
    TrustedKeys,
    config_folder,
    default_private_key,
    skeleton,
)
from firstlight.snapshot.verifying import verify

P, Q = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P
Point = tuple[int, int]


def add(a: Point, b: Point) -> Point:
    """The addition law of edwards25519 (RFC 8032, 5.1.4), in affine coordinates."""
    product = D * a[0] * b[0] * a[1] * b[1] % P
    x = (a[0] * b[1] + b[0] * a[1]) * pow(1 + product, P - 2, P) % P
    y = (a[1] * b[1] + a[0] * b[0]) * pow(1 - product, P - 2, P) % P
    return x, y


def times(n: int, point: Point) -> Point:
    total = (0, 1)
    while n:
        if n & 1:
            total = add(total, point)
        point, n = add(point, point), n >> 1
    return total


def decoded(data: bytes) -> Point:
    y = int.from_bytes(data, "little")
    sign, y = y >> 255, y & ((1 << 255) - 1)
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    assert (x * x - square) % P == 0
    return (x if x & 1 == sign else P - x), y


def holds(public: bytes, data: bytes, signature: bytes) -> bool:
    """Verification by RFC 8032, 5.1.7, with only integers and SHA-512."""
    base_y = 4 * pow(5, P - 2, P) % P
    base = decoded(base_y.to_bytes(32, "little"))
    s = int.from_bytes(signature[32:], "little")
    if s >= Q:
        return False
    k = int.from_bytes(hashlib.sha512(signature[:32] + public + data).digest(), "little") % Q
    return times(s, base) == add(decoded(signature[:32]), times(k, decoded(public)))


def test_a_signature_satisfies_the_equation_of_rfc_8032(signed: Published, key: PrivateKey) -> None:
    folder = Path(signed.location)
    document = json.loads((folder / SIGNATURE).read_text())
    public, signature = (base64.b64decode(document[k]) for k in ("public_key", "signature"))
    index = (folder / INDEX).read_bytes()
    assert public == key.public.raw
    assert holds(public, index, signature)
    assert not holds(public, index + b" ", signature)
    assert document["key_id"] == hashlib.sha256(public).hexdigest()[:32]
    assert json.loads(index)["signer"] == document["public_key"]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on this machine")
def test_openssl_verifies_what_we_sign_and_reads_our_keys(
    signed: Published, tmp_path: Path
) -> None:
    """The commands of docs/snapshots.md."""
    folder = Path(signed.location)
    document = json.loads((folder / SIGNATURE).read_text())
    raw = base64.b64decode(document["public_key"])
    # RFC 8410: a public key is twelve fixed bytes and the key itself.
    (tmp_path / "key.der").write_bytes(bytes.fromhex("302a300506032b6570032100") + raw)
    (tmp_path / "signature").write_bytes(base64.b64decode(document["signature"]))
    command = [
        *("openssl", "pkeyutl", "-verify", "-pubin", "-keyform", "DER", "-rawin"),
        *("-inkey", str(tmp_path / "key.der"), "-sigfile", str(tmp_path / "signature")),
        *("-in", str(folder / INDEX)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Verified Successfully" in done.stdout, done.stderr
    (folder / INDEX).write_bytes((folder / INDEX).read_bytes() + b" ")
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on this machine")
def test_a_key_made_by_openssl_can_sign(tmp_path: Path) -> None:
    path = tmp_path / "openssl.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(path)], check=True)
    path.chmod(0o600)
    key = load_private(path)
    assert holds(key.public.raw, b"words", key.sign(b"words"))
    subprocess.run(["openssl", "genpkey", "-algorithm", "x25519", "-out", str(path)], check=True)
    with pytest.raises(KeyFileError, match="not an Ed25519 key"):
        load_private(path)


def test_a_private_key_is_readable_by_its_owner_only_and_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "new" / "key.pem"
    public = generate(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    with pytest.raises(KeyFileError, match=r"key\.pem exists.*never overwritten"):
        generate(path)
    path.with_name("key.pem.pub").unlink()
    with pytest.raises(KeyFileError, match="never overwritten"):
        generate(path)
    assert path.read_bytes() == before and load_private(path).public == public
    path.chmod(0o640)
    with pytest.raises(KeyFileError, match="chmod 600"):
        load_private(path)


def test_a_passphrase_locks_the_key(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    public = generate(path, b"open sesame")
    assert b"ENCRYPTED" in path.read_bytes()
    assert load_private(path, b"open sesame").public == public
    with pytest.raises(KeyFileError, match="needs its passphrase"):
        load_private(path)
    with pytest.raises(KeyFileError, match="wrong passphrase"):
        load_private(path, b"open barley")
    generate(tmp_path / "plain.pem")
    with pytest.raises(KeyFileError, match="has no passphrase"):
        load_private(tmp_path / "plain.pem", b"open sesame")
    assert load_public(str(path)) == load_public(f"{path}.pub") == load_public(public.base64)


def test_a_file_that_is_no_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.pem").write_text("hello")
    (tmp_path / "x.pem").chmod(0o600)
    with pytest.raises(KeyFileError):
        load_private(tmp_path / "x.pem")
    with pytest.raises(KeyFileError):
        load_private(tmp_path / "nothing.pem")
    for text in ("", "AAAA", "A" * 44, "A" * 42 + "B=", "not base64!", str(tmp_path / "x.pem")):
        with pytest.raises(KeyFileError):
            load_public(text)


def test_only_canonical_base64_is_accepted(key: PrivateKey) -> None:
    data = b"what is signed"
    document = json.loads(sign(key, data))
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    last = document["signature"][-3]
    for letter in set(letters) - {last}:
        other = {**document, "signature": document["signature"][:-3] + letter + "=="}
        from firstlight.snapshot.strict_json import canonical

        with pytest.raises(UnusableSnapshotError):
            signed_by(canonical(other), data)
    assert signed_by(sign(key, data), data) == key.public
    with pytest.raises(UnusableSnapshotError, match="does not match"):
        signed_by(sign(key, data), b"something else")


def test_trusted_keys_live_in_the_users_settings(
    own_settings: Path, key: PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted = TrustedKeys.of_user()
    assert trusted.all() == {} and trusted.name_of(key.public) is None
    trusted.add(key.public, "Jane Doe")
    assert (own_settings / "firstlight" / "trusted-keys" / f"{key.public.id}.pub").is_file()
    assert trusted.name_of(key.public) == "Jane Doe"
    for name in ("", "a\nb", "../x", "x" * 100, "\x1b[31m", "a\u202eb", " a"):
        with pytest.raises(KeyFileError):
            trusted.add(key.public, name)
    other = PublicKey(bytes(32))
    (trusted.folder / f"{key.public.id}.pub").write_text(f"{other.base64} Jane Doe\n")
    with pytest.raises(KeyFileError, match="a different key"):
        trusted.all()
    (trusted.folder / f"{key.public.id}.pub").write_text(f"{key.public.base64} Jane Doe\n")
    trusted.remove(key.public.id)
    assert trusted.all() == {}
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative/path")
    assert config_folder() == Path.home() / ".config" / "firstlight"


def test_a_name_may_have_letters_of_any_language(key: PrivateKey) -> None:
    trusted = TrustedKeys.of_user()
    for name in ("Jürgen", "Ju\u0308rgen", "Renée O'Neill", "李 明", "Ольга"):
        trusted.add(key.public, name)
        assert trusted.name_of(key.public) == unicodedata.normalize("NFC", name)


@pytest.mark.parametrize("content", [b"AAAA Jane\n", b"\xff\xfe", b"", b"not base64!"])
def test_a_bad_file_among_the_trusted_keys_is_named(
    content: bytes, signed: Published, capsys: pytest.CaptureFixture[str]
) -> None:
    trusted = TrustedKeys.of_user()
    trusted.folder.mkdir(parents=True)
    (trusted.folder / "bad.pub").write_bytes(content)
    for arguments in (["keys", "list"], ["verify", signed.location]):
        assert main(arguments) == 2
        said = capsys.readouterr().err
        assert str(trusted.folder / "bad.pub") in said and "Remove it" in said


def test_a_second_key_with_the_same_name_is_reported(
    key: PrivateKey, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = generate(tmp_path / "other.pem")
    for public in (key.public, key.public, other):
        assert "warning" not in capsys.readouterr().err
        assert main(["keys", "trust", public.base64, "--name", "Jane"]) == 0
    assert f"keys forget {key.public.id[:12]}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name",
    ["Jаne Doe", "Jane D0e", "JANE DOE", "Jané Doe", "Јane Doe", "Doe, Jane".replace(",", "")],
)
def test_a_name_that_looks_like_a_trusted_one_warns(
    key: PrivateKey, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["keys", "trust", key.public.base64, "--name", "Jane Doe"]) == 0
    other = generate(tmp_path / "other.pem")
    assert main(["keys", "trust", other.base64, "--name", name]) == 0
    said = capsys.readouterr().err
    assert "warning" in said and "'Jane Doe', which looks alike" in said


def test_names_that_look_different_do_not_warn() -> None:
    assert skeleton("modern") == skeleton("modem") and skeleton("Bill") == skeleton("BiIl")
    looks = [skeleton(n) for n in ("Jane Doe", "John Doe", "Jane Roe", "Ольга", "Олег", "李 明")]
    assert len({*looks}) == len(looks)


def test_a_creator_whose_name_looks_like_a_trusted_one_is_reported(
    made_up: Path, store: LocalStore, key: PrivateKey
) -> None:
    TrustedKeys.of_user().add(key.public, "Jane Doe")
    options = PublishOptions(creators=(Creator("Dоe, Jane"),))  # the o is Cyrillic
    told = "\n".join(verify(publish([made_up], store, options).location).not_checked)
    assert "is your 'Jane Doe': the names look alike" in told
    told = "\n".join(verify(publish([made_up], store, options, key).location).not_checked)
    assert "looks like" not in told


def test_an_expired_key_is_not_trusted_and_a_revoked_one_is_a_finding(
    signed: Published, key: PrivateKey, capsys: pytest.CaptureFixture[str]
) -> None:
    trust = ["keys", "trust", key.public.base64, "--name", "Jane Doe"]
    assert main([*trust, "--until", "2026-06-01"]) == 0
    days = {day: datetime(2026, 6, day, tzinfo=UTC) for day in (1, 2)}
    before = verify(signed.location, now=days[1] - timedelta(days=1))
    assert (before.signature, before.signer_name) == ("trusted", "Jane Doe")
    after = verify(signed.location, now=days[1])
    assert after.signature == "expired" and after.findings == ()
    assert "expired on 2026-06-01" in "\n".join(after.not_checked)
    assert main(["keys", "revoke", key.public.id[:8], "--since", "2026-05-01"]) == 0
    assert "Revoked since 2026-05-01: Jane Doe" in capsys.readouterr().out
    revoked = verify(signed.location, now=days[2])
    assert (revoked.signature, revoked.exit_code) == ("revoked", 1)
    assert "nothing proves that it was signed before" in revoked.findings[0].message
    assert main(["keys", "list"]) == 0
    assert "until 2026-06-01  REVOKED since 2026-05-01" in capsys.readouterr().out


def test_trusting_a_key_until_a_past_day_warns(
    key: PrivateKey, capsys: pytest.CaptureFixture[str]
) -> None:
    trust = ["keys", "trust", key.public.base64, "--name", "Jane Doe", "--until"]
    assert main([*trust, "2999-01-01"]) == 0
    assert capsys.readouterr().err == ""
    assert main([*trust, "2020-01-01"]) == 0
    assert "2020-01-01 is in the past" in capsys.readouterr().err


def test_a_revoked_key_is_not_trusted_again_by_accident(key: PrivateKey, tmp_path: Path) -> None:
    trusted = TrustedKeys(tmp_path / "trusted")
    trusted.add(key.public, "Ada")
    trusted.revoke(key.public.id, datetime(2026, 5, 1, tzinfo=UTC).date())
    with pytest.raises(KeyFileError, match="was revoked on 2026-05-01"):
        trusted.add(key.public, "Ada again")
    assert trusted.all()[key.public.id].revoked is not None
    trusted.remove(key.public.id)
    trusted.add(key.public, "Ada")


def test_publishing_signs_with_the_users_own_key_or_warns_that_it_does_not(
    made_up: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def published(*options: str) -> tuple[str | None, str]:
        command = ["publish", str(made_up), "--out", str(tmp_path / "out"), "--json", *options]
        assert main(command) == 0
        told = capsys.readouterr()
        return open_snapshot(json.loads(told.out)["location"]).signer, told.err

    signer, said = published()
    assert signer is None and "NOT SIGNED" in said and "keys generate" in said
    assert main(["keys", "generate"]) == 0
    capsys.readouterr()
    own = load_public(str(default_private_key()))
    assert published() == (own.base64, "")
    assert published("--unsigned") == (None, "")
    assert main(["keys", "trust", own.base64, "--name", "Me"]) == 0
    assert main(["keys", "revoke", own.id]) == 0
    assert main(["publish", str(made_up), "--out", str(tmp_path / "out")]) == 2
    assert "is revoked and can no longer sign" in capsys.readouterr().err
