"""Reads the logs of a trace into a `Trace`."""
