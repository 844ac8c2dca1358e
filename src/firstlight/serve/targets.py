"""From command-line targets such as `app.py:model` to the models declared there."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from firstlight.errors import FirstlightError
from firstlight.serve.declaration import NAME, Model
from firstlight.serve.frozen_models import frozen, is_frozen, runs_without_jax
from firstlight.serve.repository import SUFFIXES


class TargetError(FirstlightError):
    """A target without a model."""


def declared(targets: Iterable[str], workspace: str | None = None) -> list[Model]:
    """The models of all targets, and of a HistFactory workspace."""
    models = [model for target in targets for model in models_in(target)]
    if workspace is not None:
        from firstlight.serve.histfactory_models import models_of

        models += models_of(workspace)
    names = [model.name for model in models]
    if twice := {name for name in names if names.count(name) > 1}:
        raise TargetError(f"several models are called {', '.join(sorted(twice))}.")
    return models


def models_in(target: str) -> list[Model]:
    """The models of `FILE:NAME`, where NAME is a model or a list of models, or all of `FILE`.

    A frozen function is one model.
    """
    if is_frozen(Path(target)):
        return [frozen(target)]
    path, _, name = target.rpartition(":") if ":" in target else (target, "", "")
    module = _import(Path(path))
    if name:
        if not hasattr(module, name):
            known = ", ".join(_declared(module)) or "none"
            raise TargetError(f"{path} has no {name!r}. Models in it: {known}.")
        return list(_as_models(getattr(module, name), target))
    found = list(_declared(module).values())
    if not found:
        raise TargetError(f"{path} declares no model. Decorate a function with @serve.model(...).")
    return found


def model_in_folder(folder: Path, name: str) -> list[Model]:
    """The model NAME of NAME.py or NAME.frozen. Raises TargetError if there is none."""
    paths = [folder / (name + suffix) for suffix in SUFFIXES] if NAME.fullmatch(name) else []
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise TargetError(f"the repository has no {name[:80]}.py or {name[:80]}.frozen.")
    found = [model for model in models_in(str(path)) if model.name == name]
    if not found:
        raise TargetError(f"{path.name} declares no model called {name!r}.")
    return found


def need_jax(targets: Iterable[str]) -> bool:
    """Whether any target is not a frozen function that runs with jaxlib alone."""
    paths = list(map(Path, targets))
    return not all(is_frozen(path) and runs_without_jax(path) for path in paths)


def _declared(module: ModuleType) -> dict[str, Model]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Model)}


def _as_models(value: Any, target: str) -> Iterable[Model]:
    models = value if isinstance(value, (list, tuple)) else [value]
    for model in models:
        if not isinstance(model, Model):
            raise TargetError(
                f"{target} is {type(model).__name__}, not a model. Decorate the function with "
                "@serve.model(inputs=...)."
            )
    return models


class _Source(SourceFileLoader):
    """Reads the file anew: kept bytecode counts as that of a file edited within the same second."""

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


def _import(path: Path) -> ModuleType:
    """Import a file as `python FILE` would: with its folder on the path."""
    if not path.is_file():
        raise TargetError(f"{path}: no such file. Give FILE.py or FILE.py:NAME.")
    if path.suffix != ".py":
        raise TargetError(f"{path} is not a Python file.")
    loader = _Source(path.stem, str(path))
    spec = importlib.util.spec_from_file_location(path.stem, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.modules[path.stem] = module
    try:
        loader.exec_module(module)
    except FirstlightError:
        raise
    except (Exception, SystemExit) as error:
        raise TargetError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module
