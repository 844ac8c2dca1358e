"""Traces made by hand, for tests of findings and reports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from firstlight.trace.read.model import (
    Argument,
    CacheUse,
    Compile,
    Difference,
    Finding,
    Function,
    ImportedPackage,
    Process,
    Reason,
    Signature,
    SourceLine,
    Span,
    Trace,
    Wait,
)

TRAIN = "/home/alice/secret/train.py"
FIRST_RESULT = 1.75


def signature(shape: tuple[int, ...] = (8, 4), **changes: Any) -> Signature:
    arguments = (Argument("x", "float32", shape, False, None),)
    plain = Signature(arguments, 1, "PyTreeDef({'x': *})", {"n": "3"}, {"x64": False}, 1)
    return replace(plain, **changes)


def compiled(
    name: str = "step",
    begin: float = 1.0,
    took: tuple[float, float, float] = (0.1, 0.05, 0.4),
    **changes: Any,
) -> Compile:
    plain = Compile(
        name=name,
        process=0,
        thread=1,
        begin_seconds=begin,
        end_seconds=begin + sum(took),
        stage_seconds=dict(zip(("trace", "lower", "compile"), took, strict=True)),
        signature=signature(),
        site=SourceLine(TRAIN, 40, "main"),
        user_site=SourceLine(TRAIN, 40, "main"),
        compiled=True,
        cache=CacheUse("miss", "no entry", False),
        equations=12,
        constant_bytes=0,
        executable_bytes=2048,
        results_before=0,
        before_first_result=begin <= FIRST_RESULT,
    )
    return replace(plain, **changes)


def again(begin: float, shape: tuple[int, ...], **changes: Any) -> Compile:
    after = f"f32[{','.join(map(str, shape))}]"
    told = {
        "signature": signature(shape),
        "recompile_reason": Reason.SHAPE,
        "recompile_differences": (Difference(Reason.SHAPE, "x", "f32[8,4]", after),),
    }
    return compiled(begin=begin, **(told | changes))


def function(name: str = "step", *compiles: Compile, line: int = 12, **changes: Any) -> Function:
    plain = Function(
        name, SourceLine(TRAIN, line), "__main__", False, compiles or (compiled(name),)
    )
    return replace(plain, **changes)


def process(**changes: Any) -> Process:
    timeline = (
        Span("interpreter", 0.0, 0.1, "Python starts"),
        Span("import", 0.1, 0.9, "jax"),
        Span("backend", 0.9, 1.0, "cpu"),
        Span("trace", 1.0, 1.1, "step"),
        Span("lower", 1.1, 1.15, "jit(step)"),
        Span("compile", 1.15, 1.55, "jit(step)"),
        Span("wait", 1.55, 1.75, f"{TRAIN}:41"),
        Span("rest", 1.75, 4.0, ""),
    )
    phases: dict[str, float] = {}
    for span in timeline:
        phases[span.kind] = phases.get(span.kind, 0.0) + span.end_seconds - span.begin_seconds
    plain = Process(
        number=0,
        pid=4242,
        rank=None,
        command=("python", TRAIN, "--epochs", "1"),
        python="3.11.7",
        jax_version="0.10.2",
        torch_version=None,
        wall_seconds=4.0,
        first_result_seconds=FIRST_RESULT,
        first_result_site=SourceLine(TRAIN, 41, "main"),
        phases_seconds=phases,
        timeline=timeline,
        imports=(
            ImportedPackage("jax", 0.6, 0.8, 300, 0.1),
            ImportedPackage("numpy", 0.2, 0.2, 100, 0.2),
        ),
        waits=(Wait(SourceLine(TRAIN, 41), SourceLine(TRAIN, 41), 3, 0.2, 1.55, 3.0),),
        short_waits=7,
        short_waits_seconds=0.0002,
        own_seconds=0.004,
        unfinished=None,
        problems=(),
    )
    return replace(plain, **changes)


def finding(**changes: Any) -> Finding:
    plain = Finding(
        kind="shapes",
        seconds=1.1,
        title="step compiled 3 times for shapes that differ in one dimension",
        function="step",
        place=SourceLine(TRAIN, 12),
        remedy="Pad the first dimension of x to 8 or 16.",
        evidence={"sizes": [8, 9, 10], "buckets": {"8": 1, "16": 2}},
    )
    return replace(plain, **changes)


def trace(*functions: Function, **changes: Any) -> Trace:
    found = functions or (
        function("step", compiled(), again(2.0, (9, 4)), again(3.0, (10, 4), results_before=5)),
        function("loss", line=30),
        function("broadcast_in_dim", library=True),
    )
    plain = Trace(
        processes=(process(),),
        functions=found,
        findings=(finding(),),
        time_to_first_result_seconds=1.75,
        compile_count=sum(c.compiled for f in found for c in f.compiles),
        recompiles=sum(f.recompiles for f in found if not f.library),
    )
    return replace(plain, **changes)
