"""A function takes at most four arguments by position, so that a call names the others."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MOST = 4
CALLERS = ("defvjp", "shard_map", "tree.map", "vmap")
"""Functions of JAX that call those which they are given, and pass what differs from call to call by position."""
BY_POSITION = "custom_vjp"
"""JAX finds the arguments that are not differentiated by their positions (`nondiff_argnums`), and takes no others."""
BY_NAME = "pytest.fixture"
"""pytest passes fixtures and parameters by name, to fixtures and to tests."""

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def by_position(function: Function) -> list[str]:
    """The arguments that a call may give by position, without the object of a method."""
    taken = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    return taken[1:] if taken[:1] in (["self"], ["cls"]) else taken


def given_to_jax(tree: ast.Module) -> set[str]:
    """Names of the functions that `CALLERS` are given in a file."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    calls = [call for call in calls if ast.unparse(call.func).endswith(CALLERS)]
    return {given.id for call in calls for given in call.args if isinstance(given, ast.Name)}


@pytest.mark.parametrize("folder", ["plmjax", "experiments", "benchmarks", "tpu", "docs", "tests"])
def test_functions_take_at_most_four_arguments_by_position(folder: str) -> None:
    for file in (ROOT / folder).rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        functions = [node for node in ast.walk(tree) if isinstance(node, Function)]
        if not (long := [each for each in functions if len(by_position(each)) > MOST]):
            continue
        known = given_to_jax(tree)
        for each in long:
            name = getattr(each, "name", "lambda")
            marks = " ".join(map(ast.unparse, getattr(each, "decorator_list", ())))
            of_pytest = folder == "tests" and (name.startswith("test_") or BY_NAME in marks)
            assert of_pytest or BY_POSITION in marks or name in known, (file, each.lineno, name, by_position(each))
