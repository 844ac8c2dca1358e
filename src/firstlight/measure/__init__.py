"""How it is measured: fresh processes, a declared cache, phases, memory, and nothing computed."""
