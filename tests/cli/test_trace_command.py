"""`firstlight trace` as a user runs it, on a real program."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import firstlight
from firstlight.cli import main
from firstlight.trace.read.redaction import file, module, redacted
from firstlight.trace.show.what_if_text import verdict as what_if_verdict
from firstlight.trace.what_if import Spread, Variant, WhatIf

pytestmark = pytest.mark.slow

PROGRAM = """
    import sys
    import jax
    import numpy as np
    import zanzibar_package

    @jax.jit
    def step(x):
        return (x * 2).sum()

    def total(x, mode):
        return x.sum() if mode == "/home/alice/zanzibar_data.csv" else x.prod()

    for n in (3, 4, 5):
        print(float(step(np.ones(n, np.float32))))
    jitted = jax.jit(total, static_argnames="mode")
    jitted(np.ones(2), mode="/home/alice/zanzibar_data.csv")
    print(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A user's folder with a program, its trace, and the output of the command."""
    folder = tmp_path_factory.mktemp("zanzibar_folder")
    import textwrap

    (folder / "zanzibar_script.py").write_text(textwrap.dedent(PROGRAM))
    (folder / "zanzibar_package.py").write_text("value = 1\n")
    done = run(folder, "--out", "trace", "--json", "report.json", "zanzibar_script.py", "--lr", "1")
    return folder, done


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "firstlight", "trace", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def here(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The same in this process, for a command that runs no program."""
    said, output = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), redirect_stderr(said), redirect_stdout(output):
        try:
            code = main(["trace", *arguments])
        except SystemExit as stopped:
            code = int(stopped.code or 0)
    done = arguments, code, output.getvalue(), said.getvalue()
    return subprocess.CompletedProcess(*done)


def test_stdout_is_the_programs_and_stderr_has_the_verdict_first(traced: Any) -> None:
    _, done = traced
    assert done.returncode == 0
    assert done.stdout == "6.0\n8.0\n10.0\n['--lr', '1']\n"
    parts = ("First result after", "until the first result went", "Functions", "Report: trace")
    order = [done.stderr.index(part) for part in parts]
    assert order == sorted(order)
    assert "\x1b" not in done.stderr  # no colours: it is no terminal
    assert max(map(len, done.stderr.splitlines())) <= 100


def test_the_json_report_follows_its_schema_and_adds_up(traced: Any) -> None:
    folder, _ = traced
    report = json.loads((folder / "report.json").read_text())
    schemas = Path(firstlight.__file__).parent / "schemas"
    schema = json.loads((schemas / "trace-report-1.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(report, schema)
    step = next(f for f in report["functions"] if f["name"] == "step")
    assert step["location"].endswith("zanzibar_script.py:7") or step["location"].endswith(":8")
    assert (step["compiles"], step["recompiles"]) == (3, 2)
    assert report["compiles"] == sum(f["compiles"] for f in report["functions"])
    assert report["time_to_first_result_seconds"] > 0
    # That there is no cache stands apart, and last.
    costs = [f["seconds"] for f in report["findings"] if f["kind"] != "cache-off"]
    assert costs == sorted(costs, reverse=True)
    totals = [f["total_seconds"] for f in report["functions"]]
    assert totals == sorted(totals, reverse=True)
    (process,) = report["processes"]
    assert sum(process["phases_seconds"].values()) == pytest.approx(process["wall_seconds"])
    # By the clock of the parent, which the program does not control.
    assert process["wall_seconds"] == pytest.approx(report["outcome"]["seconds"], rel=0.01)
    results = [call["results_before"] for call in step["calls"]]
    assert results == [0, 1, 2]  # each was read before the next compile


def test_an_exceeded_limit_fails_a_program_that_succeeds_and_is_named(traced: Any) -> None:
    folder, _ = traced
    done = here(folder, "report", "trace", "--max-recompiles", "1", "--quiet")
    assert done.returncode == 1
    assert "2 recompiles, 1 allowed" in done.stderr and "f32[3] → f32[4]" in done.stderr
    assert here(folder, "report", "trace", "--max-recompiles", "2", "--quiet").returncode == 0
    late = here(folder, "report", "trace", "--forbid-compile-after", "1", "--quiet")
    assert late.returncode == 1 and "after 1 result had been read" in late.stderr


def test_a_report_made_again_is_the_same(traced: Any) -> None:
    folder, first = traced
    again = here(folder, "report", "trace", "--html", "again.html")
    assert again.returncode == 0
    assert (folder / "again.html").read_text() == (folder / "trace" / "report.html").read_text()
    assert again.stderr.splitlines()[1:-1] == first.stderr.splitlines()[1:-1]


def test_redacted_output_has_no_path_value_argument_or_module_of_the_user(traced: Any) -> None:
    folder, _ = traced
    done = run(
        folder,
        *(
            "--redact",
            "--out",
            "shared",
            "--json",
            "shared.json",
            "zanzibar_script.py",
            "--lr",
            "7",
        ),
    )
    assert done.returncode == 0
    said = re.sub(r"Report: .*", "", done.stderr)
    written = [p for p in (folder / "shared").rglob("*") if p.is_file()] + [folder / "shared.json"]
    assert len(written) == 3  # log, page, JSON
    parts = {
        part for part in (*folder.parts, "zanzibar_script", "zanzibar_package") if len(part) > 3
    }
    for text in (said, *(path.read_text() for path in written)):
        assert "step" in text  # what is asked about is there
        for part in (*parts, "alice", "zanzibar", "--lr", "data.csv"):
            assert part not in text, part
    report = json.loads((folder / "shared.json").read_text())
    step = next(f for f in report["functions"] if f["name"] == "step")
    assert re.fullmatch(r"file-[0-9a-f]{8}\.py:\d+", step["location"])
    assert (step["compiles"], step["recompiles"]) == (3, 2)  # as without


def test_an_unredacted_trace_can_be_shown_redacted(traced: Any) -> None:
    folder, _ = traced
    done = here(folder, "report", "trace", "--redact", "--html", "open.html")
    assert done.returncode == 0
    assert "zanzibar" not in (folder / "open.html").read_text()
    assert "zanzibar" in (folder / "trace" / "report.html").read_text()  # and is left as it was
    assert here(folder, "report", "trace", "--redact").returncode == 2


def test_an_output_folder_is_never_overwritten(traced: Any) -> None:
    folder, _ = traced
    done = here(folder, "--out", "trace", "zanzibar_script.py")
    assert done.returncode == 2 and "not empty" in done.stderr and done.stdout == ""


def test_a_trace_of_the_same_program_shows_no_difference_in_counts(traced: Any) -> None:
    folder, _ = traced
    done = here(folder, "diff", "trace", "trace", "--all", "--json", "diff.json")
    assert done.returncode == 0
    found = json.loads((folder / "diff.json").read_text())
    assert {f["status"] for f in found["functions"]} == {"same"}
    assert found["compiles"][0] == found["compiles"][1] > 0


def test_a_folder_without_a_trace_is_named(tmp_path: Path) -> None:
    for command in (["report", "nowhere"], ["diff", "nowhere", "nowhere"]):
        done = here(tmp_path, *command)
        assert done.returncode == 2 and "nowhere: there is no such folder" in done.stderr


def test_a_program_in_place_of_a_report_is_not_overwritten(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("print(1)\n")
    done = here(tmp_path, "--json", "program.py", "an-argument")
    assert done.returncode == 2 and "Name one first" in done.stderr
    assert program.read_text() == "print(1)\n"


def test_a_script_may_have_the_name_of_a_subcommand(tmp_path: Path) -> None:
    (tmp_path / "diff").write_text("print('a script')\n")
    (tmp_path / "report.py").write_text("print('another')\n")
    assert run(tmp_path, "--quiet", "./diff").stdout == "a script\n"
    assert run(tmp_path, "--quiet", "report.py").stdout == "another\n"


def test_options_after_the_script_go_to_the_program(
    tmp_path: Path, write: Callable[[str, str], Path]
) -> None:
    write("show.py", "import sys; print(sys.argv[1:])")
    mine = ["--max", "3", "--json", "x", "--version", "-h", "--", "-m", "--out"]
    done = run(tmp_path, "--quiet", "show.py", *mine)
    assert done.stdout == f"{mine}\n" and not (tmp_path / "x").exists()
    (folder,) = (tmp_path / "firstlight-traces").iterdir()
    assert re.fullmatch(r"\d{8}-\d{6}-show", folder.name)
    assert (folder / "report.html").is_file()


def test_wrong_usage_is_reported_before_the_program_runs(
    tmp_path: Path, write: Callable[[str, str], Path]
) -> None:
    write("show.py", "print('ran')")
    for wrong in ([], ["--max-compiles", "-1", "show.py"], ["--redact", "--dump-hlo", "show.py"]):
        done = here(tmp_path, *wrong)
        assert done.returncode == 2 and "ran" not in done.stdout
    done = here(tmp_path, "--forbid-compile-after", "soon", "show.py")
    assert done.returncode == 2 and "30s" in done.stderr and "ran" not in done.stdout


def test_a_failing_program_keeps_its_exit_code_even_if_limits_are_exceeded(
    tmp_path: Path, write: Callable[[str, str], Path]
) -> None:
    write("fails.py", "raise SystemExit(7)")
    done = run(tmp_path, "--max-ttfr", "1", "--out", "t", "fails.py")
    assert done.returncode == 7
    assert "not imported JAX" in done.stderr and "exit code 7" in done.stderr


def test_a_program_killed_while_it_compiles_leaves_a_report(
    tmp_path: Path, write: Callable[[str, str], Path]
) -> None:
    """The log that such a program leaves; test_running.py kills one."""
    folder = tmp_path / "t"
    folder.mkdir()
    head = {"event": "process", "schema": "firstlight.trace", "version": 1, "pid": 7, "parent": 1}
    head |= {"python": "3.11.7", "command": ["python", "x.py"], "whole": True, "thread": 1}
    head |= {"started_ns": 0, "recording_ns": 10**8, "clock": [10**8, 10**18], "rank": None}
    events = [
        {"event": "jax", "version": "0.10.2", "ns": 5 * 10**8},
        {"event": "begin", "stage": "compile", "name": "jit(slow)", "call": None, "ns": 10**9,
         "thread": 1},
        {"event": "exited", "ns": 3 * 10**9, "code": None, "signal": 9},
    ]  # fmt: skip
    lines = [json.dumps(event) for event in (head, *events)]
    (folder / "vm-7.jsonl").write_text("\n".join(lines) + '\n{"event": "sta')
    done = here(tmp_path, "report", "t", "--json", "killed.json")
    assert done.returncode == 0
    assert "ended while it compiled jit(slow)" in " ".join(done.stderr.split())
    (process,) = json.loads((tmp_path / "killed.json").read_text())["processes"]
    assert process["wall_seconds"] == pytest.approx(3.0)
    assert process["phases_seconds"]["compile"] == pytest.approx(2.0)


# --- what if --------------------------------------------------------------------------------------


def test_what_if_runs_the_program_again_with_each_setting_and_says_so(
    tmp_path: Path, write: Callable[[str, str], Path]
) -> None:
    write(
        "program.py",
        """
        import os, sys
        names = ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR")
        with open("runs.txt", "a") as runs:
            print([os.environ.get(name, "") for name in names], sys.stdin.read(), file=runs)
        print("output")
        """,
    )
    done = run(tmp_path, "--what-if", "--what-if-rounds", "2", "--out", "t", "program.py")
    assert done.returncode == 0 and done.stdout == "output\n"  # of the first run alone
    assert "runs the program 9 more times" in done.stderr
    runs = (tmp_path / "runs.txt").read_text().splitlines()
    assert len(runs) == 10
    assert sum("optimization_level=0" in r for r in runs) == 2
    assert sum("optimization_level=1" in r for r in runs) == 2
    assert sum("what-if/cache" in r for r in runs) == 3  # one to fill it
    assert sum("['', '']" in r for r in runs) == 3  # the first, and as it is
    assert "no first result" in done.stderr


def test_what_if_is_not_run_for_a_program_that_fails(
    tmp_path: Path, write: Callable[[str, str], Path]
) -> None:
    write("fails.py", "import os; os.mkdir('once'); raise SystemExit(3)")
    done = run(tmp_path, "--what-if", "--quiet", "--out", "t", "fails.py")
    assert done.returncode == 3 and "not run again" in done.stderr


def variant(name: str, first: tuple[float, float, float] | None, wall: float = 5.0) -> Variant:
    spread = None if first is None else Spread(*first)
    return Variant(name, "how", 3, 0, spread, Spread(1, 1, 1), Spread(wall, wall, wall))


def test_what_if_names_a_winner_only_if_all_its_runs_beat_all_of_the_base() -> None:
    base = variant("as it is", (3.0, 2.8, 3.2))
    clear, close = variant("level 0", (2.0, 1.9, 2.1)), variant("level 0", (2.7, 2.5, 2.9))
    assert what_if_verdict(WhatIf(3, (base, clear))).startswith("Soonest: level 0, 1.00 s")
    assert what_if_verdict(WhatIf(3, (base, close))).startswith("No setting")
    longer = variant("level 0", (2.0, 1.9, 2.1), wall=9.0)
    assert "4.00 s longer" in what_if_verdict(WhatIf(3, (base, longer)))
    assert "nothing to compare" in what_if_verdict(WhatIf(3, (variant("as it is", None), clear)))


# --- redaction by itself --------------------------------------------------------------------------


def test_files_and_modules_of_public_packages_keep_their_names() -> None:
    assert file("/home/alice/v/lib/python3.11/site-packages/jax/_src/api.py") == (
        "site-packages/jax/_src/api.py"
    )
    assert file("/usr/lib/python3.11/json/decoder.py") == "python3.11/json/decoder.py"
    assert file("<stdin>") == "<stdin>"
    assert module("numpy.linalg") == "numpy.linalg" and module("json") == "json"
    for private in ("/home/alice/x.py", "/v/lib/python3.11/site-packages/acme_private/a.py"):
        assert re.fullmatch(r"file-[0-9a-f]{8}\.py", file(private))
    assert "acme" not in module("acme_private.core")
    assert file("/a/x.py") == file("/a/x.py") != file("/b/x.py")


def test_unknown_events_are_redacted_too() -> None:
    event = {
        "event": "torch_break",
        "reason": "call to open('/home/alice/data')",
        "where": {"deep": ["/home/alice/x.py", 3]},
        "count": 4,
    }
    text = redacted(json.dumps(event) + "\n" + '{"event": "cut of')
    assert "alice" not in text and json.loads(text)["count"] == 4
    assert len(text.splitlines()) == 1


def test_a_wrong_option_shows_the_usage_and_a_wrong_value_what_to_give(
    tmp_path: Path,
) -> None:
    for options, words in (
        (["--bogus"], "unrecognized arguments: --bogus"),
        (["--max-compiles", "x"], "'x': give a whole number, 0 or more"),
        (["--max-ttfr", "soon"], "'soon': give seconds"),
    ):
        done = here(tmp_path, *options, "train.py")
        assert done.returncode == 2 and words in done.stderr
        assert "usage: firstlight trace [options]" in done.stderr


def test_a_missing_script_gets_no_report(tmp_path: Path) -> None:
    done = run(tmp_path, "nofile.py")
    assert done.returncode == 2 and "can't open file" in done.stderr
    assert "nothing more to report" in done.stderr
    assert "Report:" not in done.stderr and "start sooner" not in done.stderr
