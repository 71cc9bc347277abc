"""The initial parameters of a run: drawn from the seed, or those of a checkpoint but for what it cannot give."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.errors import UserError
from plmjax.experiment import Start
from plmjax.interop.word_vectors import WordVectors
from plmjax.parallel import hosts
from plmjax.runs.init_from import Origin
from plmjax.training.checkpoints import checkpoints

DRAWN = {
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
class Adapters(Start):
    """The checkpoint's layers, with further parameters among them."""

    def draws(self, parameter: str) -> bool:
        return parameter == "bert/adapter"


def run(start: Start) -> Any:
    return SimpleNamespace(model=SimpleNamespace(system=SimpleNamespace(name="bert")), start=start)


def test_random_values_stay_as_they_are_drawn() -> None:
    origin = Origin.find("random")
    initial = origin.mapped(run(Start())).initial_parameters(run(Start()), None)
    assert initial.from_drawn(DRAWN) is DRAWN and not initial.replaced("bert/layers")
    assert (origin.recorded, origin.description, origin.tokenizer(run(Start()))) == (None, None, None)


def test_a_checkpoint_gives_all_that_it_has_and_says_which_heads_are_missing() -> None:
    said: list[str] = []
    initial = Origin("saved", params=SAVED).initial_parameters(run(Adapters()), None, report=said.append)
    found = initial.from_drawn(DRAWN)
    np.testing.assert_array_equal(found["bert"]["layers"], SAVED["bert"]["layers"])
    np.testing.assert_array_equal(found["classifier"]["bias"], SAVED["classifier"]["bias"])
    assert found["bert"]["adapter"] is DRAWN["bert"]["adapter"] and found["cls"] == DRAWN["cls"]
    assert found["compression"] == DRAWN["compression"] and not initial.replaced("compression/scores")
    assert said == ["start      initialized at random, as saved has none: cls/bias"]
    assert initial.replaced("bert/layers") and not initial.replaced("bert/adapter")


def test_one_host_of_several_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(hosts, "is_primary", lambda: False)
    initial = Origin("saved", params=SAVED).initial_parameters(run(Adapters()), None, report=said.append)
    assert initial.from_drawn(DRAWN)["cls"] == DRAWN["cls"] and said == []


def test_a_new_head_is_drawn_even_where_the_checkpoint_has_it() -> None:
    said: list[str] = []
    in_new_head = ("classifier/bias", "cls/bias").__contains__
    initial = Origin("saved", params=SAVED).initial_parameters(run(Adapters()), None, in_new_head, said.append)
    assert initial.from_drawn(DRAWN)["classifier"] == DRAWN["classifier"] and said == []
    assert not initial.replaced("classifier/bias")


def test_what_neither_the_checkpoint_nor_the_start_gives_is_an_error() -> None:
    initial = Origin("saved", params=SAVED).initial_parameters(run(Start()), None, report=lambda line: None)
    with pytest.raises(UserError, match=r"Expected bert/adapter of shape .* in the checkpoint saved"):
        initial.from_drawn(DRAWN)


def test_a_record_is_of_the_checkpoints_parameters_or_of_the_vectors_as_they_are_in_the_file() -> None:
    vectors = WordVectors("here", ["red", "blue"], np.array([[3, 4], [0, 2]], np.float32))
    assert Origin("saved", params=SAVED).recorded is SAVED
    assert Origin("here", vectors=vectors).recorded.tolist() == [[3, 4], [0, 2]]


def test_random_values_take_the_model_of_another_checkpoint_and_none_of_its_parameters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoints, "find", lambda name: ("found", name))
    monkeypatch.setattr(checkpoints, "describe", lambda folder: ("described", folder))
    origin = Origin.find("random", like="saved")
    assert (origin.name, origin.description) == ("random", ("described", ("found", "saved")))
    assert origin.params is None and origin.recorded is None


def test_a_model_config_is_taken_from_another_checkpoint_beside_random_values_alone(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Expected --like only with --from random"):
        Origin.find(tmp_path, like=tmp_path)


@pytest.mark.parametrize(
    ("zeros", "said"), [(0, []), (6, ["start      30% of the weights of saved are 0, as after pruning"])]
)
def test_zeros_that_training_will_fill_are_told(zeros: int, said: list[str]) -> None:
    """A kernel of zeros alone was not pruned."""
    kernel = np.ones((4, 4), np.float32)
    kernel.ravel()[:zeros] = 0
    params = {"bert": {"layers": {"kernel": kernel}, "new": {"kernel": np.zeros((2, 2), np.float32)}}}
    found: list[str] = []
    origin, pretraining = Origin("saved", params=params), SimpleNamespace(**vars(run(Start())), compression=None)
    origin.initial_parameters(pretraining, None, report=found.append)
    assert [line.split(", and training fills them; ")[0] for line in found] == said
    compressed: list[str] = []
    pretraining.compression = "pruning"
    origin.initial_parameters(pretraining, None, report=compressed.append)
    assert not compressed
