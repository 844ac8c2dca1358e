"""Measures a snapshot again on this machine: verify it, select its cases, measure, compare.

Nothing of a snapshot is executed: its cases are looked up by name in this installation, and a
publisher's own program runs only from a file that the user names, if its hash is the recorded one.
"""
