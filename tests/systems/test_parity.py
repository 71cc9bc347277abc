"""Every module of every system equals its reference: outputs, hidden states, gradients."""

import dataclasses
from typing import Any

import flax.linen as nn
import pytest

from tests.families import FAMILIES, IN_TRANSFORMERS
from tests.families.family import Family
from tests.systems.comparison import assert_equals_reference


def compared(family: Family) -> dict[str, nn.Module]:
    """Name -> module: all of the row's, and its first two that predict with every published switch."""
    modules = [head.module for head in family.heads] + list(family.bodies)
    named: dict[str, nn.Module] = {}
    for module in dict.fromkeys(modules):
        name = type(module).__name__
        named[f"{name} {len(named)}" if name in named else name] = module
    switched = [head.module for head in family.heads if head.predicts or head is family.heads[0]]
    for module in switched[: 2 if len(family.heads) > 3 else 1]:
        for switch in family.switches:
            changed = module.clone(config=dataclasses.replace(module.config, **switch))
            named[f"{type(module).__name__} {' '.join(map(str, switch.values()))}"] = changed
    return named


SETTINGS = ("ib_bert", "eurobert", "neobert")
"""Systems that are settings of another one: MobileBERT's teacher, and two of ModernBERT's."""


def by_day(name: str, family: Family, module: nn.Module, kind: str) -> bool:
    """The first head of every system with code of its own, with its first kind of inputs, and BERT's of sequences.

    Further heads are a product or two upon the same layers, and every switch has a layer of its own, with a test.
    """
    first, of_sequences = family.heads[0].module, type(module).__name__ == "BertForSequenceClassification"
    return name not in SETTINGS and kind == next(iter(family.batches)) and (module == first or of_sequences)


# Half a second to five each: pytest -m nightly tests/systems/test_parity.py
CASES = [
    pytest.param(
        *(family, module, kind),
        id=f"{name}-{case}-{kind}",
        marks=() if by_day(name, family, module, kind) else pytest.mark.nightly,
    )
    for name, family in FAMILIES.items()
    for case, module in compared(family).items()
    for kind in family.batches
]


@pytest.mark.parametrize(("family", "module", "kind"), CASES)
def test_outputs_and_gradients_equal_the_reference(family: Family, module: nn.Module, kind: str) -> None:
    assert_equals_reference(module, family.reference(module, family.batch(module, kind)))


WITHOUT_LEARNING = (
    "bert", "roberta", "albert", "electra", "modernbert", "modernbert_decoder", "eurobert", "deberta", "distilbert",
    "mobilebert", "longformer", "transformer", "bart", "led",
)  # fmt: skip
"""Systems whose tables in transformers give the padding token no gradient."""


def tables(model: Any) -> list[Any]:
    """The tables of a transformers model that know a padding token."""
    return [module for module in model.modules() if getattr(module, "padding_idx", None) is not None]


@pytest.mark.parametrize("name", IN_TRANSFORMERS)
def test_which_tables_of_transformers_know_a_padding_token(name: str) -> None:
    family = FAMILIES[name]
    model = family.transformers.model(family.bodies[0])
    known = {type(table).__name__ for table in tables(model)} & {"Embedding", "BartScaledWordEmbedding"}
    assert bool(known) == (name in WITHOUT_LEARNING)


READ_ELSEWHERE = ("roberta", "longformer", "mobilebert")


@pytest.mark.parametrize(
    "name",
    [
        # One to three seconds each for the others, whose tables are flax's, too: pytest -m nightly tests/systems
        pytest.param(name, marks=() if name == "bert" else pytest.mark.nightly)
        for name in WITHOUT_LEARNING
        if name not in READ_ELSEWHERE
    ],
)
def test_a_padding_token_that_is_read_learns(name: str) -> None:
    """Deviation: not in transformers, with which all else is equal.

    RoBERTa's and Longformer's takes the token for padding wherever it stands, and gives it a position of its own.
    MobileBERT's reads the padding behind a text too: tests/models/test_mobilebert.py.
    """
    family = FAMILIES[name]
    module = family.bodies[0]
    config, batch = family.reference_config(module), family.batch(module)
    model = family.transformers.model(module)
    ids = "decoder_input_ids" if "decoder_input_ids" in batch else "input_ids"
    batch[ids] = batch[ids].copy()
    batch[ids][0, 0] = config.pad_token_id
    with pytest.raises(AssertionError, match="embedding"):
        assert_equals_reference(module, family.transformers.of_model(module, model, batch))
    model.zero_grad()
    for table in tables(model):
        table.padding_idx = None
    assert_equals_reference(module, family.transformers.of_model(module, model, batch))
