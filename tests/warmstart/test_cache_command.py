"""`firstlight cache`: what is in a cache, whether it is sound, and why it missed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firstlight.cli import main
from firstlight.snapshot.keys import PrivateKey
from firstlight.warmstart import folder, sealed
from firstlight.warmstart.cache_server.server import CacheServer
from firstlight.warmstart.entries import Entries, name_of
from firstlight.warmstart.explain import Part, compiles_of, differences
from firstlight.warmstart.inventory import Listed
from firstlight.warmstart.manifest import kind_here
from firstlight.warmstart.sharing.http_place import HttpPlace
from firstlight.warmstart.signing import Signatures

KIND = "jax0.10.2-jaxlib0.10.2-py3.11-linux-x86_64-0123456789ab"
PARTS = {"computation": "c", "XLA flags": "f", "compile_options": "o", "jax_lib version": "j"}


def about(compiled: float = 1.0, **more: Any) -> dict[str, Any]:
    return {
        "function": "jit_step", "shapes": "(f32[8]) -> f32[8]", "parts": PARTS, "host": "node7",
        "without_constants": "w", "xla_flags": "", "compiled": compiled, **more,
    }  # fmt: skip


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Three programs: two compiles of `step`, and one for another machine."""
    path = tmp_path / "cache"
    root = folder.opened(str(path))
    shapes = {"shapes": "(f32[9]) -> f32[9]", "parts": {**PARTS, "computation": "c2"}}
    for kind, key, known, used in (
        (KIND, "jit_step-1", about(10.0), 100),
        (KIND, "jit_step-2", about(20.0, **shapes), 300),
        (kind_here(), "jit_here-1", about(30.0, function="jit_here"), 200),
    ):
        entries = Entries(root, kind, 2**30)
        entries.keep(key, sealed.seal(kind, key, bytes(1000), json.dumps(known).encode()))
        os.utime(entries.path(key), (used, used))
    return path


Printed = pytest.CaptureFixture[str]


def told(capsys: Printed, *arguments: str, code: int = 0) -> Any:
    assert main(["cache", *arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_ls_and_stats_list_every_entry_the_last_used_first(cache: Path, capsys: Printed) -> None:
    listed = told(capsys, "ls", str(cache))
    assert [one["key"] for one in listed] == ["jit_step-2", "jit_here-1", "jit_step-1"]
    assert listed[0]["about"]["shapes"] == "(f32[9]) -> f32[9]" and listed[0]["signer"] is None
    counted = told(capsys, "stats", str(cache))
    assert counted["entries"] == 3 and counted["bytes"] == sum(one["bytes"] for one in listed)
    assert main(["cache", "ls", str(cache)]) == main(["cache", "stats", str(cache)]) == 0
    text = capsys.readouterr().out
    assert "jit_step" in text and "jax 0.10.2, py3.11, 012345" in text


def test_names_in_an_entry_cannot_send_control_sequences_to_the_terminal(
    tmp_path: Path, capsys: Printed
) -> None:
    entries = Entries(folder.opened(str(tmp_path)), KIND, 2**30)
    name = {"function": "\x1b[2Jf", "shapes": "[bold]x"}
    entries.keep("k", sealed.seal(KIND, "k", b"", json.dumps(name).encode()))
    assert main(["cache", "ls", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text and "[bold]x" in text


def test_verify_names_damage_and_repair_removes_it(cache: Path, capsys: Printed) -> None:
    assert told(capsys, "verify", str(cache)) == {"entries": 3, "wrong": []}
    root = cache / folder.LAYOUT
    torn = root / KIND / name_of("jit_step-1")
    torn.write_bytes(torn.read_bytes()[:-1])
    moved = root / kind_here() / name_of("jit_here-1")
    (root / KIND / "aa").mkdir(exist_ok=True)
    moved.rename(root / KIND / "aa" / ("b" * 62))
    wrong = told(capsys, "verify", str(cache), code=1)["wrong"]
    assert {one["key"] for one in wrong} == {"jit_step-1", "jit_here-1"}
    assert main(["cache", "verify", str(cache)]) == 1
    assert "firstlight cache verify --repair" in capsys.readouterr().out
    assert main(["cache", "verify", "--repair", str(cache)]) == 0
    capsys.readouterr()
    assert told(capsys, "verify", str(cache)) == {"entries": 1, "wrong": []}


def test_prune_removes_the_longest_unused_the_old_and_the_incompatible(
    cache: Path, capsys: Printed
) -> None:
    def pruned(*how: str) -> int:
        return len(told(capsys, "prune", str(cache), *how)["removed"])

    assert pruned("--older-than", "52w", "--dry-run") == 3
    assert pruned("--max-bytes", "3K") == 1
    left = told(capsys, "ls", str(cache))
    assert [one["key"] for one in left] == ["jit_step-2", "jit_here-1"]
    os.utime(cache / folder.LAYOUT / left[1]["path"], (time.time(), time.time()))
    assert pruned("--older-than", "1d") == 1
    assert pruned("--incompatible") == 0 and pruned("--max-bytes", "0") == 1
    with pytest.raises(SystemExit):
        main(["cache", "prune", str(cache)])
    with pytest.raises(SystemExit):
        main(["cache", "prune", str(cache), "--older-than", "yesterday"])


def test_what_a_revoked_key_signed_can_be_removed(
    cache: Path, signatures: Signatures, capsys: Printed
) -> None:
    assert signatures.own is not None
    signed = signatures.sign(sealed.seal(KIND, "theirs", b""))
    Entries(str(cache / folder.LAYOUT), KIND, 2**30).keep("theirs", signed)
    found = told(capsys, "prune", str(cache), "--signed-by", signatures.own.public.id[:8])
    assert found["removed"] == [f"{KIND}/{name_of('theirs')}"]


def test_explain_names_the_part_of_the_key_that_differs_and_the_cure(
    cache: Path, capsys: Printed
) -> None:
    for name in ("step", "jit(step)", "jit_step"):
        found = told(capsys, "explain", name, str(cache))
        assert found["differences"] == [
            {"part": "shapes", "first": "(f32[8]) -> f32[8]", "second": "(f32[9]) -> f32[9]"}
        ]
    assert main(["cache", "explain", "step", str(cache)]) == 0
    text = capsys.readouterr().out
    assert "(f32[9]) -> f32[9]" in text and "node7" in text and "Pad to a few fixed shapes" in text
    assert main(["cache", "explain", "here", str(cache)]) == 1
    assert "was compiled once" in capsys.readouterr().err
    assert main(["cache", "explain", "nothing", str(cache)]) == 1
    assert "these have: jit_step, jit_here" in capsys.readouterr().err


def entry(kind: str = KIND, key: str = "jit_step-1", **more: Any) -> Listed:
    return Listed("", kind, key, 0, 0.0, b"", about(**more))


@pytest.mark.parametrize(
    ("other", "part", "words"),
    [
        (entry(parts={**PARTS, "computation": "x"}), Part.CONSTANTS, ""),
        (entry(parts={**PARTS, "computation": "x"}, without_constants="x"), Part.CODE, ""),
        (entry(parts={**PARTS, "XLA flags": "x", "compile_options": "x"}, xla_flags="--xla_a=1"),
         Part.FLAGS, "--xla_a=1"),
        (entry(parts={**PARTS, "compile_options": "x"}, options={"num_replicas": 2}),
         Part.OPTIONS, ""),
        (entry(kind=KIND.replace("jax0.10.2-", "jax0.11.0-", 1)), Part.JAX, "0.11.0"),
        (entry(kind=KIND.replace("0123456789ab", "ba9876543210")), Part.PROCESSOR, "ba9876543210"),
        (entry(kind=KIND.replace("py3.11", "py3.12")), Part.PYTHON, "3.12"),
        (entry(key="jit_step-other"), Part.OTHER, ""),
    ],
)  # fmt: skip
def test_differences_name_the_part_of_the_key(other: Listed, part: Part, words: str) -> None:
    (difference,) = differences(entry(), other)
    assert difference.part is part and words in difference.second


def test_equal_keys_have_no_differences() -> None:
    assert differences(entry(), entry()) == []
    assert compiles_of("<lambda>", [entry(function="jit__lambda")])


def test_a_server_is_listed_verified_and_compared_with_a_folder(
    cache: Path,
    serve: Callable[..., CacheServer],
    signatures: Signatures,
    capsys: Printed,
) -> None:
    served = serve()
    known = json.dumps(about(40.0, xla_flags="--xla_x", parts={**PARTS, "XLA flags": "x"}))
    signed = signatures.sign(sealed.seal(KIND, "jit_step-3", b"", known.encode()))
    HttpPlace(served.url).store(f"{KIND}/{name_of('jit_step-3')}", signed)
    assert [one["key"] for one in told(capsys, "ls", served.url)] == ["jit_step-3"]
    assert told(capsys, "verify", served.url) == {"entries": 1, "wrong": []}
    assert told(capsys, "stats", served.url)["server"] == {"hit": 1, "miss": 0}
    parts = {
        d["part"] for d in told(capsys, "explain", "step", str(cache), served.url)["differences"]
    }
    assert parts == {"shapes", "flags"}
    assert main(["cache", "prune", "--max-bytes", "0", served.url]) == 2
    assert "removes entries itself" in capsys.readouterr().err


def test_push_sends_what_a_shared_cache_does_not_have(
    cache: Path,
    serve: Callable[..., CacheServer],
    config: Path,
    new_key: Callable[[Path], PrivateKey],
    capsys: Printed,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FIRSTLIGHT_CACHE_LOCAL_DIR", str(cache))
    url = serve().url
    assert main(["cache", "push", url]) == 2
    assert "firstlight keys generate" in capsys.readouterr().err
    new_key(config)
    assert told(capsys, "push", url) == {"sent": 3, "there": 0}
    assert told(capsys, "push", url) == {"sent": 0, "there": 3}
    assert told(capsys, "verify", url) == {"entries": 3, "wrong": []}


def test_a_cache_that_cannot_be_read_says_why(tmp_path: Path, capsys: Printed) -> None:
    assert main(["cache", "ls", str(tmp_path / "nowhere")]) == 2
    assert "no such folder" in capsys.readouterr().err
    assert main(["cache", "ls", "http://127.0.0.1:9"]) == 2
    assert "http://127.0.0.1:9: Connection refused" in capsys.readouterr().err
