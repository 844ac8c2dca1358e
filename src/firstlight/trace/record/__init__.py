"""The recorder in a traced process: standard library only, and nothing raises into the program."""
