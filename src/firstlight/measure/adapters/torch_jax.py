"""PyTorch programs that call compiled JAX: results are tensors, phases are those of JAX."""

from firstlight.measure.adapters.jax import Jax
from firstlight.measure.adapters.torch import TorchEager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from firstlight.measure.adapters import Facts, HostArray


class TorchOverJax(Jax):
    """Waits for tensors, and counts the compilations of JAX."""

    watches = ("torch", "jax")

    def __init__(self) -> None:
        super().__init__()
        self._tensors = TorchEager()

    def load(self) -> None:
        self._tensors.load()
        super().load()
        self.sync_policy = self._tensors.sync_policy + " (JAX has answered by then)"

    def initialise(self) -> bool:
        self._tensors.initialise()
        return super().initialise()

    def sync(self, value: object) -> object:
        return self._tensors.sync(value)

    def leaves(self, value: object) -> list[object]:
        return self._tensors.leaves(value)

    def to_numpy(self, value: object) -> "HostArray":
        return self._tensors.to_numpy(value)

    def describe(self, leaf: object) -> "Facts | None":
        return self._tensors.describe(leaf)

    def peak_device_bytes(self) -> "int | None":
        both = (super().peak_device_bytes(), self._tensors.peak_device_bytes())
        known = [peak for peak in both if peak is not None]
        return sum(known) if known else None

    def threads(self) -> "Facts":
        return {**super().threads(), **self._tensors.threads()}

    def precision(self) -> "Facts":
        return {**self._tensors.precision(), **super().precision()}
