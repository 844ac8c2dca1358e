"""The results of `--what-if`: a table on the terminal, a section of the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from firstlight.present.document import text_table
from firstlight.present.plain_text import escaped
from firstlight.present.quantities import counted, duration
from firstlight.trace.what_if import Spread, Variant, WhatIf

if TYPE_CHECKING:
    from rich.console import Console

_COLUMNS = ("setting", "first result", "compiling", "whole run")


def _spread(spread: Spread | None) -> str:
    """'1.20 s (1.18 to 1.31)'"""
    if spread is None:
        return "none"
    if spread.low == spread.high:
        return duration(spread.median)
    middle, low, high = map(duration, (spread.median, spread.low, spread.high))
    if len({text.rpartition(" ")[2] for text in (middle, low, high)}) == 1:  # one unit
        low, high = (text.rpartition(" ")[0] for text in (low, high))
    return f"{middle} ({low} to {high})"


def verdict(found: WhatIf) -> str:
    """Which variant starts soonest, if the runs distinguish it from the unchanged program."""
    if found.rounds < 2:
        return "One run of each is not enough to compare: give --what-if-rounds 3 or more."
    base, *others = found.variants
    first = base.first_result_seconds
    if first is None:
        return "The unchanged program had no first result: there is nothing to compare with."
    ended = [(v.first_result_seconds, v) for v in others if v.first_result_seconds and not v.failed]
    if not ended:
        return "No other setting ran to its end."
    soonest, best = min(ended, key=lambda pair: pair[0].median)
    if soonest.high >= first.low:
        return "No setting gives the first result sooner than every run of the unchanged program."
    whole = ""
    if base.wall_seconds and best.wall_seconds and best.wall_seconds.low > base.wall_seconds.high:
        longer = best.wall_seconds.median - base.wall_seconds.median
        whole = f", but the whole run takes {duration(longer)} longer"
    gained = duration(first.median - soonest.median)
    return f"Soonest: {best.name}, {gained} before the unchanged program{whole}."


def print_what_if(found: WhatIf, console: Console) -> None:
    """Print a table of the variants, and the verdict."""
    from firstlight.trace.show import terminal

    title = f"What if: measured in {counted(found.rounds, 'run')} of each"
    console.print(terminal.table(title, _COLUMNS, [(_cells(v), "") for v in found.variants]))
    console.print(verdict(found))
    for v in found.variants:
        if v.how:
            console.print(f"  {v.name}: {v.how}", style="dim", markup=False)


def _cells(variant: Variant) -> tuple[str, ...]:
    failed = f", {variant.failed} failed" if variant.failed else ""
    spreads = (variant.first_result_seconds, variant.compile_seconds, variant.wall_seconds)
    return (variant.name + failed, *map(_spread, spreads))


def section(found: WhatIf) -> str:
    """The measured variants as HTML."""
    rows = [(*_cells(variant), variant.how) for variant in found.variants]
    return (
        f"<p>{escaped(verdict(found))}</p>{text_table((*_COLUMNS, 'how'), rows)}"
        f'<p class="hint">The program was run {counted(found.rounds, "time")} with each setting, '
        "in fresh processes, interleaved; median, lowest and highest.</p>"
    )
