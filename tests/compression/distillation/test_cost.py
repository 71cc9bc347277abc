"""The closed form of the FLOPs of a step with its teacher: the products of the program, forward and backward."""

from collections.abc import Callable

import jax
import pytest

from plmjax.compression.distillation.distilbert import DistilBertDistillation
from plmjax.compression.distillation.patient import PatientDistillation
from plmjax.compression.distillation.soft_targets import SoftTargetDistillation
from plmjax.compression.distillation.tinybert import TinyBertDistillation
from plmjax.objectives.objective import LossInputs, Objective
from plmjax.objectives.wrapped import ADDED
from tests import products
from tests.compression.distillation.pairs import Pair, pair

NARROW = (("hidden_size", 8), ("intermediate_size", 16))
CASES = {
    "classification": lambda: pair("classification", SoftTargetDistillation()),
    "patient": lambda: pair("classification", PatientDistillation()),
    "masked tokens": lambda: pair("roberta", SoftTargetDistillation()),
    "all tokens": lambda: pair("roberta", DistilBertDistillation()),
    "decoder": lambda: pair("gpt2", SoftTargetDistillation()),
    "encoder-decoder": lambda: pair("bart", SoftTargetDistillation()),
    "layers": lambda: pair("classification", TinyBertDistillation(), NARROW),
    "layers of text": lambda: pair("roberta", TinyBertDistillation(), NARROW),
    "prediction": lambda: pair("classification", TinyBertDistillation(stage="prediction"), NARROW),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_train_flops(case: Callable[[], Pair]) -> None:
    """The gradient has as many products more than the closed form as it has without a teacher."""
    found = case()
    shapes = jax.eval_shape(lambda: found.batch)

    def surplus(objective: Objective, inputs: LossInputs) -> float:
        def loss(params):
            given = inputs.replace(params=params)
            sums = objective.sums(found.student, given, found.batch, jax.random.key(1), training=True)
            return sum(sums.losses.values())

        closed = objective.train_flops(found.student.config, shapes)
        return products.gradient_flops(loss, inputs.params) - closed

    without = LossInputs({name: part for name, part in found.inputs.params.items() if name != ADDED})
    plain = surplus(found.inner, without)
    assert surplus(found.objective, found.inputs) == plain
    assert plain < 0.06 * found.inner.train_flops(found.student.config, shapes)
