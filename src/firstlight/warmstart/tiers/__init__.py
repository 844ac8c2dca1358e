"""A first tier that compiles nothing: NumPy runs a function's program.

`numpy_rules`, `indexing_rules` and `linear_algebra_rules` compute primitives, `interpreter` runs
programs. `tiered` decides which tier answers a call; `signature_calls` times calls and compiles;
`remembered` stores for which programs the first tier was too slow.
"""
