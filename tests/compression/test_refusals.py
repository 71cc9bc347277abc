"""Settings and checkpoints that a compression refuses before it reads, computes or writes anything."""

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plmjax.compression import examples, factorization, kernels
from plmjax.compression import run as compressions
from plmjax.compression.distillation import command as distillation
from plmjax.compression.distillation.distributions import distributions_of
from plmjax.compression.distillation.mobilebert import MobileBertDistillation
from plmjax.compression.pruning import command as pruning
from plmjax.compression.pruning import heads, one_shot
from plmjax.compression.pruning.pruned import MovementPruning
from plmjax.compression.quantization import command as quantization
from plmjax.compression.quantization import weights
from plmjax.data.layouts import Blocks
from plmjax.errors import UserError
from plmjax.experiment import Data, Experiment
from plmjax.models.bert import BertConfig
from plmjax.models.glove import GloveConfig
from plmjax.objectives.awd_lstm import AwdLstmPretraining
from plmjax.objectives.masked_language_model import MaskedLanguageModel

NEVER = Path("never")
TEXT = Data(layout=Blocks())
SIZES = {"hidden_size": 6, "num_attention_heads": 2, "intermediate_size": 8, "num_hidden_layers": 1}
QUERY = "bert/encoder/layers/attention/query/kernel"


@pytest.fixture(autouse=True)
def nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressions.Source, "read", lambda checkpoint: pytest.fail("a checkpoint was read"))


def random_layers() -> MobileBertDistillation:
    return MobileBertDistillation(teacher=BertConfig.tiny())


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (lambda: distillation.distil("teacher", NEVER, "soft_target"), "--method, found 'soft_target'; did you mean"),
        (
            lambda: distillation.distil("teacher", NEVER, "tinybert", layers=(1,), student="random"),
            "Expected either --layers or --student, found both; leave --layers out to begin with random",
        ),
        (lambda: distillation._check_layers(random_layers(), (1, 3), None), "--method mobilebert, found --layers 1 3;"),
        (lambda: distillation._check_layers(random_layers(), (), "random"), "found --student random; leave it"),
        (lambda: distributions_of(AwdLstmPretraining()), "choices or tokens, found AwdLstmPretraining; distil"),
        (lambda: pruning.prune("here", NEVER, "magnitud"), "a known --method, found 'magnitud'; did you mean"),
        (
            lambda: pruning.prune("here", NEVER, "magnitude", experiment="bert_tiny"),
            "with --method magnitude, which does not train, found 'bert_tiny'; leave it out",
        ),
        (
            lambda: pruning.prune("here", NEVER, "two_of_four", overrides=["--training.steps", "3"]),
            "with --method two_of_four, which does not train, found '--training.steps'; leave it out",
        ),
        (
            lambda: quantization.quantize("here", NEVER, "static", "tensor", batches=0),
            "Expected --batches of at least 1, found 0",
        ),
        (lambda: kernels.layer_kernels(["words/embedding"], GloveConfig.tiny()), "a model with layers of matrices"),
        (lambda: weights.shared_axes({"bias": (3,)}, GloveConfig.tiny(), "tensor"), "a model with kernels or tables"),
    ],
)  # fmt: skip
def test_what_is_refused(refused: Callable[[], Any], said: str) -> None:
    with pytest.raises(UserError) as raised:
        refused()
    assert said in str(raised.value)


@pytest.mark.parametrize(("rows", "rounds"), [(0, 1), (8, 0)])
def test_heads_are_measured_on_a_row_at_least(rows: int, rounds: int) -> None:
    run = Experiment(BertConfig.tiny(), MaskedLanguageModel(), TEXT)
    with pytest.raises(UserError, match=f"--rows and --rounds of at least 1, found {rows} and {rounds}; change"):
        heads.without_least_important(None, run, 0.5, rows, rounds)


def test_four_inputs_are_a_group() -> None:
    """Six inputs do not divide into groups of four. Eight inputs have two groups, with two zeros each."""
    model = BertConfig(9, **SIZES)
    with pytest.raises(UserError, match=r"a multiple of 4, found 6\. \(bert/.*/query/kernel\) Take --method magnitude"):
        one_shot.by_pattern({QUERY: np.ones((1, 6, 2, 3))}, model)
    params = {QUERY: np.arange(1.0, 17).reshape(1, 8, 2, 1), "bert/pooler/kernel": np.ones(2)}
    found = one_shot.by_pattern(params, model)
    assert found[QUERY].astype(bool)[0, :, 0, 0].tolist() == [False, False, True, True] * 2
    assert found["bert/pooler/kernel"] is params["bert/pooler/kernel"]


def test_a_rank_that_makes_nothing_smaller_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """So is a model whose layers lack a projection."""
    model, draws = BertConfig(9, **SIZES), np.random.default_rng(0)
    shapes = {"attention/query": (6, 2, 3), "attention/key": (6, 2, 3), "attention/value": (6, 2, 3)}
    shapes |= {"attention/output": (2, 3, 6), "feed_forward/intermediate": (6, 8), "feed_forward/output": (8, 6)}
    params = {f"bert/encoder/layers/{kind}/kernel": draws.normal(size=(1, *shape)) for kind, shape in shapes.items()}
    description = types.SimpleNamespace(experiment=Experiment(model, None, None))
    source = types.SimpleNamespace(params=params, description=description)
    monkeypatch.setattr(factorization.Source, "read", lambda checkpoint: source)
    with pytest.raises(
        UserError, match=r"Expected --rank of at most 3, with which a product has fewer weights .*found 4"
    ):
        factorization.factorize("here", NEVER, 4, None)
    with pytest.raises(UserError, match=r"Expected a lower --energy, .* found 0\.999; lower it"):
        factorization.factorize("here", NEVER, None, 0.999)
    del params["bert/encoder/layers/feed_forward/output/kernel"]
    with pytest.raises(
        UserError, match=r"Expected layers with attention/query, .*, found BertConfig, .*; factorize another"
    ):
        factorization.projections(params, model)


def test_a_checkpoint_without_a_training_needs_an_experiment() -> None:
    description = types.SimpleNamespace(experiment=Experiment(BertConfig.tiny(), MaskedLanguageModel(), TEXT))
    source = types.SimpleNamespace(name="bert-base", description=description)
    with pytest.raises(UserError, match="or --experiment, found bert-base, which was imported; name an experiment"):
        compressions.composed(source, MovementPruning(), None, [], "plmjax compress prune")


def test_a_run_without_its_dataset_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples.start, "tokenizer_of", lambda description: types.SimpleNamespace(vocabulary=None))
    source = types.SimpleNamespace(description=None, dataset=lambda run: str(tmp_path / "gone"))
    with pytest.raises(UserError, match=r"Expected the run's dataset at .*gone, found none; name one with --data.path"):
        examples.examples_of(source, Experiment(BertConfig.tiny(), MaskedLanguageModel(), TEXT))


def test_a_checkpoint_in_int8_is_not_compressed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(compressions.checkpoints, "find", lambda checkpoint: Path("/runs/one/checkpoints/7"))
    monkeypatch.setattr(compressions.items, "in_int8", lambda folder, item: ["a/kernel", "b/kernel"])
    with pytest.raises(UserError, match="a checkpoint in float32, found quantized, which stores 2 arrays in int8"):
        compressions.Source.read("quantized")


def test_a_run_of_text_without_options_is_measured_as_it_is() -> None:
    run = Experiment(BertConfig.tiny(), MaskedLanguageModel(), TEXT)
    assert quantization.overridden(run, []) is run
    assert quantization.overridden(run, ["--training.batch_size", "3"]).training.batch_size == 3
