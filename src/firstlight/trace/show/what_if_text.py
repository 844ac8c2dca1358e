"""What would be gained, in words: a table on the terminal, a section of the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from firstlight.present.markup import escaped
from firstlight.present.quantities import counted, duration
from firstlight.trace.show.page_sections import table
from firstlight.trace.what_if import Spread, Variant, WhatIf

if TYPE_CHECKING:
    from rich.console import Console

_COLUMNS = ("setting", "first result", "compiling", "whole run")


def spread_text(spread: Spread | None) -> str:
    """'1.20 s (1.18 to 1.31)'"""
    if spread is None:
        return "none"
    if spread.low == spread.high:
        return duration(spread.median)
    middle, low, high = map(duration, (spread.median, spread.low, spread.high))
    units = {text.rpartition(" ")[2] for text in (middle, low, high)}
    if len(units) == 1:
        low, high = (text.rpartition(" ")[0] for text in (low, high))
    return f"{middle} ({low} to {high})"


def verdict(found: WhatIf) -> str:
    """Which variant starts soonest, if the runs can tell it from the program as it is."""
    if found.rounds < 2:
        return "One run of each tells no setting from chance: give --what-if-rounds 3 or more."
    base, *others = found.variants
    if base.first_result_seconds is None:
        return "The program as it is had no first result: there is nothing to compare with."
    best = min(
        (v for v in others if v.first_result_seconds and not v.failed),
        key=lambda v: v.first_result_seconds.median if v.first_result_seconds else 0.0,
        default=None,
    )
    if best is None or best.first_result_seconds is None:
        return "No other setting ran to its end."
    if best.first_result_seconds.high >= base.first_result_seconds.low:
        return "No setting gives the first result sooner than all runs of the program as it is."
    gained = base.first_result_seconds.median - best.first_result_seconds.median
    whole = ""
    if base.wall_seconds and best.wall_seconds and best.wall_seconds.low > base.wall_seconds.high:
        longer = best.wall_seconds.median - base.wall_seconds.median
        whole = f", but the whole run takes {duration(longer)} longer"
    return f"Soonest: {best.name}, {duration(gained)} before the program as it is{whole}."


def print_what_if(found: WhatIf, console: Console) -> None:
    """A table of variants."""
    from firstlight.trace.show import terminal

    rows = [(_cells(variant), "") for variant in found.variants]
    title = f"What if: measured in {counted(found.rounds, 'run')} of each"
    console.print(terminal.table(title, _COLUMNS, rows))
    console.print(verdict(found))
    for v in found.variants:
        if v.how:
            console.print(f"  {v.name}: {v.how}", style="dim", markup=False)


def _cells(variant: Variant) -> tuple[str, ...]:
    failed = f", {variant.failed} failed" if variant.failed else ""
    spreads = (variant.first_result_seconds, variant.compile_seconds, variant.wall_seconds)
    return (variant.name + failed, *map(spread_text, spreads))


def section(found: WhatIf) -> str:
    """Measured variants, as HTML."""
    rows = [(*_cells(variant), variant.how) for variant in found.variants]
    return (
        f"<p>{escaped(verdict(found))}</p>{table((*_COLUMNS, 'how'), rows)}"
        f'<p class="hint">The program was run {counted(found.rounds, "time")} with each setting, '
        "in fresh processes, interleaved; median with the lowest and the highest.</p>"
    )
