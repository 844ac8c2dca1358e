"""Who may have written a frozen function; nothing of a file is used before that is known."""

from __future__ import annotations

import os
import random
import re
import stat
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from firstlight.snapshot.keys import generate
from firstlight.snapshot.trust import TrustedKeys, default_private_key
from firstlight.warmstart.frozen.errors import FrozenError, NotTrustedError
from firstlight.warmstart.frozen.sealing import opened, sealed_function

BODY = b"executable code" * 10


@pytest.fixture(autouse=True)
def own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def written(tmp_path: Path, content: bytes, mode: int = 0o644) -> Path:
    path = tmp_path / "f.frozen"
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_an_unsigned_file_of_the_user_is_opened(tmp_path: Path) -> None:
    assert opened(written(tmp_path, sealed_function(BODY))) == BODY


def test_an_unsigned_file_that_others_could_have_written_is_not(
    tmp_path: Path, belongs_to_another: Callable[[Path], None]
) -> None:
    path = written(tmp_path, sealed_function(BODY), 0o664)
    with pytest.raises(NotTrustedError, match=r"is open to others.*chmod go-w"):
        opened(path)
    path.chmod(0o644)
    belongs_to_another(path)
    with pytest.raises(NotTrustedError, match="belongs to another user"):
        opened(path)


def test_a_signed_file_may_come_from_anywhere_once_its_signer_is_trusted_for_programs(
    tmp_path: Path, belongs_to_another: Callable[[Path], None]
) -> None:
    public = generate(tmp_path / "key.pem")
    path = written(tmp_path, sealed_function(BODY, key=tmp_path / "key.pem"))
    with pytest.raises(NotTrustedError, match=f"trust --programs {re.escape(public.base64)}"):
        opened(path)
    TrustedKeys.of_user().add(public, "for snapshots only")
    with pytest.raises(NotTrustedError, match="a key that you do not trust for programs"):
        opened(path)
    TrustedKeys.for_programs().add(public, "a colleague")
    belongs_to_another(path)
    assert opened(path) == BODY
    TrustedKeys.for_programs().revoke(public.id, date(2020, 1, 1))
    with pytest.raises(NotTrustedError, match="or no longer"):
        opened(path)


def test_the_users_own_key_signs_by_default_and_is_trusted(tmp_path: Path) -> None:
    generate(default_private_key())
    content = sealed_function(BODY)
    assert content != sealed_function(BODY, is_signed=False)
    assert opened(written(tmp_path, content)) == BODY


def test_a_key_with_a_passphrase_is_not_used_by_default(tmp_path: Path) -> None:
    generate(default_private_key(), b"secret")
    assert sealed_function(BODY) == sealed_function(BODY, is_signed=False)


def test_every_changed_bit_of_a_signed_file_is_detected(tmp_path: Path) -> None:
    generate(default_private_key())
    content = sealed_function(BODY)
    draw = random.Random(0)
    for _ in range(300):
        at = draw.randrange(len(content))
        changed = bytearray(content)
        changed[at] ^= 1 << draw.randrange(8)
        with pytest.raises(FrozenError):
            opened(written(tmp_path, bytes(changed)))
    with pytest.raises(FrozenError, match="a damaged one"):
        opened(written(tmp_path, content[:-1]))


def test_other_files_are_reported_as_not_a_frozen_function(tmp_path: Path) -> None:
    with pytest.raises(FrozenError, match="not a frozen function"):
        opened(written(tmp_path, b"something"))
    with pytest.raises(FrozenError, match="cannot be read: No such file"):
        opened(tmp_path / "absent")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FrozenError, match="not a frozen function"):
        opened(tmp_path / "pipe")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
