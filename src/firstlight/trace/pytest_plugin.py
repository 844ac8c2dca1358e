"""Limits on what a test may compile: `@pytest.mark.firstlight(max_recompiles=0)`, and a fixture.

Loaded by pytest wherever Firstlight is installed: imports nothing but pytest until it is used.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from firstlight.trace.findings.limits import Limits
    from firstlight.trace.session import Recording

_LIMITS = ("max_compiles", "max_recompiles", "max_ttfr")
_MARK = (
    "firstlight(max_compiles=None, max_recompiles=None, max_ttfr=None): fail the test if JAX "
    "compiles more than that while it runs, or the first result comes later (seconds)."
)


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known, for --strict-markers."""
    config.addinivalue_line("markers", _MARK)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Record a test that has limits; one that fails by itself is not judged."""
    marks = list(item.iter_markers("firstlight"))
    if not marks:
        return (yield)
    limits = _limits(marks, item)
    from firstlight.trace.session import recording

    with recording() as recorded:
        result = yield
    _judge(recorded, limits)
    return result


@pytest.fixture
def firstlight_trace() -> Iterator[Recording]:
    """What JAX compiles from here to the end of the test; `.compile_count` says how many at any moment."""
    from firstlight.trace.session import recording

    with recording() as recorded:
        yield recorded


def _limits(marks: list[pytest.Mark], item: pytest.Item) -> Limits:
    """Of all marks, the closest first: what a method does not say, its class may."""
    from firstlight.trace.findings.limits import LimitError, Limits

    given: dict[str, Any] = {}
    for mark in marks:
        unknown = sorted(set(mark.kwargs) - set(_LIMITS))
        if unknown or mark.args:
            given_wrongly = ", ".join(unknown) or "arguments by position"
            _wrong(item, f"takes {', '.join(_LIMITS)} by name, not {given_wrongly}.")
        given = {**mark.kwargs, **given}
    if all(value is None for value in given.values()):
        _wrong(item, f"says no limit. Give it one of {', '.join(_LIMITS)}.")
    try:
        return Limits(
            max_compiles=given.get("max_compiles"),
            max_recompiles=given.get("max_recompiles"),
            max_ttfr_seconds=given.get("max_ttfr"),
        )
    except LimitError as error:
        _wrong(item, str(error))


def _wrong(item: pytest.Item, why: str) -> NoReturn:
    pytest.fail(f"{item.nodeid}: @pytest.mark.firstlight {why}", pytrace=False)


def _judge(recorded: Recording, limits: Limits) -> None:
    from firstlight.present.plain_text import printable
    from firstlight.trace.findings.limits import exceeded

    lines: list[str] = []
    for excess in exceeded(recorded.trace, limits):
        lines += [f"{excess.limit}: {excess.sentence}", *(f"    {o}" for o in excess.offenders)]
    if lines:
        pytest.fail(printable("\n".join(lines)), pytrace=False)
