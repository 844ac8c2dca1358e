"""What `verify` finds, and what it reports as not checked."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import made_up_run
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_up_run import CASES, make_run

from firstlight.cli import main
from firstlight.cli.verify import last_line
from firstlight.records import Sample
from firstlight.snapshot.errors import NewerSnapshotError, SnapshotError, UnusableSnapshotError
from firstlight.snapshot.keys import PrivateKey, generate, load_private, sign
from firstlight.snapshot.layout import INDEX, MANIFEST, SIGNATURE, index_bytes
from firstlight.snapshot.opening import open_snapshot
from firstlight.snapshot.publishing import Published, PublishOptions, publish
from firstlight.snapshot.storage import LocalStore
from firstlight.snapshot.strict_json import canonical
from firstlight.snapshot.trust import TrustedKeys
from firstlight.snapshot.verifying import Verification, verify
from firstlight.statistics.case_summaries import summarise
from firstlight.statistics.steady_state import METHOD

VERSION_1 = "13878feb67f5cf66a0c2620e17cda966e7f0a114ae508f926a6a386956ac0462"


def found(location: Path | str, **options: Any) -> bool:
    """Whether the outcome of verifying is not `valid`."""
    try:
        return bool(verify(location, **options).findings)
    except UnusableSnapshotError:
        return True


def words(result: Verification) -> str:
    return "\n".join(finding.message for finding in result.findings)


def test_a_valid_snapshot_has_no_findings_and_lists_what_it_cannot_show(signed: Published) -> None:
    result = verify(signed.location)
    assert result.findings == () and result.exit_code == 0
    assert (result.outcome, result.skipped) == ("valid", ())
    assert last_line(result) == "Valid, as far as files can tell."
    assert result.id == signed.id and result.signature == "valid"
    said = "\n".join(result.checked)
    hold = ("the id follows", "match their hashes", "signed with the key", "fit their schemas")
    for what in (*hold, "follow from the 21 raw samples", "proved its cache label", "byte by byte"):
        assert what in said
    unknown = "\n".join(result.not_checked)
    assert "who holds the key" in unknown and "files cannot show that" in unknown


def test_an_archive_is_verified_like_its_directory_and_nothing_is_unpacked(
    signed: Published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "elsewhere" / "some name.tar"
    archive.parent.mkdir()
    shutil.copy(str(signed.archive), archive)
    packed = archive.with_suffix(".tar.gz")
    packed.write_bytes(gzip.compress(archive.read_bytes(), mtime=0))
    monkeypatch.chdir(archive.parent)
    for place in (archive, packed):
        result = verify(place)
        assert (result.findings, result.id) == ((), signed.id)
        assert open_snapshot(place).runs == open_snapshot(signed.location).runs
    assert {p.name for p in archive.parent.iterdir()} == {archive.name, packed.name}


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """This module's own signed snapshot, and its archive."""
    base = tmp_path_factory.mktemp("victim")
    generate(base / "key.pem")
    run = make_run(base / "run", cases=CASES[:2], calls=20)
    key = load_private(base / "key.pem")
    done = publish([run], LocalStore(base / "store"), key=key, archive=True)
    return Path(done.location), Path(str(done.archive))


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(place=st.integers(0, 1 << 40), bit=st.integers(0, 7), directory=st.booleans())
def test_any_changed_byte_is_found(
    victim: tuple[Path, Path], place: int, bit: int, directory: bool
) -> None:
    files = sorted(p for p in victim[0].rglob("*") if p.is_file()) if directory else [victim[1]]
    at = place % sum(p.stat().st_size for p in files)
    for path in files:
        if at < path.stat().st_size:
            break
        at -= path.stat().st_size
    whole = path.read_bytes()
    try:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :])
        assert found(victim[0] if directory else victim[1]), f"{path.name}: byte {at}, bit {bit}"
    finally:
        path.write_bytes(whole)


def test_every_byte_of_index_and_signature_counts_even_in_a_renamed_folder(
    victim: tuple[Path, Path], tmp_path: Path
) -> None:
    """The folder is not named after the id, so only the files themselves reveal the change."""
    copy = tmp_path / "copy"
    shutil.copytree(victim[0], copy)
    draw = random.Random(1)
    for name in (INDEX, SIGNATURE):
        whole = (copy / name).read_bytes()
        for at in sorted(draw.sample(range(len(whole)), 30)):
            changed = whole[:at] + bytes([whole[at] ^ (1 << draw.randrange(8))]) + whole[at + 1 :]
            (copy / name).write_bytes(changed)
            assert found(copy), f"{name}: byte {at}"
        (copy / name).write_bytes(whole)
    assert not found(copy)


def test_every_removed_file_is_found(victim: tuple[Path, Path]) -> None:
    for path in sorted(p for p in victim[0].rglob("*") if p.is_file()):
        content = path.read_bytes()
        path.unlink()
        try:
            assert found(victim[0]), path
        finally:
            path.write_bytes(content)


@pytest.mark.parametrize(
    "name", ["new.txt", ".hidden", "runs/001/more.json", "plots/..data", "runs/004/plan.json", "é"]
)
def test_every_added_file_is_found(signed: Published, name: str) -> None:
    path = Path(signed.location) / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("more")
    assert "is not in the index" in words(verify(signed.location))


def test_an_added_empty_folder_is_found(signed: Published) -> None:
    (Path(signed.location) / "empty").mkdir()
    assert "an empty folder" in words(verify(signed.location))


def test_a_truncated_or_extended_archive_is_found(signed: Published, tmp_path: Path) -> None:
    whole = Path(str(signed.archive)).read_bytes()
    place = tmp_path / "x.tar"
    for size in (0, 1, 511, 512, 513, 5000, len(whole) - 1024, len(whole) - 512, len(whole) - 1):
        place.write_bytes(whole[:size])
        assert found(place), size
    for more in (b"x", bytes(512), bytes(10240)):
        place.write_bytes(whole + more)
        assert found(place)


# --- Identity and signature -----------------------------------------------------------------------


def test_an_expected_id_is_compared_with_the_snapshot(signed: Published) -> None:
    assert not found(signed.location, expected_id=signed.id.upper())
    assert "not the" in words(verify(signed.location, expected_id="0" * 64))


def test_a_snapshot_under_another_name_is_valid_but_its_id_is_not_known(
    signed: Published, tmp_path: Path
) -> None:
    shutil.copytree(signed.location, tmp_path / "renamed")
    result = verify(tmp_path / "renamed")
    assert result.findings == () and "the id" in "\n".join(result.not_checked)
    assert not found(tmp_path / "renamed", expected_id=signed.id)


def test_a_trusted_key_is_named(signed: Published, key: PrivateKey) -> None:
    TrustedKeys.of_user().add(key.public, "Jane Doe")
    result = verify(signed.location)
    assert (result.signature, result.signer, result.signer_name) == (
        "trusted",
        key.public.id,
        "Jane Doe",
    )


def test_an_unsigned_snapshot_says_so(made_up: Path, store: LocalStore) -> None:
    result = verify(publish([made_up], store).location)
    assert result.signature == "none" and result.findings == ()
    assert "it is not signed" in "\n".join(result.not_checked)


def test_a_signature_cannot_be_removed_added_or_replaced(
    signed: Published, made_up: Path, tmp_path: Path
) -> None:
    folder = Path(signed.location)
    document = (folder / SIGNATURE).read_bytes()
    generate(tmp_path / "other.pem")
    other = load_private(tmp_path / "other.pem")
    (folder / SIGNATURE).write_bytes(sign(other, (folder / INDEX).read_bytes()))
    assert "uses another key" in words(verify(folder))
    (folder / SIGNATURE).unlink()
    assert "signature.json is missing" in words(verify(folder))
    unsigned = Path(publish([made_up], LocalStore(tmp_path / "unsigned")).location)
    (unsigned / SIGNATURE).write_bytes(document)
    assert "was added" in words(verify(unsigned))


# --- Snapshots that somebody made up, hashes and all ----------------------------------------------


Forge = Callable[[dict[str, bytes]], None]


def forge(source: Path, target: Path, change: Forge, key: PrivateKey | None = None) -> Path:
    """A snapshot with changed files, and with index, id and signature that match them."""
    files = {str(p.relative_to(source)): p.read_bytes() for p in source.rglob("*") if p.is_file()}
    for name in (INDEX, SIGNATURE):
        files.pop(name, None)
    change(files)
    index = index_bytes(files, key.public.base64 if key else None)
    files[INDEX] = index
    if key is not None:
        files[SIGNATURE] = sign(key, index)
    folder = target / hashlib.sha256(index).hexdigest()
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def rewritten(path: str, change: Callable[[Any], Any]) -> Forge:
    def apply(files: dict[str, bytes]) -> None:
        plain = json.loads(files[path])
        change(plain)
        files[path] = canonical(plain)

    return apply


def first_number(plain: Any) -> Any:
    return plain["cases"][0]["cold_seconds"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (rewritten("runs/001/run.json", lambda p: first_number(p).update(median=0.001)),
         "a summary does not follow from the samples"),
        (rewritten("runs/001/run.json", lambda p: p["cases"][1].update(protocol=None)),
         "no protocol"),
        (rewritten("runs/001/run.json", lambda p: p["host"].update(memory_bytes=1 << 40)),
         "differs from plan.json: host.memory_bytes"),
        (rewritten(MANIFEST, lambda p: p["runs"][0]["hardware"]["cpu"].update(model="Better")),
         "manifest.json does not follow from the runs"),
        (rewritten(MANIFEST, lambda p: p["runs"][0]["cases"][0]["dataset"].update(id="real data")),
         "manifest.json does not follow from the runs"),
        (rewritten("distributions.json", lambda p: p["runs"][0]["cases"].pop()),
         "distributions.json does not follow from the runs"),
        (rewritten("validation_report.json", lambda p: p.update(cases_passed=4)),
         "validation_report.json does not follow from the runs"),
        (lambda files: files.update({"validation.html": b"<p>all is well"}),
         "validation.html does not follow from the runs"),
        (lambda files: files.update({"plots/001-01-matmul-small-phases.svg": b"<svg/>"}),
         "phases.svg does not follow"),
        (lambda files: files.update({"malware.exe": b"MZ"}), "malware.exe does not belong"),
        (lambda files: files.pop("tables/cases.csv"), "tables/cases.csv is not part of it"),
        (lambda files: files.update({"runs/001/samples.jsonl":
         b"".join(files["runs/001/samples.jsonl"].splitlines(True)[:-1])}),
         "not the file that run.json was made from"),
        (lambda files: files.update({"runs/001/samples.jsonl":
         files["runs/001/samples.jsonl"].replace(b'"proven":true', b'"proven":false', 1)}),
         "not proven"),
        (lambda files: files.update({"runs/001/samples.jsonl":
         files["runs/001/samples.jsonl"].replace(b'"hits":3', b'"hits":2')}),
         "2 hits of 3 requests: not warm"),
        (lambda files: files.pop("runs/001/plan.json"), "plan.json is not part of it"),
        (lambda files: files.pop(MANIFEST), "manifest.json is not part of it"),
        (rewritten(MANIFEST, lambda p: p.pop("made_by")), "fit|made_by|cannot be evaluated"),
    ],
)  # fmt: skip
def test_a_forged_snapshot_with_matching_hashes_is_found(
    signed: Published, tmp_path: Path, key: PrivateKey, change: Forge, said: str
) -> None:
    folder = forge(Path(signed.location), tmp_path / "forged", change, key)
    result = verify(folder)
    assert result.exit_code == 1 and re.search(said, words(result)), words(result)


def test_an_honest_rewrite_is_valid(signed: Published, tmp_path: Path) -> None:
    """The forgeries above are found by their changes, not because they were rewritten."""
    folder = forge(Path(signed.location), tmp_path / "same", lambda files: None)
    assert verify(folder).findings == ()


OTHER_MAKER = rewritten(MANIFEST, lambda p: p["made_by"].update(code_sha256="0" * 64))


def made_elsewhere(*changes: Forge) -> Forge:
    """The changes, in a snapshot that claims another Firstlight made it."""

    def apply(files: dict[str, bytes]) -> None:
        for change in (OTHER_MAKER, *changes):
            change(files)

    return apply


def restyled(files: dict[str, bytes]) -> None:
    files["validation.html"] = b"<p>another style"
    files["plots/more.svg"] = b"<svg/>"
    files["snippet.md"] += b"More words.\n"


def false_beside_the_numbers(files: dict[str, bytes]) -> None:
    """Files that another Firstlight cannot reproduce may contain lies, so they are listed."""
    files["runs/001/report.html"] = b"<script>alert(1)</script>"
    files["CITATION.cff"] = files["CITATION.cff"].replace(b"title:", b"title: Ten times faster #")
    rows = files["tables/cases.csv"].splitlines()
    table = [rows[0] + b",speedup", *(row + b",10" for row in rows[1:])]
    files["tables/cases.csv"] = b"\r\n".join(table) + b"\r\n"


@pytest.mark.parametrize(
    ("change", "unchecked"),
    [
        (restyled, ("plots/more.svg", "snippet.md", "validation.html")),
        (false_beside_the_numbers, ("CITATION.cff", "runs/001/report.html", "tables/cases.csv")),
    ],
)
def test_files_unchecked_because_of_another_maker_are_listed_with_exit_code_3(
    signed: Published,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Forge,
    unchecked: tuple[str, ...],
) -> None:
    folder = forge(Path(signed.location), tmp_path / "a", made_elsewhere(change))
    result = verify(folder)
    assert result.findings == () and result.exit_code == 3, words(result)
    assert result.outcome == "valid as far as checked" and result.unchecked_files == unchecked
    assert last_line(result).startswith("Valid, but 3 files were not checked")
    assert "another Firstlight made them" in "\n".join(result.skipped)
    assert "Firstlight" not in "\n".join(result.not_checked)
    assert main(["verify", str(folder)]) == 3
    said = capsys.readouterr().out
    assert all(f"unchecked  {path}" in said for path in unchecked)


@pytest.mark.parametrize(("share", "said"), [(0.83, "83%"), (1, "100%")])
def test_a_run_on_a_loaded_machine_says_so_beside_the_verdict(
    tmp_path: Path, store: LocalStore, capsys: pytest.CaptureFixture[str], share: float, said: str
) -> None:
    run = make_run(tmp_path / "run", host={**made_up_run.HOST, "cpu_busy_ratio": share})
    done = publish([run], store)
    assert main(["verify", done.location]) == 0
    *_, verdict, load = capsys.readouterr().out.splitlines()
    assert verdict == "Valid, as far as files can tell."
    assert "loaded machine" in load and f"{said} of the CPU" in load
    assert verify(done.location).loads and not verify(done.location).skipped


def no_samples(files: dict[str, bytes]) -> None:
    files["runs/001/samples.jsonl"] = b""
    digest = hashlib.sha256(b"").hexdigest()
    rewritten("runs/001/run.json", lambda p: p.update(samples_sha256=digest))(files)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (rewritten("distributions.json", lambda p: p["runs"][0]["cases"].pop()),
         "distributions.json does not follow"),
        (lambda files: files.update({"evil.sh": b"rm -rf /"}), "evil.sh does not belong"),
        (lambda files: files.pop("snippet.md"), "snippet.md is not part of it"),
        (rewritten("validation_report.json", lambda p: p.update(cases_passed=9)),
         "validation_report.json does not follow"),
        (rewritten(MANIFEST, lambda p: p["runs"][0]["hardware"].update(gpus=[{"name": "H200"}])),
         "manifest.json does not follow"),
        (rewritten("runs/001/run.json", lambda p: p["host"].update(memory_bytes=1 << 40)),
         "differs from plan.json: host.memory_bytes"),
        (no_samples, "has a number from 6 processes, but 0 samples"),
        (lambda files: files.update({"runs/001/samples.jsonl":
         files["runs/001/samples.jsonl"].replace(b'"passed":true', b'"passed":false')}),
         "claims to be wrong"),
    ],
)  # fmt: skip
def test_data_derived_by_another_firstlight_must_follow_from_the_runs(
    signed: Published, tmp_path: Path, change: Forge, said: str
) -> None:
    result = verify(forge(Path(signed.location), tmp_path / "b", made_elsewhere(change)))
    assert result.outcome == "not valid" and re.search(said, words(result)), words(result)


# --- Numbers and the samples behind them ----------------------------------------------------------


def by_method(method: Any) -> Forge:
    return rewritten(MANIFEST, lambda p: p.update(summary_method=method))


@pytest.mark.parametrize("change", [lambda files: None, rewritten(
    "runs/001/run.json", lambda p: first_number(p).update(median=0.001))])  # fmt: skip
def test_a_newer_summary_method_is_refused(
    signed: Published, tmp_path: Path, change: Forge, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = forge(
        Path(signed.location), tmp_path / "x", made_elsewhere(by_method(METHOD + 1), change)
    )
    with pytest.raises(NewerSnapshotError, match=rf"method {METHOD + 1}.*Update Firstlight"):
        verify(folder)
    assert main(["verify", str(folder)]) == 2
    assert "Valid" not in capsys.readouterr().out


@pytest.mark.parametrize("method", [0, -1, "x", None, 1.0, True])
def test_an_invalid_summary_method_is_found(signed: Published, tmp_path: Path, method: Any) -> None:
    folder = forge(Path(signed.location), tmp_path / "x", made_elsewhere(by_method(method)))
    assert "manifest.json does not follow" in words(verify(folder))


def slower_at_last(sample: Sample) -> Sample:
    """Flat by method 1, without a steady state by method 2."""
    if sample.warm is None:
        return sample
    calls = sample.warm.call_seconds
    late = (*calls[:-15], *(2 * seconds for seconds in calls[-15:]))
    return replace(sample, warm=replace(sample.warm, call_seconds=late))


def test_summaries_by_an_older_method_are_published_and_verified_by_that_method(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = made_up_run.make_samples(CASES[0], 6, 100, random.Random(3))
    late = [slower_at_last(sample) for sample in samples]
    by_method_1 = partial(summarise, method=1)
    for name, make in (("old", by_method_1), ("new", summarise)):
        monkeypatch.setattr("firstlight.statistics.run_summaries.summarise", make)
        make_run(tmp_path / name, cases=CASES[:1], samples=late)
    old, new = (Path(publish([tmp_path / n], store).location) for n in ("old", "new"))
    methods = [json.loads((one / MANIFEST).read_text())["summary_method"] for one in (old, new)]
    assert methods == [1, METHOD]
    assert [verify(one).outcome for one in (old, new)] == ["valid", "valid"]
    relabelled = forge(old, tmp_path / "x", made_elsewhere(by_method(2)))
    assert "a summary does not follow from the samples" in words(verify(relabelled))


def test_redaction_cannot_hide_changed_samples(signed: Published, tmp_path: Path) -> None:
    """Made-up samples under the id and hash of a genuine run."""
    claim = rewritten(
        MANIFEST,
        lambda p: p["publication"].update(redacted={"runs/001/samples.jsonl": {"replacements": 1}}),
    )

    def other(files: dict[str, bytes]) -> None:
        samples = files["runs/001/samples.jsonl"]
        files["runs/001/samples.jsonl"] = samples.replace(
            b'"load_before":0.1', b'"load_before":0.2'
        )

    for number, changes in enumerate([(claim,), (claim, other)]):
        folder = forge(Path(signed.location), tmp_path / str(number), made_elsewhere(*changes))
        said = words(verify(folder))
        assert "has 0 redaction marks" in said
        assert ("is not the file that run.json was made from" in said) == (other in changes)


def test_an_unsound_case_that_was_not_allowed_is_found(tmp_path: Path, store: LocalStore) -> None:
    samples = made_up_run.make_samples(CASES[0], 6, 20, random.Random(0))
    samples[-1] = replace(samples[-1], status="crashed", cold=None, warm=None, reason="signal 11")
    more = made_up_run.make_samples(CASES[1], 6, 20, random.Random(0))
    run = make_run(tmp_path / "run", cases=CASES[:2], samples=[*samples, *more])
    done = publish([run], store, PublishOptions(allow=("failed",)))
    assert verify(done.location).findings == ()
    change = rewritten(MANIFEST, lambda p: p["publication"].update(allowed=[]))
    folder = forge(Path(done.location), tmp_path / "forged", change)
    assert "is failed, which was not allowed" in words(verify(folder))


# --- Other versions, other things -----------------------------------------------------------------


def test_a_newer_snapshot_is_refused_with_what_to_do(signed: Published, tmp_path: Path) -> None:
    folder = tmp_path / "newer"
    shutil.copytree(signed.location, folder)
    plain = json.loads((folder / INDEX).read_text())
    (folder / INDEX).write_bytes(canonical({**plain, "schema_version": 2}))
    for read in (verify, open_snapshot):
        with pytest.raises(NewerSnapshotError, match="Update Firstlight"):
            read(folder)


def test_a_folder_or_file_that_is_no_snapshot_is_refused(tmp_path: Path, made_up: Path) -> None:
    with pytest.raises(UnusableSnapshotError, match="no such directory"):
        verify(tmp_path / "nowhere")
    with pytest.raises(UnusableSnapshotError, match=r"no index\.json"):
        verify(made_up)
    (tmp_path / "text.tar").write_bytes(b"hello " * 1000)
    with pytest.raises(UnusableSnapshotError, match="not an archive"):
        verify(tmp_path / "text.tar")
    with pytest.raises(UnusableSnapshotError, match="not an archive"):
        verify(made_up / "run.json")
    other = tmp_path / "other"
    other.mkdir()
    (other / INDEX).write_text('{"schema": "something.else", "schema_version": 1}')
    with pytest.raises(UnusableSnapshotError, match=r"something\.else"):
        open_snapshot(other)


def test_an_interrupted_upload_is_no_snapshot(signed: Published, tmp_path: Path) -> None:
    shutil.copytree(signed.location, tmp_path / "part")
    (tmp_path / "part" / INDEX).unlink()
    for read in (verify, open_snapshot):
        with pytest.raises(UnusableSnapshotError, match="interrupted"):
            read(tmp_path / "part")


def test_opening_returns_only_files_of_the_index(signed: Published) -> None:
    snapshot = open_snapshot(signed.location)
    assert snapshot.id == signed.id and len(snapshot.runs[0].cases) == 3
    assert len(snapshot.samples(0)) == 21 and snapshot.plan(0).target == "quick"
    (Path(signed.location) / "snippet.md").write_text("other words")
    (Path(signed.location) / "more.md").write_text("more")
    for name in ("snippet.md", "more.md", "../../secret", INDEX):
        with pytest.raises(SnapshotError):
            snapshot.read(name)


def test_a_snapshot_of_format_version_1_still_verifies_and_opens() -> None:
    """`snapshot-1.tar.gz` was made when the format was new, and must never be made again."""
    place = Path(__file__).with_name("snapshot-1.tar.gz")
    result = verify(place, expected_id=VERSION_1)
    assert result.findings == () and result.signature == "valid", words(result)
    snapshot = open_snapshot(place)
    assert [case.case for case in snapshot.runs[0].cases] == [case.id for case in CASES]
    assert snapshot.manifest["publication"]["creators"][0]["name"] == "Doe, Jane"
