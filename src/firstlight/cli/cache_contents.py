"""`firstlight cache ls | stats | verify | prune | push | explain`: the contents of a cache."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from firstlight.records import JsonObject
    from firstlight.warmstart.explain import Difference
    from firstlight.warmstart.inventory import Listed

#: What may differ between two compiles, and what to do about it.
_CAUSES = {
    "shapes": (
        "the shapes or types of its arguments",
        "Pad to a few fixed shapes, and fix dtypes.",
    ),
    "constants": (
        "values that are compiled into it, in a program that is otherwise the same",
        "Pass arrays and numbers that change (random tables, times, learning rates) as arguments.",
    ),
    "code": (
        "the program itself, with the same shapes",
        "Its code, a static argument, x64 mode or a Python value that it branches on has changed.",
    ),
    "jax": ("the version of JAX", "Install the same one, or keep both: entries lie side by side."),
    "jaxlib": ("the version of jaxlib", "Install the same one."),
    "python": ("the version of Python", "Use the same one: what it stores differs."),
    "system": ("the operating system", "Nothing: executables of one do not run on the other."),
    "processor": (
        "what the processor can do",
        "Compile on a machine of each kind; executables of one may not run on the other.",
    ),
    "backend": ("the platform or its driver", "Use the same driver and plugin versions."),
    "flags": ("XLA's flags (XLA_FLAGS, LIBTPU_INIT_ARGS, --xla…)", "Set the same ones."),
    "options": ("JAX's compile options", "Use the same devices, sharding and compiler_options."),
    "devices": ("the devices", "Use the same kind and number of devices."),
    "compression": ("how entries are compressed", "Install zstandard in both, or in neither."),
    "other": ("a part of the key that is not recorded", "Compare the versions of JAX."),
}


def age(text: str) -> float:
    """Parse 12h, 30d or 2w into seconds."""
    units = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
    found = re.fullmatch(r"(\d+)([mhdw])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r}: give an age such as 12h, 30d or 2w")
    return float(found[1]) * units[found[2]]


def ls(options: argparse.Namespace) -> int:
    from firstlight.present.quantities import size, unbroken
    from firstlight.present.terminal import Terminal
    from firstlight.warmstart.caches import cache_at, default_cache

    where = options.cache or default_cache()
    entries = cache_at(where).entries()
    if options.json:
        print(json.dumps([_as_json(one) for one in entries], indent=1))
        return 0
    if not entries:
        print(f"{where}: no entries.", file=sys.stderr)
        return 0
    now = time.time()
    rows = [
        (
            one.function, str(one.about.get("shapes", "")), _short(one.kind),
            unbroken(size(one.size)), _ago(now - one.compiled), _ago(now - one.used),
        )
        for one in entries
    ]  # fmt: skip
    columns = ("function", "shapes", "for", "size", "compiled", "last use")
    Terminal().table(where, columns, rows, texts=3)
    return 0


def stats(options: argparse.Namespace) -> int:
    from firstlight.present.quantities import size, unbroken
    from firstlight.present.terminal import Terminal
    from firstlight.warmstart.caches import cache_at, default_cache

    where = options.cache or default_cache()
    cache = cache_at(where)
    entries = cache.entries()
    kinds = Counter(one.kind for one in entries)
    sizes = Counter[str]()
    for one in entries:
        sizes[one.kind] += one.size
    counts = cache.counts()
    if options.json:
        by_kind = {kind: {"entries": n, "bytes": sizes[kind]} for kind, n in kinds.items()}
        total = {"entries": len(entries), "bytes": sum(sizes.values()), "kinds": by_kind}
        print(json.dumps({**total, "server": counts}, indent=1))
        return 0
    rows = [(kind, str(n), unbroken(size(sizes[kind]))) for kind, n in kinds.most_common()]
    rows.append(("all", str(len(entries)), unbroken(size(sum(sizes.values())))))
    Terminal().table(where, ("for", "entries", "size"), rows)
    if counts:
        hits, lookups = counts.get("hit", 0), sum(counts.values())
        print(f"Since the server started: {hits} hits in {lookups} lookups.")
    return 0


def verify(options: argparse.Namespace) -> int:
    from firstlight.present.plain_text import printable
    from firstlight.present.quantities import counted
    from firstlight.warmstart.caches import cache_at, default_cache

    where = options.cache or default_cache()
    cache = cache_at(where)
    entries = cache.entries()
    troubles = [(one, why) for one in entries if (why := cache.trouble(one)) is not None]
    for one, _ in troubles if options.repair else ():
        cache.remove(one)
    if options.json:
        wrong = [{**_as_json(one), "trouble": why.name.lower()} for one, why in troubles]
        print(json.dumps({"entries": len(entries), "wrong": wrong}, indent=1))
    else:
        for one, why in troubles:
            print(printable(f"{one.path}: {one.function}: {why.value}"))
        removed = ", removed" if options.repair and troubles else ""
        counts = counted(len(entries), "entry", "entries")
        print(f"{counts}, {len(troubles)} that no process would load{removed}.")
        if troubles and not options.repair:
            print("Remove them, to be compiled again: firstlight cache verify --repair")
    return 1 if troubles and not options.repair else 0


def prune(options: argparse.Namespace) -> int:
    from firstlight.present.quantities import counted, size, unbroken
    from firstlight.warmstart.caches import cache_at, default_cache
    from firstlight.warmstart.inventory import to_prune
    from firstlight.warmstart.manifest import kind_here

    given = (options.max_bytes, options.older_than, options.signed_by)
    if given == (None, None, None) and not options.incompatible:
        options.parser.error("give --max-bytes, --older-than, --incompatible or --signed-by")
    cache = cache_at(options.cache or default_cache())
    here = kind_here() if options.incompatible else None

    def is_unwanted(one: Listed) -> bool:
        is_other = here is not None and one.kind != here
        return is_other or bool(options.signed_by and one.signer_id.startswith(options.signed_by))

    chosen = to_prune(cache.entries(), options.max_bytes, options.older_than, is_unwanted)
    for one in chosen if not options.dry_run else ():
        cache.remove(one)
    total = sum(one.size for one in chosen)
    if options.json:
        removed = [one.path for one in chosen]
        print(json.dumps({"removed": removed, "bytes": total, "dry_run": options.dry_run}))
    else:
        what = "Would remove" if options.dry_run else "Removed"
        print(f"{what} {counted(len(chosen), 'entry', 'entries')}, {unbroken(size(total))}.")
    return 0


def push(options: argparse.Namespace) -> int:
    from firstlight.present.quantities import counted
    from firstlight.warmstart.caches import push as send

    sent, there = send(options.url)
    if options.json:
        print(json.dumps({"sent": sent, "there": there}))
    else:
        print(f"{options.url}: {counted(sent, 'entry', 'entries')} sent, {there} were there.")
    return 0


def explain(options: argparse.Namespace) -> int:
    from firstlight.warmstart.caches import cache_at, default_cache
    from firstlight.warmstart.explain import compiles_of, differences

    caches = options.caches or [default_cache()]
    listed = [cache_at(where).entries() for where in caches[:2]]
    found = [compiles_of(options.function, entries) for entries in listed]
    pair = [one for each in found for one in each[: 2 if len(found) == 1 else 1]]
    if len(pair) < 2:
        _say_why_not_explained(options.function, pair, [one for each in listed for one in each])
        return 1
    second, first = sorted(pair, key=lambda one: -one.compiled)
    found_differences = differences(first, second)
    if options.json:
        plain = [
            {"part": d.part.value, "first": d.first, "second": d.second} for d in found_differences
        ]
        about = {"first": _as_json(first), "second": _as_json(second), "differences": plain}
        print(json.dumps(about, indent=1))
    else:
        _print_differences(first, second, found_differences)
    return 0


def _print_differences(first: Listed, second: Listed, found: list[Difference]) -> None:
    from firstlight.present.plain_text import printable

    def line(one: Listed) -> str:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.compiled))
        return f"{when}  on {one.about.get('host', '?')}  {one.function} {one.about.get('shapes')}"

    print(printable(f"Two compiles of {first.function}:\n  {line(first)}\n  {line(second)}"))
    if not found:
        print("Their keys are the same: the second should have found the first.")
        return
    print("They differ in")
    for difference in found:
        what, cure = _CAUSES[difference.part.value]
        print(f"- {what}")
        if difference.first or difference.second:
            print(printable(f"    {difference.first}\n    {difference.second}"))
        print(f"  {cure}")


def _say_why_not_explained(function: str, pair: list[Listed], listed: list[Listed]) -> None:
    from firstlight.present.plain_text import printable
    from firstlight.present.quantities import listed as words

    if pair:
        why = "was compiled once, so there is nothing to compare; the next process finds its entry"
    else:
        known = words(name for name, _ in Counter(one.function for one in listed).most_common())
        why = f"has no entry; these have: {known}" if known else "has no entry: there are none"
    print(printable(f"{function} {why}."), file=sys.stderr)


def _as_json(one: Listed) -> JsonObject:
    return {
        "function": one.function,
        "path": one.path,
        "kind": one.kind,
        "key": one.key,
        "bytes": one.size,
        "compiled": one.compiled,
        "used": one.used,
        "signer": one.signer_id or None,
        "about": one.about,
    }


def _short(kind: str) -> str:
    """`jax 0.10.2, py3.11, 1a2b3c`."""
    found = re.fullmatch(r"jax(.+)-jaxlib.+-(py[\d.]+)-.+-([0-9a-f]{6})[0-9a-f]*", kind)
    return f"jax {found[1]}, {found[2]}, {found[3]}" if found else kind


def _ago(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f} {unit} ago"
    return f"{max(seconds, 0):.0f} s ago"
