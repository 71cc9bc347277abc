"""The commands of `plmjax`, one function each, which calls the library and prints the result.

The docstring of a function is the text of its `--help`.
"""
