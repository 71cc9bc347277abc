"""Tests and benchmarks name what the project has: a nightly test or a benchmark does not wait for its run to tell."""

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.paths import ROOT

PACKAGES = ("plmjax", "tpu", "experiments")
"""What is renamed, and what the files below import."""


def imported(nodes: list[ast.AST]) -> dict[str, Any]:
    """Name in a file -> what it stands for, of everything that the file imports from `PACKAGES`.

    A name that is also an argument or a variable somewhere in the file is left out.
    """
    found: dict[str, Any] = {}
    hidden = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
            module = importlib.import_module(node.module)
            for each in node.names:
                if not hasattr(module, each.name):
                    importlib.import_module(f"{node.module}.{each.name}")
                found[each.asname or each.name] = getattr(module, each.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            hidden.add(node.id)
        elif isinstance(node, ast.arg):
            hidden.add(node.arg)
    return {name: value for name, value in found.items() if name not in hidden}


def lookup(node: ast.expr, names: dict[str, Any]) -> Any:
    """What a name or a dotted name stands for; None for other expressions, and for fields of an object."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if not isinstance(node, ast.Attribute):
        return None
    owner = lookup(node.value, names)
    if inspect.ismodule(owner):
        return getattr(owner, node.attr)
    return getattr(owner, node.attr, None) if inspect.isclass(owner) else None


def bind(call: ast.Call, called: Any) -> None:
    """Raises TypeError if a function or class does not take the arguments of a call."""
    try:
        signature = inspect.signature(called)
    except ValueError:  # a class without a constructor of its own
        return
    named = {each.arg: None for each in call.keywords if each.arg}
    if len(named) < len(call.keywords) or any(isinstance(each, ast.Starred) for each in call.args):
        signature.bind_partial(**named)
    else:
        signature.bind(*call.args, **named)


def mistakes(path: Path) -> Iterator[str]:
    """What a file names and the project has not: modules, their attributes, and arguments of functions and classes."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    try:
        names = imported(nodes)
    except ImportError as error:
        yield f"{path}: {error}"
        return
    for node in nodes:
        try:
            if isinstance(node, ast.Attribute):
                lookup(node, names)
            elif isinstance(node, ast.Call) and (called := lookup(node.func, names)) is not None:
                if not (called.__module__ or "").startswith(PACKAGES):
                    continue
                bind(node, called)
        except (AttributeError, TypeError) as error:
            yield f"{path}:{node.lineno}: {ast.unparse(node)[:60]}: {error}"


@pytest.mark.parametrize("folder", ["tests", "benchmarks"])
def test_what_is_named_is_there(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert len(files) > 30
    assert not [one for path in files for one in mistakes(path)]


def test_a_renamed_function_and_a_renamed_argument_are_found(tmp_path: Path) -> None:
    path = tmp_path / "test_steps.py"
    path.write_text(
        "from plmjax.contracts import execution\n"
        "from plmjax.models.bert import BertConfig\n"
        "execution.REMAT, execution.Execution(matmul_precision='float'), BertConfig.base(vocab_size=8)\n"
    )
    first, second = mistakes(path)
    assert ":3: execution.REMAT: module 'plmjax.contracts.execution' has no attribute 'REMAT'" in first
    assert "got an unexpected keyword argument 'matmul_precision'" in second
    path.write_text("from plmjax.contracts import placing\n")
    (only,) = mistakes(path)
    assert "No module named 'plmjax.contracts.placing'" in only
