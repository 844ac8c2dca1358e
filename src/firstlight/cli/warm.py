"""`firstlight warm`: record what a program compiles, compile it elsewhere, check it, carry it."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firstlight.warmstart.building import Built

EPILOG = """\
  firstlight warm record train.py --steps 2         on any machine with the program and its data
  firstlight warm build train.warm --jobs 8         in CI, or while an image is built
  firstlight warm check train.warm                  exit code 1: something would be compiled
  firstlight warm pack train.pack; firstlight warm unpack train.pack

exit codes: 0 all is well; 1 programs that failed, are missing or stale; 2 wrong usage; of
record and build --run: the program's own."""


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "warm", epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    def action(name: str, about: str, handle: Callable[[argparse.Namespace], int]) -> Any:
        added = actions.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
        added.set_defaults(handle=handle, parser=added)
        return added.add_argument

    cache: dict[str, Any] = {"metavar": "DIR|URL", "help": "the cache (default: your own)"}
    folder: dict[str, Any] = {"type": Path, "metavar": "DIR", "help": "default: your own"}
    add = action("record", "run a program and write down what it compiles", record)
    out = "the manifest (default: the program's name with .warm)"
    add("--out", type=Path, metavar="MANIFEST", help=out)
    add("--cache", **cache)
    add("program", nargs=argparse.REMAINDER, help="program.py, or a command, and its arguments")
    add = action("build", "compile all of a manifest into a cache, in parallel", build)
    add("manifest", type=Path, metavar="MANIFEST")
    add("--cache", **cache)
    jobs = os.cpu_count() or 1
    add("--jobs", type=int, default=jobs, metavar="N", help=f"processes (default: {jobs})")
    run = "run the recorded program instead, for another version of JAX"
    add("--run", action="store_true", help=run)
    add = action("check", "say what of a manifest a cache does not have", check)
    add("manifest", type=Path, metavar="MANIFEST")
    add("--cache", **cache)
    add = action("pack", "write compiled programs to one signed file", pack)
    add("out", type=Path, metavar="OUT")
    add("--manifest", type=Path, help="only the programs of this manifest")
    add("--cache", **folder)
    add = action("unpack", "store what is in such a file, if a trusted key has signed it", unpack)
    add("file", type=Path, metavar="FILE")
    add("--cache", **folder)


def record(options: argparse.Namespace) -> int:
    from firstlight.present.quantities import counted, size, unbroken
    from firstlight.warmstart import manifest, recording

    program = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not program:
        options.parser.error("give a program, for example: train.py --steps 2")
    script = next((word for word in program if word.endswith(".py")), program[0])
    out = options.out or Path(Path(script).stem + ".warm")
    with tempfile.TemporaryDirectory(prefix="firstlight-warm-") as folder:
        code = _run(program, options.cache, {recording.VARIABLE: folder})
        found = recording.collected(Path(folder), program)
    if not found.programs:
        print("firstlight: the program compiled nothing; no manifest was written.", file=sys.stderr)
        return code or 1
    manifest.write(out, found)
    with_callbacks = sum(one.has_callbacks for one in found.programs)
    also = f", of which {with_callbacks} call back into Python" if with_callbacks else ""
    programs = counted(len(found.programs), "program")
    print(f"{out}: {programs}{also}, {unbroken(size(out.stat().st_size))}.", file=sys.stderr)
    return code


def build(options: argparse.Namespace) -> int:
    from firstlight.present.quantities import counted, duration
    from firstlight.warmstart import building, checking, manifest
    from firstlight.warmstart.caches import NEEDS_KEY, CacheError, default_cache, push
    from firstlight.warmstart.signing import Signatures

    found = manifest.read(options.manifest)
    if options.run:
        return _run(found.command, options.cache, {})
    if options.jobs < 1:
        options.parser.error("--jobs: at least 1")
    where = options.cache or default_cache()
    if "://" in where and Signatures.of_user().own is None:
        raise CacheError(NEEDS_KEY)
    built = building.build(found, where, options.jobs, _tell)
    if "://" in where:  # what was found in the folder of this machine may not be there
        keys = {one.key for one in found.programs}
        push(where, lambda one: one.key in keys)
    states = checking.check(found, options.cache)
    missing = states[checking.State.MISSING] + states[checking.State.OTHER_MACHINE]
    failed = [one for one in built if one.outcome is building.Outcome.FAILED]
    compiled = [one for one in built if one.outcome is building.Outcome.COMPILED]
    seconds = duration(sum(one.seconds for one in compiled))
    print(
        f"{counted(len(built), 'program')}: {len(compiled)} compiled ({seconds} of compiling), "
        f"{len(failed)} failed, {len(missing)} are not in the cache."
    )
    return 1 if failed or missing else 0


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
    """The exit code of a program with the cache; of a file or a module, it is this Python's."""
    environment = {**os.environ, "FIRSTLIGHT_WARMSTART": "1", **more}
    if cache:
        environment["FIRSTLIGHT_CACHE_DIR"] = cache if "://" in cache else os.path.abspath(cache)
    if program[0].endswith(".py") or program[0].startswith("-"):
        program = [sys.executable, *program]
    code = subprocess.run(program, env=environment, check=False).returncode
    return code if code >= 0 else 128 - code


def _tell(one: Built) -> None:
    from firstlight.present.plain_text import printable
    from firstlight.present.quantities import duration

    shapes, why = one.program.about.get("shapes", ""), f": {one.why}" if one.why else ""
    line = f"{one.outcome.value:10}  {duration(one.seconds):>8}  {one.program.function} {shapes}"
    print(printable(f"{line}{why}"), flush=True)
