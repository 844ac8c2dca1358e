"""The timeline for other viewers: valid in the Trace Event Format, with a lane for each thread."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from trace_logs import POOL, Log, compile_in, whole_log

from firstlight.cli import main


def exported(folder: Path, *logs: Log) -> dict[str, Any]:
    for log in logs:
        log.write(folder / "logs")
    file, page = folder / "chrome.json", folder / "page.html"
    options = ("--chrome", str(file), "--html", str(page), "--quiet")
    assert main(["trace", "report", str(folder / "logs"), *options]) == 0
    told: dict[str, Any] = json.loads(file.read_text())
    return told


def slices(told: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Slices by the name of their lane."""
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in told["traceEvents"]
        if event["name"] == "thread_name"
    }
    found = defaultdict(list)
    for event in told["traceEvents"]:
        if event["ph"] == "X":
            found[names[event["pid"], event["tid"]]].append(event)
    return found


def test_every_event_is_one_of_the_format(tmp_path: Path) -> None:
    """The oracle is the description of the format: what each kind of event must have."""
    told = exported(tmp_path, whole_log())
    assert told["displayTimeUnit"] in ("ms", "ns")
    for event in told["traceEvents"]:
        assert {type(event["pid"]), type(event["tid"])} == {int}
        assert isinstance(event["name"], str) and isinstance(event["args"], dict)
        assert event["ph"] in ("X", "i", "M")
        if event["ph"] == "M":
            named = {"thread_sort_index": "sort_index"}.get(event["name"], "name")
            assert list(event["args"]) == [named]
        else:
            assert event["ts"] >= 0 and isinstance(event["cat"], str)
        if event["ph"] == "X":
            assert event["dur"] >= 0
        if event["ph"] == "i":
            assert event["s"] in ("g", "p", "t")


def test_slices_of_a_lane_are_nested_or_disjoint(tmp_path: Path) -> None:
    """Viewers cannot draw slices that cross."""
    log = whole_log()
    log.call(8, "inner").call(9, "outer")
    log.stage("trace", 8, 920, 940, "inner").stage("trace", 9, 910, 960, "outer")
    lanes = slices(exported(tmp_path, log))
    assert [e["name"] for e in lanes["tracing (main thread)"]].count("f") == 2
    for events in lanes.values():
        open_until: list[float] = []
        for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
            while open_until and open_until[-1] <= event["ts"] + 1e-6:
                open_until.pop()
            end = event["ts"] + event["dur"]
            assert not open_until or end <= open_until[-1] + 1e-6
            open_until.append(end)


def test_a_thread_has_its_own_lanes_for_itself_and_its_stages(tmp_path: Path) -> None:
    log = Log().jax()
    compile_in(log, 1, 300, 700, POOL, thread_name="pool-0")
    told = exported(tmp_path, log.end(1000))
    lanes = slices(told)
    # For Perfetto, the main thread has its process's number; 0 would be merged with it.
    assert {(e["pid"], e["tid"]) for e in lanes["main thread"]} == {(1000, 1000)}
    assert set(lanes) == {"main thread", "pool-0", "compiling (pool-0)"}
    (event,) = lanes["compiling (pool-0)"]
    assert (event["name"], event["ts"], event["dur"]) == (
        "f",
        pytest.approx(3e5),
        pytest.approx(4e5),
    )
    assert event["args"]["arguments"] == "x: f32[3]"


def test_a_recompile_says_why_and_the_first_result_is_marked(tmp_path: Path) -> None:
    told = exported(tmp_path, whole_log())
    again = [
        e["args"].get("compiled again because") for e in slices(told)["compiling (main thread)"]
    ]
    assert again == [None, "x: f32[3] → f32[4]"]
    (mark,) = [event for event in told["traceEvents"] if event["ph"] == "i"]
    assert (mark["name"], mark["ts"]) == ("first result", pytest.approx(510_000))


def test_processes_of_two_machines_with_the_same_pid_stay_separate(tmp_path: Path) -> None:
    Log(pid=5).end(300).write(tmp_path / "logs").joinpath("5.jsonl").rename(
        tmp_path / "logs" / "a-5.jsonl"
    )
    told = exported(tmp_path, Log(pid=5, started=1100).end(300))
    assert {event["pid"] for event in told["traceEvents"]} == {1000, 2000}
