"""What runs inside of a traced process: the standard library only, and nothing raises into it."""
