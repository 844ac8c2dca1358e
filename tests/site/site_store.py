"""Made-up snapshots for the site: a step, two machines, a hostile one, a damaged one."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from firstlight.records import Case, Sample
from firstlight.site.site_building import Built
from firstlight.snapshot.keys import PrivateKey
from firstlight.snapshot.publishing import PublishOptions, publish
from firstlight.snapshot.storage import LocalStore

sys.path.insert(0, str(Path(__file__).parents[1] / "snapshot"))
import made_up_run

#: Used as a title, case and version: a test in a browser finds it if it is ever markup.
HOSTILE = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"top.owned=1\">'&amp;"
)
OTHER_CPU = {**made_up_run.HOST["cpu"], "model": "Other CPU"}
CASES = (made_up_run.make_case(), made_up_run.make_case(backend="jax-jit"))
SLOW_FROM = 6  # of twelve nightly runs the first that is slower


@dataclass(frozen=True)
class World:
    """A store of snapshots, the site of it, and the ids by name."""

    store: Path
    served: Path  # a file server's root; the site lies deeper
    site: Path
    ids: Mapping[str, str]
    built: Built


def slower(sample: Sample, factor: float) -> Sample:
    """The same process with a cold start and warm calls that take `factor` times as long."""
    if sample.cold is None or sample.warm is None:
        return sample
    cold = replace(
        sample.cold,
        total_seconds=sample.cold.total_seconds * factor,
        unattributed_seconds=sample.cold.unattributed_seconds * factor,
        phases_seconds={
            k: None if v is None else v * factor for k, v in sample.cold.phases_seconds.items()
        },
    )
    warm = replace(
        sample.warm,
        call_seconds=tuple(c * factor for c in sample.warm.call_seconds),
        batch_seconds=tuple(c * factor for c in sample.warm.batch_seconds),
    )
    return replace(sample, cold=cold, warm=warm)


def make_run(
    folder: Path,
    number: int,
    factor: float = 1.0,
    cases: tuple[Case, ...] = CASES,
    processes: int = 6,
    **host: Any,
) -> Path:
    """A run directory; runs of different `number` were measured days apart."""
    draw = random.Random(number)
    samples = [
        slower(sample, factor if case.compiled else 1.0)
        for case in cases
        for sample in made_up_run.make_samples(case, processes, 20, draw)
    ]
    return made_up_run.make_run(
        folder,
        number * 24 * 60,
        cases=cases,
        processes=processes,
        samples=samples,
        host={**made_up_run.HOST, **host},
    )


def fill(store: Path, scratch: Path, key: PrivateKey) -> Mapping[str, str]:
    """{name: id} of what was published into `store`."""
    place = LocalStore(store)
    ids: dict[str, str] = {}

    def put(name: str, runs: list[Path], signed: bool = False, title: str = "") -> None:
        options = PublishOptions(title=title or name)
        ids[name] = publish(runs, place, options, key if signed else None).id

    for i in range(12):
        version = "0.10.2" if i < SLOW_FROM else "0.11.0"
        run = make_run(
            scratch / f"nightly-{i}", i, 1.0 if i < SLOW_FROM else 1.4,
            packages={"jax": version, "numpy": "2.4.6"},
        )  # fmt: skip
        put(f"nightly {i}", [run], signed=i == 11)
    put("other machine", [make_run(scratch / "other", 20, cpu=OTHER_CPU, cpu_busy_ratio=0.9)])
    for side, factor in (("base", 1.0), ("head", 1.5)):
        runs = [
            make_run(scratch / f"{side}-{i}", 30 + i + (10 if factor > 1 else 0), factor)
            for i in range(7 if side == "base" else 4)
        ]
        put(f"{'seven' if side == 'base' else 'four'} {side}", runs)
    strange = replace(made_up_run.make_case(), id=f"{HOSTILE}[small]/numpy/none", workload=HOSTILE)
    bad = make_run(
        scratch / "strange", 60, cases=(strange,), packages={HOSTILE: HOSTILE}, cpu=OTHER_CPU
    )
    put("hostile", [bad], title=HOSTILE)
    put("damaged", [make_run(scratch / "damaged", 70)])
    (store / ids["damaged"] / "tables" / "cases.csv").write_text("edited")
    return ids
