"""Makes `trace_samples` and `trace_logs` importable from the tests of every room of the trace."""
