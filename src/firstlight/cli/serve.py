"""`firstlight serve app.py:model`: compile, then answer requests."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from firstlight.cli.values import add_command, between, location, positive, seconds, size

if TYPE_CHECKING:
    from firstlight.cli.values import Commands
    from firstlight.serve.running import Settings
    from firstlight.serve.traces import Sampled

EPILOG = """\
examples:
  firstlight serve app.py:model                     the model declared as `model` in app.py
  firstlight serve app.py                           all models in app.py
  firstlight serve score.frozen                     a frozen function, see docs/frozen.md
  firstlight serve --hf workspace.json --port 8080  nll, fit, significance and cls of a workspace
  firstlight serve app.py --on ray --replicas 1:4   replicas in Ray Serve, scaled with their queues

SIGHUP reloads the files; the old versions serve until the new ones are ready. SIGTERM answers the
requests that have arrived, then exits.

exit codes: 0 stopped by a signal; 2 a model, an address or an option cannot be used"""


def add_to(commands: Commands) -> None:
    parser = add_command(
        commands,
        "serve",
        handle,
        "Serve models over the Open Inference Protocol v2 and plain JSON.\n"
        "Everything is compiled, or loaded from the cache, before the first request.",
        EPILOG,
    )
    add = parser.add_argument
    add("targets", nargs="*", metavar="FILE[:NAME]",
        help="files with models, or frozen functions; see docs/serve.md")  # fmt: skip
    add("--hf", metavar="WORKSPACE", help="a HistFactory workspace (pyhf JSON) to serve")
    add("--repository", metavar="DIR",
        help="a folder of models, NAME.py or NAME.frozen, that clients may load")  # fmt: skip
    add(
        "--host",
        metavar="NAME",
        default="127.0.0.1",
        help="address to listen on (default: this machine only)",
    )
    port = between(0, 65535)
    about = "port to listen on; 0: any (default: 8000)"
    add("--port", type=port, default=8000, metavar="PORT", help=about)
    add("--grpc-port", type=port, metavar="PORT", help="port for gRPC (default: no gRPC); 0: any")
    add(
        "--otlp",
        metavar="URL",
        help="send traces and metrics to this OpenTelemetry collector (http://HOST:4318)",
    )
    add("--token-file", metavar="FILE", help="the bearer token that clients must send")
    add(
        "--memory-limit", type=size, metavar="SIZE", help="refuse models that need more, such as 4G"
    )
    add("--max-body", type=size, metavar="SIZE", help="refuse larger requests (default: 64M)")
    about = "time limit for a request to arrive (default: 20)"
    add("--request-seconds", type=seconds, metavar="SECONDS", help=about)
    about = "time limit for a client to take the next byte of its answer (default: 20)"
    add("--write-seconds", type=seconds, metavar="SECONDS", help=about)
    about = "when stopped, be not ready for so long before anything else changes (default: 0)"
    add(
        "--drain-delay",
        type=positive(3600, "seconds", or_zero=True),
        default=0.0,
        metavar="SECONDS",
        help=about,
    )
    about = "time limit for answering what has arrived, when stopped (default: 30)"
    add("--drain-seconds", type=seconds, default=30.0, metavar="SECONDS", help=about)
    about = "a batch that does not end makes the server not live after so long (default: 120)"
    add("--stuck-seconds", type=seconds, default=120.0, metavar="SECONDS", help=about)
    add("--log-format", choices=("text", "json"), default="text",
        help="one line per event, with a time stamp (default: text)")  # fmt: skip
    add("--cache", metavar="DIR|URL", help="the compilation cache (default: your own)")
    add("--on", metavar="ray[://HOST:PORT]", help="serve with replicas in Ray Serve")
    add("--replicas", type=_replicas, default=(1, 4), metavar="MIN:MAX",
        help="with --on: fewest and most replicas (default: 1:4)")  # fmt: skip
    about = "with --on: CPUs per replica (default: 1)"
    add("--replica-cpus", type=float, default=1.0, metavar="N", help=about)
    about = "with --on: GPUs per replica (default: 0)"
    add("--replica-gpus", type=float, default=0.0, metavar="N", help=about)


def handle(options: argparse.Namespace) -> int:
    import time

    begin = time.time()
    if not (options.targets or options.hf or options.repository):
        options.parser.error("give FILE:NAME, --hf WORKSPACE or --repository DIR")
    repository = None
    if options.repository:
        repository = Path(options.repository)
        if not repository.is_dir():
            options.parser.error(f"--repository {options.repository}: no such folder")
    if options.hf:
        # Read by OpenBLAS when it is loaded, which is later: with a thread per core, the small
        # matrices of a fit take up to sixty times as long on a machine that does anything else.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # On a GPU, JAX would first reserve most of the memory, which takes seconds.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if options.cache:
        os.environ["FIRSTLIGHT_CACHE_DIR"] = location(options.cache)
    token = None
    if options.token_file:
        from firstlight.token_file import read_token

        token = read_token(options.token_file)
    _require_installed("a server", "serve", "jax", "httptools", "msgspec", "uvloop")
    if options.grpc_port is not None:
        _require_installed("--grpc-port", "grpc", "grpc", "google.protobuf")
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what goes wrong is said by us
    from functools import partial

    from firstlight.serve import log
    from firstlight.serve.http_server import Limits
    from firstlight.serve.running import Settings, run
    from firstlight.serve.targets import declared, need_jax

    log.set_up(options.log_format == "json")
    given = {
        "body_bytes": options.max_body,
        "request_seconds": options.request_seconds,
        "write_seconds": options.write_seconds,
    }
    settings = Settings(
        options.host,
        options.port,
        token,
        max_bytes=options.memory_limit,
        drain_delay=options.drain_delay,
        drain_seconds=options.drain_seconds,
        stuck_seconds=options.stuck_seconds,
        limits=Limits(**{name: value for name, value in given.items() if value}),
        grpc_port=options.grpc_port,
        otlp=_traces(options),
        repository=repository,
        with_jax=bool(options.hf or repository) or need_jax(options.targets),
    )
    if options.otlp:
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = options.otlp  # where metrics are sent too
    if options.on:
        return _on_cluster(options, settings)
    return run(partial(declared, options.targets, options.hf), settings, begin)


def _on_cluster(options: argparse.Namespace, settings: Settings) -> int:
    if options.grpc_port is not None:
        options.parser.error("--on serves HTTP only, without --grpc-port")
    from firstlight.cluster.connection import parse, require_ray
    from firstlight.cluster.serving import Scale, serve_on
    from firstlight.cluster.serving_replica import Replicated
    from firstlight.serve.running import print_line

    is_local = parse(options.on) is None
    require_ray()
    least, most = options.replicas
    scale = Scale(least, most, options.replica_cpus, options.replica_gpus)
    what = Replicated(tuple(options.targets), options.hf, settings, is_local)
    return serve_on(options.on, what, scale, print_line)


def _traces(options: argparse.Namespace) -> Sampled | None:
    from firstlight.errors import FirstlightError
    from firstlight.serve.traces import destination
    from firstlight.telemetry.warning_line import say_once

    found = destination(options.otlp, os.environ)
    if found is None:
        return None
    try:
        _require_installed("sending traces", "opentelemetry", "opentelemetry.proto")
    except FirstlightError as error:
        if options.otlp:
            raise
        say_once("traces", f"{error} OpenTelemetry's variables name a collector.")
        return None
    return found


def _require_installed(what: str, extra: str, *modules: str) -> None:
    from importlib.util import find_spec

    from firstlight.errors import FirstlightError

    def is_missing(name: str) -> bool:
        try:
            return find_spec(name) is None
        except ModuleNotFoundError:  # not even its package
            return True

    if missing := [name for name in modules if is_missing(name)]:
        raise FirstlightError(
            f"{what} needs {', '.join(missing)}: pip install 'firstlight[{extra}]'."
        )


def _replicas(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    try:
        values = int(low), int(high or low)
    except ValueError:
        values = 0, 0
    if not 1 <= values[0] <= values[1]:
        raise argparse.ArgumentTypeError(f"{text!r}: give MIN:MAX, such as 1:4")
    return values
