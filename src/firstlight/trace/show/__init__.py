"""Presents a trace to people and programs: terminal, HTML, JSON, Chrome trace, diff."""
