"""Hostile snapshots are refused with the reason; nothing is written or executed."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path
from typing import Any

import pytest

from firstlight.snapshot import verifying
from firstlight.snapshot.archive import header
from firstlight.snapshot.errors import HostileSnapshotError, SnapshotError, UnusableSnapshotError
from firstlight.snapshot.layout import INDEX, LIMITS, parse_index
from firstlight.snapshot.opening import open_snapshot, parse_samples
from firstlight.snapshot.publishing import Published
from firstlight.snapshot.strict_json import canonical, parse
from firstlight.snapshot.verifying import verify

ID = "ab" * 32


def an_index(*paths: str, **more: Any) -> bytes:
    files = [{"path": path, "bytes": 1, "sha256": ID} for path in paths]
    plain = {"schema": "firstlight.snapshot.index", "schema_version": 1, "signer": None}
    return canonical({**plain, "files": files, **more})


@pytest.mark.parametrize(
    "path",
    [
        *("/etc/passwd", "../outside", "runs/../../outside", "runs/./x", "..", ".", "", "a//b"),
        *("a\\b", "..\\outside", "C:/x", "C:x", "runs/..", "~/x", ".hidden", "-rf", "a/-rf"),
        *("a\x00b", "a\nb", "a b", "ａ.json", "a․․/b", "․․/outside", "é", "e\u0301", "a\u202eb"),
        *("nul", "CON.json", "runs/com1", "x.", "a" * 200, "a/b/c/d/e/f", "index.json", "a/"),
    ],
)  # fmt: skip
def test_paths_that_could_lead_out_of_the_snapshot_are_refused(path: str) -> None:
    with pytest.raises(UnusableSnapshotError):
        parse_index(an_index(path))


@pytest.mark.parametrize("paths", [("a", "a"), ("A.csv", "a.csv"), ("a", "a/b"), ("A/x", "a")])
def test_a_duplicate_path_is_refused(paths: tuple[str, ...]) -> None:
    with pytest.raises(HostileSnapshotError, match=r"twice|both a file and a folder"):
        parse_index(an_index(*paths))


def test_an_index_of_impossible_sizes_or_fields_is_refused() -> None:
    good = {"path": "a", "bytes": 1, "sha256": ID}
    for item in (
        {**good, "bytes": 1 << 60}, {**good, "bytes": -1}, {**good, "bytes": True},
        {**good, "bytes": 1.5}, {**good, "sha256": ID.upper()}, {**good, "more": 1}, "a", None,
    ):  # fmt: skip
        with pytest.raises(UnusableSnapshotError):
            parse_index(an_index(files=[item]))
    for more in ({"files": {}}, {"files": None}, {"signer": 5}, {"extra": 1}):
        with pytest.raises(UnusableSnapshotError):
            parse_index(an_index(**more))
    with pytest.raises(HostileSnapshotError, match="the files total more than"):
        half = {"bytes": 1 << 29, "sha256": ID}
        parse_index(an_index(files=[{**half, "path": str(i)} for i in range(9)]))
    with pytest.raises(UnusableSnapshotError, match="at most"):
        parse_index(an_index(*map(str, range(LIMITS.files + 1))))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'{"a": 1, "a": 2}', "occurs twice"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "Infinity"),
        (b'{"a": 1e999}', "too large for a number"),
        (b'{"a": ' + b"9" * 5000 + b"}", "too large for a number"),
        (b'{"a": -1' + b"0" * 400 + b"}", "too large for a number"),
        (b"[" * 100_000, "nested|JSON"),
        (b"[" * 100 + b"]" * 100, "nested deeper"),
        (b'{"a":' * 60 + b"1" + b"}" * 60, "nested deeper"),
        (b'{"a": "\\ud800"}', "surrogates"),
        (b'{"\\udfff": 1}', "surrogates"),
        (b'{"a": "\xff"}', "utf-8"),
        (b"\xff\xfe{\x00}\x00", "utf-8"),
        (b'{"a": 1', "JSON"),
        (b'{"a": 1} x', "JSON"),
        (b"", "JSON"),
        (b'{"a": "\x01"}', "JSON"),
    ],
)
def test_json_that_two_readers_could_read_differently_is_refused(text: bytes, said: str) -> None:
    with pytest.raises(UnusableSnapshotError, match=said):
        parse(text, "x.json", 1 << 20)


def test_a_duplicate_key_among_a_hundred_thousand_is_found_in_one_pass() -> None:
    """Counting every key separately would take minutes."""
    keys = b",".join(b'"%d":0' % number for number in range(100_000))
    with pytest.raises(UnusableSnapshotError, match="'99999' occurs twice"):
        parse(b"{" + keys + b',"99999":1}', "x.json", 1 << 22)


def test_json_that_is_too_large_is_refused_before_parsing() -> None:
    with pytest.raises(UnusableSnapshotError, match="more than the limit of 1000"):
        parse(b"[" + b"0," * 1000 + b"0]", "x.json", 1000)


def test_samples_with_wrong_types_are_refused(signed: Published) -> None:
    lines = (Path(signed.location) / "runs/001/samples.jsonl").read_bytes().splitlines()
    line = next(line for line in lines if b'"timed"' in line)
    good = json.loads(line)
    assert len(parse_samples(line + b"\n", "x")) == 1
    for change in (
        {"case": 5}, {"index": "0"}, {"order": 1.5}, {"cold": []}, {"status": None},
        {"cold": {**good["cold"], "total_seconds": "fast"}},
        {"cold": {**good["cold"], "total_seconds": True}},
        {"cold": {**good["cold"], "phases_seconds": [1]}},
        {"warm": {**good["warm"], "call_seconds": [1.0, "x"]}},
        {"cache": {"policy": "none"}},
    ):  # fmt: skip
        with pytest.raises(UnusableSnapshotError):
            parse_samples(json.dumps({**good, **change}).encode() + b"\n", "x")
    with pytest.raises(UnusableSnapshotError, match="truncated"):
        parse_samples(line, "x")


# --- Directories ----------------------------------------------------------------------------------


def test_links_in_a_directory_are_not_followed(signed: Published, tmp_path: Path) -> None:
    folder = Path(signed.location)
    secret = tmp_path / "secret"
    for name in ("snippet.md", "plots", INDEX):
        target = secret / name
        target.parent.mkdir(exist_ok=True)
        shutil.move(folder / name, target)
        (folder / name).symlink_to(target)
        if name == INDEX:
            with pytest.raises(UnusableSnapshotError, match="symbolic link"):
                verify(folder)
            with pytest.raises(HostileSnapshotError):
                open_snapshot(folder)
        else:
            result = verify(folder)
            assert f"'{name}' is a symbolic link" in "\n".join(f.message for f in result.findings)
            with pytest.raises(SnapshotError):
                at = "plots/001-01-matmul-small-phases.svg" if name == "plots" else name
                open_snapshot(folder).read(at)
        (folder / name).unlink()
        shutil.move(target, folder / name)
    assert not verify(folder).findings


def test_pipes_sockets_and_loops_do_not_hang(
    signed: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(signed.location)
    (folder / "snippet.md").unlink()
    os.mkfifo(folder / "snippet.md")
    (folder / "loop").symlink_to(folder)
    monkeypatch.chdir(folder)  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        said = "\n".join(f.message for f in verify(folder).findings)
    assert said.count("a device, a pipe or a socket") == 2 and "a symbolic link" in said
    with pytest.raises(HostileSnapshotError):
        open_snapshot(folder).read("snippet.md")


def test_a_file_that_grew_is_not_read_to_its_end(signed: Published) -> None:
    path = Path(signed.location) / "snippet.md"
    with open(path, "ab") as file:
        file.truncate(1 << 40)  # a hole: no disk is used
    assert "snippet.md is not the file" in verify(signed.location).findings[0].message
    with pytest.raises(HostileSnapshotError, match="more than"):
        open_snapshot(signed.location).read("snippet.md")


def test_a_folder_that_is_too_deep_is_reported_and_not_entered(signed: Published) -> None:
    deep = Path(signed.location) / "/".join("d" * 40)
    deep.mkdir(parents=True)
    (deep / "x").touch()
    assert "a folder in a folder" in "\n".join(f.message for f in verify(signed.location).findings)


# --- Archives -------------------------------------------------------------------------------------


def tar_of(kind: bytes, name: str = "x", link: str = "", size: int = 0) -> bytes:
    info = tarfile.TarInfo(f"{ID}/{name}")
    info.type, info.linkname, info.size = kind, link, size
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        archive.addfile(info, io.BytesIO(bytes(size)))
    return out.getvalue()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (tar_of(tarfile.SYMTYPE, link="/etc/passwd"), "kind b'2'"),
        (tar_of(tarfile.LNKTYPE, link="/etc/passwd"), "kind b'1'"),
        (tar_of(tarfile.CHRTYPE), "kind b'3'"),
        (tar_of(tarfile.BLKTYPE), "kind b'4'"),
        (tar_of(tarfile.FIFOTYPE), "kind b'6'"),
        (tar_of(tarfile.DIRTYPE), "kind b'5'"),
        (tar_of(b"L", size=10), "kind b'L'"),
        (tar_of(b"x", size=10), "kind b'x'"),
        (tar_of(b"S"), "kind b'S'"),
        (tar_of(b"Z"), "kind b'Z'"),
        (tar_of(b"0", name="../../outside"), "lead elsewhere"),
        (tar_of(b"0", name="/etc/passwd"), "lead elsewhere"),
        (header(ID, "x" * 90, 1)[:511] + b"x", "not the one `firstlight publish` writes"),
        (header(ID, "b", 0) + header(ID, "a", 0) + bytes(1024), "no index"),
        (header(ID, INDEX, 1 << 32) + bytes(1024), "more than"),
        (b"PK\x03\x04" + bytes(1000), "not an archive"),
    ],
)
def test_an_archive_that_is_not_canonical_or_has_other_than_files_is_refused(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "in" / "x.tar"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(UnusableSnapshotError, match=said):
        verify(path)
    with pytest.raises(UnusableSnapshotError):
        open_snapshot(path)
    assert [p.name for p in path.parent.iterdir()] == ["x.tar"]
    assert not (tmp_path / "outside").exists()


def test_an_archive_with_extra_content_is_refused(signed: Published, tmp_path: Path) -> None:
    whole = Path(str(signed.archive)).read_bytes()
    body, end = whole[:-1024], whole[-1024:]
    size = (Path(signed.location) / "zenodo.json").stat().st_size  # the last file
    padded = body[: -(-size % 512)] + b"x" * (-size % 512)
    for content, said in (
        (body + header(signed.id, "zenodo.json", 0) + end, "twice"),
        (body + header("cd" * 32, "zz", 0) + end, "two snapshots"),
        (padded + end, "bytes between"),
    ):
        (tmp_path / "x.tar").write_bytes(content)
        with pytest.raises(UnusableSnapshotError, match=said):
            verify(tmp_path / "x.tar")
    (tmp_path / "x.tar").write_bytes(body + header(signed.id, "zz", 0) + end)
    assert "'zz' is not in the index" in verify(tmp_path / "x.tar").findings[0].message


def test_files_out_of_order_are_refused(signed: Published, tmp_path: Path) -> None:
    whole = Path(str(signed.archive)).read_bytes()
    folder = Path(signed.location)
    blocks = {}
    for name in (INDEX, "snippet.md", "zenodo.json"):
        data = (folder / name).read_bytes()
        blocks[name] = header(signed.id, name, len(data)) + data + bytes(-len(data) % 512)
    swapped = whole.replace(blocks["snippet.md"], b"")
    swapped = swapped.replace(blocks[INDEX], blocks[INDEX] + blocks["snippet.md"])
    (tmp_path / "x.tar").write_bytes(swapped)
    with pytest.raises(UnusableSnapshotError, match="not in order"):
        verify(tmp_path / "x.tar")


def test_a_decompression_bomb_is_refused_early(tmp_path: Path) -> None:
    """4 GiB of zeros in 4 MiB: refused by the ratio, before much is unpacked."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, 31)
    path = tmp_path / "bomb.tar.gz"
    with open(path, "wb") as file:
        file.write(squeeze.compress(header(ID, INDEX, 1 << 30)))
        for _ in range(64):
            file.write(squeeze.compress(bytes(1 << 20)))
        file.write(squeeze.flush())
    with pytest.raises(HostileSnapshotError, match=r"200-fold|more than the"):
        verify(path)
    with pytest.raises(HostileSnapshotError):
        open_snapshot(path)


def test_a_damaged_or_concatenated_gzip_is_refused(signed: Published, tmp_path: Path) -> None:
    packed = gzip.compress(Path(str(signed.archive)).read_bytes(), mtime=0)
    path = tmp_path / "x.tar.gz"
    broken = bytearray(packed)
    broken[len(packed) // 2] ^= 4
    for content in (packed[:-1], packed[: len(packed) // 2], packed + b"x", packed * 2, broken):
        path.write_bytes(content)
        with pytest.raises(UnusableSnapshotError):
            assert verify(path).findings == ()


def test_memory_stays_bounded_for_any_sizes_in_an_index(tmp_path: Path) -> None:
    """With a limit on memory: a huge index, a huge line, a deep document."""
    program = f"""
import resource, sys
from pathlib import Path
from firstlight.snapshot.verifying import verify
from firstlight.snapshot.errors import UnusableSnapshotError
limit = 400 << 20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
folder = Path({str(tmp_path / ID)!r})
for what in ("hole", "brackets", "zeros"):
    try:
        verify(folder / what)
    except UnusableSnapshotError as error:
        print(what, "refused:", error)
"""
    for name, content in (
        ("brackets", b"[" * (3 << 20)),
        ("zeros", b'{"schema":[' + b"0," * (1 << 20) + b"0]}"),
        ("hole", b"{"),
    ):
        place = tmp_path / ID / name
        place.mkdir(parents=True)
        (place / INDEX).write_bytes(content)
    os.truncate(tmp_path / ID / "hole" / INDEX, 1 << 40)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.count("refused") == 3, done.stderr


def listed(signed: Published, name: str, size: int) -> Path:
    """The snapshot with one more file in its index, a sparse one."""
    folder = Path(signed.location)
    plain = json.loads((folder / INDEX).read_text())
    plain["files"].append({"path": name, "bytes": size, "sha256": ID})
    plain["files"].sort(key=lambda entry: entry["path"])
    (folder / INDEX).write_bytes(canonical(plain))
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    with open(folder / name, "wb") as file:
        file.truncate(size)
    return folder


@pytest.mark.parametrize(
    "name", ["runs/002/run.json", "runs/002/plan.json", "runs/7/samples.jsonl"]
)
def test_files_read_whole_are_refused_by_their_size_in_the_index(
    signed: Published, name: str
) -> None:
    with pytest.raises(UnusableSnapshotError, match="more than the"):
        verify(listed(signed, name, 900 << 20))


def test_runs_that_the_manifest_does_not_list_are_hashed_but_not_kept(
    signed: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []
    read = verifying._digest

    def watched(content: Any, size: int, keep: bool) -> Any:
        kept.append((size, keep))
        return read(content, size, keep)

    monkeypatch.setattr(verifying, "_digest", watched)
    verify(listed(signed, "runs/002/samples.jsonl", 1 << 20))
    assert (1 << 20, False) in kept and sum(keep for _, keep in kept) == 6


def test_nothing_in_a_snapshot_is_imported_or_executed(
    signed: Published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a program where Python would find it, and a plan that names it as the one to run."""
    folder = Path(signed.location)
    mine = f"open({str(tmp_path / 'ran')!r}, 'w')\n"
    for name in ("sitecustomize.py", "json.py", "made.py", "conftest.py"):
        (folder / name).write_text(mine)
    monkeypatch.chdir(folder)
    command = [sys.executable, "-m", "firstlight", "verify", "."]
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1 and "made.py" in done.stdout
    assert not (tmp_path / "ran").exists()
