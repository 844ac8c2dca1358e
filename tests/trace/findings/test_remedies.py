"""Single remedies and reasons: sizes to pad to, names of functions, why the cache kept nothing."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import trace_samples as samples

from firstlight.cli import main
from firstlight.trace.findings.recompiling import recompiles
from firstlight.trace.findings.shapes import Varying, remedy
from firstlight.trace.findings.slow_programs import dominating_function
from firstlight.trace.findings.start_up import one_op_compiles
from firstlight.trace.read.compiles import cache_use
from firstlight.trace.read.model import Argument, CacheUse, Compile, Difference, Reason, SourceLine
from firstlight.trace.record import cache_folder, program_contents
from firstlight.trace.show.what_if_text import verdict
from firstlight.trace.what_if import Spread, Variant, WhatIf
from firstlight.trace.wording import readable


@pytest.mark.parametrize(
    ("sizes", "buckets"),
    [
        ((64, 18), (64,)),
        ((3, 4, 5, 6, 7), (4, 8)),
        ((7, 14, 21), (16, 32)),
        ((1, 10, 100, 1000), (16, 128, 1024)),
        (tuple(4**n + 1 for n in range(12)), tuple(2 * 4**n for n in range(6, 12))),
    ],
)
def test_padding_always_saves_compiles(sizes: tuple[int, ...], buckets: tuple[int, ...]) -> None:
    found = Varying(("x",), 0, sizes).buckets
    assert found == buckets
    assert len(found) < len(sizes) and len(found) <= 6
    assert max(sizes) <= found[-1]


def test_the_remedy_says_how_many_compiles_are_left() -> None:
    function = samples.function("step", *(samples.again(n, (7 * n, 4)) for n in (1, 2, 3)))
    assert "next of 16, 32" in remedy(function, "train.py:40")
    assert "2 compiles instead of 3" in remedy(function, "train.py:40")


def test_a_type_that_differs_as_well_is_part_of_the_remedy() -> None:
    weak = Argument("rate", "float", (), True, None)
    rates = (weak, Argument("rate", "float32", (), False, None), weak, weak)
    compiles = [
        replace(c, signature=replace(c.signature, arguments=(*c.signature.arguments, rate)))
        for size, rate in zip((30, 31, 32, 20), rates, strict=True)
        if (c := samples.again(size, (size, 4))).signature is not None
    ]
    told = remedy(samples.function("step", *compiles), "train.py:40")
    assert "Pad dimension 0 of x to 32 before" in told
    assert "with a mask, and give rate one type: 1 compile instead of 4." in told


def test_iterations_of_a_loop_are_not_counted_twice_for_its_gradient() -> None:
    assert program_contents._turns([60, 60, 60, 120, 2, 1], 120) == 60
    assert program_contents._turns([40, 3], 40) == 40
    assert program_contents._turns([100, 50], 100) == 50


@pytest.mark.parametrize(("status", "told"), [("miss", 1), ("hit", 0)])
def test_what_is_read_from_the_cache_does_not_dominate_compiling(status: str, told: int) -> None:
    use = CacheUse(status, None, False)
    slow = samples.function("f", samples.compiled("f", took=(0.1, 0.1, 9.0), cache=use))
    assert len(list(dominating_function(samples.trace(slow)))) == told


def test_one_run_of_each_setting_names_no_winner() -> None:
    def variant(name: str, seconds: float) -> Variant:
        spread = Spread.of([seconds])
        return Variant(name, "", 1, 0, spread, spread, spread)

    both = (variant("as it is", 9.0), variant("level 0", 1.0))
    assert "not enough to compare" in verdict(WhatIf(1, both))
    assert "Soonest: level 0" in verdict(WhatIf(2, both))


@pytest.mark.parametrize(
    "wrong", [("--what-if-rounds", "0"), ("--max-ttfr", "nan"), ("--max-ttfr", "-1")]
)
def test_an_invalid_number_is_refused_before_the_program_runs(
    wrong: tuple[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text("print('it ran')")
    try:
        code = main(["trace", "--out", str(tmp_path / "t"), *wrong, str(program)])
    except SystemExit as error:  # from the option parser
        code = error.code
    assert code == 2
    said = capfd.readouterr()
    assert "it ran" not in said.out
    assert wrong[1] in said.err or "must be" in said.err


@pytest.mark.parametrize("inner", ["<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>"])
def test_a_comprehension_at_the_top_of_a_file_is_the_files(inner: str) -> None:
    names = [inner] * 5 + ["<module>"] * 5  # too few for one finding each
    operations = [
        samples.function(
            f"op{n}", samples.compiled(user_site=SourceLine(samples.TRAIN, n, name)), library=True
        )
        for n, name in enumerate(names)
    ]
    (found,) = one_op_compiles(samples.trace(*operations))
    assert found.function == "<module>" and "at the top of the file" in found.title
    assert inner not in found.remedy


@pytest.mark.parametrize(
    ("about", "reason"),
    [
        ({}, "callbacks"),
        ({"cache_keeps_callbacks": False}, "callbacks"),
        ({"cache_keeps_callbacks": True}, "below threshold"),
    ],
)
def test_callbacks_keep_a_program_out_only_where_jax_cannot_keep_them(
    about: dict[str, Any], reason: str
) -> None:
    event = {"cache": {"requested": 1}, "cache_folder": True, "callbacks": True, **about}
    event |= {"begin_ns": 0, "end_ns": 10**8, "cache_least_seconds": 1.0, "process_index": 0}
    assert cache_use(event, None).reason == reason


def test_the_names_that_show_what_jax_keeps_exist() -> None:
    from jax._src.cache_key import xla_flags_to_exclude_from_cache_key
    from jax._src.compilation_cache import get_executable_and_time

    assert isinstance(xla_flags_to_exclude_from_cache_key, list)
    assert "cache_key" in get_executable_and_time.__code__.co_varnames
    since_0_11 = tuple(map(int, version("jax").split(".")[:2])) >= (0, 11)
    assert (cache_folder._keeps_callbacks(), cache_folder._path_is_in_key()) == (
        since_0_11,
        not since_0_11,
    )


def test_the_remedy_for_static_objects_is_not_to_make_them_arrays() -> None:
    """Optimisers, for instance: no single program could serve all of them."""

    def static(text: str, **more: Any) -> Compile:
        return samples.compiled(signature=samples.signature(static={"optim": text}), **more)

    other = Difference(Reason.STATIC, "optim", "Adam", "Sgd")
    again = {"recompile_reason": Reason.STATIC, "recompile_differences": (other,)}
    many = [static("Adam()"), static("Sgd()", **again), static("Sgdm()", **again)]
    (found,) = recompiles(samples.trace(samples.function("step", *many)))
    assert "persistent cache" in found.remedy and "array" not in found.remedy
    numbers = [static("1"), static("2", **again), static("3", **again)]
    (found,) = recompiles(samples.trace(samples.function("step", *numbers)))
    assert "it is then an array" in found.remedy


def test_a_special_method_is_named_with_its_class() -> None:
    """Equinox calls a function under filter_jit as Partial.__call__."""
    for name, told in (("fit.<locals>.Model.__call__", "Model.__call__"), ("Model.step", "step")):
        assert readable(samples.function(name)) == told
