"""Reasons of recompiles: from signatures, and for a real program compared with JAX's counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import trace_samples as samples

from firstlight.trace.findings import load
from firstlight.trace.findings.recompiling import recompiles
from firstlight.trace.read.model import Argument, Compile, Signature, SourceLine
from firstlight.trace.read.recompiles import (
    described,
    differences,
    nearest_differences,
    with_reasons,
)
from firstlight.trace.wording import difference, why_again

pytestmark = pytest.mark.slow

PLACED = "SingleDeviceSharding(device=CpuDevice(id=0), memory_kind=device)"


def array(
    dtype: str = "float32",
    *shape: int,
    path: str = "x",
    weak: bool = False,
    sharding: str | None = None,
) -> Argument:
    return Argument(path, dtype, shape, weak, sharding)


def signature(*arguments: Argument, **changed: object) -> Signature:
    plain = Signature(
        arguments=arguments or (array("float32", 8),),
        leaves=len(arguments) or 1,
        tree="PyTreeDef(*)",
        static={},
        context={"jax_enable_x64": False},
        function_object=1,
    )
    return replace(plain, **changed)


def compiled(of: Signature | None, begin: float, process: int = 0, **changed: object) -> Compile:
    one = Compile(
        name="f",
        process=process,
        thread=0,
        begin_seconds=begin,
        end_seconds=begin + 0.1,
        stage_seconds={"trace": 0.01, "lower": 0.02, "compile": 0.07},
        signature=of,
        site=None,
        user_site=None,
        compiled=True,
    )
    return replace(one, **changed)


@pytest.mark.parametrize(
    ("before", "now", "reason", "words"),
    [
        (
            signature(array("float32", 128)),
            signature(array("float32", 96)),
            "shape",
            "x: f32[128] → f32[96]",
        ),
        (
            signature(array("float32", 3)),
            signature(array("bfloat16", 3)),
            "dtype",
            "x: f32[3] → bf16[3]",
        ),
        (
            signature(array("float", weak=True)),
            signature(array("float32")),
            "weak type",
            "x: f32[] (a Python float) → f32[]",
        ),
        (
            signature(array("int", weak=True)),
            signature(array("float", weak=True)),
            "dtype",
            "x: i32[] (a Python int) → f32[] (a Python float)",
        ),
        (
            signature(static={"n": "5"}),
            signature(static={"n": "200"}),
            "static value",
            "n: 5 → 200",
        ),
        (
            signature(static={"c": "<C at 0x7f01>"}),
            signature(static={"c": "<C at 0x7f99>"}),
            "static value",
            "c: another object of the same class, without __eq__ and __hash__ (<C>)",
        ),
        (
            signature(),
            signature(function_object=2),
            "new function object",
            "another function object than before, of the same definition",
        ),
        (
            signature(tree="PyTreeDef({'a': *})"),
            signature(tree="PyTreeDef([*])"),
            "tree",
            "({'a': *}) → ([*])",
        ),
        (
            signature(array(sharding=PLACED)),
            signature(array(sharding=f"committed: {PLACED}")),
            "sharding",
            f"x: {PLACED} → committed: {PLACED}",
        ),
        (
            signature(context={"jax_enable_x64": False, "jax_debug_nans": False}),
            signature(context={"jax_enable_x64": False, "jax_debug_nans": True}),
            "context",
            "jax_debug_nans: False → True",
        ),
    ],
)
def test_each_reason_has_a_text(before: Signature, now: Signature, reason: str, words: str) -> None:
    first, second = with_reasons([compiled(before, 0.0), compiled(now, 1.0)])
    assert (first.recompile_reason, why_again(first)) == (None, None)
    assert (second.recompile_reason, why_again(second)) == (reason, words)


def test_all_differing_arguments_are_counted() -> None:
    """Twelve differ; the text has room for four."""
    names = [f"x['w{n}']" for n in range(12)]
    old, new = (
        signature(*(array(path=name, dtype=dtype) for name in names))
        for dtype in ("float32", "int32")
    )
    _, again = with_reasons([compiled(old, 0.0), compiled(new, 1.0)])
    assert again.differing == tuple(names)
    assert str(why_again(again)).endswith(" and 8 more")
    first = samples.compiled(signature=old)
    of_step = samples.function(
        "step", first, replace(again, user_site=first.user_site, site=first.site)
    )
    (found,) = recompiles(samples.trace(of_step))
    assert "Give x['w0'], x['w1'], x['w2'] and 9 more one dtype" in found.remedy
    grown = signature(array(), *(array(path=name) for name in names))
    tree = list(differences(signature(array()), grown))
    assert [(d.kind, d.field, d.before) for d in tree] == [
        ("tree", name, "") for name in sorted(names)
    ]
    assert sum(d.distance for d in tree) == 10


@pytest.mark.parametrize(
    ("before", "now", "title"),
    [
        (
            signature(array("float32", 8)),
            signature(array("float32", 9)),
            "step is compiled again twice for other shapes: x: f32[8] → f32[9].",
        ),
        (
            signature(static={"static": "3"}),
            signature(static={"static": "4"}),
            "step is compiled again twice for other values of static arguments: static: 3 → 4.",
        ),
        (
            signature(array(sharding=PLACED)),
            signature(array(sharding=f"committed: {PLACED}")),
            (
                f"step is compiled again twice for arguments placed elsewhere: x: {PLACED} → "
                f"committed: {PLACED}."
            ),
        ),
        (
            signature(*(array(path=f"p{n}") for n in range(12))),
            signature(*(array("int32", path=f"p{n}") for n in range(12))),
            "step is compiled again twice for other dtypes: p0: f32[] → i32[] and 11 more.",
        ),
        (
            signature(array(path="rate", weak=True), array("float32", 8)),
            signature(array(path="rate"), array("float32", 9)),
            "step is compiled again twice for other shapes: x: f32[8] → f32[9] and 1 more.",
        ),
    ],
)
def test_the_title_of_a_recompile_has_an_example_of_what_differs(
    before: Signature, now: Signature, title: str
) -> None:
    line = {"user_site": SourceLine("/p/a.py", 9), "site": SourceLine("/p/a.py", 9)}
    first, again = with_reasons([compiled(before, 0.0, **line), compiled(now, 1.0, **line)])
    of_step = samples.function("step", first, again, replace(again, begin_seconds=2.0))
    (found,) = recompiles(samples.trace(of_step))
    assert found.title == title


def test_long_static_values_are_shown_from_where_they_differ() -> None:
    head = "Operator(\n  " + "x" * 300
    before, now = (signature(static={"op": f"{head}, kind={k}, {k * 200}"}) for k in "ab")
    (found,) = differences(before, now)
    assert len(difference(found)) < 200
    words = difference(found)
    assert "kind=a" in words and "kind=b" in words and "\n" not in words


def test_the_same_signature_again_is_unknown_and_says_what_to_check() -> None:
    _, again = with_reasons([compiled(signature(), 0.0), compiled(signature(), 1.0)])
    assert again.recompile_reason == "unknown"
    assert "the same signature was compiled before" in str(why_again(again))
    assert "jax.clear_caches()" in str(why_again(again))


def test_a_compile_without_a_known_call_has_no_invented_reason() -> None:
    _, again = with_reasons([compiled(None, 0.0), compiled(None, 1.0)])
    assert again.recompile_reason == "unknown"
    assert "not known" in str(why_again(again))


def test_a_recompile_is_compared_with_the_nearest_not_the_last() -> None:
    a = signature(array("float32", 128), array("float32", 4, path="y"))
    b = signature(array("float32", 7, 7), array("int32", 9, path="y"), function_object=2)
    now = signature(array("float32", 96), array("float32", 4, path="y"))
    found = nearest_differences(now, [a, b])
    assert [difference(d) for d in found] == ["x: f32[128] → f32[96]"]


def test_shape_and_dtype_together_are_farther_than_the_dtype_alone() -> None:
    earlier = [signature(array("float32", 3)), signature(array("float32", 4))]
    found = nearest_differences(signature(array("int32", 3)), earlier)
    assert [(d.kind, difference(d)) for d in found] == [("dtype", "x: f32[3] → i32[3]")]


def test_other_keys_are_another_tree_even_if_its_text_was_cut() -> None:
    old, new = (signature(array("float32", 3, path=f"d['{key}']")) for key in ("a", "b"))
    assert [(d.kind, difference(d)) for d in differences(old, new)] == [
        ("tree", "d['b'] is new"),
        ("tree", "d['a'] is gone"),
    ]


def test_the_text_of_a_long_tree_ends_with_what_tells_it_from_others() -> None:
    from firstlight.trace.record.value_text import shortened

    small, *long = [str(n) * size for n, size in ((1, 50), (2, 900), (3, 900))]
    assert shortened(small) == small
    texts = [shortened("PyTreeDef(" + "x" * 300 + tail) for tail in long]
    assert texts[0] != texts[1] and max(map(len, texts)) < 250
    assert texts[0][:200] == texts[1][:200]


def test_a_function_that_was_only_traced_is_neither_a_recompile_nor_compared() -> None:
    traced = compiled(signature(array("float32", 1)), 0.0, compiled=False)
    one = compiled(signature(array("float32", 2)), 1.0)
    again = compiled(signature(array("float32", 3)), 2.0)
    told = with_reasons([traced, one, again])
    assert [why_again(c) for c in told] == [None, None, "x: f32[2] → f32[3]"]


def test_another_process_starts_from_nothing() -> None:
    told = with_reasons([compiled(signature(), 0.0, process=n) for n in range(3)])
    assert [c.recompile_reason for c in told] == [None] * 3


def test_numpy_doubles_have_the_dtype_that_jax_gives_them() -> None:
    double, single = signature(array("float64", 3)), signature(array("float32", 3))
    assert list(differences(double, single)) == []
    wide = [replace(s, context={"jax_enable_x64": True}) for s in (double, single)]
    assert [d.kind for d in differences(*wide)] == ["dtype"]


def test_an_operation_with_other_parameters_is_not_a_new_function() -> None:
    one = signature(static={"shape": "(3,)"}, function_object=1)
    other = signature(static={"shape": "(4,)"}, function_object=2)
    assert [d.kind for d in differences(one, other, library=True)] == ["static value"]


def test_arrays_are_written_as_jax_writes_them() -> None:
    import jax
    import numpy as np

    for value in (np.ones((3, 4), np.float32), np.ones((), np.int8), np.ones(2, bool), 2.0 + 1j):
        shape = tuple(np.shape(value))
        dtype = str(value.dtype) if hasattr(value, "dtype") else type(value).__name__
        ours = described(array(dtype, *shape), wide=False)
        assert ours == jax.typeof(value).str_short(short_dtypes=True)


# --- a real program -------------------------------------------------------------------------------

PROGRAM = """
import firstlight.trace.startup
import json, sys
import jax, numpy as np
from collections import OrderedDict

counted = [0]
jax.monitoring.register_event_duration_secs_listener(
    lambda name, _, **__: counted.__setitem__(0, counted[0] + ("backend_compile" in name)))

f = jax.jit(lambda x, y=1.0: jax.tree.map(lambda a: a * y, x))
x = np.ones(3, np.float32)
compiles = []
def call(*args, **named):
    before = counted[0]
    jax.block_until_ready(f(*args, **named))
    compiles.append(counted[0] - before)

call(x)
call(np.ones(3))                     # a double is made single: nothing new
call(jax.device_put(x))              # not committed: nothing new
call(np.ones(4, np.float32))
call(x, 2.0)
call(x, 3.0)                         # another value: nothing new
call(x, np.float32(2))
call(x, 2)
call(x, y=2.0)
call({"a": x})
call(OrderedDict(a=x))
call(jax.device_put(x, jax.devices()[0]))
with jax.default_matmul_precision("highest"):
    call(x)
jax.clear_caches()
call(x)
print(json.dumps({"each": compiles, "all": counted[0]}))
"""
EXPECTED = [
    None,
    "shape",
    "tree",
    "weak type",
    "dtype",
    "tree",
    "tree",
    "tree",
    "sharding",
    "context",
    "unknown",
]


def test_reasons_of_a_real_program_are_those_for_which_jax_compiled(tmp_path: Path) -> None:
    environment = {**os.environ, "FIRSTLIGHT_TRACE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["each"] == [1, 0, 0, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1]
    trace = load(tmp_path)
    (function,) = [f for f in trace.functions if not f.library]
    assert [c.recompile_reason for c in function.compiles] == EXPECTED
    assert trace.compile_count == told["all"]
    assert trace.recompiles == function.recompiles == len(EXPECTED) - 1
