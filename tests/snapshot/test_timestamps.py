"""Proofs of time by a real authority: OpenSSL makes its tokens and checks them, too."""

from __future__ import annotations

import random
import shutil
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from firstlight.cli import main
from firstlight.snapshot.errors import KeyFileError, TimestampError
from firstlight.snapshot.keys import PrivateKey
from firstlight.snapshot.layout import INDEX
from firstlight.snapshot.publishing import Published
from firstlight.snapshot.timestamps import read_token
from firstlight.snapshot.trust import TrustedKeys
from firstlight.snapshot.verifying import verify

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here")

CONFIGURATION = """
[ req ]
distinguished_name = name
prompt = no
[ name ]
CN = A clock
[ ca ]
basicConstraints = critical, CA:TRUE
[ tsa ]
basicConstraints = critical, CA:FALSE
extendedKeyUsage = critical, timeStamping
[ tsa_config ]
serial = SERIAL
signer_digest = sha256
default_policy = 1.2.3.4.1
digests = sha256, sha512
accuracy = secs:1
ordering = yes
ess_cert_id_chain = no
ess_cert_id_alg = sha256
"""


@dataclass(frozen=True)
class Authority:
    """A certificate authority, and a time-stamping authority certified by it."""

    folder: Path

    def openssl(self, *arguments: object, check: bool = True) -> bool:
        done = subprocess.run(
            ["openssl", *map(str, arguments)], cwd=self.folder, capture_output=True, check=False
        )
        assert not check or done.returncode == 0, done.stderr
        return done.returncode == 0

    def make(self, key: tuple[str, ...]) -> Authority:
        (self.folder / "c.cnf").write_text(
            CONFIGURATION.replace("SERIAL", str(self.folder / "serial"))
        )
        common = ("-config", "c.cnf", "-nodes", "-days", "30", "-batch")
        self.openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj",
                     "/CN=A root", "-extensions", "ca", *common)  # fmt: skip
        self.openssl("req", "-new", *key, "-keyout", "tsa.key", "-out", "tsa.csr",
                     "-config", "c.cnf", "-nodes")  # fmt: skip
        self.openssl("x509", "-req", "-in", "tsa.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
                     "-CAcreateserial", "-days", "30", "-extfile", "c.cnf",
                     "-extensions", "tsa", "-out", "tsa.pem")  # fmt: skip
        return self

    def stamp(self, data: Path, *options: str) -> bytes:
        """The authority's response to the query in the guide."""
        options = options or ("-sha256", "-cert")
        self.openssl("ts", "-query", "-data", data, *options, "-out", "q.tsq")
        self.openssl("ts", "-reply", "-config", "c.cnf", "-section", "tsa_config", "-out", "a.tsr",
                     "-queryfile", "q.tsq", "-inkey", "tsa.key", "-signer", "tsa.pem")  # fmt: skip
        return (self.folder / "a.tsr").read_bytes()

    def accepts(self, data: Path, token: bytes) -> bool:
        (self.folder / "t.tsr").write_bytes(token)
        return self.openssl(
            *("ts", "-verify", "-data", data, "-in", "t.tsr", "-CAfile", "ca.pem"), check=False
        )


KINDS = {
    "rsa": ("-newkey", "rsa:2048"),
    "ec": ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
}


@pytest.fixture(scope="module", params=KINDS)
def authority(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Authority:
    return Authority(tmp_path_factory.mktemp(request.param)).make(KINDS[request.param])


def test_a_token_of_openssl_proves_the_time_offline(
    authority: Authority, signed: Published, capsys: pytest.CaptureFixture[str]
) -> None:
    index = Path(signed.location) / INDEX
    token = authority.stamp(index)
    assert authority.accepts(index, token)
    found = read_token(token, index.read_bytes())
    assert abs(found.time - datetime.now(UTC)) < timedelta(hours=1)
    beside = Path(f"{signed.location}.tsr")
    beside.write_bytes(token)
    unknown = verify(signed.location)
    assert unknown.proven_time is None and unknown.findings == ()
    assert "'CN=A clock' is not among your trusted authorities" in "\n".join(unknown.not_checked)
    root = authority.folder / "ca.pem"
    assert main(["keys", "trust", str(root), "--name", "The clock"]) == 0
    for place in (signed.location, signed.archive):
        assert verify(str(place)).proven_time == found.time.isoformat()
    assert "by the clock of The clock" in "\n".join(verify(signed.location).checked)
    beside.unlink()
    assert verify(signed.location).proven_time is None
    assert main(["verify", signed.location, "--timestamp", str(authority.folder / "a.tsr")]) == 0
    assert "by the clock of The clock" in capsys.readouterr().out


def test_a_signature_proven_older_than_a_revocation_stays_trusted(
    authority: Authority, signed: Published, key: PrivateKey
) -> None:
    keys, now = TrustedKeys.of_user(), datetime.now(UTC)
    keys.add(key.public, "Jane Doe")
    clock = keys.add_authority((authority.folder / "ca.pem").read_bytes(), "The clock")
    with pytest.raises(KeyFileError, match="a time-stamping authority, not a key"):
        keys.revoke(clock, now.date())
    token = authority.stamp(Path(signed.location) / INDEX)
    keys.revoke(key.public.id, (now + timedelta(days=2)).date())
    assert verify(signed.location).signature == "revoked"
    assert verify(signed.location, timestamp=token).signature == "trusted"
    keys.revoke(key.public.id, (now - timedelta(days=2)).date())
    assert verify(signed.location, timestamp=token).signature == "revoked"


def test_a_token_over_another_file_or_of_another_kind_is_a_finding(
    authority: Authority, signed: Published, tmp_path: Path
) -> None:
    index, other = Path(signed.location) / INDEX, tmp_path / "other"
    other.write_bytes(b"something else")
    for token, said in (
        (authority.stamp(other), "over another file"),
        (authority.stamp(index, "-sha256"), "ask for it with -cert"),
        (b"no token", "not an RFC 3161 token"),
        (b"", "not an RFC 3161 token"),
        (b"\x30\x84\xff\xff\xff\xff", "not an RFC 3161 token"),
    ):
        (finding,) = verify(signed.location, timestamp=token).findings
        assert finding.check == "time" and said in finding.message
    assert read_token(authority.stamp(index, "-sha512", "-cert"), index.read_bytes())


def test_a_snapshot_cannot_be_older_than_what_it_measured(
    authority: Authority, signed: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = authority.stamp(Path(signed.location) / INDEX)
    parsed = "firstlight.snapshot.authenticity._parsed"
    monkeypatch.setattr(parsed, lambda manifest: {"measured_to": "2999-01-01T00:00:00.000+00:00"})
    (finding,) = verify(signed.location, timestamp=token).findings
    assert "claims to be measured at 2999" in finding.message


def test_a_changed_byte_never_yields_another_time_or_authority(
    authority: Authority, signed: Published
) -> None:
    index = (Path(signed.location) / INDEX).read_bytes()
    token = authority.stamp(Path(signed.location) / INDEX)
    genuine, draw, refused = read_token(token, index), random.Random(1), 0
    for _ in range(400):
        place = draw.randrange(len(token))
        changed = bytearray(token)
        changed[place] ^= 1 << draw.randrange(8)
        try:
            found = read_token(bytes(changed), index)
        except TimestampError:
            refused += 1
        else:  # in the unsigned part: the status around the token
            assert (found.time, found.chain[0]) == (genuine.time, genuine.chain[0])
    assert refused > 350
