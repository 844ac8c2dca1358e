"""The answer in words: who is first, who is fastest, when compiling pays.

Sentences are made from the summaries only. Two cases whose intervals overlap are not ranked, and a
case that is not sound is named with its status instead of its number.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence, Set

from firstlight.present import quantities
from firstlight.present.palette import name_with_swatch
from firstlight.records import BreakEven, CaseSummary, Estimate
from firstlight.report import ribbon
from firstlight.report.admission import Workload, flag, hollow, label, quotable
from firstlight.report.cheapest import PolicyGroup, leaders, policy_groups

POLICIES = {
    "none": "no compile cache",
    "cold": "compile cache on, empty at the start",
    "warm": "compile cache filled by an earlier process",
}


#: An interval below this is not what a reader takes it for, so its confidence is said beside it.
_USUAL_CONFIDENCE = 0.9


def policy_words(policy: str) -> str:
    """A cache policy as a reader would say it."""
    return POLICIES.get(policy, f"cache policy {policy}")


def card(workload: Workload) -> str:
    """The answer for one workload: sentence and ribbon of each group, and the cache's worth."""
    parts = []
    told: set[str] = set()  # what one group has said of a case, the next need not repeat
    for group in policy_groups(workload):
        words = f'<p class="policy">{html.escape(policy_words(group.policy))}</p>'
        words += f"<p>{sentence(group, workload, told)}</p>"
        told |= {c.case for c in (*group.entrants, *group.excluded)}
        parts.append(
            f'<div class="policy-group"><div class="words">{words}</div>'
            f"{ribbon.draw(group, workload)}</div>"
        )
    saved = cache_words(workload)
    if saved:
        parts.append(f'<div class="policy-group"><div class="words"><p>{saved}</p></div></div>')
    cases = html.escape("\n".join(c.case for c in workload.cases))
    heading = f'<h3><a href="#{workload.anchor}">{title_of(workload)}</a></h3>'
    return f'<article class="answer" data-cases="{cases}">{heading}{"".join(parts)}</article>'


def cache_words(workload: Workload) -> str:
    """What a filled compile cache does to the first result, where both were measured."""
    said = []
    for case in workload.cases:
        twin = next(
            (c for c in workload.cases if c.backend == case.backend and c.cache == "none"), None
        )
        if case.cache != "warm" or twin is None or not (quotable(case) and quotable(twin)):
            continue
        if case.cold_seconds is None or twin.cold_seconds is None:
            continue
        said.append(_cache_sentence(case.backend, twin.cold_seconds, case.cold_seconds))
    return " ".join(said)


def _cache_sentence(backend: str, without: Estimate, filled: Estimate) -> str:
    """Intervals that overlap bear no claim, whichever median is the smaller one."""
    name, ends = html.escape(backend), f"{number(without)} without, {number(filled)} with it."
    if filled.high < without.low:
        return (
            f"A filled compile cache brings the first result of {name} from "
            f"{number(without)} to {number(filled)}."
        )
    if filled.low > without.high:
        return f"A filled compile cache makes the first result of {name} slower: {ends}"
    return (
        f"Whether a filled compile cache helps the first result of {name} cannot be told from so "
        f"few processes, whose intervals overlap: {ends}"
    )


def title_of(workload: Workload) -> str:
    """The workload's name with its size set apart."""
    size = f' <span class="size">[{html.escape(workload.size)}]</span>' if workload.size else ""
    return html.escape(workload.name) + size


def sentence(group: PolicyGroup, workload: Workload, told: Set[str] = frozenset()) -> str:
    """What the group says, as HTML; of the cases in `told` only their place in the ranking."""
    said: list[str] = []
    entrants = group.entrants
    if not entrants:
        said.append("No backend has a result that may be quoted.")
    elif not group.decided:
        said.append("No result with this cache may be quoted.")
    elif len(entrants) == 1:
        said.append(_alone(entrants[0], workload))
    else:
        said.append(_ranking(entrants, workload))
    said += _break_evens(group, workload, told)
    excluded = [c for c in group.excluded if c.case not in told]
    if excluded:
        names = ", ".join(f"{_name(c, workload)} ({_status(c)})" for c in excluded)
        said.append(f'<span class="excluded">Not compared: {names}.</span>')
    return " ".join(said)


def _name(case: CaseSummary, workload: Workload) -> str:
    return name_with_swatch(workload.marks[case.backend], label(case), hollow(case))


def _status(case: CaseSummary) -> str:
    return html.escape(flag(case) or "not measured")


def number(estimate: Estimate) -> str:
    """An estimate with its exact median kept for machines."""
    shown, span = quantities.interval(estimate)
    if span and estimate.confidence < _USUAL_CONFIDENCE:
        span += f" at {quantities.percent(estimate.confidence)}"
    return (
        f'<span class="nowrap"><data value="{estimate.median!r}">{shown}</data>'
        f' <span class="iv">{span}</span></span>'
    )


def _alone(case: CaseSummary, workload: Workload) -> str:
    assert case.cold_seconds is not None
    said = (
        f"{_name(case, workload)} is the only backend with a result: "
        f"first result after {number(case.cold_seconds)}"
    )
    warm = case.warm_call_seconds
    return f"{said}, then {number(warm)} a call{_unsteady(case)}." if warm else f"{said}."


def _ranking(entrants: Sequence[CaseSummary], workload: Workload) -> str:
    first = leaders([(c, c.cold_seconds) for c in entrants if c.cold_seconds is not None])
    fast = leaders([(c, c.warm_call_seconds) for c in entrants if c.warm_call_seconds is not None])
    if len(first) == 1:
        said = f"{_name(first[0][0], workload)} answers first, after {number(first[0][1])}"
    else:
        said = f"{_listed(first, workload)} answer first: their intervals overlap"
    unknown = [c for c in entrants if c.warm_call_seconds is None]
    if unknown:
        return f"{said}. {_without_warm(fast, unknown, workload)}"
    if len(first) == len(fast) == 1 and first[0][0] is fast[0][0]:
        warm = f"{number(fast[0][1])} a call{_unsteady(fast[0][0])}"
        return f"{said}, and is also the fastest once warm, {warm}."
    if len(fast) == 1:
        case, estimate = fast[0]
        return (
            f"{said}; {_name(case, workload)} is the fastest once warm, "
            f"{number(estimate)} a call{_unsteady(case)}."
        )
    rest = f"{_listed(fast, workload)} are not told apart: their intervals overlap"
    return f"{said}. Once warm, {rest}."


def _without_warm(
    known: Sequence[tuple[CaseSummary, Estimate]],
    unknown: Sequence[CaseSummary],
    workload: Workload,
) -> str:
    """Nobody is the fastest as long as somebody has no number."""
    whose = " and ".join(_name(case, workload) for case in unknown)
    verb = "has" if len(unknown) == 1 else "have"
    reason = html.escape(unknown[0].warm_reason or "no steady state")
    said = (
        f"{whose} {verb} no warm number ({reason}), so which is faster per call, and from which "
        "call compiling pays, is not known."
    )
    if not known:
        return said
    values = ", ".join(f"{_name(case, workload)} {number(estimate)}" for case, estimate in known)
    return f"Once warm: {values}. {said}"


def _unsteady(case: CaseSummary) -> str:
    warm = case.warm_call_seconds
    if warm is None or warm.steady_class in ("flat", "warmup"):
        return ""
    return f" ({html.escape(warm.steady_class)})"


def _listed(found: Sequence[tuple[CaseSummary, Estimate]], workload: Workload) -> str:
    items = [f"{_name(case, workload)} ({number(estimate)})" for case, estimate in found]
    return ", ".join(items[:-1]) + f" and {items[-1]}"


def _break_evens(group: PolicyGroup, workload: Workload, told: Set[str]) -> list[str]:
    fresh = [c for c in group.entrants if c.case not in told]
    pairs = [(c, c.break_even_calls) for c in fresh if c.break_even_calls is not None]
    pairs.sort(key=lambda p: _order(p[1].calls))
    said = [f"{_name(case, workload)} {break_even_words(even)}." for case, even in pairs]
    everyone = (*group.entrants, *group.excluded)
    if len(group.entrants) > 1 and not group.excluded and not any(map(compiles, everyone)):
        said.append("None of them compiles.")
    return said


def compiles(case: CaseSummary) -> bool:
    """Whether the case spent time in a compiler before its first result."""
    return case.break_even_calls is not None or case.phases_seconds.get("compile") is not None


def _order(calls: int | str) -> float:
    return math.inf if isinstance(calls, str) else calls


def break_even_words(even: BreakEven) -> str:
    """The predicate of a sentence whose subject is the compiled case."""
    others = [b for b in even.by_backend if b != even.against]
    against = html.escape(even.against)
    if isinstance(even.calls, str):
        return _never(even, others, against)
    if even.calls <= 1:
        # Also true where its calls are the slower ones later: then it is only ahead at first.
        whom = "every uncompiled backend" if others else against
        return f"answers before {whom}, so compiling has nothing to pay back"
    count = f'<b class="nowrap"><data value="{even.calls}">{quantities.calls(even.calls)}</data>'
    count += f" calls</b> {_span(even)}"
    if others:
        return f"overtakes the last uncompiled backend ({against}) after {count}"
    return f"overtakes {against} after {count}"


def _never(even: BreakEven, others: Sequence[str], against: str) -> str:
    said = f"<b>never</b> overtakes {against}"
    if not isinstance(even.low, str):
        said += f", though the interval reaches down to {quantities.calls(even.low)} calls"
    beaten = [
        f"{html.escape(b)} {_from_call(even.by_backend[b]['calls'])}"
        for b in others
        if isinstance(even.by_backend[b].get("calls"), int)
    ]
    return f"{said} (it is ahead of {', '.join(beaten)})" if beaten else said


def _from_call(calls: int) -> str:
    return "from the first call" if calls <= 1 else f"after {quantities.calls(calls)} calls"


def _span(even: BreakEven) -> str:
    low, high = quantities.calls(even.low), quantities.calls(even.high)
    shown = f"{low} to never" if even.high == "never" else f"{low}–{high}"
    tip = f"interval at {quantities.percent(even.confidence)}"
    if even.confidence < 0.5:
        shown = "too few processes for an interval"
    elif even.confidence < _USUAL_CONFIDENCE:
        shown += f" at {quantities.percent(even.confidence)}"
    class_ = "iv" if " " in shown else "iv nowrap"
    return f'<span class="{class_}" title="{tip}">({html.escape(shown)})</span>'
