"""Makes `trace_samples` and `trace_logs` importable from all tests of the trace."""
