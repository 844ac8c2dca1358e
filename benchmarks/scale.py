"""What does it cost to spread work over machines with Ray?

    python benchmarks/scale.py PART [options]

On Ray, with several nodes on this machine: toys (two nodes against two threads), samples (a fresh
process asked for over Ray), kill (of a node, at random moments), worker (time to its first fit),
costs (per task, object and checkpoint).

Sides run in turns, and every figure is a ratio of medians of pairs with its interval. Use a quiet
machine.
"""

from __future__ import annotations

import argparse

import scale_on_ray


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parts = parser.add_subparsers(title="parts", metavar="PART", required=True)
    for add in PARTS:
        add(parts)
    options = parser.parse_args()
    options.handle(options)


#: Each adds its own subcommand, whose default `handle` measures and prints.
PARTS = (*scale_on_ray.PARTS,)


if __name__ == "__main__":
    main()
