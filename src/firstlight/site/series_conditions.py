"""What must be equal before two points may lie on one line: the machine, the protocol, the data.

The same things that `compare.conditions` asks for, as plain values: their hash names a line of a
trend.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from firstlight.compare.conditions import machine_class
from firstlight.records import CaseSummary, Run, to_json
from firstlight.snapshot.strict_json import compact

_SETTINGS = ("warm_calls", "warm_calls_least", "warm_seconds", "affinity")
_DATA = ("parameters", "data", "data_bytes", "seed")


def of_run(run: Run) -> dict[str, Any]:
    """What concerns all cases of a run."""
    recorded = run.host.get("environment") or {}
    return {
        "machine": machine_class(run.host),
        "settings": {name: to_json(run.settings.get(name)) for name in _SETTINGS},
        "environment": {
            name: value
            for name, value in recorded.items()
            if not name.startswith("PYTHON") and name != "CI"
        },
    }


def of_case(case: CaseSummary, data_sha256: str | None) -> dict[str, Any] | None:
    """What concerns one case; None where it has no protocol."""
    if case.protocol is None:
        return None
    plain = to_json(case.protocol)
    return {
        "data": {**{name: plain[name] for name in _DATA}, "sha256": data_sha256},
        "protocol": {name: value for name, value in plain.items() if name not in _DATA},
    }


def key(run: Mapping[str, Any], case: Mapping[str, Any]) -> str:
    """A short name for these conditions: equal for points that may be joined, and only for them."""
    parts = [run["machine"], run["settings"], run["environment"], case["data"], case["protocol"]]
    return hashlib.sha256(compact(parts)).hexdigest()[:16]
