"""Measuring in fresh processes, under a declared cache policy. No statistics are computed here."""
