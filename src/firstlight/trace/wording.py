"""Functions, compiles and places as text, shared by findings, limits and all reports.

The results may contain text of unknown origin: the code that prints or draws them escapes it.
"""

from __future__ import annotations

import os
from functools import lru_cache
from itertools import islice

from firstlight.present.quantities import counted, duration
from firstlight.trace.read.model import (
    BY_POSITION,
    ByIdentity,
    Compile,
    Difference,
    Finding,
    Function,
    Process,
    Reason,
    Signature,
    SourceLine,
)
from firstlight.trace.read.recompiles import described, is_wide

OF_JAX = "JAX's own"  # the place of JAX's functions, for which no line would help the user


def place(where: SourceLine | None) -> str:
    """file:line, shortened if possible."""
    if where is None:
        return "unknown place"
    if where.file.startswith("<"):  # <stdin>, <string>, a cell
        return where.location
    return f"{_shortened(os.getcwd(), where.file)}:{where.line}"


@lru_cache(1000)
def _shortened(here: str, file: str) -> str:
    """The path within an installed package; for the user's files, relative to `here`."""
    for marker in ("site-packages", "dist-packages"):
        _, found, rest = file.partition(f"{os.sep}{marker}{os.sep}")
        if found:
            return rest
    if os.path.basename(os.path.dirname(file)).startswith("ipykernel_"):
        return "cell"  # of a notebook
    relative = os.path.relpath(file, here) if os.path.isabs(file) else file
    return file if relative.startswith(f"..{os.sep}..") else relative


def spent_on(process: Process, total: float) -> str:
    """A heading for the time of a process by kind. total: its seconds."""
    first, start = process.first_result_seconds, process.starts_at_seconds
    if first is None:
        return f"Where the {duration(total)} of the whole run went"
    if start < 0.0005 * first:
        return f"Where the {duration(first)} until the first result went"
    return (
        f"Where the {duration(total)} of process {process.pid} went, from its start at "
        f"{duration(start)} until the first result at {duration(first)}"
    )


def sentence_of(finding: Finding) -> str:
    """The title, and the part of the cost before the first result if that is not all."""
    early, cost = finding.before_first_result_seconds, finding.seconds
    if early is None or early >= 0.99 * cost:
        return finding.title
    if early < 0.01 * cost:
        return f"{finding.title} All of that is after the first result."
    return f"{finding.title} Of that, {duration(early)} are before the first result."


def signature(value: Signature | None, limit: int = 6) -> str:
    """The arguments in one line: 'x: f32[8], n=3'. limit: arrays and static values shown."""
    if value is None:
        return ""
    wide = is_wide(value)
    parts = [f"{a.path}: {described(a, wide)}" for a in value.arguments[:limit]]
    if value.leaves > len(parts):
        parts.append(f"{value.leaves - len(parts)} more")
    parts += [f"{name}={text}" for name, text in islice(value.static.items(), limit)]
    if len(value.static) > limit:  # a module has hundreds
        parts.append(f"{len(value.static) - limit} more static values")
    return ", ".join(parts)


def called_from(compile_: Compile) -> str:
    """The user's line, and the library's line that called JAX if that is another."""
    user, near = compile_.user_site, compile_.site
    if user is None or near is None or (user.file, user.line) == (near.file, near.line):
        return place(user or near)
    return f"{place(user)} (through {place(near)})"


def function_line(function: Function) -> str:
    times = counted(sum(c.compiled for c in function.compiles), "compile")
    calls = list(dict.fromkeys(called_from(c) for c in function.compiles))
    where = place(function.place) if not function.library else OF_JAX
    more = f" and {len(calls) - 1} more" if len(calls) > 1 else ""
    called = f", called from {calls[0]}{more}" if calls else ""
    return f"{function.name} ({where}): {times}, {duration(function.seconds)}{called}"


def compile_line(function: Function, compile_: Compile) -> str:
    """One compile with its call, and its arguments or the reason why it came again."""
    reason = why_again(compile_)
    when = f"at {duration(compile_.begin_seconds)}, {duration(compile_.seconds)}"
    about = f"{when}, called from {called_from(compile_)}"
    if reason:  # it says what differs, so the arguments are not needed
        return f"{function.name} {about}: {reason}"
    return f"{function.name}({signature(compile_.signature)}) {about}"


def short(place: SourceLine | None) -> str:
    """`train.py:12`, for sentences."""
    return "an unknown line" if place is None else f"{os.path.basename(place.file)}:{place.line}"


def where_called(one: Compile) -> SourceLine | None:
    """The user's line that called, or a package's line if there is none."""
    return one.user_site or one.site


def where_to_jit(one: Compile) -> SourceLine | None:
    """The user's line that a jit can go around; for a layer, the call of its network."""
    return one.entry_site or where_called(one)


def readable(function: Function) -> str:
    """The name of a function, with its class or line if the name alone says nothing."""
    scope, _, bare = function.name.rpartition(".")
    if bare.startswith("__") and scope:
        return f"{scope.rpartition('.')[2]}.{bare}"
    return f"{bare} at {short(function.place)}" if bare.startswith("<") else bare


# --- why a function was compiled again ------------------------------------------------------------

_MAX_DIFFERENCES = 4
_MAX_VALUE = 80
_ANOTHER = {
    ByIdentity.FUNCTION: "another function object of the same definition",
    ByIdentity.PARTIAL: "another functools.partial of the same function",
    ByIdentity.METHOD: "the same method, of another object",
    ByIdentity.OBJECT: "another object of the same class, without __eq__ and __hash__",
    ByIdentity.OF_PACKAGE: "another object of the same class, which has no __eq__",
}
_UNLISTED = {
    Reason.NEW_FUNCTION: "another function object than before, of the same definition",
    Reason.SHAPE: "one of {after} that is not listed here",
    Reason.TREE: "{before} → {after}",
    Reason.CONTEXT: "a setting of JAX, or a mesh, that is not listed here",
}


def why_again(one: Compile) -> str | None:
    """The differences, as many as fit one line; None for the first compile."""
    if one.recompile_reason is None:
        return None
    found = one.recompile_differences
    if found:
        more = f" and {len(found) - _MAX_DIFFERENCES} more" * (len(found) > _MAX_DIFFERENCES)
        return "; ".join(map(difference, found[:_MAX_DIFFERENCES])) + more
    if one.signature is None:
        return "the call is not known, so nothing can be compared"
    return (
        "the same signature was compiled before. Check for jax.clear_caches(), for more programs "
        "than JAX keeps, and for a jitted function that is created repeatedly"
    )


def difference(one: Difference) -> str:
    """`x: f32[128] → f32[96]`."""
    if one.field is None:
        return _UNLISTED[one.kind].format(before=one.before, after=one.after)
    if one.identity is not None:
        return f"{one.field}: {_ANOTHER[one.identity]} ({one.before})"
    if one.field == BY_POSITION:
        return f"{one.after} {BY_POSITION}, before {one.before}: the others by name"
    if one.kind is Reason.TREE:
        return f"{one.field} is {'gone' if one.before else 'new'}"
    return f"{one.field}: {' → '.join(text or 'not given' for text in _apart(one))}"


def _apart(one: Difference) -> list[str]:
    """Both values; long ones are cut to the part where they differ."""
    texts = [" ".join(text.split()) for text in (one.before, one.after)]
    if max(map(len, texts)) <= _MAX_VALUE:
        return texts
    same = next((n for n, pair in enumerate(zip(*texts, strict=False)) if len({*pair}) > 1), 0)
    begin = max(same - _MAX_VALUE // 4, 0)
    end = begin + _MAX_VALUE
    return [f"{'…' * bool(begin)}{text[begin:end]}{'…' * (len(text) > end)}" for text in texts]
