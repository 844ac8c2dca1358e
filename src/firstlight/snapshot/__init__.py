"""Immutable snapshots of runs: `publishing` makes one, `opening` reads one without trusting it,
`verifying` reports what holds and what could not be checked. A snapshot is self-contained.
"""
