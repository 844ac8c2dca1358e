"""The watch of one process: its parts, where metrics are sent, and the thread that samples."""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from firstlight.import_watch import when_imported
from firstlight.telemetry import metrics
from firstlight.telemetry.collectors import Destination
from firstlight.telemetry.differences import GradientCheck, NotChecked
from firstlight.telemetry.otlp import Collector
from firstlight.telemetry.process_values import process_samples, started
from firstlight.telemetry.prometheus import Exporter
from firstlight.telemetry.runtime import DeployWindows, watch_runtime
from firstlight.telemetry.sending import PushGateway
from firstlight.telemetry.values import Sample, Values
from firstlight.telemetry.warning_line import say_once
from firstlight.telemetry.watch.addresses import Address
from firstlight.telemetry.watch.compiles import CompileEvents
from firstlight.telemetry.watch.functions import check_results
from firstlight.telemetry.watch.guard import guarded
from firstlight.telemetry.watch.jitted import JaxWatch
from firstlight.telemetry.watch.profiles import Profiles
from firstlight.telemetry.watch.resources import GarbageCollection, Gpus, Memory, has_backend
from firstlight.telemetry.watch.server import MetricsServer
from firstlight.telemetry.watch.steps import Steps

#: Sampling takes at most this share of the time: if it is slow, it is done less often.
_MAX_SHARE = 1 / 500
#: Samples older than this are renewed before an export.
_FRESH_SECONDS = 1.0
#: At exit, to wait for sampling in progress.
_MAX_WAIT_SECONDS = 5.0


@dataclass(frozen=True)
class Settings:
    address: Address | None = None
    push_url: str | None = None
    collector: Destination | None = None
    token: bytes | None = None
    max_functions: int = 200
    interval_seconds: float = 10.0
    profile_folder: str = "firstlight-profiles"
    profile_seconds: float = 5.0  # of a profile requested by a signal
    gradient_seconds: float = 5.0  # limit of one gradient check; 0 disables them


class ProcessWatch:
    """Watches from `start()` on, JAX as soon as it is imported; `close()` restores everything."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.values = Values()
        self.steps = Steps(self.values, settings.max_functions)
        self.server: MetricsServer | None = None
        self._exporter = Exporter(self.values)
        self._memory = Memory(self.values, self.steps.functions)
        self._gpus = Gpus(self.values)
        self._collector = GarbageCollection(self.values)
        self._jax: JaxWatch | None = None
        self._compiles: CompileEvents | None = None
        self._last_compiled: deque[str] = deque(maxlen=10)
        self.profiles = Profiles(settings.profile_folder, self._last_compiled)
        self._pushes: list[Callable[[], None]] = []
        if settings.push_url is not None:
            self._pushes.append(PushGateway(settings.push_url, self.text).push)
        if settings.collector is not None:
            self._pushes.append(Collector(settings.collector, self.samples).push)
        self._is_runtime_known = False
        DeployWindows(self.values).open()  # a new process compiles
        self._gradient_error = 0.0
        self._looked = 0.0
        self._looking = threading.Lock()
        self._stop = threading.Event()
        self._handler: Callable[..., None] | None = None

    def start(self) -> None:
        when_imported("jax", guarded(self._watch_jax))
        self._serve()
        self._start_thread()
        guarded(self._listen_to_signal)()
        atexit.register(self._exit)
        os.register_at_fork(after_in_child=guarded(self._forked))

    def text(self) -> bytes:
        """All current metrics in Prometheus's text format."""
        self._refresh()
        return self._exporter.text()

    def samples(self) -> list[Sample]:
        """All current metrics as values."""
        self._refresh()
        return [*self.values, *process_samples()]

    def look(self) -> None:
        """Sample memory, GPUs and results now."""
        with self._looking:
            if self._stop.is_set():
                return
            for task in (
                self._memory.sample,
                self._gpus.sample,
                self._check_results,
                self._note_runtime,
            ):
                guarded(task)()
            self._looked = time.monotonic()

    def note_gradient(self, check: GradientCheck | NotChecked) -> None:
        """Count the result of a gradient check, or the reason that there is none."""
        if isinstance(check, NotChecked):
            self.values.counter(metrics.GRADIENTS_NOT_CHECKED, check.value).add()
            return
        self.values.counter(metrics.GRADIENT_CHECKS, check.verdict.value).add()
        if check.relative_error is not None:
            self._gradient_error = max(self._gradient_error, check.relative_error)
            self.values.gauge(metrics.GRADIENT_ERROR, lambda: self._gradient_error)

    def close(self) -> None:
        atexit.unregister(self._exit)
        self._exit()
        guarded(self._drop_signal)()
        if self.server is not None:
            self.server.close()
            self.server = None
        if self._jax is not None:
            self._jax.unwatch()
        if self._compiles is not None:
            self._compiles.close()
        self._collector.close()

    def _refresh(self) -> None:
        if time.monotonic() - self._looked > _FRESH_SECONDS:
            self.look()
        self.steps.count_ended()

    def _watch_jax(self) -> None:
        self._compiles = CompileEvents(self.values, self.steps, self._last_compiled)
        self._jax = JaxWatch(self.steps, self.note_gradient, self.settings.gradient_seconds)
        self._jax.watch()

    def _check_results(self) -> None:
        if self._jax is not None:
            check_results(self.values, self.steps.functions)

    def _note_runtime(self) -> None:
        if not self._is_runtime_known and has_backend():
            watch_runtime(self.values)
            self._is_runtime_known = True

    def _serve(self) -> None:
        address = self.settings.address
        if address is None:
            return
        try:
            self.server = MetricsServer(address, self.text, self.profiles.take, self.settings.token)
        except OSError as error:
            host, first = address.host, address.first_port
            say_once(
                "port",
                f"metrics are not served: {address}: {error.strerror}. Give a free port, or a "
                f"range for several processes: {host}:{first}-{first + 7}",
            )
        else:
            if address.first_port == 0:
                say_once(
                    "address", f"metrics: http://{self.server.host}:{self.server.port}/metrics"
                )

    def _start_thread(self) -> None:
        threading.Thread(target=self._run, name="firstlight watch", daemon=True).start()

    def _run(self) -> None:
        pause = self.settings.interval_seconds
        while not self._stop.wait(pause):
            begin = time.thread_time()
            self.look()
            self._push()
            took = time.thread_time() - begin
            pause = max(self.settings.interval_seconds, took / _MAX_SHARE)

    def _listen_to_signal(self) -> None:
        """Handle SIGUSR2, if the program does not; only the main thread can set a handler."""
        seconds = self.settings.profile_seconds
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL:
            self._handler = lambda *_: self.profiles.take_on_signal(seconds)
            signal.signal(signal.SIGUSR2, self._handler)

    def _drop_signal(self) -> None:
        if self._handler is not None and signal.getsignal(signal.SIGUSR2) is self._handler:
            signal.signal(signal.SIGUSR2, signal.SIG_DFL)

    def _push(self) -> None:
        """Send metrics to the push-gateway and the collector."""
        for push in self._pushes:
            guarded(push)()

    def _exit(self) -> None:
        """Send what is left, and wait for sampling: a thread within JAX would crash at exit."""
        if not self._stop.is_set():
            self._push()
        self._stop.set()
        self.profiles.close()
        if self._looking.acquire(timeout=_MAX_WAIT_SECONDS):
            self._looking.release()

    def _forked(self) -> None:
        """Reset the watch in a forked process, which needs another port to be scraped."""
        if self._stop.is_set():
            return
        if self.server is not None:
            self.server.close_after_fork()
            self.server = None
        self.values.zero()
        started.cache_clear()
        self.steps.first_result = self.steps.first_warm = None
        self._looking = threading.Lock()
        address = self.settings.address
        if address is not None and len(address.ports) > 1:
            self._serve()
        if self.server is not None or self._pushes:
            self._start_thread()
