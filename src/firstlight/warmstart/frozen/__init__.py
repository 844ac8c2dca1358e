"""Frozen functions: executables in a file, which a fresh process runs without compiling.

`freezing` makes the file, `proving` tries it in a fresh process, `loading` loads it in a program.
`artifact` is the content of the file; `sealing` checks who may have written it, `places` where it
may run. `trees` flattens nested arguments, `jaxlib_runtime` runs executables without JAX.
"""
