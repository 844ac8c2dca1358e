"""Parts of programs that run on every device with its own part of the arrays (`jax.shard_map`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from firstlight.telemetry.differences import NotChecked, NotCheckedError


@dataclass(frozen=True)
class Shards:
    """The devices of a `shard_map`. Its arrays, as they are on each, are had as one, along a first
    axis; those that are the same on all, as they are.

    A gradient is that of the sum over all devices, in which a value that is the same on all is
    counted once.
    """

    mesh: Any
    in_specs: Any
    is_checked: bool  # JAX knows which arrays are the same on all

    @classmethod
    def of(cls, equation: Any) -> Shards:
        about = equation.params
        manual = about.get("newly_manual_axes", about.get("manual_axes"))
        if manual is None or set(manual) != set(about["mesh"].axis_names):
            raise NotCheckedError(NotChecked.OUT_OF_REACH)
        return cls(about["mesh"], about["in_specs"], bool(about["check_vma"]))

    def specs(self, variables: Sequence[Any]) -> tuple[Any, ...]:
        """How arrays for these variables of the inner program lie on the devices."""
        return tuple(self._spec(variable.aval) for variable in variables)

    def run(
        self, body: Callable[..., list[Any]], in_specs: Any, out_specs: tuple[Any, ...]
    ) -> Callable[..., list[Any]]:
        """`body`, whose results are given one axis more where devices have different ones."""
        import jax

        def on_each(*values: Any) -> tuple[Any, ...]:
            found = zip(body(*values), out_specs, strict=True)
            return tuple(one[None] if spec else one for one, spec in found)

        made: Callable[..., list[Any]] = jax.shard_map(
            on_each,
            mesh=self.mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            check_vma=self.is_checked,
        )
        return made

    def _spec(self, aval: Any) -> Any:
        import jax

        known = getattr(aval, "vma", None)
        if known is None:
            known = aval.mat.varying
        axes = [n for n in self.mesh.axis_names if n in known or not self.is_checked]
        return jax.P(tuple(axes)) if axes else jax.P()
