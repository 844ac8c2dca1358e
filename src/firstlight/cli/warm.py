"""`firstlight warm`: record what a program compiles, compile it elsewhere, check it, carry it."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from firstlight.cli.values import add_actions, location, program_of

if TYPE_CHECKING:
    from firstlight.cli.values import Commands
    from firstlight.warmstart.building import Built
    from firstlight.warmstart.manifest import Manifest, Program

EPILOG = """\
examples:
  firstlight warm record train.py --steps 2         on any machine with the program and its data
  firstlight warm build train.warm --jobs 8         in CI, or while an image is built
  firstlight warm check train.warm                  exit code 1: something would be compiled
  firstlight warm pack train.pack; firstlight warm unpack train.pack

exit codes: 0 success; 1 a program failed, is missing or is stale; 2 wrong usage. `record` and
`build --run` return the exit code of the program."""


def add_to(commands: Commands) -> None:
    about = "Record what a program compiles, compile it elsewhere, check it, carry it in one file."
    action = add_actions(commands, "warm", about, EPILOG)
    manifest = {"type": Path, "metavar": "MANIFEST", "help": "a file written by `warm record`"}
    cache = {"metavar": "DIR|URL", "help": "the cache (default: your own)"}
    folder = {"type": Path, "metavar": "DIR", "help": "the cache (default: your own)"}
    add = action("record", "run a program and record what it compiles", record)
    out = "the manifest to write (default: the program's name with .warm)"
    add("--out", type=Path, metavar="MANIFEST", help=out)
    add("--cache", **cache)
    add("program", nargs=argparse.REMAINDER, help="program.py, or a command, and its arguments")
    add = action("build", "compile everything in a manifest into a cache, in parallel", build)
    add("manifest", **manifest)
    add("--cache", **cache)
    add("--jobs", type=int, metavar="N", help="processes (default: one per core)")
    run = "run the recorded program itself, in its folder; needed for another version of JAX"
    add("--run", action="store_true", help=run)
    add = action("check", "list the programs of a manifest that a cache lacks", check)
    add("manifest", **manifest)
    add("--cache", **cache)
    add = action("pack", "write compiled programs to one signed file", pack)
    add("out", type=Path, metavar="FILE", help="the file to write")
    add("--manifest", type=Path, metavar="MANIFEST", help="only the programs of this manifest")
    add("--cache", **folder)
    add = action(
        "unpack",
        "store the programs of a packed file in a cache if a trusted key signed it",
        unpack,
    )
    add("file", type=Path, metavar="FILE", help="a file written by `warm pack`")
    add("--cache", **folder)


def record(options: argparse.Namespace) -> int:
    from firstlight.present.quantities import counted, size, unbroken
    from firstlight.warmstart import manifest

    program = program_of(options)
    if not program:
        options.parser.error("give a program, for example: train.py --steps 2")
    script = next((word for word in program if word.endswith(".py")), program[0])
    out = options.out or Path(Path(script).stem + ".warm")
    code, found = _recorded(program, options.cache)
    if not found.programs:
        print("firstlight: the program compiled nothing; no manifest was written.", file=sys.stderr)
        return code or 1
    manifest.write(out, found)
    _say_if_failed(code)
    with_callbacks = sum(one.has_callbacks for one in found.programs)
    also = f", of which {with_callbacks} call back into Python" if with_callbacks else ""
    programs = counted(len(found.programs), "program")
    print(f"{out}: {programs}{also}, {unbroken(size(out.stat().st_size))}.", file=sys.stderr)
    return code


def build(options: argparse.Namespace) -> int:
    from firstlight.present.quantities import counted, duration
    from firstlight.warmstart import building, manifest
    from firstlight.warmstart.caches import NEEDS_KEY, CacheError, default_cache
    from firstlight.warmstart.signing import Signatures

    if options.jobs is not None and (options.run or options.jobs < 1):
        wrong = "not with --run, where the program compiles as it runs" if options.run else ""
        options.parser.error(f"--jobs: {wrong or 'at least 1'}")
    found = manifest.read(options.manifest)
    where = options.cache or default_cache()
    if "://" in where and Signatures.of_user().own is None:
        raise CacheError(NEEDS_KEY)
    if options.run:
        return _build_by_running(found, options)
    built = building.build(found, where, options.jobs or os.cpu_count() or 1, _print_built)
    missing = _not_in_cache(found, options.cache)
    failed = [one for one in built if one.outcome is building.Outcome.FAILED]
    compiled = [one for one in built if one.outcome is building.Outcome.COMPILED]
    seconds = duration(sum(one.seconds for one in compiled))
    print(
        f"{counted(len(built), 'program')}: {len(compiled)} compiled ({seconds} of compiling), "
        f"{len(failed)} failed, {len(missing)} are not in the cache."
    )
    return 1 if failed or missing else 0


def _build_by_running(recorded: Manifest, options: argparse.Namespace) -> int:
    """Run the program, which fills the cache; return 1 if something it compiled is not there."""
    from firstlight.present.plain_text import printable
    from firstlight.present.quantities import counted
    from firstlight.warmstart.building import versions_differ
    from firstlight.warmstart.manifest import ManifestError, kind_here

    command = shlex.join(recorded.command)
    script = recorded.command[0]
    if script.endswith(".py") and not os.path.exists(script):
        raise ManifestError(
            f"{options.manifest} was recorded as {command!r}, and there is no {script} here: run "
            "this in the folder of the program, or record it again."
        )
    print(printable(f"firstlight: running {command}"), file=sys.stderr, flush=True)
    code, found = _recorded(recorded.command, options.cache)
    missing = _not_in_cache(found, options.cache)
    stored = sum(not one.has_callbacks for one in found.programs) - len(missing)
    print(f"{counted(len(found.programs), 'program')}: {stored} are in the cache.", file=sys.stderr)
    _say_if_failed(code)
    here = kind_here()
    if any(versions_differ(one, here) for one in recorded.programs):
        again = f"firstlight warm record --out {options.manifest} {command}"
        print(printable(f"For `firstlight warm check`, record it here: {again}"), file=sys.stderr)
    return code or (1 if missing or not found.programs else 0)


def _recorded(program: list[str], cache: str | None) -> tuple[int, Manifest]:
    """Run a program with the cache; return its exit code and what it asked for."""
    from firstlight.warmstart import recording

    with tempfile.TemporaryDirectory(prefix="firstlight-warm-") as folder:
        code = _run(program, cache, {recording.VARIABLE: folder})
        return code, recording.collected(Path(folder), program)


def _say_if_failed(code: int) -> None:
    if code:
        print(
            f"firstlight: the program ended with exit code {code}: what it would have compiled "
            "later is missing.",
            file=sys.stderr,
        )


def _not_in_cache(found: Manifest, cache: str | None) -> list[Program]:
    """Return the programs that could be in the cache and are not; a shared one is filled first."""
    from firstlight.warmstart import checking
    from firstlight.warmstart.caches import default_cache, push

    where = cache or default_cache()
    if "://" in where:  # it may lack what was found in the folder of this machine
        keys = {one.key for one in found.programs}
        push(where, lambda one: one.key in keys)
    states = checking.check(found, cache)
    return states[checking.State.MISSING] + states[checking.State.OTHER_MACHINE]


def check(options: argparse.Namespace) -> int:
    from firstlight.present.plain_text import printable
    from firstlight.warmstart import checking, manifest

    found = manifest.read(options.manifest)
    states = checking.check(found, options.cache)
    for state, programs in states.items():
        if state is checking.State.THERE:
            continue
        for program in programs:
            shapes = program.about.get("shapes", "")
            print(printable(f"{state.value}: {program.function} {shapes}"))
    there = len(states[checking.State.THERE])
    needed = sum(len(states[s]) for s in checking.State if s is not checking.State.NEVER_STORED)
    print(f"{there} of {needed} programs are there.")
    if there < needed:
        where = f" --cache {options.cache}" if options.cache else ""
        stale = " --run" if states[checking.State.OTHER_VERSIONS] else ""
        print(f"Compile the others: firstlight warm build{stale} {options.manifest}{where}")
    return 0 if there == needed else 1


def pack(options: argparse.Namespace) -> int:
    from firstlight.present.quantities import counted, size, unbroken
    from firstlight.warmstart import checking, packs
    from firstlight.warmstart.signing import Signatures

    contents = checking.contents(options.cache, options.manifest)
    packs.pack(options.out, contents, Signatures.of_user())
    entries = counted(len(contents), "program")
    print(f"{options.out}: {entries}, {unbroken(size(options.out.stat().st_size))}.")
    return 0


def unpack(options: argparse.Namespace) -> int:
    from firstlight.present.quantities import counted
    from firstlight.warmstart import folder, packs
    from firstlight.warmstart.signing import Signatures

    path = str(options.cache or folder.in_front())
    signatures = Signatures.of_user()
    number = packs.unpack(options.file, folder.opened(path), folder.max_bytes(), signatures)
    print(f"{path}: {counted(number, 'program')} stored.")
    return 0


def _run(program: list[str], cache: str | None, more: dict[str, str]) -> int:
    """Run a program with the cache, a file or module under this Python; return its exit code."""
    environment = {**os.environ, "FIRSTLIGHT_WARMSTART": "1", **more}
    if cache:
        environment["FIRSTLIGHT_CACHE_DIR"] = location(cache)
    if program[0].endswith(".py") or program[0].startswith("-"):
        program = [sys.executable, *program]
    code = subprocess.run(program, env=environment, check=False).returncode
    return code if code >= 0 else 128 - code


def _print_built(one: Built) -> None:
    from firstlight.present.plain_text import printable
    from firstlight.present.quantities import duration

    shapes, why = one.program.about.get("shapes", ""), f": {one.why}" if one.why else ""
    line = f"{one.outcome.value:10}  {duration(one.seconds):>8}  {one.program.function} {shapes}"
    print(printable(f"{line}{why}"), flush=True)
