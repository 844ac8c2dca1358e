"""Immutable snapshots of runs: published, signed, verified, listed, replicated.

    raw run files ──▶ contents (everything derived) ──▶ index ──▶ id ──▶ a directory of that name

A snapshot answers from its files alone. `opening` reads one without trusting it, `verifying` says
what holds and what could not be checked, `publishing` makes one.
"""
