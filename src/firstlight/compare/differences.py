"""Differences in conditions that must be equal, as values; `in_words` makes sentences of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from typing import Any

from firstlight.compare.conditions import (
    DATA_FIELDS,
    PROTOCOL_FIELDS,
    SETTINGS_FIELDS,
    machine_class,
    steering_variables,
)
from firstlight.records import Run, Sample, to_json


class Kind(StrEnum):
    """What differs."""

    MACHINE = "machine"
    SETTING = "setting"  # how long a process was measured, where it was pinned
    ENVIRONMENT = "environment"  # variables set by the user
    DATA = "data"
    CONTENTS = "contents"  # hashes of the data
    PROTOCOL = "protocol"
    CASE = "case"  # one side did not measure the case, or has no protocol of it


@dataclass(frozen=True)
class Difference:
    """One difference; a value is null if that side lacks it."""

    kind: Kind
    field: str
    before: Any
    after: Any
    key: str | None = None  # if the field is a mapping


def differences(
    base: Run,
    head: Run,
    case: str,
    samples: tuple[Sequence[Sample], Sequence[Sample]] | None = None,
) -> list[Difference]:
    """Every reason not to compare a case of two runs; with `samples`, hashes of data count too."""
    found = [*machine_differences(base, head), *case_differences(base, head, case)]
    return found if samples is None else [*found, *data_differences(*samples, case)]


def machine_differences(base: Run, head: Run) -> list[Difference]:
    """Differences that concern all cases: machine, settings, environment variables."""
    machines = machine_class(base.host), machine_class(head.host)
    found = [*_differences(Kind.MACHINE, "class", *machines)]
    for name in SETTINGS_FIELDS:
        found += _differences(Kind.SETTING, name, base.settings.get(name), head.settings.get(name))
    variables = steering_variables(base), steering_variables(head)
    return [*found, *_differences(Kind.ENVIRONMENT, "variables", *variables)]


def case_differences(base: Run, head: Run, case: str) -> list[Difference]:
    """Differences that concern one case: data and protocol."""
    one, other = (next((c for c in r.cases if c.case == case), None) for r in (base, head))
    if one is None or other is None:
        return [Difference(Kind.CASE, "measured", one is not None, other is not None)]
    mine, theirs = one.protocol, other.protocol
    if mine is None or theirs is None:
        return [Difference(Kind.CASE, "protocol", mine is not None, theirs is not None)]
    return [
        difference
        for kind, names in ((Kind.DATA, DATA_FIELDS), (Kind.PROTOCOL, PROTOCOL_FIELDS))
        for name in names
        for difference in _differences(kind, name, getattr(mine, name), getattr(theirs, name))
    ]


def data_differences(base: Sequence[Sample], head: Sequence[Sample], case: str) -> list[Difference]:
    """The first input whose hash differs between check processes; [] if a side has no hashes."""
    one, other = (data_hashes(side, case) for side in (base, head))
    if one is None or other is None:
        return []
    pairs = enumerate(zip_longest(one, other))
    return [
        Difference(Kind.CONTENTS, f"input {number}", a, b) for number, (a, b) in pairs if a != b
    ][:1]


def data_hashes(samples: Sequence[Sample], case: str) -> list[object] | None:
    """SHA-256 of the input arrays, from the last check process; None if not recorded."""
    checks = [s for s in samples if (s.case, s.kind) == (case, "check")]
    found = checks[-1].facts.get("data_sha256") if checks else None
    return list(found) if isinstance(found, list | tuple) else None


def _differences(kind: Kind, field: str, base: object, head: object) -> Iterator[Difference]:
    base, head = to_json(base), to_json(head)
    if isinstance(base, dict) and isinstance(head, dict):
        for key in base | head:
            if base.get(key) != head.get(key):
                yield Difference(kind, field, base.get(key), head.get(key), key)
    elif base != head:
        yield Difference(kind, field, base, head)


# --- in words -------------------------------------------------------------------------------------


def in_words(found: Difference, base: str = "in the base", head: str = "in the head") -> str:
    """'setting warm_calls: 100 in the base, 1000 in the head'; `base` and `head` name the sides."""
    if found.kind is Kind.CASE:
        side = head if found.before else base
        lacks = "was not measured" if found.field == "measured" else "has no protocol"
        return f"it {lacks} {side}"
    if found.kind is Kind.CONTENTS:
        one, other = (f"{str(sha256)[:12]}…" for sha256 in (found.before, found.after))
        return (
            f"data: {found.field} has other contents (SHA-256 {one} {base}, {other} {head}; random "
            "data need a seed)"
        )
    name: str = found.kind
    if found.kind not in (Kind.MACHINE, Kind.ENVIRONMENT) and found.field != found.kind:
        name += f"{' ' if found.kind is Kind.SETTING else ', '}{found.field}"
    values = (found.before, found.after)
    if found.key is None:
        one, other = map(repr, values)
        return f"{name}: {one} {base}, {other} {head}"
    one, other = ("not set" if value is None else repr(value) for value in values)
    return f"{name}: {found.key} is {one} {base}, {other} {head}"
