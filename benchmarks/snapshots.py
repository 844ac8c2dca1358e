"""Does publishing scale, and does `verify` find everything? Figures of README and docs.

    python benchmarks/snapshots.py [--snapshots 1000] [--changes 200] [PART …]

Parts: scale, list, calls, changes.

scale    publish and verify that many snapshots one after the other: the time with many snapshots in
         the store relative to none, in pairs, and the peak memory relative to that after a quarter.
list     the command `firstlight snapshots` for all of them, and for a catalogue five times as long.
calls    seconds to verify a snapshot of a million warm calls, in long series and in short ones.
changes  how many random single-byte changes, removed files and added files `verify` finds.

The runs are generated (a measured one takes a minute); their numbers follow from their samples.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "snapshot"))

from made_up_run import CASES, make_run  # type: ignore[import-not-found]

from firstlight.snapshot.errors import UnusableSnapshotError
from firstlight.snapshot.keys import generate, load_private
from firstlight.snapshot.publishing import publish
from firstlight.snapshot.storage import LocalStore
from firstlight.snapshot.strict_json import compact
from firstlight.snapshot.verifying import verify
from firstlight.statistics.intervals import median


def say(name: str, value: str, bar: str, good: bool) -> None:
    print(f"{'ok  ' if good else 'MISS'}  {name}: {value}  (bar: {bar})", flush=True)


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def made_up(count: int, scratch: Path) -> Iterator[Path]:
    """Generate runs one after the other; each is removed when the next is made."""
    for number in range(count):
        folder = make_run(scratch / "run", number=number, cases=CASES, calls=20)
        yield folder
        shutil.rmtree(folder)


def growth(
    name: str, against: str, ratio: float, seconds: Sequence[float], peaks: Sequence[float]
) -> None:
    """Time with many snapshots over time with few, and memory since the first quarter."""
    say(
        f"{name} {len(seconds)} snapshots",
        f"{sum(seconds):.0f} s, {median(seconds) * 1e3:.0f} ms each; {against}: ratio {ratio:.2f}",
        "≤ 1.2 (linear)",
        ratio <= 1.2,
    )
    gained = peaks[-1] / peaks[len(peaks) // 4]
    say(
        f"{name}: peak memory",
        f"{peaks[len(peaks) // 4]:.0f} MiB after a quarter, {peaks[-1]:.0f} MiB at the end: ratio "
        f"{gained:.3f}",
        "≤ 1.1 (flat)",
        gained <= 1.1,
    )


def timed_publish(run: Path, store: LocalStore) -> tuple[float, str]:
    begin = time.perf_counter()
    snapshot_id = publish([run], store).id
    return time.perf_counter() - begin, snapshot_id


def scale(count: int, place: Path, scratch: Path) -> None:
    """Measure pairs: other load on the machine then affects both sides."""
    store = LocalStore(place)
    ids: list[str] = []
    seconds: list[float] = []
    peaks: list[float] = []
    ratios: list[float] = []
    for number, run in enumerate(made_up(count, scratch)):
        spent, snapshot_id = timed_publish(run, store)
        ids.append(snapshot_id)
        seconds.append(spent)
        peaks.append(peak_mib())
        if number >= count * 3 // 4:
            ratios.append(spent / timed_publish(run, LocalStore(scratch / "empty"))[0])
            shutil.rmtree(scratch / "empty")
    growth("publish", "last quarter against an empty store", median(ratios), seconds, peaks)
    valid = 0
    seconds, peaks, ratios = [], [], []
    for first, last in zip(ids[: count // 2], ids[count // 2 :], strict=True):
        pair = []
        for snapshot_id in (last, first):
            begin = time.perf_counter()
            valid += not verify(place / snapshot_id).findings
            pair.append(time.perf_counter() - begin)
            peaks.append(peak_mib())
        seconds += pair
        ratios.append(pair[0] / pair[1])
    growth("verify", "second half against first", median(ratios), seconds, peaks)
    say("valid snapshots", f"{valid} of {count}", "all", valid == count)


def swollen(place: Path, count: int) -> None:
    """Make a store look as if it held this many snapshots: listing reads names and entries only."""
    entries = place / "catalogue" / "entries"
    some = [json.loads(path.read_text()) for path in sorted(entries.iterdir())]
    lines = []
    for number in range(count):
        snapshot_id = hashlib.sha256(str(number).encode()).hexdigest()
        entry = {**some[number % len(some)], "id": snapshot_id}
        if number % 50:
            lines.append(compact(entry) + b"\n")
        else:  # published since somebody gathered the entries
            (entries / f"{snapshot_id}.json").write_bytes(compact(entry))
        (place / snapshot_id).mkdir()
    gathered = place / "catalogue" / "all.jsonl"
    before = gathered.read_bytes() if gathered.exists() else b""
    gathered.write_bytes(before + b"".join(lines))


def listing(count: int, place: Path) -> None:
    """Time the command as a user calls it, including the start of Python."""
    command = [sys.executable, "-m", "firstlight", "snapshots", str(place)]
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        seconds.append(time.perf_counter() - begin)
    lines = len(done.stdout.splitlines())
    say(
        f"list {lines} snapshots",
        f"{median(seconds):.2f} s (median of 5 calls of the command)",
        f"all {count}, under 1 s",
        lines == count and median(seconds) < 1,
    )


def calls(scratch: Path) -> None:
    """A million warm calls, in few long processes and in many short ones."""
    for processes, each in ((6, 166_667), (100, 10_000), (1000, 1000), (2000, 500)):
        run = make_run(
            scratch / f"calls-{processes}", cases=CASES[:1], processes=processes,
            calls=each, most_calls=each,
        )  # fmt: skip
        done = publish([run], LocalStore(scratch / "long"))
        begin = time.perf_counter()
        valid = not verify(done.location).findings
        seconds = time.perf_counter() - begin
        name = f"verify {processes} processes of {each} calls"
        say(name, f"{seconds:.1f} s", "10 s", valid and seconds <= 10)


def is_found(place: Path) -> bool:
    try:
        return bool(verify(place).findings)
    except UnusableSnapshotError:
        return True


def changes(count: int, scratch: Path) -> None:
    generate(scratch / "key.pem")
    run = make_run(scratch / "victim")
    key = load_private(scratch / "key.pem")
    done = publish([run], LocalStore(scratch / "victims"), key=key, archive=True)
    folder, archive = Path(done.location), Path(str(done.archive))
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    draw = random.Random(2026)
    parts: list[tuple[str, Callable[[], tuple[int, int]]]] = [
        ("single-byte changes, directory", lambda: _flips(count, folder, files, draw)),
        ("single-byte changes, archive", lambda: _flips(count, archive, [archive], draw)),
        ("removed files", lambda: _removed(folder, files)),
        ("added files", lambda: _added(folder, draw)),
    ]
    say(
        "untouched", "valid" if not is_found(folder) else "a finding", "valid", not is_found(folder)
    )
    for name, part in parts:
        found, total = part()
        say(name, f"{found} of {total} found", "all", found == total)


def _flips(count: int, place: Path, files: Sequence[Path], draw: random.Random) -> tuple[int, int]:
    """Change a random byte of all files, each equally likely, to a random other value."""
    sizes = [p.stat().st_size for p in files]
    found = 0
    for path in draw.choices(files, sizes, k=count):
        whole = path.read_bytes()
        at = draw.randrange(len(whole))
        other = draw.choice([b for b in range(256) if b != whole[at]])
        path.write_bytes(whole[:at] + bytes([other]) + whole[at + 1 :])
        found += is_found(place)
        path.write_bytes(whole)
    return found, count


def _removed(folder: Path, files: Sequence[Path]) -> tuple[int, int]:
    found = 0
    for path in files:
        content = path.read_bytes()
        path.unlink()
        found += is_found(folder)
        path.write_bytes(content)
    return found, len(files)


def _added(folder: Path, draw: random.Random) -> tuple[int, int]:
    folders = [folder, *(p for p in folder.rglob("*") if p.is_dir())]
    names = ("new", ".hidden", "index.json.bak", "é", "samples.jsonl~", f"{draw.random()}.csv")
    found = 0
    for place in folders:
        for name in names:
            (place / name).write_bytes(b"")
            found += is_found(folder)
            (place / name).unlink()
    return found, len(folders) * len(names)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", default=["scale", "list", "changes", "calls"])
    parser.add_argument("--snapshots", type=int, default=1000)
    parser.add_argument("--changes", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="firstlight-snapshots-") as scratch:
        place = Path(scratch) / "store"
        if "scale" in options.parts or "list" in options.parts:
            scale(options.snapshots, place, Path(scratch))
        if "list" in options.parts:
            listing(options.snapshots, place)
            swollen(place, 4 * options.snapshots)
            listing(5 * options.snapshots, place)
        if "calls" in options.parts:
            calls(Path(scratch))
        if "changes" in options.parts:
            changes(options.changes, Path(scratch))


if __name__ == "__main__":
    main()
