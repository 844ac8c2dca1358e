"""`firstlight publish`, `verify`, `keys` and `snapshots` as a user calls them, on a real run."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from firstlight.cli import main
from firstlight.present.progress import LiveLine
from firstlight.snapshot.opening import open_snapshot
from firstlight.snapshot.publishing import Published, publish
from firstlight.snapshot.storage import LocalStore, open_store

pytestmark = pytest.mark.slow

Firstlight = Callable[..., "subprocess.CompletedProcess[str]"]

MINE = """
import numpy as np
from firstlight import bench

@bench(sizes={"small": {"n": 50}}, reference=lambda n: np.arange(n) ** 2.0, tolerance=1e-9)
def square(n):
    x = np.arange(n, dtype=float)

    def step(x):
        result = x * x
        x += 1  # a step may modify its input: the hash is of the original
        x -= 1
        return result

    return step, (x,)
"""


@pytest.fixture
def firstlight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Firstlight:
    """`firstlight …` in `tmp_path`, in-process: starting one takes longer than publishing."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        words = [str(argument) for argument in arguments]
        capsys.readouterr()
        code = main(words)
        said = capsys.readouterr()
        return subprocess.CompletedProcess(words, code, said.out, said.err)

    return call


@pytest.fixture(scope="module")
def real_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A measured run, in a home directory."""
    home = tmp_path_factory.mktemp("x") / "home" / "ann"
    home.mkdir(parents=True)
    (home / "mine.py").write_text(MINE)
    command = [sys.executable, "-m", "firstlight", "run", "mine.py", "--quick", "--out", "run"]
    done = subprocess.run(
        command, cwd=home, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return home / "run"


def test_from_a_measured_run_to_a_verified_snapshot(
    firstlight: Firstlight, real_run: Path, tmp_path: Path
) -> None:
    """As in the guide: a key, a signed snapshot, a reviewer who verifies and then trusts."""
    made = firstlight("keys", "generate", "--out", "key.pem")
    assert made.returncode == 0 and oct((tmp_path / "key.pem").stat().st_mode)[-3:] == "600"
    public = made.stdout.split("Public key:")[1].split()[0]
    options = ("--key", "key.pem", "--archive", "--with-source", "--json")
    who = ("--creator", "Doe, Jane; 0000-0002-1825-0097")
    done = firstlight("publish", real_run, "--out", "results", *options, *who)
    assert done.returncode == 0, done.stderr
    published = json.loads(done.stdout)
    snapshot = tmp_path / published["location"]

    checked = firstlight("verify", snapshot)
    assert checked.returncode == 0, checked.stdout
    assert "Valid" in checked.stdout and "not among your trusted keys" in checked.stdout
    strict = firstlight("verify", snapshot, "--require-trusted", "--json")
    assert strict.returncode == 1 and json.loads(strict.stdout)["signature"] == "valid"
    assert firstlight("keys", "trust", public, "--name", "Jane Doe").returncode == 0
    assert "Jane Doe" in firstlight("keys", "list").stdout
    assert firstlight("verify", published["archive"], "--require-trusted").returncode == 0

    listed = firstlight("snapshots", "results")
    assert published["id"] in listed.stdout and "1/1 valid" in listed.stdout

    about = json.loads((snapshot / "manifest.json").read_text())
    lock = about["runs"][0]["software"]["lock"]
    import numpy

    assert f"numpy=={numpy.__version__}" in lock and len(lock) > 10
    case = about["runs"][0]["cases"][0]
    import hashlib

    data = numpy.arange(50, dtype=float).tobytes()
    assert case["dataset"]["arrays"][0]["sha256"] == hashlib.sha256(data).hexdigest()
    assert case["dataset"]["id"] == "mine.py:square[small]"
    everything = b"".join(p.read_bytes() for p in snapshot.rglob("*") if p.is_file())
    assert b"home/ann" not in everything
    assert (snapshot / "sources/001/mine.py").read_text() == MINE


def test_a_changed_snapshot_ends_with_1_and_no_snapshot_with_2(
    firstlight: Firstlight, real_run: Path, tmp_path: Path
) -> None:
    done = firstlight("publish", real_run, "--out", "results", "--json")
    snapshot = tmp_path / json.loads(done.stdout)["location"]
    samples = snapshot / "runs/001/samples.jsonl"
    whole = samples.read_bytes()
    samples.write_bytes(whole.replace(b"1", b"2", 1))
    changed = firstlight("verify", snapshot)
    assert changed.returncode == 1
    assert "FINDING    runs/001/samples.jsonl is not the file" in changed.stdout
    samples.write_bytes(whole)
    assert firstlight("verify", snapshot).returncode == 0
    nothing = firstlight("verify", real_run)
    assert nothing.returncode == 2 and "not a snapshot" in nothing.stderr
    nowhere = firstlight("verify", "nowhere", "--json")
    assert nowhere.returncode == 2 and "no such" in json.loads(nowhere.stdout)["unusable"]


def test_every_refusal_has_a_message_and_exit_code_2(
    real_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from firstlight.cli import main

    monkeypatch.chdir(tmp_path)
    for arguments, said in (
        (["publish", tmp_path, "--out", "x"], "not a finished run"),
        (["publish", real_run, "--out", "x", "--key", "none.pem"], "cannot be read"),
        (["publish", real_run, "--out", "x", "--creator", "A; 12"], "not an ORCID"),
        (["publish", real_run, "--out", "x", "--creator", "A; 0000-0002-1825-0098"], "check digit"),
        (["publish", real_run, "--out", "memory://x"], "memory lasts only as long as this command"),
        (["publish", real_run, "--out", "s3:/bucket/x"], "did you mean s3://bucket/x?"),
        (["publish", real_run, "--out", ""], "names no place"),
        (["publish", real_run, real_run, "--out", "x"], "given twice"),
        (["publish", real_run, "--out", "what://x"], "what"),
        (["keys", "trust", "AAAA", "--name", "x"], "neither a file nor a public key"),
        (["keys", "forget", "x"], "not among the trusted"),
        (["keys", "show"], "you have no key yet"),
    ):
        assert main([str(argument) for argument in arguments]) == 2
        assert said in capsys.readouterr().err
    assert not list(tmp_path.glob("[xs]*"))


@pytest.mark.parametrize(
    ("orcid", "right"),
    [
        # The first three are the examples of ORCID's own documentation.
        *(("0000-0002-1825-0097", True), ("0000-0001-5109-3700", True)),
        *(("0000-0002-1694-233X", True), ("0000-0002-1694-2330", False)),
        *(("0000-0002-1825-0079", False), ("0000-0002-8125-0097", False)),
        ("٠٠٠٠-0002-1825-0097", False),
    ],
)
def test_the_check_digit_of_an_orcid_is_checked(orcid: str, right: bool) -> None:
    from firstlight.cli.publish import is_orcid

    assert is_orcid(orcid) is right


def test_citation_and_snippet_name_id_and_key_and_commands_can_be_copied(
    firstlight: Firstlight, real_run: Path, tmp_path: Path
) -> None:
    import shlex

    import yaml

    made = firstlight("keys", "generate", "--out", "key.pem")
    public = made.stdout.split("Public key:")[1].split()[0]
    done = firstlight("publish", real_run, "--out", "my place", "--key", "key.pem")
    assert done.returncode == 0, done.stderr
    command = shlex.split(done.stdout.rsplit("Check it: ", 1)[1])
    snapshot = Path(command[2])
    assert command[:2] == ["firstlight", "verify"] and snapshot.parent == Path("my place")
    assert snapshot.name in done.stdout and public in done.stdout
    beside = {p.name for p in (tmp_path / "my place").iterdir() if p.is_file()}
    assert beside == {f"{snapshot.name}.snippet.md", f"{snapshot.name}.CITATION.cff"}
    snippet = (tmp_path / "my place" / f"{snapshot.name}.snippet.md").read_text()
    assert f"Snapshot `{snapshot.name}`, signed with the Ed25519 key `{public}`" in snippet
    citation = yaml.safe_load((tmp_path / "my place" / f"{snapshot.name}.CITATION.cff").read_text())
    assert citation["identifiers"][0]["value"] == f"sha256:{snapshot.name}"
    assert public in citation["identifiers"][0]["description"]
    assert "of 1 benchmark case, measured in" in citation["abstract"]
    samples = (real_run / "samples.jsonl").read_text().splitlines()
    assert f"{len(samples)} fresh processes (untimed checks included)" in citation["abstract"]
    assert firstlight("verify", snapshot).returncode == 0


def test_a_title_in_the_snippet_is_text_never_markup(made_up: Path) -> None:
    from firstlight.snapshot.publishing import PublishOptions, build

    title = "fits \x1b[31m\u202e[l](javascript:alert(1)) ![i](x) <b> `c`"
    snippet = build([made_up], PublishOptions(title=title)).files["snippet.md"].decode()
    heading = snippet.splitlines()[0]
    assert heading == r"### fits \[31m\[l\](javascript:alert(1)) !\[i\](x) \<b\> \`c\`"
    assert "| `matmul[small]/numpy/none` |" in snippet  # no backslash between backticks


def test_a_key_with_a_passphrase_signs(
    firstlight: Firstlight, real_run: Path, tmp_path: Path
) -> None:
    (tmp_path / "words").write_text("open sesame\n")
    locked = firstlight("keys", "generate", "--out", "key.pem", "--passphrase-file", "words")
    assert locked.returncode == 0
    publish = ("publish", real_run, "--out", "results", "--key", "key.pem")
    assert "needs its passphrase" in firstlight(*publish).stderr
    assert firstlight(*publish, "--passphrase-file", "words").returncode == 0
    assert "Public key" in firstlight("keys", "show", "key.pem").stdout


def test_the_command_line_loads_neither_cryptography_nor_fsspec() -> None:
    program = (
        "import sys; from firstlight.cli import build_parser; build_parser();"
        "print([m for m in ('cryptography', 'fsspec', 'numpy', 'jsonschema') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.strip() == "[]"


# --- Stores, short ids, progress ------------------------------------------------------------------


def test_a_whole_store_is_verified_with_the_worst_exit_code(
    signed: Published, made_up: Path, store: LocalStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(store.path)]) == 0
    said = capsys.readouterr().out
    assert f"valid      {signed.id}  signed by key" in said and "1 snapshot: 1 valid" in said
    second = publish([made_up], store)
    (Path(second.location) / "snippet.md").write_text("changed")
    assert main(["verify", str(store.path)]) == 1
    said = capsys.readouterr().out
    assert f"not valid  {second.id}" in said and "FINDING  snippet.md is not the file" in said
    (Path(second.location) / "index.json").unlink()
    assert main(["verify", str(store.path), "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert sorted(one.get("outcome", "unusable") for one in found) == ["unusable", "valid"]
    with pytest.raises(SystemExit):
        main(["verify", str(store.path), "--id", signed.id])


def test_a_unique_prefix_of_an_id_is_enough(
    signed: Published, store: LocalStore, capsys: pytest.CaptureFixture[str]
) -> None:
    short = f"{store.path}/{signed.id[:6]}"
    assert open_snapshot(short).id == signed.id == open_snapshot(f"{short}.tar").id
    assert main(["verify", short, "--id", signed.id[:16]]) == 0
    assert "the id follows from index.json" in capsys.readouterr().out
    assert main(["verify", short, "--id", "0" * 16]) == 1
    # So few digits can be found by trial, so they prove nothing.
    assert main(["verify", short, "--id", signed.id[:15]]) == 2
    assert "at least the first 16" in capsys.readouterr().err
    (store.path / (signed.id[:6] + "0" * 58)).mkdir()
    assert main(["verify", short]) == 2
    assert "2 snapshots there begin with this" in capsys.readouterr().err
    assert main(["verify", f"{store.path}/{'f' * 5}"]) == 2


def test_a_unique_prefix_of_an_id_is_enough_at_a_url(made_up: Path) -> None:
    done = publish([made_up], open_store("memory://short-ids"))
    assert open_snapshot(f"memory://short-ids/{done.id[:8]}").id == done.id


def test_publishing_shows_progress_only_on_a_terminal(
    made_up: Path, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("CI", raising=False)
    steps: list[str] = []
    publish([made_up], store, watch=steps.append)
    assert steps[0] == "reading 1 run" and steps[-1].startswith("writing")
    for stream, shown in ((Screen(), True), (io.StringIO(), False)):
        progress = LiveLine(stream)
        progress.show(steps[0])
        progress.clear()
        assert (steps[0] in stream.getvalue()) == shown
