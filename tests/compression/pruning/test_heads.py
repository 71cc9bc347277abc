"""The choice of the heads that are removed, in one round or several."""

import dataclasses
from pathlib import Path

import flax.traverse_util
import numpy as np
import pytest

from plmjax.compression.pruning.heads import without_least_important
from plmjax.compression.run import Source
from plmjax.contracts.execution import Execution
from plmjax.models.bert import BertConfig
from tests.systems.modules import random_params

OUTPUT, QUERY = "bert/encoder/layers/attention/output/kernel", "attention/query/kernel"
UNUSED = {0: (1, 2), 1: (0, 1, 2, 3), 2: (2,)}
"""Layer -> its heads whose outputs no layer reads."""


@pytest.mark.parametrize("rounds", [1, 3])
def test_the_least_important_heads_are_removed(rounds: int, small_run: Path) -> None:
    """Those of no importance; of a layer in which all are, one stays."""
    source = Source.read(small_run)
    config = BertConfig.tiny(
        vocab_size=800, hidden_size=8, num_hidden_layers=3, num_attention_heads=4, intermediate_size=6
    )
    run = dataclasses.replace(source.description.experiment, model=config)
    params = flax.traverse_util.flatten_dict(random_params(run.objective.module(config, Execution())), sep="/")
    params[OUTPUT] = np.array(params[OUTPUT])
    for layer, heads in UNUSED.items():
        params[OUTPUT][layer][[*heads]] = 0
    source = dataclasses.replace(source, params=params, collections=None)
    smaller, model = without_least_important(source, run, 0.5, rows=3, rounds=rounds)
    assert model.layer_heads == (2, 1, 3)
    (whole,) = (value for path, value in params.items() if path.endswith(QUERY))
    for layer in (0, 2):
        (found,) = smaller[f"bert/encoder/layer_{layer}/{QUERY}"]
        kept = [head for head in range(4) if head not in UNUSED[layer]]
        np.testing.assert_array_equal(found, whole[layer][:, kept])
