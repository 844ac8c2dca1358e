"""The answer in words: which case is first, which is fastest, when compiling pays.

Sentences use the summaries only. Two cases with overlapping intervals are not ranked, and a case
that is not valid is listed with its status instead of its number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from html import escape

from firstlight.present import quantities
from firstlight.records import BreakEven, CaseSummary, Estimate
from firstlight.report import ribbon
from firstlight.report.admission import Workload, flag, quotable
from firstlight.report.cheapest import PolicyGroup, leaders, policy_groups

_POLICIES = {
    "none": "no compile cache",
    "cold": "compile cache on, empty at the start",
    "warm": "compile cache filled by an earlier process",
    "shared": "Firstlight's cache, filled by an earlier process",
    "frozen": "functions frozen by an earlier process",
    "tiered": "first calls by NumPy, compiled in the background",
}
#: Below this, the confidence of an interval is shown with it.
_USUAL_CONFIDENCE = 0.9
Ranked = Sequence[tuple[CaseSummary, Estimate]]


def card(workload: Workload) -> str:
    """The answer for one workload: a sentence and ribbon per group, and the effect of the cache."""
    parts = []
    done: set[str] = set()  # cases of earlier groups, whose details are not repeated
    for group in policy_groups(workload):
        policy = _POLICIES.get(group.policy, f"cache policy {group.policy}")
        words = f'<p class="policy">{escape(policy)}</p><p>{_sentence(group, workload, done)}</p>'
        done |= {c.case for c in (*group.entrants, *group.excluded)}
        parts.append(f'<div class="words">{words}</div>{ribbon.draw(group, workload)}')
    saved = _cache_words(workload)
    if saved:
        parts.append(f'<div class="words"><p>{saved}</p></div>')
    cases = escape("\n".join(c.case for c in workload.cases))
    body = "".join(f'<div class="policy-group">{part}</div>' for part in parts)
    heading = f'<h3><a href="#{workload.anchor}">{title_of(workload)}</a></h3>'
    return f'<article class="answer" data-cases="{cases}">{heading}{body}</article>'


def title_of(workload: Workload) -> str:
    """The workload's name and size, as markup."""
    size = f' <span class="size">[{escape(workload.size)}]</span>' if workload.size else ""
    return escape(workload.name) + size


def _cache_words(workload: Workload) -> str:
    """The effect of a filled compile cache, or of another remedy, on the first result."""
    without = {c.backend: c for c in workload.cases if c.cache == "none" and quotable(c)}
    return " ".join(
        _cache_sentence(
            _REMEDIES[case.cache], escape(case.backend), twin.cold_seconds, case.cold_seconds
        )
        + tier_break_even(case)
        for case in workload.cases
        if case.cache in _REMEDIES and quotable(case) and (twin := without.get(case.backend))
        if case.cold_seconds and twin.cold_seconds
    )


def tier_break_even(case: CaseSummary) -> str:
    """A sentence on the number of calls from which tiers are faster than NumPy; '' if unknown."""
    calls = case.counts.get("numpy_break_even_calls")
    if not calls:
        return ""
    return f" From {quantities.counted(calls, 'call')} on, compiling takes less than NumPy alone."


#: By cache policy: what it adds to `none`, as the beginning of a sentence.
_REMEDIES = {
    "warm": "A filled compile cache",
    "shared": "Firstlight's cache, once filled,",
    "frozen": "A frozen function",
    "tiered": "A function in tiers",
}


def _cache_sentence(remedy: str, name: str, without: Estimate, filled: Estimate) -> str:
    """The effect of one remedy; no claim is made if the intervals overlap."""
    ends = f"{_number(without)} without, {_number(filled)} with it."
    if filled.high < without.low:
        return (
            f"{remedy} brings the first result of {name} from {_number(without)} to "
            f"{_number(filled)}."
        )
    if filled.low > without.high:
        return f"{remedy} makes the first result of {name} slower: {ends}"
    return (
        f"Whether {_inside(remedy)} helps the first result of {name} is not known, because with "
        f"so few processes the intervals overlap: {ends}"
    )


def _inside(remedy: str) -> str:
    """The remedy within a sentence: in lower case, except a name."""
    return remedy if remedy.startswith("Firstlight") else remedy[0].lower() + remedy[1:]


def _sentence(group: PolicyGroup, workload: Workload, done: Set[str]) -> str:
    """The result of a group as HTML; cases in `done` appear only in the ranking."""
    entrants = group.entrants
    if not entrants:
        said = ["No backend has a result that may be quoted."]
    elif not group.decided:
        said = ["No result with this cache may be quoted."]
    elif len(entrants) == 1:
        said = [_alone(entrants[0], workload)]
    else:
        said = [_ranking(entrants, workload)]
    said += _break_evens(group, workload, done)
    names = ", ".join(
        f"{workload.name_of(c)} ({escape(flag(c) or 'not measured')})"
        for c in group.excluded
        if c.case not in done
    )
    if names:
        said.append(f'<span class="excluded">Not compared: {names}.</span>')
    return " ".join(said)


def _number(estimate: Estimate) -> str:
    """An estimate as HTML, with its exact median as the machine-readable value."""
    shown, span = quantities.interval(estimate)
    if span and estimate.confidence < _USUAL_CONFIDENCE:
        span += f" at {quantities.percent(estimate.confidence)}"
    return (
        f'<span class="nowrap"><data value="{estimate.median!r}">{shown}</data>'
        f' <span class="iv">{span}</span></span>'
    )


def _alone(case: CaseSummary, workload: Workload) -> str:
    assert case.cold_seconds is not None
    then = f", then {_a_call(case)}" if case.warm_call_seconds else ""
    return (
        f"{workload.name_of(case)} is the only backend with a result: "
        f"first result after {_number(case.cold_seconds)}{then}."
    )


def _a_call(case: CaseSummary) -> str:
    warm = case.warm_call_seconds
    assert warm is not None
    steady = warm.steady_class in ("flat", "warmup")
    return f"{_number(warm)} per call" + ("" if steady else f" ({escape(warm.steady_class)})")


def _ranking(entrants: Sequence[CaseSummary], workload: Workload) -> str:
    first = leaders([(c, c.cold_seconds) for c in entrants if c.cold_seconds is not None])
    fast = leaders([(c, c.warm_call_seconds) for c in entrants if c.warm_call_seconds is not None])
    if len(first) == 1:
        said = f"{workload.name_of(first[0][0])} answers first, after {_number(first[0][1])}"
    else:
        said = f"{_listed(first, workload)} answer first: their intervals overlap"
    unknown = [c for c in entrants if c.warm_call_seconds is None]
    if unknown:
        return f"{said}. {_without_warm(fast, unknown, workload)}"
    if len(fast) > 1:
        overlap = f"{_listed(fast, workload)} cannot be told apart: their intervals overlap"
        return f"{said}. Once warm, {overlap}."
    fastest = fast[0][0]
    if len(first) == 1 and first[0][0] is fastest:
        return f"{said}, and is also the fastest once warm, {_a_call(fastest)}."
    return f"{said}; {workload.name_of(fastest)} is the fastest once warm, {_a_call(fastest)}."


def _without_warm(known: Ranked, unknown: Sequence[CaseSummary], workload: Workload) -> str:
    """The warm times without a ranking, because the cases `unknown` have none."""
    whose = " and ".join(map(workload.name_of, unknown))
    verb = "has" if len(unknown) == 1 else "have"
    reason = escape(unknown[0].warm_reason or "no steady state")
    values = ", ".join(f"{workload.name_of(case)} {_number(estimate)}" for case, estimate in known)
    return (f"Once warm: {values}. " if known else "") + (
        f"{whose} {verb} no warm number ({reason}), so which is faster per call, and from which "
        "call compiling pays, is not known."
    )


def _listed(found: Ranked, workload: Workload) -> str:
    items = [f"{workload.name_of(case)} ({_number(estimate)})" for case, estimate in found]
    return ", ".join(items[:-1]) + f" and {items[-1]}"


def _break_evens(group: PolicyGroup, workload: Workload, done: Set[str]) -> list[str]:
    fresh = [c for c in group.entrants if c.case not in done]
    pairs = [(c, c.break_even_calls) for c in fresh if c.break_even_calls is not None]
    pairs.sort(key=lambda p: math.inf if isinstance(p[1].calls, str) else p[1].calls)
    said = [f"{workload.name_of(case)} {_break_even_words(even)}." for case, even in pairs]
    if len(group.entrants) > 1 and not group.excluded and not any(map(_compiles, group.entrants)):
        said.append("None of them compiles.")
    return said


def _compiles(case: CaseSummary) -> bool:
    """Whether the case compiled before its first result."""
    return case.break_even_calls is not None or case.phases_seconds.get("compile") is not None


def _break_even_words(even: BreakEven) -> str:
    """The predicate of a sentence whose subject is the compiled case."""
    others = [b for b in even.by_backend if b != even.against]
    against = escape(even.against)
    if isinstance(even.calls, str):
        return _never(even, others, against)
    if even.calls <= 1:
        # Also true if its later calls are slower: then it is only ahead at first.
        whom = "every uncompiled backend" if others else against
        return f"answers before {whom}, so compiling has nothing to pay back"
    count = f'<b class="nowrap"><data value="{even.calls}">{quantities.calls(even.calls)}</data>'
    whom = f"the last uncompiled backend ({against})" if others else against
    return f"overtakes {whom} after {count} calls</b> {_span(even)}"


def _never(even: BreakEven, others: Sequence[str], against: str) -> str:
    said = f"<b>never</b> overtakes {against}"
    if not isinstance(even.low, str):
        said += f", though the interval reaches down to {quantities.calls(even.low)} calls"
    beaten = [
        f"{escape(b)} "
        + ("from the first call" if calls <= 1 else f"after {quantities.calls(calls)} calls")
        for b in others
        if isinstance(calls := even.by_backend[b].get("calls"), int)
    ]
    return f"{said} (it is ahead of {', '.join(beaten)})" if beaten else said


def _span(even: BreakEven) -> str:
    low, high = quantities.calls(even.low), quantities.calls(even.high)
    shown = f"{low} to never" if even.high == "never" else f"{low}–{high}"
    confidence = quantities.percent(even.confidence)
    if even.confidence < 0.5:
        shown = "too few processes for an interval"
    elif even.confidence < _USUAL_CONFIDENCE:
        shown += f" at {confidence}"
    class_ = "iv" if " " in shown else "iv nowrap"
    return f'<span class="{class_}" title="interval at {confidence}">({escape(shown)})</span>'
