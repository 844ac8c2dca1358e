"""Two compilers' programs, made comparable: XLA's optimised HLO without what is only a name.

A dump names every instruction by a running number, says where it came from, and lists files and
stack frames. All of that changes when nothing has. Here an instruction is called by what it does,
so that a difference between two texts is a difference between two programs.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: `module_0006.jit_f.cpu_after_optimizations.txt`, `….sm_9.0_gpu_after_optimizations.txt`
_FILE = re.compile(
    r"^module_(?P<number>\d+)\.(?P<name>.+?)\.(?:sm_[\d.]+[a-z]?_)?[a-z]+_after_optimizations\.txt$"
)
_INSTRUCTION = re.compile(
    r"^\s*(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<shape>.+?) (?P<kind>[a-z][a-z0-9\-]*)\("
)
_PARAMETER = re.compile(r" parameter\((\d+)\)")
_NAME = re.compile(r"%([\w.\-]+)")
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
#: Attributes that say where an instruction comes from, or repeat what the name says.
_DROPPED = ("metadata", "frontend_attributes", "origin", "statistics")
_COMMENT = re.compile(r"/\*.*?\*/")
_MODULE_NUMBER = re.compile(r"^(HloModule [^,]*?)(?:\.\d+)?(,|$)")


@dataclass(frozen=True)
class Program:
    """One compiled function."""

    name: str  # of the module, as jit_f
    text: str  # as XLA wrote it

    @property
    def normal(self) -> str:
        return normalise(self.text)


@dataclass(frozen=True)
class ProgramChange:
    """A function on both sides; a side that never compiled it has no instructions."""

    name: str
    status: str  # same, changed, only in base, only in head
    instructions: dict[str, tuple[int, int]]  # by kind: before, after; the largest change first
    total: tuple[int, int]
    diff: str


def programs_in(folder: Path) -> list[Program]:
    """The optimised programs of a dump folder in the order of compilation, repetitions once."""
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        match = _FILE.match(path.name)
        if match:
            found.append((int(match["number"]), match["name"], path))
    seen: set[tuple[str, str]] = set()
    programs = []
    for _, name, path in sorted(found):
        program = Program(name, path.read_text("utf-8", "replace"))
        if (name, program.normal) not in seen:
            seen.add((name, program.normal))
            programs.append(program)
    return programs


def normalise(text: str) -> str:
    """The program with instructions called by what they do."""
    lines = list(_without_tables(text.splitlines()))
    names = _names(lines)
    return "\n".join(_normal_line(line, names) for line in lines if line.strip()) + "\n"


def _without_tables(lines: list[str]) -> Iterator[str]:
    inside = False
    for line in lines:
        if line.strip() in _TABLES:
            inside = True
        elif inside and not line.strip():
            inside = False
        elif not inside:
            yield line


def _names(lines: list[str]) -> dict[str, str]:
    """What each instruction is called instead: its kind, and for a parameter its number.

    Within a computation the number matters: `subtract(%p0, %p1)` is not `subtract(%p1, %p0)`.
    """
    names = {}
    for line in lines:
        match = _INSTRUCTION.match(line)
        if match:
            number = _PARAMETER.search(line)
            names[match["name"]] = f"p{number[1]}" if number else match["kind"]
    return names


def _normal_line(line: str, names: dict[str, str]) -> str:
    line = _COMMENT.sub("", line).rstrip()
    for attribute in _DROPPED:
        line = _drop(line, attribute)
    line = _sorted_configuration(line)
    line = _MODULE_NUMBER.sub(r"\1\2", line)
    if line.endswith("{") and " -> " in line:  # the head of a computation names its parameters
        line = re.sub(r"([(,]\s*)[\w.\-]+: ", r"\1", line)
    match = _INSTRUCTION.match(line)
    if match and f"%{match['name']} =" not in line:  # printed without the sign
        line = line.replace(f"{match['name']} =", f"%{match['name']} =", 1)
    return _NAME.sub(lambda m: "%" + (names.get(m[1]) or _unnumbered(m[1])), line)


def _unnumbered(name: str) -> str:
    """A computation's name without its running number."""
    return re.sub(r"(\.\d+|\.clone|_spmd)+$", "", re.sub(r"^region_\d+", "region", name))


def _drop(line: str, attribute: str) -> str:
    """Take `, attribute={…}` out of a line, with whatever braces and strings are inside."""
    start = line.find(f", {attribute}={{")
    while start >= 0:
        end = _closing(line, line.index("{", start))
        line = line[:start] + line[end:]
        start = line.find(f", {attribute}={{")
    return line


def _closing(line: str, opening: int) -> int:
    """The place behind the brace that closes the one at `opening`."""
    depth, quoted, escaped = 0, False, False
    for place in range(opening, len(line)):
        sign = line[place]
        if escaped:
            escaped = False
        elif sign == "\\":
            escaped = True
        elif sign == '"':
            quoted = not quoted
        elif not quoted and sign in "{}":
            depth += 1 if sign == "{" else -1
            if depth == 0:
                return place + 1
    return len(line)


def _sorted_configuration(line: str) -> str:
    """A backend_config is JSON: its keys have no order, and empty values say nothing."""
    start = line.find("backend_config={")
    if start < 0:
        return line
    opening = line.index("{", start)
    end = _closing(line, opening)
    try:
        values = json.loads(line[opening:end])
    except ValueError:
        return line
    kept = {k: v for k, v in values.items() if v not in ([], {}, "", None)}
    if not kept:
        return line[:start].rstrip().rstrip(",") + line[end:]
    return f"{line[:opening]}{json.dumps(kept, sort_keys=True)}{line[end:]}"


def instruction_counts(text: str) -> Counter[str]:
    """How many instructions of each kind, fused ones included."""
    matches = (_INSTRUCTION.match(line) for line in text.splitlines())
    return Counter(match["kind"] for match in matches if match)


def changes(base: list[Program], head: list[Program]) -> list[ProgramChange]:
    """Functions of both sides, paired by name and by how often that name has come before."""
    pairs: dict[tuple[str, int], dict[str, Program]] = {}
    for side, programs in (("base", base), ("head", head)):
        times: Counter[str] = Counter()
        for program in programs:
            pairs.setdefault((program.name, times[program.name]), {})[side] = program
            times[program.name] += 1
    return [_change(name, found) for (name, _), found in pairs.items()]


def _change(name: str, found: dict[str, Program]) -> ProgramChange:
    normal = {side: program.normal for side, program in found.items()}
    counts = {side: instruction_counts(text) for side, text in normal.items()}
    before, after = counts.get("base", Counter()), counts.get("head", Counter())
    if len(found) == 2:
        status = "same" if normal["base"] == normal["head"] else "changed"
    else:
        status = f"only in {next(iter(found))}"
    diff = difflib.unified_diff(
        normal.get("base", "").splitlines(),
        normal.get("head", "").splitlines(),
        f"base/{name}",
        f"head/{name}",
        lineterm="",
        n=2,
    )
    return ProgramChange(
        name=name,
        status=status,
        instructions={
            kind: (before[kind], after[kind])
            for kind in sorted({*before, *after}, key=lambda k: (-abs(after[k] - before[k]), k))
            if before[kind] != after[kind]
        },
        total=(before.total(), after.total()),
        diff="\n".join(diff),
    )
