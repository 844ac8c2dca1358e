"""`firstlight load URL`: ask a server, and keep what was seen as a run."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from firstlight.cli.values import add_command, between, positive, seconds

if TYPE_CHECKING:
    from firstlight.cli.values import Commands
    from firstlight.load.generator import Loop, Seen
    from firstlight.load.target import Target

EPILOG = """\
examples:
  firstlight load http://127.0.0.1:8000/models/mlp                 32 connections, 10 s, 3 rounds
  firstlight load http://127.0.0.1:8000/models/mlp --rate 2000     an open loop: latency counts from
                                                                   when a request was due

Without --body, each request is one row of ones, in the shape from the server's metadata. Requests
go to other machines only if --allow-host names them.

exit codes: 0 every answer was 2xx or 429; 1 some were not; 2 wrong usage, or no answer"""


def add_to(commands: Commands) -> None:
    parser = add_command(
        commands,
        "load",
        handle,
        "Send a bounded load to an HTTP server, in a closed or an open loop.",
        EPILOG,
    )
    add = parser.add_argument
    add("url", metavar="URL", help="where to POST, such as http://127.0.0.1:8000/models/mlp")
    add("-c", "--connections", type=between(1, 1024), default=32, metavar="N",
        help="concurrent connections (default: 32)")  # fmt: skip
    about = "length of a round (default: 10)"
    add("--seconds", type=seconds, default=10.0, metavar="SECONDS", help=about)
    add("--rounds", type=between(1, 1000), default=3, metavar="N",
        help="number of rounds, each with new connections (default: 3)")  # fmt: skip
    add("--rate", type=positive(1e6, "requests per second"), metavar="R",
        help="requests per second, in an open loop")  # fmt: skip
    add("--requests", type=int, metavar="N", help="send at most N requests per round")
    add(
        "--body",
        type=Path,
        metavar="FILE",
        help="the body of every request (default: one row of ones)",
    )
    add("--token-file", metavar="FILE", help="a file with the bearer token to send")
    add("--allow-host", metavar="NAME", help="allow this host, other than this machine")
    add(
        "--out",
        type=Path,
        metavar="DIR",
        help="output directory; must be new (default: firstlight-runs/…)",
    )


def handle(options: argparse.Namespace) -> int:
    import asyncio

    from firstlight.load.generator import MAX_REQUESTS, MAX_SECONDS, Loop
    from firstlight.load.target import target_of

    if options.seconds > MAX_SECONDS:
        options.parser.error(f"--seconds: at most {MAX_SECONDS:g}")
    if options.requests is not None and not 1 <= options.requests <= MAX_REQUESTS:
        options.parser.error(f"--requests: 1 to {MAX_REQUESTS}")
    token = None
    if options.token_file:
        from firstlight.token_file import read_token

        token = read_token(options.token_file).decode()
    body = options.body.read_bytes() if options.body else None
    target = target_of(options.url, options.allow_host, body, token)
    loop = Loop(
        options.connections, options.seconds, options.rate, options.requests or MAX_REQUESTS
    )
    return asyncio.run(_measured(target, loop, options.rounds, options.out))


async def _measured(target: Target, loop: Loop, rounds: int, out: Path | None) -> int:
    """Ask, and keep every round as it ends."""
    from firstlight.load.generator import ask
    from firstlight.load.recording import checked, plan_for, timed
    from firstlight.load.summary import lines
    from firstlight.records import now
    from firstlight.records.run_directory import RunDirectory
    from firstlight.runs import conclude, default_path

    plan = plan_for(target, loop, rounds)
    single = replace(loop, connections=1, rate=None, max_requests=1)
    begin, first = now(), await ask(target, single)
    directory = RunDirectory.create(out or default_path(plan), plan)
    loads: list[Seen] = []
    try:
        directory.keep(checked(plan, target, loop, first, begin))
        for index in range(rounds):
            begin, first = now(), await ask(target, single)
            loads.append(await ask(target, loop))
            directory.keep(timed(plan, index, first, loads[-1], begin))
    finally:
        run = conclude(directory, plan)
        directory.close()
    for line in lines(loop, loads):
        print(line)
    print(f"Run: {run.path}")
    codes = {code for seen in loads for code in seen.statuses}
    return 0 if all(200 <= code < 300 or code == 429 for code in codes) else 1
