"""Comparison of XLA's optimised HLO, normalised to leave out names and source locations.

A dump numbers every instruction and has source locations, files and stack frames, which differ
between equal programs. Normalised, an instruction is named by its kind, so that two texts differ
only if the programs do.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
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
#: Tables of source locations, each up to an empty line.
_TABLES = re.compile(
    r"^\s*(?:FileNames|FunctionNames|FileLocations|StackFrames)[ \t]*\n(?:[^\n]*\S[^\n]*\n)*", re.M
)
#: Attributes with the origin of an instruction, or that repeat its name.
_DROPPED = ("metadata", "frontend_attributes", "origin", "statistics")
_COMMENT = re.compile(r"/\*.*?\*/")
_MODULE_NUMBER = re.compile(r"^(HloModule [^,]*?)(?:\.\d+)?(,|$)")
_BRACE_OR_STRING = re.compile(r'"(?:\\.|[^"\\])*"|[{}]')


@dataclass(frozen=True)
class Program:
    """One compiled function."""

    name: str  # of the module, such as jit_f
    text: str  # as XLA wrote it

    @property
    def normalised(self) -> str:
        return normalise(self.text)


@dataclass(frozen=True)
class ProgramChange:
    """A function on both sides; a side that did not compile it has no instructions."""

    name: str
    status: str  # same, changed, only in base, only in head
    instructions: dict[str, tuple[int, int]]  # by kind: (before, after), the largest change first
    total: tuple[int, int]
    diff: str


def programs_in(folder: Path) -> list[Program]:
    """The optimised programs in a dump folder in the order of compilation, without duplicates."""
    matches = [(match, path) for path in folder.iterdir() if (match := _FILE.match(path.name))]
    matches.sort(key=lambda found: int(found[0]["number"]))
    programs: dict[tuple[str, str], Program] = {}
    for match, path in matches:
        program = Program(match["name"], path.read_text("utf-8", "replace"))
        programs.setdefault((program.name, program.normalised), program)
    return list(programs.values())


def normalise(text: str) -> str:
    """The program with every instruction named by its kind."""
    lines = [line for line in _TABLES.sub("", text).splitlines() if line.strip()]
    names = _names(lines)
    return "\n".join(_normal_line(line, names) for line in lines) + "\n"


def _names(lines: list[str]) -> dict[str, str]:
    """The new name of each instruction: its kind, or for a parameter its number.

    The numbers of parameters matter: `subtract(%p0, %p1)` is not `subtract(%p1, %p0)`.
    """
    names = {}
    for line in lines:
        if match := _INSTRUCTION.match(line):
            number = _PARAMETER.search(line)
            names[match["name"]] = f"p{number[1]}" if number else match["kind"]
    return names


def _normal_line(line: str, names: dict[str, str]) -> str:
    line = _COMMENT.sub("", line).rstrip()
    for attribute in _DROPPED:
        line = _drop(line, attribute)
    line = _MODULE_NUMBER.sub(r"\1\2", _sorted_configuration(line))
    if line.endswith("{") and " -> " in line:  # the head of a computation names its parameters
        line = re.sub(r"([(,]\s*)[\w.\-]+: ", r"\1", line)
    match = _INSTRUCTION.match(line)
    if match and f"%{match['name']} =" not in line:  # printed without the percent sign
        line = line.replace(f"{match['name']} =", f"%{match['name']} =", 1)
    return _NAME.sub(lambda m: "%" + (names.get(m[1]) or _unnumbered(m[1])), line)


def _unnumbered(name: str) -> str:
    """A computation's name without its running number."""
    return re.sub(r"(\.\d+|\.clone|_spmd)+$", "", re.sub(r"^region_\d+", "region", name))


def _drop(line: str, attribute: str) -> str:
    """Remove `, attribute={…}` from a line, with nested braces and strings."""
    while (start := line.find(f", {attribute}={{")) >= 0:
        line = line[:start] + line[_closing(line, line.index("{", start)) :]
    return line


def _closing(line: str, opening: int) -> int:
    """The index behind the brace that closes the one at `opening`."""
    depth = 0
    for match in _BRACE_OR_STRING.finditer(line, opening):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.end()
    return len(line)


def _sorted_configuration(line: str) -> str:
    """The line with the keys of its backend_config (JSON) sorted, and empty values removed."""
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
    """The number of instructions of each kind, including fused ones."""
    matches = (_INSTRUCTION.match(line) for line in text.splitlines())
    return Counter(match["kind"] for match in matches if match)


def changes(base: list[Program], head: list[Program]) -> list[ProgramChange]:
    """Functions of both sides, paired by name; equal names are paired in order."""
    pairs: dict[tuple[str, int], dict[str, str]] = {}
    for side, programs in (("base", base), ("head", head)):
        times: Counter[str] = Counter()
        for program in programs:
            pairs.setdefault((program.name, times[program.name]), {})[side] = program.normalised
            times[program.name] += 1
    return [_change(name, found) for (name, _), found in pairs.items()]


def _change(name: str, normal: dict[str, str]) -> ProgramChange:
    one, other = (normal.get(side, "") for side in ("base", "head"))
    before, after = instruction_counts(one), instruction_counts(other)
    if len(normal) == 2:
        status = "same" if one == other else "changed"
    else:
        status = f"only in {next(iter(normal))}"
    sides = (f"base/{name}", f"head/{name}")
    diff = difflib.unified_diff(one.splitlines(), other.splitlines(), *sides, lineterm="", n=2)
    kinds = sorted({*before, *after}, key=lambda k: (-abs(after[k] - before[k]), k))
    return ProgramChange(
        name=name,
        status=status,
        instructions={k: (before[k], after[k]) for k in kinds if before[k] != after[k]},
        total=(before.total(), after.total()),
        diff="\n".join(diff),
    )
