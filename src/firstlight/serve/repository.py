"""The model repository of the protocol: what is served, and models loaded on request.

Loading runs code of the operator's folder, so it is refused unless the server was given one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from firstlight.errors import FirstlightError
from firstlight.serve.declaration import Model
from firstlight.serve.models import Models
from firstlight.serve.tensors import InvalidRequestError, require_known

SUFFIXES = (".py", ".frozen")


class Repository:
    """Lists models, and loads and unloads those of a folder, one after the other."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self.loaded: set[str] = set()  # names that are served because a client has asked for them
        self._folder: Path | None = None
        self._find: Callable[[Path, str], Sequence[Model]]
        self._serve: Callable[[Sequence[Model]], Awaitable[None]]
        self._lock = asyncio.Lock()

    def enable(
        self,
        folder: Path,
        find: Callable[[Path, str], Sequence[Model]],
        serve: Callable[[Sequence[Model]], Awaitable[None]],
    ) -> None:
        """Load models of this folder on request.

        Args:
            find: Returns the model of a name in a folder, or raises FirstlightError.
            serve: Prepares and serves models.
        """
        self._folder, self._find, self._serve = folder, find, serve

    def index(self, only_ready: bool) -> list[dict[str, str]]:
        """The models served, and those of the folder that are not."""
        found = [
            {"name": served.model.name, "version": served.model.version, "state": "READY"}
            for served in self._models.all_served()
        ]
        if self._folder is not None and not only_ready:
            names = {path.stem for path in self._folder.iterdir() if path.suffix in SUFFIXES}
            found += [
                {"name": name, "version": "", "state": "UNAVAILABLE", "reason": "not loaded"}
                for name in sorted(names - self._models.names.keys())
            ]
        return found

    async def load(self, name: str, parameters: Mapping[str, object]) -> None:
        """Serve a model of the folder, in place of the one with its name if there is one.

        Raises:
            InvalidRequestError: There is no such model, or it cannot be served.
        """
        folder = self._enabled()
        require_known(f"loading {name!r}", parameters, ())
        async with self._lock:
            try:
                await self._serve(await asyncio.to_thread(self._find, folder, name))
                self.loaded.add(name)
            except FirstlightError as error:
                raise InvalidRequestError(f"{name!r} cannot be loaded: {error}") from None

    async def unload(self, name: str, parameters: Mapping[str, object]) -> None:
        """Serve a model no longer; requests in its queue are answered.

        Raises:
            InvalidRequestError: There is no such model.
        """
        self._enabled()
        require_known(f"unloading {name!r}", parameters, ("unload_dependents",))
        async with self._lock:
            if name not in self._models.names:
                raise InvalidRequestError(f"no model {name[:80]!r} is served.")
            self._models.remove(name)
            self.loaded.discard(name)

    def _enabled(self) -> Path:
        if self._folder is None:
            raise InvalidRequestError(
                "models are not loaded or unloaded on request: start the server with "
                "--repository DIR."
            )
        return self._folder
