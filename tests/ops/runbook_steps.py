"""The shell lines of a runbook, taken from its Markdown to be executed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class Where(Enum):
    """Where a block can be executed; its first line says so."""

    HERE = ""
    CLUSTER = "# on a cluster"
    GPU = "# with a GPU"


@dataclass(frozen=True)
class Block:
    """A fenced block of shell lines."""

    section: str  # the last bold heading before it: Look, Fix, Verify
    where: Where
    lines: tuple[str, ...]  # without comments


_FENCE = re.compile(r"^ *```sh\n(.*?)^ *```", re.S | re.M)
_SECTION = re.compile(r"^\*\*(\w+)\.\*\*", re.M)


def blocks(text: str) -> Iterator[Block]:
    for found in _FENCE.finditer(text):
        sections = _SECTION.findall(text[: found.start()])
        lines = [line.strip() for line in found[1].splitlines()]
        where = next((w for w in Where if w.value and lines[0] == w.value), Where.HERE)
        commands = tuple(filter(None, (re.sub(r"(^|\s+)# .*", "", line) for line in lines)))
        yield Block(sections[-1] if sections else "", where, commands)


@dataclass(frozen=True)
class Shell:
    """Executes lines in a folder, with placeholders filled in."""

    folder: Path
    placeholders: Mapping[str, str]
    environment: Mapping[str, str]

    def filled(self, line: str) -> str:
        names = sorted(self.placeholders, key=len, reverse=True)
        pattern = "|".join(rf"\b{re.escape(name)}\b" for name in names)
        return re.sub(pattern, lambda found: self.placeholders[found[0]], line)

    def run(self, line: str) -> tuple[int, str]:
        """The exit status of one line, and what it printed."""
        done = subprocess.run(
            ["bash", "-c", self.filled(line)],
            cwd=self.folder,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        return done.returncode, done.stdout

    def script(self, block: Block) -> list[str]:
        """The command that executes a block up to the first line that fails."""
        lines = [f"cd {shlex.quote(str(self.folder))}", *map(self.filled, block.lines)]
        return ["bash", "-e", "-c", "\n".join(lines)]

    @property
    def variables(self) -> dict[str, str]:
        """The environment, in which `firstlight` and `python` are those that run the tests."""
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
        return {**os.environ, **self.environment, "PATH": path, "COLUMNS": "200"}
