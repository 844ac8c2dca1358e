"""`firstlight warm`: what a program compiled, compiled again elsewhere without the program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from firstlight.cli import main
from firstlight.snapshot.keys import PrivateKey
from firstlight.warmstart import building, folder, manifest, packs, sealed
from firstlight.warmstart.cache_server.server import CacheServer
from firstlight.warmstart.entries import Entries
from firstlight.warmstart.manifest import Manifest, ManifestError, Program, kind_here
from firstlight.warmstart.signing import Signatures

Printed = pytest.CaptureFixture[str]

#: Counts its hits; one function calls back into Python, and one needs LAPACK.
PROGRAM = """
import json, sys
from collections import Counter
import jax, jax.numpy as jnp, numpy as np

seen = Counter()
jax.monitoring.register_event_listener(lambda event, **_: seen.update([event.rpartition("/")[2]]))

@jax.jit
def step(x):
    return jnp.sin(x) @ x

@jax.jit
def solve(x):
    return jnp.linalg.solve(x + jnp.eye(3), x)

x = jax.device_put(np.ones((3, 3), np.float32))
print(json.dumps({"answer": float(solve(step(x)).sum()), **seen}))
if "--callback" in sys.argv:
    jax.jit(lambda x: jax.pure_callback(lambda x: x, x, x))(x)
sys.exit(3)
"""


def answered(tmp_path: Path, cache: str, **variables: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "firstlight", "exec", "--cache", cache]
    done = subprocess.run(
        [*command, sys.executable, str(tmp_path / "program.py")],
        capture_output=True, text=True, check=False, env={**os.environ, **variables},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (3, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_a_recorded_program_is_compiled_into_a_server_and_then_hits_everywhere(
    tmp_path: Path,
    serve: Callable[..., CacheServer],
    signatures: Signatures,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FIRSTLIGHT_CACHE_LOCAL_DIR", str(tmp_path / "of the builder"))
    (tmp_path / "program.py").write_text(PROGRAM)
    recorded, url = str(tmp_path / "program.warm"), serve().url
    # Of these, the folder in front of the server already has those that the builder records.
    arguments = ["--out", recorded, "--cache", str(tmp_path / "of the builder")]
    program = str(tmp_path / "program.py")
    assert main(["warm", "record", *arguments, program, "--callback"]) == 3
    printed = capfd.readouterr()
    assert "call back into Python" in printed.err
    first = json.loads(printed.out)
    assert main(["warm", "check", recorded, "--cache", url]) == 1
    assert "missing: jit_step" in capfd.readouterr().out
    assert main(["warm", "build", recorded, "--cache", url, "--jobs", "2"]) == 0
    assert main(["warm", "check", recorded, "--cache", url]) == 0
    stores_callbacks = tuple(map(int, version("jax").split(".")[:2])) >= (0, 11)
    assert ("never stored" in capfd.readouterr().out) == (not stores_callbacks)
    elsewhere = answered(tmp_path, url, FIRSTLIGHT_CACHE_LOCAL_DIR=str(tmp_path / "elsewhere"))
    assert elsewhere["answer"] == first["answer"]
    assert elsewhere["cache_hits"] == elsewhere["compile_requests_use_cache"] >= 2
    assert elsewhere.get("cache_misses", 0) == 0


def program(kind: str = "") -> Program:
    name = manifest.object_name(b"program")
    return Program("jit_f-1", kind or kind_here(), name, name, [0], "cpu", False, {}, [], {})


def written(path: Path, *programs: Program) -> Path:
    objects = {manifest.object_name(b"program"): b"program"}
    manifest.write(path, Manifest(["train.py"], list(programs), objects))
    return path


def test_a_manifest_of_another_jax_is_stale_and_says_how_to_compile_it(
    tmp_path: Path, capsys: Printed
) -> None:
    other = "jax0.1-jaxlib0.1-" + "-".join(kind_here().split("-")[2:])
    path = written(tmp_path / "old.warm", program(other))
    assert main(["warm", "check", str(path), "--cache", str(tmp_path)]) == 1
    assert "stale" in (text := capsys.readouterr().out) and "warm build --run" in text
    assert main(["warm", "build", str(path), "--cache", str(tmp_path)]) == 2
    assert "jax0.1-jaxlib0.1" in (text := capsys.readouterr().err) and "--run" in text


def test_programs_whose_compiling_process_ends_early_are_reported_as_failed(
    tmp_path: Path, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a flag of XLA that this one does not know; not as if nobody read our output."""
    monkeypatch.setattr(building, "_WORKER", "__future__")  # reads nothing, prints nothing
    programs = [replace(program(), key=f"jit_f-{i}") for i in range(50)]
    path = written(tmp_path / "a.warm", *programs)
    assert main(["warm", "build", str(path), "--cache", str(tmp_path), "--jobs", "1"]) == 1
    text = capsys.readouterr().out
    assert "50 failed" in text and "its process ended" in text


@pytest.mark.slow
def test_a_stale_manifest_is_built_by_running_its_program_from_its_folder(
    tmp_path: Path, capfd: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    other = "jax0.1-jaxlib0.1-" + "-".join(kind_here().split("-")[2:])
    path, cache = str(written(tmp_path / "old.warm", program(other))), str(tmp_path / "cache")
    run = ["warm", "build", "--run", path, "--cache", cache]
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    assert main(run) == 2
    assert "there is no train.py here" in capfd.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert main(run) == 3  # the program's own
    printed = capfd.readouterr()
    asked = json.loads(printed.out)["compile_requests_use_cache"]
    assert f"{asked} programs: {asked} are in the cache." in printed.err
    assert "ended with exit code 3" in printed.err
    assert f"firstlight warm record --out {path} train.py" in printed.err
    assert len([file for file in Path(cache).rglob("*") if file.is_file()]) >= asked
    with pytest.raises(SystemExit):
        main([*run, "--jobs", "2"])
    assert "not with --run" in capfd.readouterr().err


def test_a_manifest_of_another_processor_is_to_be_built_here(
    tmp_path: Path, capsys: Printed
) -> None:
    other = "-".join([*kind_here().split("-")[:-1], "0123456789ab"])
    path = written(tmp_path / "other.warm", program(other))
    assert main(["warm", "check", str(path), "--cache", str(tmp_path)]) == 1
    assert "another kind of machine" in (text := capsys.readouterr().out)
    assert f"firstlight warm build {path}" in text


def test_a_damaged_manifest_or_another_file_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a.warm", program())
    assert manifest.read(path).programs == [program()]
    with zipfile.ZipFile(path) as archive:
        index = archive.read("manifest.json")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", index)
        archive.writestr(f"objects/{program().program}", b"another program")
    with pytest.raises(ManifestError, match="damaged"):
        manifest.read(path)
    for content in (b"no zip", b""):
        path.write_bytes(content)
        with pytest.raises(ManifestError, match="not a manifest"):
            manifest.read(path)
    with pytest.raises(ManifestError, match="No such file"):
        manifest.read(tmp_path / "nowhere")


@pytest.fixture
def packed(tmp_path: Path, signatures: Signatures) -> Path:
    """Two programs for this machine, and one for another that is left out."""
    root = folder.opened(str(tmp_path / "full"))
    for kind, key in ((kind_here(), "a"), (kind_here(), "b"), ("other", "c")):
        Entries(root, kind, 2**30).write(key, b"program " + key.encode())
    path = tmp_path / "it.pack"
    assert main(["warm", "pack", str(path), "--cache", str(tmp_path / "full")]) == 0
    return path


def test_a_pack_carries_what_was_compiled_for_this_machine(
    tmp_path: Path, packed: Path, capsys: Printed
) -> None:
    assert main(["warm", "unpack", str(packed), "--cache", str(tmp_path / "new")]) == 0
    assert "2 programs stored" in capsys.readouterr().out
    entries = Entries(folder.opened(str(tmp_path / "new")), kind_here(), 2**30)
    assert [entries.read(key) for key in "abc"] == [b"program a", b"program b", None]


def test_a_pack_that_was_changed_or_signed_by_a_stranger_is_not_unpacked(
    tmp_path: Path,
    packed: Path,
    signatures: Signatures,
    new_key: Callable[[Path], PrivateKey],
    capsys: Printed,
) -> None:
    content, new = packed.read_bytes(), tmp_path / "new"
    stranger = Signatures(new_key(tmp_path / "stranger"), frozenset())

    def pack_of(entry: bytes) -> bytes:
        body = len(entry).to_bytes(8, "big") + entry
        return signatures.sign(sealed.seal("pack", "firstlight pack 1", body))

    attempts = {
        "damaged": content[:-1],
        "not a pack": signatures.sign(sealed.seal("kind", "key", b"program")),
        "keys trust --programs": stranger.sign(content),
        "is not an entry": pack_of(sealed.seal(kind_here(), "a", b"x")[:-1]),
        "nothing was unpacked": pack_of(sealed.seal("..", "a", b"x")),
    }
    for why, changed in attempts.items():
        packed.write_bytes(changed)
        assert main(["warm", "unpack", str(packed), "--cache", str(new)]) == 2
        assert why in capsys.readouterr().err
    assert not [path for path in new.rglob("*") if path.is_file()]
    with pytest.raises(packs.PackError, match="firstlight keys generate"):
        packs.pack(packed, [], replace(signatures, own=None))


def test_keys_trusted_for_programs_are_apart_from_those_of_snapshots(
    config: Path, tmp_path: Path, new_key: Callable[[Path], PrivateKey], capsys: Printed
) -> None:
    public = new_key(tmp_path / "ci").public
    assert main(["keys", "trust", public.base64, "--name", "CI"]) == 0
    assert Signatures.of_user().trusted == frozenset()
    assert main(["keys", "trust", "--programs", public.base64, "--name", "CI"]) == 0
    assert Signatures.of_user().trusted == {public.raw}
    capsys.readouterr()
    assert main(["keys", "list", "--programs"]) == 0
    assert public.id in capsys.readouterr().out
    assert main(["keys", "revoke", "--programs", public.id[:8]]) == 0
    assert f"firstlight cache prune --signed-by {public.id}" in capsys.readouterr().out
    assert Signatures.of_user().trusted == frozenset()
    assert main(["keys", "forget", "--programs", public.id[:8]]) == 0
    assert main(["keys", "trust", "--programs", public.base64, "--name", "CI",
                 "--until", "2020-01-01"]) == 0  # fmt: skip
    assert Signatures.of_user().trusted == frozenset()
