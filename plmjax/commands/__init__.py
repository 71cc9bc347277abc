"""The commands of `plmjax`, one function each: it calls the library and prints the result.

The docstring of a function is the text of its `--help`. The modules here do not import JAX when they are imported. JAX
reads the environment only once, at its import, and `plmjax.commands.cli.main` sets the environment first.
"""
