"""Dropout falls where it falls in transformers, with the rate that the config has for the place."""

import collections
import dataclasses
import math
import re
from typing import Any

import flax.linen as nn
import jax
import pytest

from tests.families import FAMILIES, IN_TRANSFORMERS, REPRESENTATIVES
from tests.optional import torch
from tests.systems.modules import boxed_shapes, recorded_draws

LAYERS = (
    "num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers",
)  # fmt: skip
LOOPED = re.compile(r"layers$|^group_\d+$")
"""The name of a module that a loop runs through."""
Draws = collections.Counter[tuple[float, int | None]]
"""(rate, numbers that are dropped or kept) -> how many draws there are; None for numbers of attention heads."""


def numbers(shape: tuple[int, ...] | None) -> int | None:
    """T5 drops values where transformers drops probabilities: the same, with one mask for all queries."""
    return None if shape is None or len(shape) == 4 else math.prod(shape)


def drawn(module: nn.Module, batch: dict[str, Any]) -> Draws:
    """Those of our module, which is traced."""
    params, loops = nn.meta.unbox(boxed_shapes(module)), collections.defaultdict(list)
    rngs = {"dropout": jax.random.key(0)}
    with recorded_draws() as found:
        jax.eval_shape(lambda params: module.apply({"params": params}, **batch, deterministic=False, rngs=rngs), params)
    for draw in found:
        loop = next((draw.path[:end] for end, name in enumerate(draw.path, start=1) if LOOPED.search(name)), ())
        loops[loop].append((draw.rate, numbers(draw.shape)))
    draws = collections.Counter(loops.pop((), ()))
    for each in loops.values():  # flax traces the body of a loop twice
        first, second = each[: len(each) // 2], each[len(each) // 2 :]
        assert first == second
        draws.update(first)
    return draws


def drawn_there(model: Any, batch: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Draws:
    """Those of transformers' model, which is run."""
    found: Draws = collections.Counter()

    def dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if p and training:
            found[p, numbers(x.shape)] += 1
        return x

    monkeypatch.setattr(torch.nn.functional, "dropout", dropout)
    model.train()(**{name: torch.tensor(array).long() for name, array in batch.items()})
    return found


# One to three seconds for each system that has the dropout of another: pytest -m nightly tests/systems/test_dropouts.py
CASES = [pytest.param(name, marks=() if name in REPRESENTATIVES else pytest.mark.nightly) for name in IN_TRANSFORMERS]


@pytest.mark.parametrize("name", CASES)
def test_dropouts_are_those_of_transformers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many of each rate and size; every rate of the config is another number, and every stack has one layer."""
    family = IN_TRANSFORMERS[name]
    module, fields = family.bodies[0], {field.name for field in dataclasses.fields(family.bodies[0].config)}
    rates = sorted(field for field in fields if "drop" in field)
    changes = {field: number / 16 for number, field in enumerate(rates, start=1)} | dict.fromkeys(fields & {*LAYERS}, 1)
    of_layers = {field: getattr(module.config, field) for field in fields}  # a number for each layer
    depths = {module.config.depth, *(of_layers[field] for field in fields & {*LAYERS})}
    changes |= {
        field: value[:1] for field, value in of_layers.items() if isinstance(value, tuple) and len(value) in depths
    }
    if name == "eurobert":  # transformers drops attention probabilities alone
        changes |= {rate: 0.0 for rate in rates if rate != "attention_dropout"}
    if name in (
        "modernbert",
        "modernbert_decoder",
    ):  # transformers has one rate for the probabilities and for the output of attention
        changes["attention_output_dropout"] = changes["attention_dropout"]
    module = module.clone(config=dataclasses.replace(module.config, **changes))
    model, batch = family.transformers.model(module), family.batch(module)
    ours, theirs = drawn(module, batch), drawn_there(model, batch, monkeypatch)
    if name == "albert":  # the released modeling.py drops the output of the feed-forward network; transformers does not
        theirs[changes["hidden_dropout_prob"], batch["input_ids"].size * module.config.hidden_size] += 1
    if name == "xlnet":  # transformers has one distance more, which no query and key are apart
        rows, length = batch["input_ids"].shape
        ours = collections.Counter(
            (rate, rows * 2 * length * 24 if count == rows * (2 * length - 1) * 24 else count)
            for rate, count in ours.elements()
        )
    if name == "deberta":  # transformers drops features of the table, and we of the vectors that are taken from it
        length, table = batch["input_ids"].shape[1], module.config.distance_table
        ours = collections.Counter(
            (rate, table * 24 if count == (2 * length - 1) * 24 else count) for rate, count in ours.elements()
        )
    if name == "longformer":  # transformers pads rows to two windows of 12, and drops probabilities [B N, 4, 24] too
        rows, length = batch["input_ids"].shape
        counts = {rows * 24 * 24: rows * length * 24, rows * 3 * 4 * 24: None}
        theirs = collections.Counter((rate, counts.get(count, count)) for rate, count in theirs.elements())
    if name == "reformer":  # transformers drops columns of positions with torch's dropout2d
        theirs[changes["hidden_dropout_prob"], batch["input_ids"].shape[0] * module.config.axial_pos_shape[1]] += 1
    if name == "led":  # the same, with 4 heads; and the 3 heads of its decoder are one axis with the rows
        rows, length = batch["input_ids"].shape
        targets = batch["decoder_input_ids"].shape[1]
        counts = {rows * 24 * size: rows * length * size for size in (24, 37)} | {rows * 4 * 4 * 24: None}
        counts |= {rows * 3 * targets * keys: None for keys in (targets, length)}
        theirs = collections.Counter((rate, counts.get(count, count)) for rate, count in theirs.elements())
    if name == "gpt":  # of whose table rows are dropped before they are looked up: tests/models/test_gpt.py
        ours, theirs = (collections.Counter(rate for rate, _ in draws.elements()) for draws in (ours, theirs))
    assert ours == theirs and len(ours) > 0


KEPT = {
    "activation_dropout": ("transformer", "bart", "led", "lite_transformer"),
    "attention_dropout": ("cvt",),
    **{name: () for name in ("classifier_dropout", "classifier_dropout_prob", "qa_dropout", "seq_classif_dropout")},
    **{name: () for name in ("summary_first_dropout", "summary_last_dropout", "cls_dropout", "pooler_dropout")},
}
"""Rates that are not those of all layers: of a head, or of the systems named."""


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in ("nnlm", "word2vec", "glove", "elmo")])
def test_one_rate_is_that_of_all_layers(name: str) -> None:
    """It changes nothing else; a rate of a head, or of what the published rate leaves out, stays."""
    config = FAMILIES[name].heads[0].module.config
    before, after = vars(config), vars(config.with_dropout(0.37))
    for field, value in before.items():
        drops = "drop" in field or field == "dropatt"
        kept = not drops or (field in KEPT and (not KEPT[field] or name in KEPT[field]))
        assert after[field] == (value if kept else 0.37), field
