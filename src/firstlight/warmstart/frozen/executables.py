"""A frozen function's executable in memory, run with or without JAX."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from firstlight.warmstart.frozen import trees
from firstlight.warmstart.frozen.artifact import Artifact, Program

Leaves = list[Any]


class Executable:
    """Called with the leaves of its arguments, which may have fewer rows than it computes."""

    #: Converts a NumPy array to the type of the results.
    place: Callable[[Any], Any] = staticmethod(lambda array: array)

    def __init__(self, program: Program) -> None:
        self._program = program

    def run(self, leaves: Leaves) -> Leaves:
        """The leaves of the results, for leaves of exactly the program's shapes."""
        raise NotImplementedError

    def on_device(self, array: object) -> Any:
        """Copy a leaf to the device, for use in many calls."""
        raise NotImplementedError

    @property
    def text(self) -> str | None:
        """The program as XLA compiled it (HLO), if the executable still has it."""
        raise NotImplementedError

    def rebuild(self, leaves: Leaves) -> Any:
        """The results as the function returns them."""
        return trees.unflatten(self._program.out_shape, iter(leaves))

    def __call__(self, leaves: Leaves, rows: int) -> Any:
        batch = self._program.batch
        if batch is None or rows == batch.rows:
            return self.rebuild(self.run(leaves))
        import numpy as np

        padded = list(leaves)
        for i in batch.inputs:
            given = np.asarray(leaves[i])
            # Pad with copies of a real row: zeros might cause a division by zero, or a loop to
            # take many iterations.
            filling = np.broadcast_to(given[-1:], (batch.rows - rows, *given.shape[1:]))
            padded[i] = np.concatenate([given, filling])
        results = self.run(padded)
        for i in batch.outputs:
            # Cut on the host: JAX would compile a slice per number of rows.
            results[i] = self.place(np.asarray(results[i])[:rows])
        return self.rebuild(results)


class WithoutJax(Executable):
    """Run by jaxlib alone: NumPy arrays in and out."""

    def __init__(self, artifact: Artifact, program: Program) -> None:
        from firstlight.warmstart.frozen.jaxlib_runtime import (
            OnDevice,
            dtype,
            loaded_executable,
            runner,
        )

        super().__init__(program)
        self._kept = [(i, dtype(program.in_leaves[i].dtype)) for i in program.kept]
        self._on_device = OnDevice
        self._loaded = loaded_executable(program.executable, artifact.needs_lapack)
        self._run = runner(self._loaded, program.out_leaves)

    def run(self, leaves: Leaves) -> Leaves:
        import numpy as np

        arrays = []
        for i, kind in self._kept:
            leaf = leaves[i]
            is_placed = isinstance(leaf, self._on_device)
            arrays.append(leaf if is_placed else np.asarray(leaf, kind, order="C"))
        return self._run(arrays)

    @property
    def text(self) -> str | None:
        modules = self._loaded.hlo_modules()
        return str(modules[0].to_string()) if modules else None

    def on_device(self, array: object) -> Any:
        return self._on_device(array)


class WithJax(Executable):
    """Run by `jax.experimental.serialize_executable`: JAX arrays out."""

    def __init__(self, artifact: Artifact, program: Program) -> None:
        import jax
        from jax.experimental.serialize_executable import deserialize_and_load

        super().__init__(program)
        if artifact.needs_lapack:
            from firstlight.warmstart.frozen.jaxlib_runtime import start_lapack

            start_lapack()
        self.place = jax.device_put
        self._in_tree, self._out_tree = jax_trees(program)
        before, after = program.pickled
        devices = jax.devices(artifact.place.platform)[: artifact.place.device_count]
        # This unpickles: `sealing` has checked that the file's author may run code here.
        self.compiled = deserialize_and_load(
            before + program.executable + after,
            self._in_tree,
            self._out_tree,
            backend=devices[0].client,
            execution_devices=devices,
        )

    def run(self, leaves: Leaves) -> Leaves:
        args, kwargs = self._in_tree.unflatten(leaves)
        results: Leaves = self._out_tree.flatten_up_to(self.compiled(*args, **kwargs))
        return results

    def on_device(self, array: object) -> Any:
        return self.place(array)

    @property
    def text(self) -> str | None:
        text: str | None = self.compiled.as_text()
        return text

    def rebuild(self, leaves: Leaves) -> Any:
        return self._out_tree.unflatten(leaves)


def jax_trees(program: Program) -> tuple[Any, Any]:
    """JAX's trees of the arguments and of the results."""
    import jax

    if program.pickled_trees:
        in_tree, out_tree = pickle.loads(program.pickled_trees)
        return in_tree, out_tree
    shapes = ((program.in_shape, program.in_leaves), (program.out_shape, program.out_leaves))
    full = [trees.unflatten(shape, iter([0] * len(leaves))) for shape, leaves in shapes]
    in_tree, out_tree = map(jax.tree_util.tree_structure, full)
    return in_tree, out_tree
