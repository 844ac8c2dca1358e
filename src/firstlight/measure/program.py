"""The program under test, inside the measured process: found, loaded, built and validated.

Part of the instrument: only builtin modules are imported at the top level.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from firstlight.measure.adapters import Adapter

    Job = dict[str, Any]  # plain values; see `runner.worker_job`

_FRAMEWORKS = ("numpy", "jax", "jaxlib", "torch", "firstlight")
_LABELS = {
    "jax": "'jax-jit', 'jax-eager' or 'jax'",
    "torch": "'torch-eager', 'torch-compile' or 'torch'",
    "torch.compile": "'torch-compile' or 'torch'",
}


class BenchmarkError(Exception):
    """The program under test breaks its contract; the message is for its author."""


def load_object(name: str) -> "Any":
    """The object named by `"module:attribute"`."""
    module, _, attribute = name.partition(":")
    __import__(module)
    return getattr(sys.modules[module], attribute)


def load(job: "Job", adapter: "Adapter") -> "Any":
    """Import the function that builds the step. This is the phase `import`.

    A user's file is imported before the framework in its label: environment variables that it sets
    at its top (precision, platform, threads) must take effect, as with `python FILE`.
    """
    builder = load_user_function(job) if job["file"] else None
    adapter.load()
    return builder or load_object(job["program"])


def load_user_module(path: str) -> "Any":
    """Import a user's file, with its folder first on the path, as with `python FILE`."""
    path = os.path.abspath(path)
    folder, name = os.path.split(path)
    name = name.removesuffix(".py")
    if name in sys.modules:
        return sys.modules[name]
    if name in _FRAMEWORKS or name in sys.stdlib_module_names:
        raise BenchmarkError(
            f"{path}: a file with this name hides the module {name!r} from every program in its "
            "folder. Rename the file."
        )
    # These frozen modules are behind importlib.util, which would import more than builtin modules.
    import _frozen_importlib
    import _frozen_importlib_external

    sys.path.insert(0, folder)
    spec: Any = _frozen_importlib_external.spec_from_file_location(name, path)
    module = _frozen_importlib.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def load_user_function(job: "Job") -> "Any":
    return getattr(load_user_module(job["file"]), job["program"])


def user_parameters(job: "Job") -> "Job":
    """The arguments of a size, taken from the decorator because they may be any Python value."""
    sizes: Job = load_user_function(job).__firstlight__.get("sizes") or {"default": {}}
    return next(values for name, values in sizes.items() if str(name) == job["size"])


def set_up(job: "Job", adapter: "Adapter", builder: "Any") -> "tuple[Any, Any]":
    """Build the step and its arguments, and wait for the latter. This is the phase `setup`."""
    if job["file"]:
        built = builder(**user_parameters(job))
    else:
        built = builder(adapter.compile, job["seed"], **job["parameters"])
    step, arguments = built if isinstance(built, tuple) and len(built) == 2 else (built, ())
    if not callable(step):
        raise BenchmarkError(
            f"{job['program']} returned {_kind(built)}, not a step. Return a callable, or "
            "(callable, arguments)."
        )
    if not isinstance(arguments, (tuple, list)):
        raise BenchmarkError(
            f"{job['program']} returned a step with {_kind(arguments)} as its arguments. Return "
            "a tuple, even for one argument: return step, (x,)"
        )
    adapter.sync(arguments)
    return step, arguments


def _kind(value: object) -> str:
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a value of type {type(value).__name__}"


def require_right_adapter(job: "Job", adapter: "Adapter", result: object) -> None:
    """Reject a backend that would not synchronise the result or not count compilations."""
    for name in frameworks_used(result):
        if name not in adapter.watches:
            raise BenchmarkError(
                f"{job['program']} runs {name}, but is measured as {job['backend']!r}, which "
                "neither waits for its results nor checks its cache. Use backend="
                f"{_LABELS[name]} (as written) in @bench."
            )


def frameworks_used(result: object) -> list[str]:
    """Frameworks that have run something in this process, rather than only been imported."""
    used = []
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is not None and getattr(bridge, "_backends", None):
        used.append("jax")
    torch = sys.modules.get("torch")
    if torch is not None and _holds(result, torch.Tensor):
        used.append("torch")
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None and dynamo.counters["stats"].get("unique_graphs"):
        used.append("torch.compile")
    return used


def _holds(value: object, kind: type) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return any(_holds(item, kind) for item in value)
    return isinstance(value, kind)


def discover(path: str) -> "Job":
    """The marked functions of a user's file, and the frameworks that the file itself imports."""
    module = load_user_module(path)
    found = []
    for name, value in vars(module).items():
        options = getattr(value, "__firstlight__", None)
        if isinstance(options, dict) and callable(value):
            reference = options.get("reference")
            if reference is not None and not callable(reference):
                raise BenchmarkError(
                    f"{path}: {name}: reference must be a function of the same parameters that "
                    f"returns arrays, not {_kind(reference)}."
                )
            plain = {k: json_or_repr(v) for k, v in options.items() if k != "reference"}
            found.append({"function": name, "reference": reference is not None, **plain})
    frameworks = [name for name in ("jax", "torch", "numpy") if name in sys.modules]
    return {"benchmarks": found, "frameworks": frameworks}


def modules() -> dict[str, str]:
    """{top-level module: where it was loaded from}, to prove whose code ran."""
    found = {}
    for name, module in list(sys.modules.items()):
        places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
        files = [place for place in places if isinstance(place, str)]
        if files and "." not in name and name != "__main__":
            found[name] = os.path.abspath(files[0])
    return found


def json_or_repr(value: object) -> object:
    """The value if JSON has it, else its repr, for people to read."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float and value - value == 0:  # finite
        return value
    if type(value) is list or type(value) is tuple:
        return [json_or_repr(item) for item in value] if len(value) <= 20 else repr(value)[:200]
    if type(value) is dict:
        return {str(key): json_or_repr(item) for key, item in value.items()}
    return repr(value)[:200]
