"""Something to do after an import, however often it is asked for."""

from __future__ import annotations

import gc
import importlib
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from firstlight.import_watch import import_without_collecting, when_imported


def test_every_action_for_a_module_is_done_once_and_no_watch_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "watched_module.py").write_text("value = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    done: list[tuple[str, int]] = []
    for name in ("first", "second", "third"):
        when_imported(
            "watched_module",
            lambda name=name: done.append((name, sys.modules["watched_module"].value)),
        )
    import watched_module  # noqa: F401  # type: ignore[import-not-found]

    assert sorted(done) == [("first", 7), ("second", 7), ("third", 7)]
    assert sys.meta_path == before
    sys.modules.pop("watched_module")


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("was_on", [False, True])
def test_garbage_is_not_collected_during_an_import_and_as_before_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_on: bool, fails: bool
) -> None:
    name = f"large_package_{was_on}_{fails}"
    lines = "import gc, sys\nsys.collecting = gc.isenabled()\n" + "1 / 0\n" * fails
    (tmp_path / f"{name}.py").write_text(lines)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "collecting", None, raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    import_without_collecting(name)
    if not was_on:
        gc.disable()
    try:
        with pytest.raises(ZeroDivisionError) if fails else nullcontext():
            importlib.import_module(name)
        assert gc.isenabled() == was_on and gc.get_freeze_count() == 0
    finally:
        gc.enable()
    assert getattr(sys, "collecting") is False  # noqa: B009
    sys.modules.pop(name, None)
