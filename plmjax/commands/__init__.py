"""The commands of `plmjax`, one function each: it asks the library, and prints the result.

The docstring of a function is what its `--help` says. No module that is imported here when a module is imports JAX,
which reads the environment once, when it is imported: `plmjax.cli.main` sets it first.
"""
