"""Comparability of measurements, and verdicts on their differences: for gate, replication, site."""
