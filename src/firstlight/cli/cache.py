"""`firstlight cache`: look into a compilation cache, clean it, explain its misses, or serve one."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from firstlight.cli import cache_contents as contents
from firstlight.cli.values import add_actions, between, signals_interrupt, size

if TYPE_CHECKING:
    import ssl

    from firstlight.cli.values import AddArgument, Commands

EPILOG = """\
A cache is a folder, or the URL of a server or an object store. Your own is FIRSTLIGHT_CACHE_DIR,
or ~/.cache/firstlight if that is not set.

exit codes: 0 success; 1 damaged entries (verify), or nothing to explain; 2 wrong usage, or a cache
that cannot be read"""


def add_to(commands: Commands) -> None:
    about = "Look into a compilation cache, clean it, explain its misses, or serve one."
    action = add_actions(commands, "cache", about, EPILOG)
    for name, about, handle in (
        ("ls", "list the entries of a cache", contents.ls),
        ("stats", "count the entries of a cache, by kind of machine", contents.stats),
        ("verify", "check every entry; exit code 1 if one is damaged", contents.verify),
        ("prune", "remove entries by age, size, kind of machine or signer", contents.prune),
    ):
        add = action(name, about, handle)
        add("cache", nargs="?", metavar="DIR|URL", help="the cache (default: your own)")
        add("--json", action="store_true", help="print JSON")
        if name == "verify":
            add("--repair", action="store_true", help="remove damaged entries")
        elif name == "prune":
            _add_prune(add)
    add = action("push", "copy the entries of your folder to a shared cache", contents.push)
    add("url", metavar="URL", help="the shared cache")
    add("--json", action="store_true", help="print JSON")
    add = action("explain", "explain why a function was compiled again", contents.explain)
    add("function", metavar="FUNCTION", help="the name of the function, such as train_step")
    caches = "one cache: its last two compiles are compared; two: the last one in each"
    add("caches", nargs="*", metavar="DIR|URL", help=caches)
    add("--json", action="store_true", help="print JSON")
    _add_serve(action("serve", "serve a cache to other machines over HTTP", serve))


def _add_prune(add: AddArgument) -> None:
    add(
        "--max-bytes",
        type=partial(size, low=0),
        metavar="SIZE",
        help="remove the least recently used entries until at most this is left: 500M, 4G, …",
    )
    add(
        "--older-than",
        type=contents.age,
        metavar="AGE",
        help="remove what has not been used for this long: 12h, 30d, 2w, …",
    )
    other = "remove entries for other versions of JAX or Python, or other processors"
    add("--incompatible", action="store_true", help=other)
    add(
        "--signed-by",
        metavar="ID",
        help="remove entries signed by the key with this id (or its first characters)",
    )
    add("--dry-run", action="store_true", help="only list what would be removed")


def _add_serve(add: AddArgument) -> None:
    add("--folder", type=Path, metavar="DIR", help="where entries are kept (default: "
        "~/.cache/firstlight-served)")  # fmt: skip
    add(
        "--host",
        metavar="NAME",
        default="127.0.0.1",
        help="address to listen on (default: this machine only)",
    )
    about = "port to listen on; 0: any (default: 8750)"
    add("--port", type=between(0, 65535), default=8750, metavar="PORT", help=about)
    add(
        "--read-tokens",
        type=Path,
        metavar="FILE",
        help="tokens of clients that may read, one per line",
    )
    add("--write-tokens", type=Path, metavar="FILE", help="tokens of clients that may also write")
    add("--tls-cert", type=Path, metavar="FILE", help="certificate (PEM), for https")
    add("--tls-key", type=Path, metavar="FILE", help="its private key (PEM)")
    add("--max-bytes", type=size, default=2**35, metavar="SIZE", help="size of all entries "
        "together (default: 32G); the least recently used are evicted")  # fmt: skip
    add(
        "--max-entry-bytes",
        type=size,
        default=2**28,
        metavar="SIZE",
        help="size of the largest entry (default: 256M)",
    )


def serve(options: argparse.Namespace) -> int:
    import ipaddress

    from firstlight.warmstart import folder
    from firstlight.warmstart.cache_server.access import Tokens, tokens_in
    from firstlight.warmstart.cache_server.served_entries import ServedEntries
    from firstlight.warmstart.cache_server.server import CacheServer
    from firstlight.warmstart.signing import Signatures, checked_signature

    if options.tls_key and not options.tls_cert:
        options.parser.error("--tls-key needs --tls-cert FILE")
    write = tokens_in(options.write_tokens) if options.write_tokens else ()
    read = tokens_in(options.read_tokens) if options.read_tokens else ()
    try:
        is_local = ipaddress.ip_address(options.host).is_loopback
    except ValueError:
        is_local = options.host == "localhost"
    if not (read or write or is_local):
        options.parser.error(
            f"--host {options.host} can be reached from other machines: give --write-tokens FILE, "
            "and --read-tokens FILE for clients that only read"
        )
    root = folder.opened(str(options.folder or f"{folder.of_user()}-served"))
    signatures = Signatures.of_user()
    check = signatures.verdict if signatures.trusted else checked_signature
    entries = ServedEntries(root, options.max_bytes, options.max_entry_bytes, check)
    address = (options.host, options.port)
    server = CacheServer(address, entries, Tokens(read, write), _tls(options))
    trusts = f"of {len(signatures.trusted)} trusted keys" if signatures.trusted else "of any key"
    print(f"Serving {root} at {server.url}, entries {trusts}.", flush=True)
    _allow_many_connections()
    with server, signals_interrupt():
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("Stopped.", file=sys.stderr)
    return 0


def _allow_many_connections() -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 16_384 if hard == resource.RLIM_INFINITY else min(hard, 16_384)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _tls(options: argparse.Namespace) -> ssl.SSLContext | None:
    import ssl

    if not options.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(options.tls_cert, options.tls_key)
    return context
