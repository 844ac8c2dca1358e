"""Logs of a trace, read and modelled."""
