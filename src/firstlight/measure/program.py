"""The program under test, inside the measured process: found, loaded, built, and held to its word.

Part of the instrument: builtin modules only at the top level.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FRAMEWORKS = ("numpy", "jax", "jaxlib", "torch", "firstlight")


class BenchmarkError(Exception):
    """The program under test breaks its contract; the text is for its author."""


def load_object(name: str) -> "Any":
    """The object named by `"module:attribute"`."""
    module, _, attribute = name.partition(":")
    __import__(module)
    return getattr(sys.modules[module], attribute)


def load(job: "dict[str, Any]", adapter: "Any") -> "Any":
    """The function that builds the step: this is the phase `import`.

    A user's file comes before the framework that its label names: what it sets in the environment
    at its top (precision, platform, threads) must hold, as it does for `python FILE`.
    """
    if job["file"]:
        builder = load_user_function(job)
        adapter.load()
        return builder
    adapter.load()
    return load_object(job["program"])


def load_user_module(path: str) -> "Any":
    """A user's file, with its folder first on the path, as `python FILE` has it."""
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
    # The frozen modules behind importlib: importlib.util would load more than builtin modules.
    import _frozen_importlib
    import _frozen_importlib_external

    sys.path.insert(0, folder)
    spec: Any = _frozen_importlib_external.spec_from_file_location(name, path)
    module = _frozen_importlib.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def load_user_function(job: "dict[str, Any]") -> "Any":
    return getattr(load_user_module(job["file"]), job["program"])


def user_parameters(job: "dict[str, Any]") -> "dict[str, Any]":
    """The arguments of a size, from the decorator itself: they may be any Python value."""
    sizes = load_user_function(job).__firstlight__.get("sizes") or {"default": {}}
    found: dict[str, Any] = next(v for k, v in sizes.items() if str(k) == job["size"])
    return found


def set_up(job: "dict[str, Any]", adapter: "Any", builder: "Any") -> "tuple[Any, Any]":
    """The step and its arguments, the arguments in place: this is the phase `setup`."""
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


def _kind(value: "Any") -> str:
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a value of type {type(value).__name__}"


def require_right_adapter(job: "dict[str, Any]", adapter: "Any", result: "Any") -> None:
    """Refuse a label that would leave a result unsynchronised or a compiler unwatched."""
    used = frameworks_used(result)
    strange = [name for name in used if name not in adapter.watches]
    if not strange:
        return
    name = strange[0]
    labels = {
        "jax": "backend='jax-jit', 'jax-eager' or 'jax' (as written)",
        "torch": "backend='torch-eager', 'torch-compile' or 'torch' (as written)",
        "torch.compile": "backend='torch-compile' or 'torch' (as written)",
    }[name]
    raise BenchmarkError(
        f"{job['program']} runs {name}, but is measured as {job['backend']!r}, which neither waits "
        f"for its results nor checks its cache. Use {labels} in @bench."
    )


def frameworks_used(result: "Any") -> "list[str]":
    """What has done work in this process, as opposed to having been imported only."""
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


def _holds(value: "Any", kind: type) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return any(_holds(item, kind) for item in value)
    return isinstance(value, kind)


def discover(path: str) -> "dict[str, Any]":
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
            plain = {k: shown(v) for k, v in options.items() if k != "reference"}
            found.append({"function": name, "reference": reference is not None, **plain})
    frameworks = [name for name in ("jax", "torch", "numpy") if name in sys.modules]
    return {"benchmarks": found, "frameworks": frameworks}


def modules() -> "dict[str, str]":
    """{top-level module: where it was loaded from}, to prove whose code ran."""
    found = {}
    for name, module in list(sys.modules.items()):
        if "." not in name and name != "__main__":
            places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
            place = next((p for p in places if isinstance(p, str)), None)
            if place is not None:
                found[name] = os.path.abspath(place)
    return found


def shown(value: "Any") -> "Any":
    """The value itself where JSON has it, else how Python would write it: for people to read."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float and value - value == 0:  # finite
        return value
    if type(value) in (list, tuple) and len(value) <= 20:
        return [shown(item) for item in value]
    if type(value) is dict:
        return {str(key): shown(item) for key, item in value.items()}
    return repr(value)[:200]
