"""A trace as people and programs read it: terminal, HTML, JSON, Chrome trace, diff."""
