"""The contents of a snapshot, and what is never published."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import stat
import subprocess
import tarfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import jsonschema
import made_up_run
import numpy as np
import pytest
import yaml
from made_up_run import CASES, HOST, make_case, make_run, make_samples

import firstlight
from firstlight.cli import main
from firstlight.records import REPEATS, Sample, load_plan, load_samples, to_json, write_json
from firstlight.snapshot import contents
from firstlight.snapshot.errors import RefusedError
from firstlight.snapshot.keys import PrivateKey
from firstlight.snapshot.layout import INDEX, SAMPLES, SIGNATURE
from firstlight.snapshot.manifest import Creator
from firstlight.snapshot.publishing import Published, PublishOptions, build, publish
from firstlight.snapshot.redaction import Owner, count_marks, redact
from firstlight.snapshot.storage import LocalStore
from firstlight.snapshot.strict_json import SCHEMAS
from firstlight.snapshot.verifying import verify
from firstlight.statistics.run_summaries import assemble

pytestmark = pytest.mark.slow

SCHEMA_FOLDER = Path(firstlight.__file__).parent / "schemas"


def folder_of(done: Published) -> Path:
    return Path(done.location)


def load(done: Published, name: str) -> Any:
    return json.loads((folder_of(done) / name).read_text())


def test_the_id_is_the_sha256_of_the_index_which_lists_that_of_every_file(
    signed: Published,
) -> None:
    folder = folder_of(signed)
    index = (folder / INDEX).read_bytes()
    assert folder.name == signed.id == hashlib.sha256(index).hexdigest()
    named = {e["path"]: (e["bytes"], e["sha256"]) for e in json.loads(index)["files"]}
    there = {
        str(path.relative_to(folder)): (
            path.stat().st_size,
            hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for path in folder.rglob("*")
        if path.is_file()
    }
    del there[INDEX], there[SIGNATURE]
    assert named == there


@pytest.mark.parametrize("name", ["method.html", "html.py", "style.css"])
def test_a_change_to_any_file_that_pages_are_made_of_makes_another_maker(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, before = Path.read_bytes, contents.code_sha256(*contents.MAKERS)
    monkeypatch.setattr(
        Path, "read_bytes", lambda path: read(path) + (b" " if path.name == name else b"")
    )
    assert contents.code_sha256(*contents.MAKERS) != before


def test_bytecode_that_python_is_writing_makes_no_other_maker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "report" / "__pycache__"
    cache.mkdir(parents=True)
    (tmp_path / "report" / "html.py").write_text("")
    monkeypatch.setattr(contents, "__file__", str(tmp_path / "snapshot" / "contents.py"))
    before = contents.code_sha256("report")
    (cache / "html.cpython-311.pyc.140234").write_bytes(b"unfinished")
    assert contents.code_sha256("report") == before


def test_raw_files_are_published_as_they_were_measured(signed: Published, made_up: Path) -> None:
    for name in ("plan.json", "samples.jsonl", "run.json"):
        published = folder_of(signed) / "runs" / "001" / name
        assert published.read_bytes() == (made_up / name).read_bytes()


def test_the_same_run_gives_the_same_bytes(
    made_up: Path, tmp_path: Path, key: PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = publish([made_up], LocalStore(tmp_path / "a"), key=key, archive=True)
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    monkeypatch.setenv("LC_ALL", "C")
    two = publish([made_up], LocalStore(tmp_path / "b"), key=key, archive=True)
    assert one.id == two.id
    assert Path(str(one.archive)).read_bytes() == Path(str(two.archive)).read_bytes()
    files = [
        {str(p.relative_to(tmp_path / x)): p.read_bytes() for p in (tmp_path / x).rglob("*.*")
         if p.is_file()}
        for x in "ab"
    ]  # fmt: skip
    assert files[0] == files[1]


def test_another_process_with_another_hash_seed_makes_the_same_archive(
    made_up: Path, store: LocalStore, tmp_path: Path
) -> None:
    import sys

    here = publish([made_up], store, archive=True).archive
    out = tmp_path / "other"
    command = [sys.executable, "-m", "firstlight", "publish", str(made_up), "--out", str(out)]
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    done = subprocess.run(
        [*command, "--archive", "--json"],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    there = json.loads(done.stdout)["archive"]
    assert Path(there).read_bytes() == Path(str(here)).read_bytes()


def test_the_order_in_which_runs_are_named_does_not_matter(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / str(n), number=n) for n in (3, 1, 2)]
    assert build(runs, PublishOptions()).id == build(runs[::-1], PublishOptions()).id
    with pytest.raises(RefusedError, match="given twice"):
        build([runs[0], runs[0]], PublishOptions())


def test_publishing_again_changes_nothing(
    signed: Published, made_up: Path, key: PrivateKey
) -> None:
    folder = folder_of(signed)
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    again = publish([made_up], LocalStore(folder.parent), key=key)
    assert (again.id, again.new) == (signed.id, False)
    assert before == {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    assert not list(folder.parent.glob(".publishing-*"))


def test_tar_reads_an_archive_which_has_no_owner_or_time(signed: Published) -> None:
    with tarfile.open(str(signed.archive)) as archive:
        members = archive.getmembers()
        assert members[0].name == f"{signed.id}/{INDEX}"
        for member in members:
            assert (member.mtime, member.uid, member.gid, member.uname) == (0, 0, 0, "")
            assert member.isreg() and member.mode == 0o644
            file = archive.extractfile(member)
            assert file is not None
            here = folder_of(signed).parent / member.name
            assert file.read() == here.read_bytes()
    assert {m.name for m in members} == {
        str(p.relative_to(folder_of(signed).parent)) for p in folder_of(signed).rglob("*.*")
        if p.is_file()
    }  # fmt: skip


def test_every_document_fits_its_shipped_schema(signed: Published) -> None:
    folder = folder_of(signed)
    for path in folder.rglob("*.json"):
        if path.name == "zenodo.json":
            continue
        schema = json.loads((SCHEMA_FOLDER / SCHEMAS[path.name]).read_text())
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.validate(json.loads(path.read_text()), schema)


def test_distributions_have_the_quantiles_of_numpy(signed: Published, made_up: Path) -> None:
    lines = (made_up / "samples.jsonl").read_text().splitlines()
    timed = [s for s in map(json.loads, lines) if s["kind"] == "timed"]
    for case in load(signed, "distributions.json")["runs"][0]["cases"]:
        own = [s for s in timed if s["case"] == case["case"]]
        totals = [s["cold"]["total_seconds"] for s in own]
        assert case["cold_seconds"]["values"] == totals
        for q, value in case["cold_seconds"]["quantiles"].items():
            assert value == pytest.approx(np.quantile(totals, float(q)), rel=1e-12)
        for sample, warm in zip(own, case["warm_call_seconds"], strict=True):
            calls = sample["warm"]["call_seconds"]
            assert warm["calls"] == len(calls)
            for q, value in warm["quantiles"].items():
                assert value == pytest.approx(np.quantile(calls, float(q)), rel=1e-12)


def test_the_manifest_describes_cases_machine_and_software(signed: Published) -> None:
    about = load(signed, "manifest.json")
    run = about["runs"][0]
    assert run["harness"] == made_up_run.HARNESS
    assert run["software"]["lock"] == HOST["lock"]
    assert run["hardware"]["cpu"] == HOST["cpu"]
    case = run["cases"][2]
    assert case["case"] == "matmul[small]/jax-jit/warm" and case["cache_policy"] == "warm"
    assert case["protocol"]["sync"] and case["reference"] == "made.up:reference"
    data = case["dataset"]
    assert data["id"] == "matmul[small]@seed=7"
    digest = hashlib.sha256(b"matmul").hexdigest()
    assert [a["sha256"] for a in data["arrays"]] == [digest]
    whole = f'[[[64,64],"float32","{digest}"]]'
    assert data["sha256"] == hashlib.sha256(whole.encode()).hexdigest()
    # All backends get the same data.
    assert len({c["dataset"]["sha256"] for c in run["cases"]}) == 1


def test_what_an_old_run_did_not_record_is_marked_as_unknown(
    tmp_path: Path, store: LocalStore
) -> None:
    old = {k: v for k, v in HOST.items() if k != "lock"}
    case = make_case()
    samples = make_samples(case, 6, 20, made_up_run.random.Random(1))
    facts = {k: v for k, v in samples[0].facts.items() if k != "data_sha256"}
    samples[0] = replace(samples[0], facts=facts)
    run = make_run(tmp_path / "old", cases=(case,), samples=samples, host=old)
    about = load(publish([run], store), "manifest.json")["runs"][0]
    assert about["software"]["lock"] is None and "not recorded" in about["software"]["lock_unknown"]
    data = about["cases"][0]["dataset"]
    assert data["sha256"] is None and "not recorded" in data["sha256_unknown"]


def test_the_validation_report_has_every_gate_and_delta(signed: Published) -> None:
    report = load(signed, "validation_report.json")
    assert (report["cases_total"], report["cases_passed"]) == (3, 3)
    for case in report["cases"]:
        assert case["gates"] == dict.fromkeys(("protocol", "correct", "proven", "complete"), True)
        correct = case["correctness"]
        assert correct["delta_to_tolerance"] == pytest.approx(3e-7 / 1e-5)
        assert len(correct["processes"]) == 7  # the check and six timed ones
        assert len(case["cache"]["processes"]) == 6
    page = (folder_of(signed) / "validation.html").read_text()
    assert "3 of 3 cases valid" in page
    assert "<script" not in page and "http" not in page.replace("http-equiv", "")


def test_tables_and_plots_are_readable_csv_and_svg(signed: Published) -> None:
    text = (folder_of(signed) / "tables/cases.csv").read_text()
    rows = list(csv.DictReader(io.StringIO(text)))
    summaries = load(signed, "runs/001/run.json")["cases"]
    assert [row["case"] for row in rows] == [case["case"] for case in summaries]
    for row, case in zip(rows, summaries, strict=True):
        assert float(row["cold_median_seconds"]) == case["cold_seconds"]["median"]
        assert (row["compile_seconds"] == "") == (case["phases_seconds"]["compile"] is None)
    plots = list((folder_of(signed) / "plots").glob("*.svg"))
    assert len(plots) == 2
    for plot in plots:
        root = ElementTree.fromstring(plot.read_bytes())
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root.find("{http://www.w3.org/2000/svg}style") is not None
    processes = (folder_of(signed) / "tables/processes-001.csv").read_text().splitlines()
    assert len(processes) == 1 + 18


def test_the_citation_has_what_the_format_requires(made_up: Path, store: LocalStore) -> None:
    """Required by CFF 1.2.0: authors, cff-version, message, title; orcid as a URL."""
    options = PublishOptions(
        title='Start-up: "fast" or #slow?',
        creators=(Creator("Doe, Jané", "0000-0002-1825-0097", "CERN"), Creator("The Team")),
        license="CC-BY-4.0",
    )
    done = publish([made_up], store, options)
    cff = yaml.safe_load((folder_of(done) / "CITATION.cff").read_text())
    assert {"authors", "cff-version", "message", "title"} <= set(cff)
    assert cff["cff-version"] == "1.2.0" and cff["type"] == "dataset"
    assert cff["title"] == options.title and cff["license"] == "CC-BY-4.0"
    assert cff["authors"] == [
        {"family-names": "Doe", "given-names": "Jané", "affiliation": "CERN",
         "orcid": "https://orcid.org/0000-0002-1825-0097"},
        {"name": "The Team"},
    ]  # fmt: skip
    assert cff["date-released"] == "2026-03-01"
    zenodo = load(done, "zenodo.json")
    assert zenodo["upload_type"] == "dataset" and zenodo["title"] == options.title
    assert zenodo["creators"][0] == {
        "name": "Doe, Jané",
        "orcid": "0000-0002-1825-0097",
        "affiliation": "CERN",
    }
    assert {"title", "upload_type", "description", "creators", "access_right"} <= set(zenodo)


def test_a_snippet_has_every_number_with_its_machine(signed: Published) -> None:
    text = (folder_of(signed) / "snippet.md").read_text()
    for words in ("matmul[small]/jax-jit/warm", "Made-up CPU", "jax 0.10.2", "firstlight verify"):
        assert words in text


# --- What is not published ------------------------------------------------------------------------


def test_home_directories_and_passwords_are_not_published(
    tmp_path: Path, store: LocalStore
) -> None:
    private = {
        **HOST,
        "environment": {
            "PYTHONPATH": "/home/ann/lib:/nfs/home/bo.b/x:/opt/lib",
            "XLA_FLAGS": "--xla_dump_to=/Users/Ann/dump",
            "JAX_PROXY": "http://ann:geheim@proxy.example:3128/home/page",
            "TORCH_HOME": "/root/.cache",
        },
    }
    case = make_case()
    samples = make_samples(case, 6, 20, made_up_run.random.Random(1))
    crash = replace(
        samples[2],
        status="crashed",
        reason="ended",
        stderr_tail='File "/home/andré/mine.py", line 3\n/home/ann\nfile:///home/ann/x',
        cold=None,
        warm=None,
    )
    samples[2] = crash
    run = make_run(tmp_path / "run", cases=(case, CASES[1]), host=private, samples=[
        *samples, *make_samples(CASES[1], 6, 20, made_up_run.random.Random(2)),
    ])  # fmt: skip
    done = publish([run], store, PublishOptions(allow=("failed",)))
    everything = b"".join(p.read_bytes() for p in folder_of(done).rglob("*.*") if p.is_file())
    for secret in (b"ann/", b"bo.b", b"Ann", b"geheim", b"/root", b"andr\\u", "andré".encode()):
        assert secret not in everything, secret
    assert b"/opt/lib" in everything and b"proxy.example:3128/home/page" in everything
    # A hash of the original file would let anybody try a list of names.
    for name in ("plan.json", "samples.jsonl", "run.json"):
        assert hashlib.sha256((run / name).read_bytes()).hexdigest().encode() not in everything
    public = hashlib.sha256((folder_of(done) / "runs/001/samples.jsonl").read_bytes()).hexdigest()
    assert load(done, "runs/001/run.json")["samples_sha256"] == public


def failed_run(folder: Path, stderr: str) -> Path:
    """A run with a failed case and its message."""
    samples = make_samples(CASES[0], 6, 20, made_up_run.random.Random(1))
    samples[2] = replace(
        samples[2], status="failed", reason=stderr.splitlines()[-1], stderr_tail=stderr,
        cold=None, warm=None,
    )  # fmt: skip
    samples += make_samples(CASES[1], 6, 20, made_up_run.random.Random(2))
    return make_run(folder, cases=CASES[:2], samples=samples)


def test_private_data_in_failure_messages_is_replaced_and_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", "tr0ub4dor&3 'x")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # named like a secret, but none
    monkeypatch.setenv("USER", "annegret")
    monkeypatch.setenv("LOGNAME", "jax")  # also the name of a backend
    monkeypatch.setattr("socket.gethostname", lambda: "node7.lab.example")
    stderr = (
        "Traceback: File '/scratch/annegret/fit.py' on node7\nannegret@node7.lab.example by jax\n"
        "HfError: 401 for https://hf.example/?token=tr0ub4dor%263%20%27x, header tr0ub4dor&3 'x"
    )
    run = failed_run(tmp_path / "run", stderr)
    assert main(["publish", str(run), "--out", str(tmp_path / "out"), "--allow", "failed"]) == 0
    place = next(p for p in (tmp_path / "out").iterdir() if p.is_dir() and p.name != "catalogue")
    for path in place.rglob("*.*"):
        if path.is_file():
            published = path.read_bytes()
            for private in (b"tr0ub4dor", b"annegret", b"node7", b"lab.example", b"by jax"):
                assert private not in published, (path, private)
    samples = (place / "runs/001/samples.jsonl").read_bytes()
    assert b"/scratch/(user)/fit.py" in samples and b'"matmul[small]/jax-jit/none"' in samples
    assert verify(place).findings == ()
    said = capsys.readouterr().out
    line = next(line for line in said.splitlines() if "runs/001/samples.jsonl" in line)
    for what in ("value of HF_TOKEN", "user name", "name of the machine"):
        assert what in line
    assert "tr0ub4dor" not in said and "TOKENIZERS" not in said


def test_secrets_that_share_a_prefix_are_replaced_completely() -> None:
    owner = Owner(secrets={"PASSWORD": "geheim", "DB_PASSWORD": "geheim-prod"})
    clean = redact(b'{"reason": "tried geheim-prod, then geheim"}', owner=owner)
    assert json.loads(clean.data) == {"reason": "tried ***, then ***"}


def test_a_title_with_a_secret_is_refused_and_an_author_is_no_secret(
    made_up: Path, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Doe, Jane")
    publish([made_up], store, PublishOptions(creators=(Creator("Doe, Jane"),)))
    monkeypatch.setenv("PROXY_AUTHORIZATION", "tr0ub4dor&3")
    with pytest.raises(RefusedError, match="PROXY_AUTHORIZATION"):
        publish([made_up], store, PublishOptions(title="Fits, tr0ub4dor&3"))


@pytest.mark.parametrize(
    ("text", "public"),
    [
        ("postgres://u:p@ss@h:5432/db", "postgres://***@h:5432/db"),
        ("postgres://u:pa/ss@h/db", "postgres://***@h/db"),
        ("postgres://u:pä'ss@h/db", "postgres://***@h/db"),
        ("https://a.example/x?sv=1&sig=AbC%3D&e=2", "https://a.example/x?sv=1&sig=***&e=2"),
        ("Server=h;Pwd=geheim;Uid=sa", "Server=h;Pwd=***;Uid=sa"),
        ("{'password': 'geheim', 'n': 1}", "{'password': '***', 'n': 1}"),
        ("Bearer abc.def-ghi", "Bearer ***"),
        ("Authorization: Basic dTpw", "Authorization: ***"),
        ("hf_" + "a" * 34, "***"),
        ("git+https://github.com/a/b@main", "git+https://github.com/a/b@main"),
        ("http://localhost:8080/path", "http://localhost:8080/path"),
        ("the key is 3", "the key is 3"),
    ],
)
def test_credentials_in_messages_and_variables_are_replaced(text: str, public: str) -> None:
    clean = redact(json.dumps({"token": 3, "reason": text}).encode())
    assert json.loads(clean.data) == {"token": 3, "reason": public}
    assert bool(clean.found) == (text != public)


def test_texts_of_redact_are_not_published(tmp_path: Path, store: LocalStore) -> None:
    host = {**HOST, "environment": {"JAX_COORDINATOR_ADDRESS": "secret-node-7.lab:1234"}}
    run = make_run(tmp_path / "run", host=host)
    done = publish([run], store, PublishOptions(redact=("secret-node-7.lab",)))
    everything = b"".join(p.read_bytes() for p in folder_of(done).rglob("*.*") if p.is_file())
    assert b"secret-node" not in everything and b"(redacted):1234" in everything


def test_a_home_in_an_unusual_place_is_replaced_too(
    tmp_path: Path, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/data/people/ann")
    host = {**HOST, "environment": {"PYTHONPATH": "/data/people/ann/lib:/data/people/annex"}}
    done = publish([make_run(tmp_path / "run", host=host)], store)
    shown = load(done, "runs/001/plan.json")["host"]["environment"]
    assert shown == {"PYTHONPATH": "~/lib:/data/people/annex"}


def test_redaction_that_would_change_a_number_is_refused(made_up: Path, store: LocalStore) -> None:
    number = json.loads((made_up / "run.json").read_text())["cases"][0]["cold_seconds"]["median"]
    with pytest.raises(RefusedError):
        publish([made_up], store, PublishOptions(redact=(str(number)[:4],)))


def test_a_users_program_is_added_only_with_with_source(tmp_path: Path, store: LocalStore) -> None:
    program = tmp_path / "mine.py"
    program.write_text("def mine(): ...\n")
    digest = hashlib.sha256(program.read_bytes()).hexdigest()
    case = replace(make_case(), file=str(program))
    run = make_run(tmp_path / "run", cases=(case,), files={str(program): digest})
    without = publish([run], store)
    assert not (folder_of(without) / "sources").exists()
    source = load(without, "manifest.json")["publication"]["sources"]
    assert source == [{"run": "runs/001", "name": "mine.py", "sha256": digest, "path": None}]
    added = publish([run], store, PublishOptions(with_source=True))
    assert (folder_of(added) / "sources/001/mine.py").read_bytes() == program.read_bytes()
    program.write_text("def mine(): return 1\n")
    with pytest.raises(RefusedError, match="changed since it was measured"):
        publish([run], store, PublishOptions(with_source=True))


def run_of_program(tmp_path: Path, text: str, name: str = "mine.py") -> Path:
    """A run of the user's own file."""
    program = tmp_path / name
    program.write_text(text)
    digest = hashlib.sha256(program.read_bytes()).hexdigest()
    case = replace(make_case(), file=str(program))
    return make_run(tmp_path / "run", cases=(case,), files={str(program): digest})


def test_the_name_of_a_program_is_redacted_everywhere_and_the_snapshot_verifies(
    tmp_path: Path, store: LocalStore
) -> None:
    run = run_of_program(tmp_path, "def mine(): ...\n", "secret_fit.py")
    done = publish([run], store, PublishOptions(redact=("secret",)))
    everything = b"".join(p.read_bytes() for p in folder_of(done).rglob("*.*") if p.is_file())
    assert b"secret" not in everything and verify(done.location).findings == ()
    source = load(done, "manifest.json")["publication"]["sources"][0]
    assert source["name"] == "(redacted)_fit.py"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("PASSWORD = 'hunter2'\n", "text to be redacted"),
        ("data = open('/home/ann/data.npz')\n", "a home directory"),
        ("url = 'https://ann:geheim@example.org/data'\n", "a password in an address"),
        ("token = 'tr0ub4dor&3'\n", "the value of the variable MY_API_KEY"),
        (f"token = 'ghp_{'a' * 36}'\n", "what looks like a token"),
    ],
)
def test_a_program_with_private_data_is_not_added(
    tmp_path: Path, store: LocalStore, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.setenv("MY_API_KEY", "tr0ub4dor&3")
    run = run_of_program(tmp_path, text)
    with pytest.raises(RefusedError, match=said):
        publish([run], store, PublishOptions(with_source=True, redact=("hunter2",)))
    assert not store.path.exists()
    publish([run], store, PublishOptions(redact=("hunter2",)))


def test_a_snapshot_that_would_not_verify_is_not_written(
    made_up: Path, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgetful(*runs: Any) -> Any:
        return {k: v for k, v in contents.derived_files(*runs).items() if k != "snippet.md"}

    monkeypatch.setattr("firstlight.snapshot.publishing.derived_files", forgetful)
    with pytest.raises(RefusedError, match=r"would not verify: snippet\.md is not part of it"):
        publish([made_up], store)
    assert not store.path.exists()


def test_every_counted_redaction_mark_is_found_again() -> None:
    text = b'{"a": "http://ann:hunter2@x/ and /home/ann/x", "b": "~ *** hunter2"}'
    clean = redact(text, ["hunter2"])
    assert b"hunter2" not in clean.data and b"ann" not in clean.data
    assert 0 < clean.replacements <= count_marks(clean.data)
    assert redact(b'{"a": "~"}').replacements == 0


# --- What must not be published -------------------------------------------------------------------


def edited(run: Path, tmp_path: Path, change: Any) -> Path:
    """A copy of a run with an edited run.json."""
    import shutil

    copy = tmp_path / "edited"
    shutil.copytree(run, copy)
    plain = json.loads((copy / "run.json").read_text())
    change(plain)
    write_json(copy / "run.json", plain)
    return copy


def test_a_run_whose_samples_were_edited_is_refused(
    made_up: Path, tmp_path: Path, store: LocalStore
) -> None:
    copy = edited(made_up, tmp_path, lambda plain: None)
    samples = (copy / "samples.jsonl").read_text()
    (copy / "samples.jsonl").write_text(samples.replace("0.1", "0.2", 1))
    with pytest.raises(RefusedError, match=r"samples\.jsonl is not the file"):
        publish([copy], store)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda p: p["cases"][0]["cold_seconds"].update(median=0.01), "does not follow"),
        (lambda p: p["cases"][0].update(protocol=None), "does not follow|no protocol"),
        (lambda p: p["cases"].pop(), "does not have the cases"),
        (lambda p: p["host"]["cpu"].update(model="Faster CPU"), "differs from plan"),
        (lambda p: p.update(complete=False), "wrong about being complete"),
        (lambda p: p["settings"].update(processes=5), "differs from plan"),
        (lambda p: p.update(warnings=[]), "differs from plan"),
        (lambda p: p.update(id="another"), "differs from plan"),
        (lambda p: p["cases"][2]["cache_proof"].update(hits=7), "does not follow"),
        (lambda p: p["cases"][0]["protocol"].update(warm_up="none"), "does not follow"),
    ],
)
def test_a_run_that_does_not_follow_from_its_samples_is_refused(
    made_up: Path, tmp_path: Path, store: LocalStore, change: Any, said: str
) -> None:
    with pytest.raises(RefusedError, match=said):
        publish([edited(made_up, tmp_path, change)], store)
    assert not store.path.exists()


def test_an_incomplete_run_is_published_only_with_allow(tmp_path: Path, store: LocalStore) -> None:
    samples = make_samples(CASES[0], 4, 20, made_up_run.random.Random(0))
    run = make_run(tmp_path / "run", cases=CASES[:1], samples=samples)
    with pytest.raises(RefusedError, match="--allow incomplete"):
        publish([run], store)
    done = publish([run], store, PublishOptions(allow=("incomplete",)))
    about = load(done, "manifest.json")
    assert about["publication"]["allowed"] == ["incomplete"]
    assert about["runs"][0]["complete"] is False
    (run / "run.json").unlink()
    with pytest.raises(RefusedError, match="--resume"):
        publish([run], store)


def test_an_unproven_label_is_published_only_with_allow_and_without_a_number(
    tmp_path: Path, store: LocalStore
) -> None:
    draw = made_up_run.random.Random(0)
    doubtful = make_samples(CASES[2], 6, 20, draw)
    false = replace(doubtful[3], status="unproven", reason="1 of 3 requests missed")
    false = replace(false, cache=replace(made_up_run.proof(CASES[2]), proven=False, hits=2))
    doubtful[3] = false
    run = make_run(
        tmp_path / "run", cases=(CASES[0], CASES[2]),
        samples=[*make_samples(CASES[0], 6, 20, draw), *doubtful],
    )  # fmt: skip
    with pytest.raises(RefusedError, match=r"unproven: matmul\[small\]/jax-jit/warm"):
        publish([run], store)
    done = publish([run], store, PublishOptions(allow=("unproven",)))
    case = load(done, "validation_report.json")["cases"][1]
    assert not case["passed"] and case["gates"]["proven"] is False
    assert (
        "not proven" in case["cache"]["objections"][0] or "hits" in case["cache"]["objections"][0]
    )
    named = [c["case"] for c in load(done, "distributions.json")["runs"][0]["cases"]]
    assert named == ["matmul[small]/numpy/none"]


def test_a_proof_that_contradicts_its_own_counts_is_refused(
    tmp_path: Path, store: LocalStore
) -> None:
    samples = make_samples(CASES[2], 6, 20, made_up_run.random.Random(0))
    samples[2] = replace(samples[2], cache=replace(made_up_run.proof(CASES[2]), hits=1))
    run = make_run(tmp_path / "run", cases=CASES[2:], samples=samples)
    with pytest.raises(RefusedError, match="its label is not proven: process 1: 1 hits of 3"):
        publish([run], store, PublishOptions(allow=("unproven",)))


def test_a_run_without_any_number_is_refused(tmp_path: Path, store: LocalStore) -> None:
    case = replace(CASES[0], skipped="numpy is not installed")
    run = make_run(tmp_path / "run", cases=(case,), samples=[])
    (run / "samples.jsonl").touch()
    plain = json.loads((run / "run.json").read_text())
    plain["samples_sha256"] = hashlib.sha256(b"").hexdigest()
    write_json(run / "run.json", plain)
    with pytest.raises(RefusedError, match="no case of this run has a number"):
        publish([run], store)


def test_a_process_that_counts_twice_is_refused(tmp_path: Path, store: LocalStore) -> None:
    samples = make_samples(CASES[0], 6, 20, made_up_run.random.Random(0))
    run = make_run(tmp_path / "run", cases=CASES[:1], samples=[*samples[:-1], samples[-2]])
    with pytest.raises(RefusedError, match=r"a timed process of .* twice"):
        publish([run], store)


def attempts_at(index: int, number: int) -> list[Sample]:
    """A case in which one process has so many consecutive attempts."""
    draw = made_up_run.random.Random(0)
    check, *timed = make_samples(CASES[0], 6, 20, draw)
    more = make_samples(CASES[0], number, 20, draw)[1:]
    timed[index : index + 1] = [replace(sample, index=index) for sample in more]
    return [check, *timed]


def test_a_side_of_a_gate_is_published_with_its_repeated_processes(
    tmp_path: Path, store: LocalStore
) -> None:
    """On the side that did not break, every attempt gives a time but is no further process."""
    samples = attempts_at(2, number=2)
    run = make_run(tmp_path / "run", cases=CASES[:1], samples=samples, is_side_of_gate=True)
    done = publish([run], store)
    found = verify(done.location)
    assert found.findings == ()
    assert any("one side of a gate" in text for text in found.not_checked)
    (case,) = load(done, "runs/001/run.json")["cases"]
    assert (case["status"], case["cold_seconds"]["n"]) == ("ok", 7)
    assert (case["processes_ok"], case["processes_planned"]) == (6, 6)


def test_a_broken_process_of_a_gate_counts_as_failed_even_if_its_repeat_succeeded(
    tmp_path: Path, store: LocalStore
) -> None:
    flaky = attempts_at(2, number=2)
    flaky[3] = replace(flaky[3], status="failed", reason="lost", cold=None, warm=None)
    well = make_samples(CASES[1], 6, 20, made_up_run.random.Random(1))
    run = make_run(tmp_path / "run", cases=CASES[:2], samples=[*flaky, *well], is_side_of_gate=True)
    done = publish([run], store, PublishOptions(allow=("failed",)))
    assert verify(done.location).findings == ()
    case = load(done, "runs/001/run.json")["cases"][0]
    assert (case["status"], case["cold_seconds"]) == ("failed", None)


@pytest.mark.parametrize("missing", [0, 5])
def test_a_repeated_process_does_not_replace_a_missing_one(
    tmp_path: Path, store: LocalStore, missing: int
) -> None:
    samples = [s for s in attempts_at(2, number=2) if (s.kind, s.index) != ("timed", missing)]
    run = make_run(tmp_path / "run", cases=CASES[:1], samples=samples, is_side_of_gate=True)
    said = "lacks a timed process" if missing == 0 else "incomplete"
    with pytest.raises(RefusedError, match=said):
        publish([run], store)


def test_more_attempts_than_a_gate_makes_are_refused(tmp_path: Path, store: LocalStore) -> None:
    samples = attempts_at(2, number=2 + REPEATS)
    run = make_run(tmp_path / "run", cases=CASES[:1], samples=samples, is_side_of_gate=True)
    with pytest.raises(RefusedError, match="more than 4 times"):
        publish([run], store)


def changed(sample: Sample, part: str, **fields: Any) -> Sample:
    """The sample with other values in one of its parts."""
    return replace(sample, **{part: replace(getattr(sample, part), **fields)})


def of_timed(part: str, **fields: Any) -> Any:
    """A change of every timed process."""
    return lambda samples: [changed(s, part, **fields) if s.kind == "timed" else s for s in samples]


CALL = (0.001,)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (of_timed("correctness", max_relative_error=5.0), "correct, with an error of 5"),
        (of_timed("correctness", max_relative_error=None), "claims to be correct, with an error"),
        (of_timed("correctness", max_relative_error=5.0, tolerance=1e9), "its tolerance is 1000"),
        (of_timed("correctness", reference="nothing"), "its reference is 'nothing'"),
        (of_timed("cold", total_seconds=0.001), "are not 0.001 s"),
        (of_timed("cold", total_seconds=0.0, phases_seconds={}, unattributed_seconds=0.0),
         "its first result took 0.0 s"),
        (of_timed("cold", total_seconds=0.01, phases_seconds={"import": 0.3},
                  unattributed_seconds=-0.29), "are not 0.01 s"),
        (of_timed("warm", call_seconds=(0.0,) * 20), "took no time"),
        (of_timed("warm", batch_seconds=(0.01, 0.0, 0.01, 0.01, 0.01)), "took no time"),
        (of_timed("warm", call_seconds=CALL * 3), "3 warm calls; 20 to 1000 were planned"),
        (of_timed("warm", call_seconds=CALL * 1001), "1001 warm calls"),
        (of_timed("warm", batch_seconds=CALL), "1 batches of calls; 5 were planned"),
        (of_timed("warm", batch_seconds=CALL * 6), "6 batches of calls"),
        (lambda samples: [replace(samples[0], kind="check"), *samples[2:]], "lacks a timed"),
        (lambda samples: [replace(s, cold=None, warm=None) if s.index == 3 else s
                          for s in samples], "succeeded but has no time"),
    ],
)  # fmt: skip
def test_impossible_samples_are_refused(
    tmp_path: Path, store: LocalStore, change: Any, said: str
) -> None:
    """The summaries follow from these samples: only contradictions in them reveal the forgery."""
    samples = change(make_samples(CASES[0], 6, 20, made_up_run.random.Random(0)))
    run = make_run(tmp_path / "run", cases=CASES[:1], samples=samples)
    with pytest.raises(RefusedError, match=said):
        publish([run], store, PublishOptions(allow=("incomplete",)))
    assert not store.path.exists()


def as_recorded(run: Path, change: Callable[[list[dict[str, Any]]], Any]) -> Path:
    """The run with edited samples, and summaries that follow from them."""
    lines = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    change(lines)
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    (run / "samples.jsonl").write_text(text)
    plan, samples = load_plan(run / "plan.json"), [*load_samples(run / SAMPLES)]
    finished = json.loads((run / "run.json").read_text())["finished_at"]
    made = replace(assemble(run, plan, samples, [0.2, 0.2, 0.3]), finished_at=finished)
    write_json(run / "run.json", made)
    return run


def stretched(seconds: float) -> Any:
    """Set every cold start to these seconds, one microsecond apart; nothing else changes."""

    def change(lines: list[dict[str, Any]]) -> None:
        for number, line in enumerate(line for line in lines if line["cold"]):
            cold = line["cold"]
            longer = round(seconds + number * 1e-5 - cold["total_seconds"], 9)
            cold["total_seconds"] = round(cold["total_seconds"] + longer, 9)
            cold["unattributed_seconds"] = round(cold["unattributed_seconds"] + longer, 9)

    return change


def equal_starts(lines: list[dict[str, Any]]) -> None:
    first = next(line["cold"] for line in lines if line["cold"])
    for line in lines:
        line["cold"] = first if line["cold"] else None


def equal_calls(lines: list[dict[str, Any]]) -> None:
    for line in lines:
        if line["warm"]:
            line["warm"]["call_seconds"] = [0.001] * 20


def copied_calls(lines: list[dict[str, Any]]) -> None:
    lines[-1]["warm"]["call_seconds"] = lines[-2]["warm"]["call_seconds"]


def in_proportion(lines: list[dict[str, Any]]) -> None:
    for line in lines:
        if line["warm"]:
            calls = line["warm"]["call_seconds"]
            line["warm"]["call_seconds"] = [call * 0.9 for call in calls]


def without_the_worst(lines: list[dict[str, Any]]) -> None:
    """The best four of six, renumbered, with a plan of four."""
    timed = sorted((x for x in lines if x["cold"]), key=lambda x: x["cold"]["total_seconds"])
    for line in timed[4:]:
        lines.remove(line)
    for index, line in enumerate(line for line in lines if line["cold"]):
        line["index"] = index


def swapped(lines: list[dict[str, Any]]) -> None:
    lines[-1], lines[-2] = lines[-2], lines[-1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (stretched(28.6), r"matmul.* began 28\.\d s before the earlier processes can have ended"),
        (stretched(2.87e-7), "less than any process needs to start"),
        (equal_starts, "6 cold starts are too similar for any clock"),
        (equal_calls, "the warm calls of a process are all equal"),
        (copied_calls, "two processes have the same warm calls"),
        (in_proportion, "not whole nanoseconds"),
        (without_the_worst, "the order has a gap"),
        (swapped, "not in the order in which they ran"),
    ],
)
def test_self_contradictory_samples_are_refused_and_found(
    tmp_path: Path, store: LocalStore, change: Any, said: str
) -> None:
    run = make_run(tmp_path / "run", cases=CASES[:1])
    if change is without_the_worst:
        plan = json.loads((run / "plan.json").read_text())
        plan["settings"]["processes"] = 4
        write_json(run / "plan.json", plan)
    with pytest.raises(RefusedError, match=said):
        publish([as_recorded(run, change)], store)


def test_processes_that_take_longer_than_their_run_are_refused(
    tmp_path: Path, store: LocalStore
) -> None:
    """One slow process at the end: only the end of the run contradicts it."""
    run = make_run(tmp_path / "run", cases=CASES[:1])
    last = as_recorded(run, lambda lines: stretched(30.0)(lines[-1:]))
    with pytest.raises(RefusedError, match=r"took 29\.\d s longer than the run"):
        publish([last], store)


def test_the_order_of_processes_must_follow_from_the_seed_of_the_plan(
    tmp_path: Path, store: LocalStore
) -> None:
    """If rounds are left out and the rest renumbered, the order no longer fits the seed."""
    run = make_run(tmp_path / "run", processes=8)

    def drop_a_round(lines: list[dict[str, Any]]) -> None:
        lines[:] = [x for x in lines if x["kind"] != "timed" or x["index"] != 0]
        for order, line in enumerate(lines):
            line["order"] = order
            line["index"] -= line["kind"] == "timed"

    plan = json.loads((run / "plan.json").read_text())
    plan["settings"]["processes"] = 7
    write_json(run / "plan.json", plan)
    with pytest.raises(RefusedError, match=r"is not where the plan's seed \(0\) puts it"):
        publish([as_recorded(run, drop_a_round)], store)


def test_a_gap_without_records_is_reported_as_unknown(tmp_path: Path, store: LocalStore) -> None:
    """With a single case the order reveals nothing; only the time of a whole process does."""
    run = make_run(tmp_path / "run", cases=CASES[:1])

    def later(lines: list[dict[str, Any]]) -> None:
        for line in lines[4:]:
            shifted = datetime.fromisoformat(line["started_at"]) + timedelta(seconds=3)
            line["started_at"] = shifted.isoformat(timespec="milliseconds")

    plain = json.loads((run / "run.json").read_text())
    plain["finished_at"] = plain["finished_at"].replace("09:15:0", "09:16:0")
    write_json(run / "run.json", plain)
    (said,) = named_gaps(publish([as_recorded(run, later)], store))
    assert "s after matmul[small]/numpy/none, process 2" in said


def test_left_out_processes_leave_gaps_that_are_reported(tmp_path: Path, store: LocalStore) -> None:
    """Four of six processes, renumbered, with a plan of four: two of the three gaps are long."""
    samples = make_samples(CASES[0], 6, 20, made_up_run.random.Random(0))
    for i, sample in enumerate(samples):
        if sample.warm is not None:  # a second each, no two alike
            samples[i] = changed(sample, "warm", call_seconds=(0.05 + i / 1e6,) + (0.05,) * 19)
    whole = make_run(tmp_path / "whole", cases=CASES[:1], samples=samples)
    assert named_gaps(publish([whole], store)) == []
    kept = [s for i, s in enumerate(load_samples(whole / "samples.jsonl")) if i not in (2, 4)]
    fewer = [replace(s, index=max(0, i - 1)) for i, s in enumerate(kept)]
    best = make_run(tmp_path / "best", cases=CASES[:1], processes=4, samples=fewer)

    def as_measured(lines: list[dict[str, Any]]) -> None:
        for line, sample in zip(lines, kept, strict=True):
            line["started_at"] = sample.started_at

    plain = json.loads((best / "run.json").read_text())
    plain["finished_at"] = json.loads((whole / "run.json").read_text())["finished_at"]
    write_json(best / "run.json", plain)
    (said,) = named_gaps(publish([as_recorded(best, as_measured)], store))
    assert "after matmul[small]/numpy/none, process 0" in said


def named_gaps(done: Published) -> list[str]:
    result = verify(done.location)
    assert result.findings == ()
    return [text for text in result.not_checked if "nothing is recorded of it" in text]


@pytest.mark.parametrize(
    "change",
    [
        of_timed("warm", call_seconds=(0.9, 0.9, 0.9), batch_seconds=(0.9, 0.9)),  # slow calls
        of_timed("warm", call_seconds=(40.0,), batch_seconds=(40.0,)),  # nearly half of the limit
        lambda samples: [replace(s, warm=None) for s in samples],  # no warm part
        lambda samples: samples[:1] + samples[1:4],  # interrupted
        of_timed("correctness", max_relative_error=1e-5),  # just within the tolerance
    ],
)
def test_samples_of_slow_or_interrupted_runs_are_accepted(
    tmp_path: Path, store: LocalStore, change: Any
) -> None:
    samples = change(make_samples(CASES[0], 6, 20, made_up_run.random.Random(0)))
    run = make_run(tmp_path / "run", cases=CASES[:1], samples=samples)
    done = publish([run], store, PublishOptions(allow=("incomplete",)))
    assert verify(done.location).findings == ()
    (case,) = load(done, "distributions.json")["runs"][0]["cases"]
    assert case["processes"] == [s.index for s in samples if s.kind == "timed"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"id": "matmul[large]/numpy/none"}, r"is matmul\[small\]/numpy/none by its fields"),
        ({"id": "matmul[small]/numpy/warm", "cache": "warm"}, "its backend has no such cache"),
        ({"id": "matmul[small]/jax-jit/none", "backend": "jax-jit"}, "jax-jit has 'jax'"),
        ({"reference": None}, "none was planned"),
    ],
)
def test_a_plan_with_case_ids_that_contradict_the_fields_is_refused(
    tmp_path: Path, store: LocalStore, fields: dict[str, Any], said: str
) -> None:
    case = replace(CASES[0], **fields)
    samples = make_samples(replace(case, reference="made.up:reference"), 6, 20,
                           made_up_run.random.Random(0))  # fmt: skip
    run = make_run(tmp_path / "run", cases=(case,), samples=samples)
    with pytest.raises(RefusedError, match=said):
        publish([run], store)


def test_two_processes_at_one_position_are_refused(
    made_up: Path, tmp_path: Path, store: LocalStore
) -> None:
    copy = edited(made_up, tmp_path, lambda plain: None)
    text = (copy / "samples.jsonl").read_text().replace('"order":1,', '"order":0,')
    (copy / "samples.jsonl").write_text(text)
    plain = json.loads((copy / "run.json").read_text())
    plain["samples_sha256"] = hashlib.sha256(text.encode()).hexdigest()
    write_json(copy / "run.json", plain)
    with pytest.raises(RefusedError, match="same position in the order"):
        publish([copy], store)


@pytest.mark.parametrize(
    ("finished", "said"),
    [
        ("banana", "finished_at is 'banana'"),
        ("9999", "not a time in UTC"),
        ("2026-02-30T00:00:00+00:00", "not a time in UTC"),
        ("2026-03-01T10:15:00.000+01:00", "not a time in UTC"),
        ("2020-01-01T00:00:00.000+00:00", "before it began"),
    ],
)
def test_a_run_with_invalid_or_unordered_times_is_refused(
    made_up: Path, tmp_path: Path, store: LocalStore, finished: str, said: str
) -> None:
    with pytest.raises(RefusedError, match=said):
        publish([edited(made_up, tmp_path, lambda p: p.update(finished_at=finished))], store)


@pytest.mark.parametrize("started", ["1999-01-01T00:00:00.000+00:00", "2027-01-01T00:00:00+00:00"])
def test_a_process_outside_its_run_is_refused(
    made_up: Path, tmp_path: Path, store: LocalStore, started: str
) -> None:
    copy = edited(made_up, tmp_path, lambda plain: None)
    text = (copy / "samples.jsonl").read_text()
    text = text.replace("2026-03-01T09:15:00.000+00:00", started, 1)
    (copy / "samples.jsonl").write_text(text)
    plain = json.loads((copy / "run.json").read_text())
    plain["samples_sha256"] = hashlib.sha256(text.encode()).hexdigest()
    write_json(copy / "run.json", plain)
    with pytest.raises(RefusedError, match="outside its run"):
        publish([copy], store)


def test_files_are_readable_and_none_is_executable(signed: Published) -> None:
    for path in folder_of(signed).rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert path.is_dir() or not mode & 0o111
    assert to_json(signed)["new"] is True
