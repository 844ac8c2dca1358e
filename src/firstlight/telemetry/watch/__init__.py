"""What runs in a process under watch: the standard library, and JAX once the program has it."""
