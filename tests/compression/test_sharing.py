"""Layers of a trained model that share their parameters in groups, as ALBERT's."""

import functools
import json
from pathlib import Path

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.compression import sharing
from plmjax.compression.sharing import group_parameters, with_groups, without_sentence_pairs
from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.models.albert import AlbertConfig
from plmjax.models.bert import BertConfig
from plmjax.objectives.bert import BertPretraining
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.objectives.roberta import RobertaPretraining
from plmjax.training.checkpoints import checkpoints

SIZES = {"max_position_embeddings": 16}
BERT = BertConfig(60, 16, 4, 2, 24, **SIZES)
ALBERT = AlbertConfig(60, 16, 3, 2, 24, embedding_size=8, num_hidden_groups=2, inner_group_num=2, **SIZES)
IDS = jnp.asarray(np.random.default_rng(0).integers(5, 60, size=(2, 12)))


def made(config):
    """(the masked language model, random parameters by path)."""
    module = config.module(Purpose.MASKED_TOKENS, Execution())
    shapes = nn.meta.unbox(jax.eval_shape(module.init, jax.random.key(0), IDS)["params"])
    draws = np.random.default_rng(1)
    flat = flax.traverse_util.flatten_dict(shapes, sep="/")
    return module, {path: draws.normal(scale=0.3, size=one.shape).astype(np.float32) for path, one in flat.items()}


@functools.partial(jax.jit, static_argnums=0)
def logits(module: nn.Module, flat: dict[str, np.ndarray]) -> jax.Array:
    return module.apply({"params": flax.traverse_util.unflatten_dict(flat, sep="/")}, IDS).logits


@pytest.mark.parametrize(
    "config", [pytest.param(BERT, id="bert"), pytest.param(ALBERT, id="albert", marks=pytest.mark.nightly)]
)
def test_a_group_for_each_layer_changes_nothing(config) -> None:
    module, params = made(config)
    model = with_groups(config, config.depth)
    shared = group_parameters(params, config, model)
    other, expected = made(model)
    assert {path: one.shape for path, one in shared.items()} == {path: one.shape for path, one in expected.items()}
    np.testing.assert_allclose(logits(other, shared), logits(module, params), atol=1e-5)


def test_a_group_has_the_means_of_its_layers() -> None:
    _, params = made(BERT)
    shared = group_parameters(params, BERT, with_groups(BERT, 2))
    kernel = params["bert/encoder/layers/attention/query/kernel"]
    assert with_groups(BERT, 3).group_sizes == (2, 1, 1)
    uneven = group_parameters(params, BERT, with_groups(BERT, 3))  # the first group has a layer more
    for group, layers in enumerate(((0, 1), (2,), (3,))):
        found = uneven[f"albert/encoder/group_{group}/layer_0/attention/query/kernel"]
        np.testing.assert_allclose(found, kernel[[*layers]].mean(axis=0), atol=1e-6)
    again = group_parameters(shared, with_groups(BERT, 2), with_groups(BERT, 1))
    np.testing.assert_allclose(
        again["albert/encoder/group_0/layer_0/attention/query/kernel"], kernel.mean(axis=0), atol=1e-6
    )


def test_the_masked_language_model_keeps_its_settings() -> None:
    settings = {"rate": 0.3, "mask_fraction": 0.7, "random_fraction": 0.2, "max_predictions": 9, "whole_word": True}
    settings |= {"masking": "static", "static_seed": 5}
    assert without_sentence_pairs(BertPretraining(**settings)) == MaskedLanguageModel(**settings)
    assert without_sentence_pairs(RobertaPretraining(rate=0.3)) == RobertaPretraining(rate=0.3)


def test_a_bert_loses_what_predicts_pairs(small_run: Path, tmp_path: Path) -> None:
    sharing.share(small_run, tmp_path / "shared", 1)
    params, description = checkpoints.load_parameters(tmp_path / "shared")
    run = description.experiment
    assert type(run.objective) is MaskedLanguageModel and isinstance(run.model, AlbertConfig)
    assert params.keys() == {"albert", "masked_language_model"} and params["albert"].keys() == {"embeddings", "encoder"}
    before, _ = checkpoints.load_parameters(small_run)
    layer = params["albert"]["encoder"]["group_0"]["layer_0"]
    kernel = before["bert"]["encoder"]["layers"]["feed_forward"]["output"]["kernel"]
    np.testing.assert_array_equal(layer["feed_forward"]["output"]["kernel"], kernel[0])


@pytest.mark.nightly
def test_a_shared_run_is_evaluated_and_compressed_again(task_run: Path, tmp_path: Path, capsys) -> None:
    shared = tmp_path / "shared"
    cli.run(["compress", "share", str(task_run), "--output", str(shared), "--groups", "1"])
    assert "groups of layers: 1" in capsys.readouterr().out

    def evaluated(run: Path) -> float:
        cli.run(["evaluate", str(run), "--json"])
        return json.loads(capsys.readouterr().out)["eval/loss"]

    assert evaluated(shared) == pytest.approx(evaluated(task_run), abs=1e-5)  # its one layer is a group
    (record,) = json.loads((shared / "ancestry.json").read_text())["ancestors"]
    assert record["by"] == "share" and record["settings"] == {"groups": 1}
    cli.run(["compress", "prune", str(shared), "--output", str(tmp_path / "sparse")])
