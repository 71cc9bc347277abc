"""The first parameters of a student: layers of its teacher, under the student's names."""

from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import numpy as np
import pytest

from plmjax.compression.distillation.captured_activations import one_token_inputs
from plmjax.compression.distillation.students import RandomLayers, TakenLayers
from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Purpose
from plmjax.models.bert import BertConfig
from plmjax.models.distilbert import DistilBertConfig
from plmjax.models.mobilebert import MobileBertConfig
from tests.families import STEPS

LAYERS = (0, 3)


def shapes(config: ModelConfig, purpose: Purpose = Purpose.PRETRAINING) -> dict[str, Any]:
    module = config.module(purpose, Execution())
    variables = jax.eval_shape(lambda: module.init(jax.random.key(0), **one_token_inputs(config)))
    return flax.traverse_util.flatten_dict(nn.meta.unbox(variables["params"]), sep="/")


def numbered(config: ModelConfig) -> dict[str, np.ndarray]:
    """Parameters whose values are the numbers of their layers."""
    found = {path: np.zeros(one.shape) for path, one in shapes(config).items()}
    for path, value in found.items():
        if "/layers/" in path:
            value += np.arange(len(value)).reshape(-1, *[1] * (value.ndim - 1))
    return found


@pytest.mark.parametrize("name", ["bert", "bart"])
def test_layers_are_taken_on_every_side(name: str) -> None:
    teacher = STEPS[name][0]().model.with_depth(4)
    start = TakenLayers(LAYERS)
    student = start.model(teacher)
    assert student == teacher.with_depth(2)
    taken = start.map(numbered(teacher), teacher, student)
    assert {path: value.shape for path, value in taken.items()} == {p: s.shape for p, s in shapes(student).items()}
    for path, value in taken.items():
        if "/layers/" in path:
            assert [layer.max() for layer in value] == [layer.min() for layer in value] == list(LAYERS)


def test_a_distilbert_takes_what_it_has_of_a_bert() -> None:
    """Without the token types and the pooler, as scripts/extract_distilbert.py of the released code."""
    sizes = {"vocab_size": 60, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16}
    teacher = BertConfig(**sizes, num_hidden_layers=4)
    student = DistilBertConfig(**sizes, num_hidden_layers=2)
    taken = TakenLayers(LAYERS, student).map(numbered(teacher), teacher, student)
    wanted = shapes(student, Purpose.MASKED_TOKENS)
    assert {path: taken[path].shape for path in wanted} == {path: one.shape for path, one in wanted.items()}
    left = {path for path in taken if path not in wanted}
    assert left and all(any(part in path for part in ("token_type", "pooler", "next_sentence")) for path in left)


def test_every_other_layer_by_default() -> None:
    teacher, student = BertConfig.base(), BertConfig.base(num_hidden_layers=6)
    assert TakenLayers().model(teacher) == student
    found = TakenLayers().map({"bert/encoder/layers/x": np.arange(12)}, teacher, student)
    assert found["bert/encoder/layers/x"].tolist() == [0, 2, 4, 6, 8, 10]


def test_a_mobilebert_takes_all_but_the_layers_of_its_teacher() -> None:
    """As modeling.py of the released code, with `init_embedding`."""
    sizes = {"vocab_size": 60, "max_position_embeddings": 16}
    teacher, student = MobileBertConfig.ib_bert_mini(**sizes), MobileBertConfig.mini(**sizes)
    start = RandomLayers(student)
    assert start.model(teacher) == student
    taken, wanted = start.map(numbered(teacher), teacher, student), shapes(student)
    drawn = {path for path in wanted if start.is_sampled(path)}
    assert drawn == {path for path in wanted if path.startswith("mobilebert/encoder/layers/")}
    assert {path: taken[path].shape for path in wanted.keys() - drawn} == {
        path: one.shape for path, one in wanted.items() if path not in drawn
    }
    assert taken.keys() - wanted.keys() == {"mobilebert/pooler/kernel", "mobilebert/pooler/bias"}
