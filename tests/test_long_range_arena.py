"""ListOps follows the published rules, and every model takes its rows."""

import importlib
import random
import statistics
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.data import tokenizers
from tests.paths import ROOT


@pytest.fixture
def arena(monkeypatch) -> ModuleType:
    """benchmarks/long_range_arena.py."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("long_range_arena")


def parsed(symbols: list[str]) -> Any:
    """A digit, or an operator with its trees, read from the front."""
    symbol = symbols.pop(0)
    if symbol.isdigit():
        return int(symbol)
    parts = []
    while symbols[0] != "]":
        parts.append(parsed(symbols))
    symbols.pop(0)
    return symbol, parts


def computed(tree: Any) -> int:
    """The value, by numpy."""
    if isinstance(tree, int):
        return tree
    rules = {"<": np.min, ">": np.max, "=": lambda values: np.floor(np.median(values)), "+": lambda x: np.sum(x) % 10}
    return int(rules[tree[0]]([computed(part) for part in tree[1]]))


def depth(tree: Any) -> int:
    return 1 if isinstance(tree, int) else 1 + max(map(depth, tree[1]))


def operators(tree: Any) -> list[tuple[str, int]]:
    """Each operator with the number of its trees."""
    return (
        []
        if isinstance(tree, int)
        else [(tree[0], len(tree[1])), *(each for part in tree[1] for each in operators(part))]
    )


def test_trees_have_the_published_lengths_depths_operators_and_values(arena) -> None:
    found = arena.listops(40)
    assert found == arena.listops(40) and found[:30] == arena.listops(30) and found != arena.listops(40, seed=1)
    assert all(125 < len(symbols) < 500 for symbols, _ in found) and len(dict(found)) == 40
    trees = [parsed(list(symbols)) for symbols, _ in found]
    assert [computed(tree) for tree in trees] == [value for _, value in found]
    assert max(map(depth, trees)) == 10
    counts = [each for tree in trees for each in operators(tree)]
    assert {name for name, _ in counts} == set("<>=+") and {count for _, count in counts} == set(range(2, 11))


def test_a_quarter_of_the_trees_have_an_operator(arena) -> None:
    draw = random.Random(0)
    share = statistics.mean(not arena.tree(draw)[0].isdigit() for _ in range(4000))
    assert 0.22 < share < 0.28


def test_guesses_are_of_the_labels_and_of_the_operators(arena, tmp_path: Path) -> None:
    rows = ["<12]\t1", "<13]\t1", ">12]\t2", ">22]\t2", ">29]\t9"]
    (tmp_path / "held_out.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    assert list(arena.simple_guesses(tmp_path / "held_out.tsv").values()) == [0.4, 0.8]


def test_every_model_labels_rows_of_the_benchmark(arena, tmp_path: Path) -> None:
    files = arena.write_listops(tmp_path / "listops", 6, 2)
    tokenizer = arena.trained_tokenizer(files[0], arena.VOCABULARY, tmp_path / "tokenizer")
    assert tokenizers.load(tokenizer.path).vocabulary.size == arena.VOCABULARY
    assert [len(path.read_text().splitlines()) for path in files] == [7, 3]
    assert arena.LENGTH >= arena.LONGEST + 1  # at most 499 symbols and two special tokens
    ids = jax.ShapeDtypeStruct((2, arena.LENGTH), np.int32)
    for name in arena.PUBLISHED:
        run = arena.run_of(name, files, tokenizer, 1.0)
        module = run.model.module(Purpose.TEXT_LABELS, Execution(), 10)
        shapes = jax.eval_shape(lambda ids, module=module: module.init_with_output(jax.random.key(0), ids)[0], ids)
        assert shapes.logits.shape == (2, 10) and run.model.width == 64 and run.model.depth == 2
    assert (
        arena.config_of("local attention").widest_window == 32 and arena.config_of("Transformer").widest_window is None
    )
