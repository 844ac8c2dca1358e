"""Looks up lines in the source of the program, without running it.

started_at: the start of the program; files changed later are not its source.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from firstlight.trace.read.model import SourceLine
from firstlight.trace.read.source_lines import source_of

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_generator(place: SourceLine, started_at: float | None) -> bool:
    """Whether a line is in a generator function, which cannot be jitted."""
    tree = _parsed(place.file, started_at)
    around = None if tree is None else _function_around(tree, place.line)
    return around is not None and any(
        isinstance(node, (ast.Yield, ast.YieldFrom)) for node in ast.walk(around)
    )


def where_made(
    place: SourceLine | None, function: str, argument: str, started_at: float | None
) -> SourceLine | None:
    """The line that makes the value passed as `argument` to the call of `function` at `place`.

    That is the last assignment before the call that does not derive the value from itself; for a
    parameter of the enclosing function, it is looked up where that is called. None if it cannot be
    found, or is the line of the call.
    """
    tree = _parsed(place.file, started_at) if place is not None else None
    if place is None or tree is None:
        return None
    calls = _calls(tree, function)
    here = [c for c in calls if c.lineno <= place.line <= (c.end_lineno or c.lineno)]
    value = _argument(tree, here[0], function, argument) if here else None
    line = _made(tree, value, place.line, 3) if isinstance(value, ast.Name) else None
    return None if line in (None, place.line) else SourceLine(place.file, line or 0)


def _made(tree: ast.Module, value: ast.expr, at: int, callers: int) -> int | None:
    """The line that makes a value used at line `at`; callers: how many calls outwards to look."""
    if not isinstance(value, ast.Name):
        return value.lineno
    around = _function_around(tree, at)
    line = _assigned(around or tree, value.id, at)
    if line is not None or around is None or not callers:
        return line
    given = [_argument(tree, call, around.name, value.id) for call in _calls(tree, around.name)]
    known = [one for one in given if one is not None]
    return _made(tree, known[0], known[0].lineno, callers - 1) if len(known) == 1 else None


@lru_cache(50)
def _parsed(file: str, started_at: float | None) -> ast.Module | None:
    try:
        return ast.parse(source_of(file, started_at))
    except (ValueError, SyntaxError):
        return None


def _function_around(tree: ast.Module, line: int) -> _Function | None:
    """The innermost function around a line."""
    functions = [node for node in ast.walk(tree) if isinstance(node, _Function)]
    around = [f for f in functions if f.lineno <= line <= (f.end_lineno or 0)]
    return max(around, key=lambda f: f.lineno, default=None)


def _calls(tree: ast.AST, name: str) -> list[ast.Call]:
    """Calls of functions or methods of this name."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [c for c in calls if name in (getattr(c.func, "attr", ""), getattr(c.func, "id", ""))]


def _argument(tree: ast.Module, call: ast.Call, function: str, argument: str) -> ast.expr | None:
    for keyword in call.keywords:
        if keyword.arg == argument:
            return keyword.value
    defined = [n for n in ast.walk(tree) if isinstance(n, _Function) and n.name == function]
    names = [a.arg for a in defined[0].args.args] if len(defined) == 1 else []
    position = names.index(argument) if argument in names else len(call.args)
    plain = not any(isinstance(a, ast.Starred) for a in call.args)
    return call.args[position] if plain and position < len(call.args) else None


def _assigned(scope: ast.AST, name: str, before: int) -> int | None:
    """The last line before another that assigns a name (loops count), but not from itself."""
    of_itself = {
        id(target)
        for node in _own_nodes(scope)
        if isinstance(node, ast.Assign)
        and any(isinstance(used, ast.Name) and used.id == name for used in ast.walk(node.value))
        for one in node.targets
        for target in ast.walk(one)
    }
    lines = [
        node.lineno
        for node in _own_nodes(scope)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name
        if id(node) not in of_itself and node.lineno < before
    ]
    return max(lines, default=None)


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope without those of inner scopes, whose names are separate."""
    for node in ast.iter_child_nodes(scope):
        if not isinstance(node, (_Function, ast.Lambda, ast.ClassDef)):
            yield node
            yield from _own_nodes(node)
