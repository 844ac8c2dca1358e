"""A first tier that compiles nothing: the program of a function, run by NumPy.

`numpy_rules` and `indexing_rules` compute primitives, `interpreter` whole programs;
`signature_calls`
decides who answers a call.
"""
