"""Runs within a watched process: standard library only, and JAX once the program imports it."""
