"""The closed form of the FLOPs of a step with its teacher: the products of the program, forward and backward."""

from collections.abc import Callable

import jax
import pytest

from plmjax.compression.distillation.distilbert import DistilBertDistillation
from plmjax.compression.distillation.patient import PatientDistillation
from plmjax.compression.distillation.soft_targets import SoftTargetDistillation
from plmjax.compression.distillation.tinybert import TinyBertDistillation
from plmjax.objectives.objective import LossInputs
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
    found = case()

    def loss(params):
        inputs = LossInputs(params, found.inputs.constants)
        sums = found.objective.sums(found.student, inputs, found.batch, jax.random.key(1), training=True)
        return sum(sums.losses.values())

    shapes = jax.eval_shape(lambda: found.batch)
    counted = products.flops(jax.grad(loss), found.inputs.params)
    assert counted == pytest.approx(found.objective.train_flops(found.student.config, shapes), rel=1e-6)
