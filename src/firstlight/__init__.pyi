# The types of `__init__.py`, which must not import the modules that they need.
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

from firstlight import cluster as cluster
from firstlight import histfactory as histfactory
from firstlight import interpret as interpret
from firstlight import losses as losses
from firstlight import serve as serve
from firstlight import telemetry as telemetry
from firstlight import torch as torch
from firstlight import trace as trace
from firstlight import warmstart as warmstart
from firstlight.runs import Run as Run
from firstlight.runs import run as run

__version__: str
_Builder = TypeVar("_Builder", bound=Callable[..., Any])

@overload
def bench(function: _Builder, /) -> _Builder: ...
@overload
def bench(
    *,
    workload: str = ...,
    backend: str = ...,
    sizes: Mapping[str, Mapping[str, Any]] = ...,
    reference: Callable[..., Any] | None = ...,
    tolerance: float = ...,
    environment: Mapping[str, str] = ...,
) -> Callable[[_Builder], _Builder]: ...
