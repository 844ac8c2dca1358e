"""A process's side of a cache shared by machines: it asks, verifies and sends, with short waits."""
