"""Immutable snapshots of runs: `publishing` makes one, `opening` reads one without trusting it, and
`verifying` says what holds and what could not be checked. A snapshot answers from its files alone.
"""
