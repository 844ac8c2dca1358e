"""The life cycle of a server: listen, prepare models, serve, reload, drain."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from firstlight.errors import FirstlightError
from firstlight.import_watch import when_imported
from firstlight.present.quantities import counted
from firstlight.serve import openapi, page, targets
from firstlight.serve.app import HTML, JSON, App
from firstlight.serve.compile_watch import CompileWatch
from firstlight.serve.compiled_models import Loaded, digest_of, load
from firstlight.serve.declaration import Model
from firstlight.serve.engine import Engine
from firstlight.serve.frozen_models import FrozenModel, load_frozen
from firstlight.serve.http_server import AddressError, Limits, Server, address, keep_freed_memory
from firstlight.serve.log import LOG
from firstlight.serve.models import Change, Models
from firstlight.serve.rehearsal import rehearse
from firstlight.serve.signature import described
from firstlight.serve.traces import Sampled, Traces
from firstlight.telemetry import metrics
from firstlight.telemetry.otlp import export_where_asked
from firstlight.telemetry.prometheus import CONTENT_TYPE, Exporter
from firstlight.telemetry.runtime import DeployWindows, watch_runtime
from firstlight.telemetry.values import Values
from firstlight.telemetry.watch.profiles import Profiles

_SWITCH_SECONDS = 2e-4
BACKLOG = 2048
Say = Callable[[str], None]
DRAINING = "draining: pending requests are answered, new ones are not accepted"
#: For so long at least, a kept connection may send one more request to a server that stops.
_LAST_CALL_SECONDS = 1.0
_LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class Settings:
    host: str = "127.0.0.1"
    port: int = 8000
    token: bytes | None = None
    max_bytes: int | None = None  # memory limit per model
    drain_delay: float = 0.0  # answer as before, but not ready: balancers need time to notice
    drain_seconds: float = 30.0  # then, for what has arrived
    overdue_seconds: float = 30.0  # after which a batch that does not end makes it not ready
    stuck_seconds: float = 120.0  # and not live
    limits: Limits = field(default_factory=Limits)
    grpc_port: int | None = None
    otlp: Sampled | None = None  # destination of traces
    repository: Path | None = None  # a folder of models that clients may load
    with_jax: bool = True  # False: all models are frozen functions that run without it


class Service:
    """All parts of a serving process."""

    def __init__(self, settings: Settings, begin: float) -> None:
        """begin: Start of the process, in seconds since 1970."""
        self.settings, self._begin = settings, begin
        self.values = Values()
        self.watch = CompileWatch(self.values)
        on_cpu = _is_on_cpu(settings)
        # While an accelerator computes, the next batch is prepared; a CPU gains nothing from that.
        compiles = self.watch.compiles_in_batches
        self.engine = Engine(self.values, compiles, lane_slots=1 if on_cpu else 2)
        self.models = Models(self.engine, self.values, random.random)
        self.metrics_text = Exporter(self.values).text
        pages = {
            b"/metrics": lambda: (self.metrics_text(), CONTENT_TYPE.encode()),
            b"/openapi.json": lambda: (msgspec.json.encode(self._openapi()), JSON),
            b"/": lambda: (self._page().encode(), HTML),
        }
        locked = {b"/": lambda: (page.render_locked().encode(), HTML)}
        most = settings.limits.body_bytes
        self.app = App(self.models, self.values, settings.token, pages, locked, most)
        self.app.overdue_seconds = settings.overdue_seconds
        self.app.stuck_seconds = settings.stuck_seconds
        if settings.repository is not None:
            folder = settings.repository
            self.app.repository.enable(folder, targets.model_in_folder, self.serve_more)
        if settings.otlp is not None:
            self.engine.traces = Traces(settings.otlp)
        self.server = Server(self.app, settings.limits)
        self.grpc: Any = None  # a GrpcServer
        self.startup_seconds = 0.0
        self.values.gauge(metrics.STARTUP_DURATION, lambda: self.startup_seconds)
        if settings.with_jax:
            _watch_memory(self.values)
            watch_runtime(self.values)
        export_where_asked(self.values)
        self.deploys = DeployWindows(self.values)
        self.deploys.open()

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self.server.connections)

    def _page(self) -> str:
        compiles = int(self.watch.request_path.value)
        return page.render(self.models, self.app.ready, compiles, self.startup_seconds)

    def _openapi(self) -> dict[str, Any]:
        current = [name.current for name in self.models.names.values()]
        return openapi.document(current, self.settings.token is not None)

    async def listen_grpc(self, host: str, port: int) -> str:
        from firstlight.serve.grpc_server import GrpcServer  # an extra

        self.grpc = GrpcServer(self.app, self.settings.limits)
        bound = await self.grpc.listen(host, port)
        return address(host, bound)

    def declared(self, declare: Callable[[], Sequence[Model]]) -> list[Model]:
        """The models of the files. What these compute when they are imported is preparation."""
        with self.watch.preparing():
            return list(declare())

    def prepare(self, declared: Sequence[Model]) -> list[Loaded]:
        """Load models. Slow; may run on any thread."""
        for model in declared:
            self.deploys.open(model.name)
        limit = self.settings.max_bytes
        return [_loaded(model, self.watch, limit) for model in declared]

    async def serve_more(self, declared: Sequence[Model]) -> None:
        """Prepare models while others are served, then serve them too."""
        loop = asyncio.get_running_loop()
        await self.serve_also(await loop.run_in_executor(None, lambda: self.prepare(declared)))

    async def serve_also(self, loaded: Sequence[Loaded]) -> None:
        """Rehearse new versions, then serve them beside others or in their place."""
        _forget_traces([*loaded, *(served.loaded for served in self.models.all_served())])
        rehearsed = await rehearse(loaded)
        for one in loaded:
            self.models.put(one, one.model.canary_share)
            self.deploys.open(one.model.name)
        self.models.rehearsed |= rehearsed

    async def drain(self, listener: Any) -> int:
        """Stop so that no request is lost; returns the connections that are left.

        First nothing changes but `ready`, so that balancers go elsewhere. Then kept connections
        end with their next answer. Then the listener closes, and what has arrived is answered.
        """
        delay, seconds = self.settings.drain_delay, self.settings.drain_seconds
        self.app.ready, self.app.draining = False, True
        await asyncio.sleep(delay)
        self.server.draining = True
        end = time.perf_counter() + delay + seconds
        await while_any(lambda: self.connections, max(delay, min(_LAST_CALL_SECONDS, seconds)))
        await self._close_listener(listener)
        if self.grpc is not None:
            await self.grpc.drain(max(0.0, end - time.perf_counter()))
        while self.connections and time.perf_counter() < end:
            self.server.drain(idle_seconds=_LAST_CALL_SECONDS)
            await asyncio.sleep(_LOOK_SECONDS)
        return self.connections

    async def _close_listener(self, listener: Any) -> None:
        """Close it once the connections in its backlog are accepted: they would be reset."""
        loop = asyncio.get_running_loop()
        # The event loop accepts no more, and the system goes on listening for these.
        listening = [socket.socket(fileno=os.dup(one.fileno())) for one in listener.sockets]
        listener.close()
        for one in listening:
            one.setblocking(False)
            with one, suppress(BlockingIOError):
                while True:
                    accepted, _ = one.accept()
                    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    await loop.connect_accepted_socket(self.server.connection, accepted)

    async def begin_serving(self, loaded: Sequence[Loaded]) -> None:
        """Rehearse, then start answering requests."""
        for one in loaded:
            self.models.put(one)
            self.deploys.open(one.model.name)
        self.deploys.open()
        # Everything made until now stays, so the garbage collector need not traverse it again.
        gc.collect()
        gc.freeze()
        self.models.rehearsed |= await rehearse(loaded)
        self.startup_seconds = time.time() - self._begin
        self.app.ready = True


async def while_any(connections: Callable[[], int], seconds: float) -> None:
    """Wait until no connection is left, for at most `seconds`."""
    end = time.perf_counter() + seconds
    while connections() and time.perf_counter() < end:
        await asyncio.sleep(_LOOK_SECONDS)


def _is_on_cpu(settings: Settings) -> bool:
    if not settings.with_jax:
        return True
    import jax

    return str(jax.default_backend()) == "cpu"


def _loaded(model: Model, watch: CompileWatch, max_bytes: int | None) -> Loaded:
    if isinstance(model, FrozenModel):
        return load_frozen(model, max_bytes)
    return load(model, watch, max_bytes)


async def serve(
    declare: Callable[[], Sequence[Model]], settings: Settings, say: Say, begin: float
) -> int:
    """Serve until SIGTERM or SIGINT; returns an exit code.

    declare: Returns the models; called again at every SIGHUP.
    """
    loop = asyncio.get_running_loop()
    np.seterr(over="raise")  # inherited by everything that this task starts: see `as_array`
    service = Service(settings, begin)
    listener = await _listening(loop, service, settings)
    host, port = listener.sockets[0].getsockname()[:2]
    say(f"listening on http://{address(host, port)}, preparing models")
    if settings.grpc_port is not None:
        say(f"listening on grpc://{await service.listen_grpc(host, settings.grpc_port)}")
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    service.models.say = say
    loop.add_signal_handler(signal.SIGHUP, _Reloading(service, declare, say).ask)
    # Runbooks send SIGUSR2, which would end a process without a handler.
    profiles = Profiles("firstlight-profiles", ())
    loop.add_signal_handler(signal.SIGUSR2, profiles.take_on_signal, 5.0)
    preparing: asyncio.Future[list[Loaded]] = loop.run_in_executor(
        None, lambda: service.prepare(service.declared(declare))
    )
    stopping: asyncio.Future[Any] = asyncio.ensure_future(stop.wait())
    waited_for: list[asyncio.Future[Any]] = [preparing, stopping]
    try:
        await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set() and not preparing.done():
            say("stopped before it was ready")
            os._exit(0)  # a compile cannot be interrupted
        if not stop.is_set():
            loaded = await preparing
            await service.begin_serving(loaded)
            report(loaded, service.startup_seconds, say)
            await stopping
            delay = settings.drain_delay
            _end_within(2 * delay + settings.drain_seconds + 1)
            say(f"draining: not ready, and answering for {delay:g} s more" if delay else DRAINING)
            left = await service.drain(listener)
            still_open = f", with {counted(left, 'connection')} still open" if left else ""
            say(f"stopped{still_open}")
    finally:
        stopping.cancel()
        listener.close()
        if service.grpc is not None:
            await service.grpc.drain(0)
        service.server.close()
        service.engine.close()
        if service.engine.traces is not None:
            service.engine.traces.close()
        service.watch.close()
    if service.engine.is_computing:
        # XLA would wait for the batch when the interpreter exits, and it may never end.
        sys.stdout.flush()
        os._exit(0)
    return 0


def _end_within(seconds: float) -> None:
    """End this process after so many seconds at the latest, whatever its threads do."""
    timer = threading.Timer(seconds - 0.2, os._exit, (0,))
    timer.daemon = True
    timer.start()


async def _listening(loop: Any, service: Service, settings: Settings) -> Any:
    """The listener, an object with `sockets` and `close`."""
    try:
        return await loop.create_server(
            service.server.connection, settings.host, settings.port, backlog=BACKLOG
        )
    except OSError as error:
        raise AddressError(address(settings.host, settings.port), error=error) from None


class _Reloading:
    """Handles SIGHUP: prepares new versions beside the old ones, which stay if anything fails."""

    def __init__(self, service: Service, declare: Callable[[], Sequence[Model]], say: Say) -> None:
        self._service, self._declare, self._say = service, declare, say
        self._task: asyncio.Task[None] | None = None
        self._asked = False

    def ask(self) -> None:
        if not self._service.app.ready:
            return  # starting, with the current file, or stopping
        self._asked = True  # also during a reload, which may have read the file before it changed
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._reload_while_asked())

    async def _reload_while_asked(self) -> None:
        while self._asked:
            self._asked = False
            await self._reload()

    async def _reload(self) -> None:
        service, begin, models = self._service, time.perf_counter(), self._service.models
        loop = asyncio.get_running_loop()
        try:
            declared = await loop.run_in_executor(None, lambda: service.declared(self._declare))
            changes = [(model, models.change_of(model)) for model in declared]
            new = [model for model, change in changes if change is Change.NEW]
            loaded = await loop.run_in_executor(None, lambda: service.prepare(new))
            edited = await loop.run_in_executor(None, lambda: self._edited(declared))
        except FirstlightError as error:
            self._say(f"reload failed, the old versions stay: {error}")
            return
        for one in loaded:
            self._say_other_format(one)
        await service.serve_also(loaded)
        for line in models.settle(declared, service.app.repository.loaded):
            self._say(f"reload: {line}")
        for model, change in changes:
            if change is Change.TAKEN_BACK:
                self._say(
                    f"reload: {model.name} {model.version} was taken back and is not loaded again: "
                    "give what you have repaired another version"
                )
        for name, version in edited:
            self._say(
                f"reload: {name} has changed but is still version {version}, so what was loaded "
                "before keeps answering: give it another version"
            )
        if loaded:
            report(loaded, time.perf_counter() - begin, self._say)
        else:
            self._say("reloaded: no new version")

    def _edited(self, declared: Sequence[Model]) -> list[tuple[str, str]]:
        """Models that differ from what is served as the same version."""
        found = []
        for model in declared:
            deployment = self._service.models.names.get(model.name)
            for _, served in deployment.versions() if deployment else ():
                if served.model.version != model.version:
                    continue
                if _digest_or_error(model, self._service.watch) != served.loaded.digest:
                    found.append((model.name, model.version))
        return found

    def _say_other_format(self, new: Loaded) -> None:
        """Name inputs and outputs that differ from those of the version that is replaced."""
        deployment = self._service.models.names.get(new.model.name)
        if deployment is None:
            return
        before, after = described(deployment.current.loaded.signature), described(new.signature)
        for what in before:
            if before[what] != after[what]:
                self._say(
                    f"reload: {new.model.name} {new.model.version} has other {what}: "
                    f"{', '.join(after[what])} instead of {', '.join(before[what])}"
                )


def _forget_traces(served: Sequence[Loaded]) -> None:
    """Free what JAX keeps of all programs that were ever traced: some 0.2 MB per reload.

    A callback may need it: the functions that it has jitted would be compiled again.
    """
    has_callbacks = any(bucket.may_not_end for one in served for bucket in one.buckets)
    if "jax" in sys.modules and not has_callbacks:
        sys.modules["jax"].clear_caches()
    gc.collect()  # modules and programs of old versions, which are full of cycles


def _digest_or_error(model: Model, watch: CompileWatch) -> str:
    if isinstance(model, FrozenModel):
        return model.digest
    try:
        return digest_of(model, watch)
    except Exception as error:  # it could not be loaded, so it differs
        return repr(error)


def report(loaded: Sequence[Loaded], seconds: float, say: Say) -> None:
    """Report what was compiled, what came from the cache, and the time taken."""
    for one in loaded:
        buckets = one.buckets
        cached = sum(bucket.from_cache for bucket in buckets)
        took = sum(bucket.load_seconds for bucket in buckets)
        made = f"{len(buckets) - cached} compiled, {cached} from the cache"
        if isinstance(one.model, FrozenModel):
            made = "all frozen"
        say(
            f"{one.model.name} {one.model.version}: {len(buckets)} executables "
            f"({made}, {took:.2f} s in all), "
            f"{one.memory_bytes / 2**20:.1f} MiB; rows: seconds "
            + ", ".join(f"{b.rows}: {b.seconds:.2g}" for b in one.lanes[buckets[0].sizes])
        )
    say(f"ready after {seconds:.2f} s")


def _watch_memory(values: Values) -> None:
    import jax

    names = {
        metrics.DEVICE_MEMORY_USED: "bytes_in_use",
        metrics.DEVICE_MEMORY_LIMIT: "bytes_limit",
        metrics.DEVICE_MEMORY_PEAK: "peak_bytes_in_use",
    }
    for device in jax.local_devices():
        if not device.memory_stats():  # a CPU uses the memory of the process
            continue
        for metric, key in names.items():
            read = partial(_memory, device, key)
            values.gauge(metric, read, f"{device.platform}:{device.id}")


def _memory(device: Any, key: str) -> float:
    return float(device.memory_stats().get(key, 0))


def run(
    declare: Callable[[], Sequence[Model]], settings: Settings, begin: float | None = None
) -> int:
    """Serve in this process until SIGTERM or SIGINT."""
    import uvloop

    prepare_process()
    began = time.time() if begin is None else begin
    code: int = uvloop.run(serve(declare, settings, print_line, began))
    return code


def print_line(line: str) -> None:
    LOG.info(line)


def prepare_process() -> None:
    """Configure a process that does nothing but serve."""
    from firstlight import warmstart

    warmstart.enable()
    keep_freed_memory()
    # Before and after every batch, the thread of long batches waits so long for the thread that
    # reads requests. With the default of 5 ms, a flood of refusals would leave the device idle.
    sys.setswitchinterval(_SWITCH_SECONDS)
    # A batch whose result is read at once gains nothing from JAX's dispatch thread.
    when_imported("jax", _dispatch_synchronously)


def _dispatch_synchronously() -> None:
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)
