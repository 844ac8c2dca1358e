"""The protocols of a page: a line under each figure, and all fields at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

from firstlight.present.quantities import size
from firstlight.records import CaseSummary, Estimate, Protocol, to_json
from firstlight.report.admission import Workload, label

Reader = Callable[[CaseSummary], str | None]


def _of(field: str) -> Reader:
    """Reads a field of the protocol up to its colon; the rest is an explanation."""

    def read(case: CaseSummary) -> str | None:
        value = getattr(case.protocol, field) if case.protocol else None
        return str(value).partition(":")[0] if value else None

    return read


def _dtypes(case: CaseSummary) -> str | None:
    data = case.protocol.data if case.protocol else ()
    found = dict.fromkeys(str(item["dtype"]) for item in data if item.get("dtype"))
    return ", ".join(found) or None


def _n(estimate: Estimate | None) -> str | None:
    return str(estimate.n) if estimate else None


def _confidence(case: CaseSummary) -> str | None:
    return f"{case.cold_seconds.confidence * 100:.3g} %" if case.cold_seconds else None


_PROCESSES: Mapping[str, Reader] = {
    "dtype": _dtypes,
    "n": lambda case: _n(case.cold_seconds),
    "interval": _confidence,
    "sync": _of("sync"),
}
#: Shown under figures of cold starts, of both, and of warm calls.
COLD: Mapping[str, Reader] = {
    "cache": lambda case: case.cache,
    "process": _of("cold_process"),
    **_PROCESSES,
}
BOTH: Mapping[str, Reader] = {
    "cache": COLD["cache"],
    "first result": _of("cold_process"),
    "further calls": _of("warm_process"),
    **_PROCESSES,
}
WARM: Mapping[str, Reader] = {
    "cache": COLD["cache"],
    "process": _of("warm_process"),
    "dtype": _dtypes,
    "n": lambda case: _n(case.warm_call_seconds),
    "window": _of("warm_window"),
    "sync": _of("sync"),
}


def essentials(cases: Sequence[CaseSummary], readers: Mapping[str, Reader]) -> str:
    """A line of values shared by all cases; values that differ are listed with their cases."""
    shown = [c for c in cases if c.protocol is not None]
    values = {name: _shared_or_listed(shown, read) for name, read in readers.items()}
    items = [f"<span><b>{name}</b> {value}</span>" for name, value in values.items() if value]
    return f'<p class="essentials">{" ".join(items)}</p>' if items else ""


def _by_value(pairs: Iterable[tuple[CaseSummary, str | None]]) -> dict[str, list[str]]:
    """{value: labels of the cases that have it}."""
    groups: dict[str, list[str]] = {}
    for case, value in pairs:
        if value is not None:
            groups.setdefault(value, []).append(label(case))
    return groups


def _shared_or_listed(cases: Sequence[CaseSummary], read: Reader) -> str:
    groups = _by_value((case, read(case)) for case in cases)
    if len(groups) <= 1 or all(_named_by(value, names) for value, names in groups.items()):
        return escape(", ".join(groups))
    return "; ".join(
        f"{escape(value)} <i>({escape(', '.join(names))})</i>" for value, names in groups.items()
    )


def _named_by(value: str, names: Sequence[str]) -> bool:
    """Whether the labels contain the value: 'warm' needs no '(jax-jit/warm)' after it."""
    return all(
        name.endswith(f"/{value}") or (value == "none" and "/" not in name) for name in names
    )


def full(workload: Workload) -> str:
    """A table of all protocol fields of a workload; equal values appear once."""
    cases = [c for c in workload.cases if c.protocol is not None]
    missing = ", ".join(label(c) for c in workload.cases if c.protocol is None)
    note = f"<p>No protocol, so no number: {escape(missing)}.</p>" if missing else ""
    if not cases:
        return note
    rows = "".join(
        f'<tr><th scope="row">{escape(field.replace("_", " "))}</th>'
        f"<td>{_field_cell(cases, field)}</td></tr>"
        for field in Protocol.__dataclass_fields__
    )
    caption = f"<caption>Protocol of {escape(workload.label)}</caption>"
    table = f'<table class="facts">{caption}<tbody>{rows}</tbody></table>'
    return f'<div class="scroll" tabindex="0">{table}</div>{note}'


def _field_cell(cases: Sequence[CaseSummary], field: str) -> str:
    shown = size if field == "data_bytes" else tree
    groups = _by_value((case, shown(getattr(case.protocol, field))) for case in cases)
    if len(groups) == 1:
        return next(iter(groups))
    return "".join(
        f'<div class="variant"><i>{escape(", ".join(names))}</i> {value}</div>'
        for value, names in groups.items()
    )


def tree(value: object) -> str:
    """Any JSON value as markup: mappings as nested definition lists, scalars as escaped text."""
    value = to_json(value)
    if isinstance(value, dict):
        if not value:
            return '<span class="absent">none</span>'
        return f"<dl>{''.join(_branch(str(k), v) for k, v in value.items())}</dl>"
    if isinstance(value, list):
        if all(not isinstance(v, (dict, list)) for v in value):
            return escape(", ".join(map(_scalar, value))) or "none"
        return "".join(f'<div class="item">{_inline(v) or tree(v)}</div>' for v in value)
    return escape(_scalar(value))


def _branch(key: str, value: object) -> str:
    """A key with its value; the key is a heading if the value is a mapping."""
    group = ' class="group"' if isinstance(value, dict) and value else ""
    shown = tree(value)
    if key.endswith("_bytes") and isinstance(value, int):
        shown += f" ({size(value)})"
    return f"<dt{group}>{escape(key)}</dt><dd{group}>{shown}</dd>"


def _inline(value: object) -> str:
    """A flat mapping on one line; '' for any other value."""
    if not isinstance(value, dict) or any(isinstance(v, dict) for v in value.values()):
        return ""
    return ", ".join(f"<i>{escape(str(k))}</i> {escape(_scalar(v))}" for k, v in value.items())


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return "—" if value is None else str(value)
