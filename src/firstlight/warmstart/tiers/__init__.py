"""A first tier that compiles nothing: the program of a function, run by NumPy.

`numpy_rules`, `indexing_rules` and `linear_algebra_rules` compute primitives, `interpreter` whole
programs; `tiered` decides what answers a call, `signature_calls` keeps what that took and compiles;
`remembered` are the programs for which it was no help.
"""
