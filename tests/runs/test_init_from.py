"""What a run starts from: random parameters, a checkpoint, or the model of one."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax import experiment as experiments
from plmjax.data.layouts import Chunks, SentencePairs
from plmjax.experiment import Data, Experiment, WeightMapping
from plmjax.generation.options import Generation
from plmjax.interop import word2vec
from plmjax.models.bert import BertConfig
from plmjax.models.t5 import T5Config
from plmjax.objectives.bert import BertPretraining
from plmjax.objectives.next_token import NextToken
from plmjax.objectives.prefix_language_model import PrefixLanguageModel
from plmjax.objectives.text_to_text.span_corruption import SpanCorruption
from plmjax.runs.init_from import InitFrom
from plmjax.runs.resolve import resolve
from plmjax.runs.weight_mappings.new_source_encoder import NewSourceEncoder
from plmjax.training.checkpoints import checkpoints

SAMPLED = {
    "bert": {"layers": jnp.ones(3), "adapter": jnp.ones(2)},
    "cls": {"bias": jnp.ones(2)},
    "classifier": {"bias": jnp.ones(2)},
    "compression": {"scores": jnp.ones(2), "rows": jnp.ones(4)},  # what a compression trains beside the model
}
SAVED = {
    "bert": {"layers": np.full(3, 7.0, np.float32)},
    "classifier": {"bias": np.full(2, 7.0, np.float32)},
    "compression": {"scores": np.full(2, 7.0, np.float32)},
}


@dataclasses.dataclass(frozen=True)
class Adapters(WeightMapping):
    """The checkpoint's layers, with further parameters among them."""

    def is_sampled(self, parameter: str) -> bool:
        return parameter == "bert/adapter"


RUN = Experiment(BertConfig.tiny(), BertPretraining(), Data(layout=SentencePairs()), weight_mapping=Adapters())


def saved(folder: Path, run: Experiment, params: Any = SAVED) -> InitFrom:
    checkpoints.save_parameters(folder, params, run, tokenizer={})
    return InitFrom.find(folder)


def test_random_parameters_stay_as_they_are_sampled(tmp_path: Path) -> None:
    """Also those of the random twin of a checkpoint, which has its model."""
    own, model = dataclasses.replace(RUN, weight_mapping=WeightMapping()), BertConfig.tiny(vocab_size=77)
    saved(tmp_path, dataclasses.replace(own, model=model))
    for like, taken in ((None, own.model), (tmp_path, model)):
        start = InitFrom.find("random", like)
        found = start.map_model(start.complete(own, pytest.fail if like is None else lambda line: None))
        assert found == dataclasses.replace(own, model=taken) and start.parameters(found) is None
        initial = start.initialize(found, None, None)
        assert initial.from_sampled(SAMPLED) is SAMPLED and not initial.replaced("bert/layers")


def test_a_checkpoint_gives_all_that_it_has_and_says_which_heads_are_missing(tmp_path: Path) -> None:
    start, said = saved(tmp_path, RUN), []
    initial = start.initialize(RUN, start.parameters(RUN), None, report=said.append)
    found = initial.from_sampled(SAMPLED)
    np.testing.assert_array_equal(found["bert"]["layers"], SAVED["bert"]["layers"])
    np.testing.assert_array_equal(found["classifier"]["bias"], SAVED["classifier"]["bias"])
    assert found["bert"]["adapter"] is SAMPLED["bert"]["adapter"] and found["cls"] == SAMPLED["cls"]
    assert found["compression"] == SAMPLED["compression"] and not initial.replaced("compression/scores")
    assert initial.replaced("bert/layers") and not initial.replaced("bert/adapter")
    assert said == [f"start      initialized at random, as {tmp_path} has none: cls/bias"]


def test_heads_are_what_is_outside_the_encoder_and_its_pooler(tmp_path: Path) -> None:
    """A new head is sampled even if the checkpoint has it."""
    one = {"kernel": jnp.ones(2)}
    sampled = {"bert": {"pooler": one, "layers": jnp.ones(3)}, "pooled": {"encoder": one}, "classifier": one}
    start, said = saved(tmp_path, RUN), []
    start.initialize(RUN, {"bert": SAVED["bert"]}, None, report=said.append).from_sampled(sampled)
    assert said[0].endswith(": bert/pooler/kernel, classifier/kernel, pooled/encoder/kernel")
    head = {"classifier": {"bias": jnp.ones(2)}, "bert": {"layers": jnp.ones(3)}}
    initial = start.initialize(RUN, SAVED, None, in_new_head="classifier/bias".__eq__, report=said.append)
    assert initial.from_sampled(head)["classifier"] == head["classifier"] and len(said) == 1
    assert not initial.replaced("classifier/bias")


def test_zeros_that_training_will_fill_are_told(tmp_path: Path) -> None:
    """A kernel of zeros alone was not pruned. A compression keeps them."""
    kernel = np.ones((4, 4), np.float32)
    params = {"bert": {"layers": {"kernel": kernel}, "new": {"kernel": np.zeros((2, 2), np.float32)}}}
    start, said = saved(tmp_path, RUN, params), []
    start.initialize(RUN, params, None, report=said.append)
    kernel.ravel()[:6] = 0
    start.initialize(dataclasses.replace(RUN, compression="pruning"), params, None, report=said.append)
    assert not said
    start.initialize(RUN, params, None, report=said.append)
    assert len(said) == 1 and "30% of the weights" in said[0]


def test_what_a_run_directory_records_are_the_arrays_of_its_start(small_run: Path, tmp_path: Path) -> None:
    run = experiments.read(small_run / "experiment.json")
    found, params = resolve(run, small_run).start_arrays, checkpoints.load_parameters(small_run)[0]
    jax.tree.map(np.testing.assert_array_equal, found, params)
    word2vec.write(tmp_path / "vectors", ["red", "blue"], np.array([[3, 4], [0, 2]], np.float32))
    assert resolve(run, tmp_path / "vectors").start_arrays.tolist() == [[3, 4], [0, 2]]
    assert resolve(run).start_arrays is None


def test_the_model_of_a_checkpoint_takes_the_place_of_the_experiments_own(tmp_path: Path) -> None:
    said, model = [], T5Config.tiny(vocab_size=77)
    own, origin = experiments.load("t5_mixture"), Experiment(model, NextToken(), Data(layout=Chunks()))
    checkpoints.save_parameters(tmp_path, SAVED, origin, tokenizer={})
    for start in (InitFrom.find(tmp_path), InitFrom.find("random", like=tmp_path)):
        run = start.complete(own, said.append)
        assert run == dataclasses.replace(own, model=model) and own.model != model
        assert start.map_model(run) == run
    assert said[0] == f"model      {type(model).__name__} of {tmp_path}, in place of the experiment's own"
    mapped = dataclasses.replace(own, weight_mapping=NewSourceEncoder())  # a start that maps the model is asked later
    assert InitFrom.find(tmp_path).complete(mapped, pytest.fail) == mapped


def test_what_an_experiment_has_of_its_own_is_kept_and_the_rest_comes_from_the_checkpoint(tmp_path: Path) -> None:
    """The layout of the checkpoint's run brings the texts of a document that it reads, and its model how it writes."""
    streams = Data(layout=Chunks(), streams=("source", "target"))
    start = saved(tmp_path, Experiment(T5Config.tiny(), NextToken(), streams, generation=Generation(beams=3)))
    bare = Experiment(T5Config.tiny(), None, Data(layout=None))
    own = dataclasses.replace(bare, data=Data(layout=None, streams=("text",)), objective=SpanCorruption())
    for run, objective, texts in ((bare, NextToken(), ("source", "target")), (own, SpanCorruption(), ("text",))):
        found = start.complete(run)
        assert (found.objective, found.data.layout, found.data.streams) == (objective, Chunks(), texts)
    assert start.map_model(bare).generation == Generation(beams=3)
    chosen = dataclasses.replace(bare, generation=Generation(beams=1))
    assert start.map_model(chosen).generation == Generation(beams=1)


def test_a_run_goes_on_with_its_own_task(tmp_path: Path) -> None:
    origin, continued = experiments.load("transformer_xl_tiny"), experiments.load("experiments/continued.py")
    start = saved(tmp_path, origin)
    run = start.map_model(start.complete(continued))
    assert (run.model, run.objective, run.data.layout) == (origin.model, origin.objective, origin.data.layout)
    assert (run.optimizer, run.training) == (continued.optimizer, continued.training)
    assert run.data.streams == origin.data.streams and run.data.sequence_length == continued.data.sequence_length
    own = start.complete(dataclasses.replace(continued, objective=PrefixLanguageModel()))
    assert own.objective == PrefixLanguageModel() and own.data.layout == origin.data.layout
