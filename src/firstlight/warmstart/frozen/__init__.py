"""Frozen functions: executables in a file, which a fresh process runs without compiling.

`freezing` makes the file and `proving` tries it in a fresh process; `loading` is what a program
uses. `artifact` is the content of the file, `sealing` who may have written it, `places` where it
may run, `trees` its nested arguments, `jaxlib_runtime` the way to run it without JAX.
"""
