"""Limits on what a test may compile: `@pytest.mark.firstlight(max_recompiles=0)`, and a fixture.

pytest loads it wherever Firstlight is installed: it imports only pytest until it is used.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from firstlight.trace.findings.ci_limits import Limits
    from firstlight.trace.session import Recording

_LIMITS = ("max_compiles", "max_recompiles", "max_ttfr")
_MARK = (
    "firstlight(max_compiles=None, max_recompiles=None, max_ttfr=None): fail the test if JAX "
    "compiles more than that while it runs, or the first result comes later (seconds)."
)


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark, for --strict-markers."""
    config.addinivalue_line("markers", _MARK)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Record a test that has limits, and check them unless the test fails."""
    marks = list(item.iter_markers("firstlight"))
    if not marks:
        return (yield)
    limits = _limits(marks, item)
    from firstlight.trace.session import recording

    with recording() as recorded:
        result = yield
    _check(recorded, limits)
    return result


@pytest.fixture
def firstlight_trace() -> Iterator[Recording]:
    """A recording of what JAX compiles from here on, to be read at any moment of the test."""
    from firstlight.trace.session import recording

    with recording() as recorded:
        yield recorded


def _limits(marks: list[pytest.Mark], item: pytest.Item) -> Limits:
    """The limits of all marks, closest first: a method's override those of its class."""
    from firstlight.trace.findings.ci_limits import LimitError, Limits

    for mark in marks:
        if wrong := sorted(set(mark.kwargs) - set(_LIMITS)) or mark.args:
            named = "arguments by position" if wrong is mark.args else ", ".join(wrong)
            _fail(item, f"takes {', '.join(_LIMITS)} by name, not {named}.")
    given = {name: value for mark in reversed(marks) for name, value in mark.kwargs.items()}
    if all(value is None for value in given.values()):
        _fail(item, f"says no limit. Give it one of {', '.join(_LIMITS)}.")
    try:
        return Limits(*map(given.get, _LIMITS))
    except LimitError as error:
        _fail(item, str(error))


def _fail(item: pytest.Item, why: str) -> NoReturn:
    pytest.fail(f"{item.nodeid}: @pytest.mark.firstlight {why}", pytrace=False)


def _check(recorded: Recording, limits: Limits) -> None:
    from firstlight.present.plain_text import printable
    from firstlight.trace.findings.ci_limits import exceeded

    lines: list[str] = []
    for excess in exceeded(recorded.trace, limits):
        lines += [f"{excess.limit}: {excess.sentence}", *(f"    {o}" for o in excess.offenders)]
    if lines:
        pytest.fail(printable("\n".join(lines)), pytrace=False)
