"""Evaluation on a whole file: the sums and outputs of the run's own program, put in the order of the sequences."""

import itertools
from types import SimpleNamespace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import multihost_utils

from plmjax.experiment import Mesh
from plmjax.finetuning import evaluation
from plmjax.finetuning.evaluation import Forward
from plmjax.generation.writer import Settings, Tokens
from plmjax.objectives.objective import LossInputs

ROWS = [[[2, 0]], [[1, -1]]]
"""Two batches of one row with two places for sequences; the second row has one."""


def test_losses_and_outputs_are_those_of_the_program_of_the_run() -> None:
    batches = iter(ROWS)

    def evaluate(loss_inputs: LossInputs, batch: Any, key: jax.Array) -> tuple[Any, dict, tuple]:
        examples = np.array(next(batches))
        weight = np.sum(examples >= 0)
        return (), {"loss": (3.0 * weight, weight), "accuracy": (0, 1)}, (10.0 * examples, examples, examples)

    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes = {"row_ids": jax.ShapeDtypeStruct((1,), np.int32, sharding=place)}
    program = SimpleNamespace(evaluation_phase=None, evaluation_batch=shapes, evaluate=evaluate)
    source = SimpleNamespace(
        evaluation=lambda phase, rows: iter([{"row_ids": np.zeros(1, np.int32)}] * 2),
        validation_rows=SimpleNamespace(encoded=Sequences()),
    )
    objective = SimpleNamespace(weights=lambda batch: {"task": jnp.zeros(())}, generates=False, per_token=False)
    run = SimpleNamespace(objective=objective, training=SimpleNamespace(seed=0))
    means, outputs = Forward(run, None)(program, LossInputs(()), source)
    assert means == {"loss": 3.0} and outputs == [0.0, 10.0, 20.0]


def test_a_batch_of_rows_gives_each_sequence_the_outputs_of_its_own_tokens() -> None:
    """Two rows with two choices each, which hold sequences of one, two and three tokens, and what fills them up."""
    examples = np.array([[[2, 0], [1, -1]], [[-1, -1], [3, -1]]])
    starts = np.array([[[0, 3], [1, 0]], [[0, 0], [2, 0]]])
    offsets = np.array([0, 1, 3, 6, 8])
    places = np.arange(2 * 2 * 4, dtype=np.float32).reshape(2, 2, 4)
    collected = np.stack([places, -places], axis=-1)
    objective = SimpleNamespace(per_token=True)
    forward = Forward(SimpleNamespace(objective=objective), None)
    outputs = [None] * 4
    forward._sort(outputs, collected, examples, starts, offsets)
    assert [one[:, 0].tolist() for one in outputs] == [[3], [5, 6], [0, 1, 2], [14, 15]]
    assert all((one[:, 1] == -one[:, 0]).all() for one in outputs)
    objective.per_token, outputs = False, [None] * 4
    forward._sort(outputs, collected[:, :, :2], examples, starts, offsets)
    assert [one.tolist() for one in outputs] == [[1, -1], [4, -4], [0, 0], [12, -12]]


class Backwards:
    """A writer that writes every prompt backwards, up to three tokens of it."""

    made: ClassVar[list[tuple[Any, ...]]] = []

    def __init__(self, *arguments: Any) -> None:
        self.made.append(arguments)

    def __call__(self, prompts: list[list[int]], settings: Settings) -> list[list[Tokens]]:
        self.made[-1] += (prompts, settings)
        return [[Tokens(prompt[::-1][:3], True, -1.0, -1.0)] for prompt in prompts]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_hosts_share_the_prompts_and_each_has_all_texts_in_order(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last share is smaller; a text that is shorter than others ends where it ends."""
    prompts = [[5, 6], [7], [8, 9, 10, 11], [12, 13], [14, 15, 16]]
    own: list[np.ndarray] = []
    monkeypatch.setattr(evaluation, "Writer", Backwards)
    monkeypatch.setattr(Backwards, "made", [])
    monkeypatch.setattr(jax, "process_count", lambda: count)
    whole = {"table": np.full(4, 7)}
    monkeypatch.setattr(multihost_utils, "process_allgather", lambda params, tiled: whole if tiled else None)
    run = SimpleNamespace(
        objective=SimpleNamespace(writing=lambda: Settings(max_new_tokens=3)), model="model", compression=None
    )
    monkeypatch.setattr(evaluation.programs, "execution", lambda run, platform: "execution")
    tokenizer = SimpleNamespace(vocabulary="words", decode=lambda ids: " ".join(map(str, ids)))
    forward = Forward(run, tokenizer)

    def written(host: int, gathered: Any) -> list[str]:
        monkeypatch.setattr(jax, "process_index", lambda: host)
        monkeypatch.setattr(evaluation.hosts, "gathered", gathered)
        return forward._written({"table": np.ones(2)}, SimpleNamespace(prompts=lambda: prompts))

    for host in range(count):
        written(host, lambda array: own.append(array) or np.repeat(array[None], count, axis=0))
    shares = [made[-2] for made in Backwards.made]
    assert sorted(itertools.chain(*shares)) == sorted(prompts) and max(map(len, shares)) - min(map(len, shares)) <= 1
    texts = ["6 5", "7", "11 10 9", "13 12", "16 15 14"]
    assert [written(host, lambda array: np.stack(own)) for host in range(count)] == [texts] * count
    model, params, vocabulary, execution, mesh, _, settings = Backwards.made[0]
    assert (model, vocabulary, execution) == ("model", "words", "execution")
    assert params["table"].tolist() == ([1, 1] if count == 1 else [7] * 4)  # those of all hosts together
    assert mesh == Mesh(data=0, fsdp=1, tensor=1) and settings.max_new_tokens == 3


def test_a_compressed_model_writes_with_the_parameters_that_it_ends_with(monkeypatch: pytest.MonkeyPatch) -> None:
    class Doubled:
        def finished(self, flat: dict[str, Any], model: str) -> tuple[dict[str, Any], str]:
            return {name: 2 * array for name, array in flat.items()}, f"smaller {model}"

    monkeypatch.setattr(evaluation, "Writer", Backwards)
    monkeypatch.setattr(Backwards, "made", [])
    monkeypatch.setattr(evaluation.programs, "execution", lambda run, platform: "execution")
    run = SimpleNamespace(
        objective=SimpleNamespace(writing=lambda: Settings(max_new_tokens=3)), model="model", compression=Doubled()
    )
    tokenizer = SimpleNamespace(vocabulary="words", decode=lambda ids: str(ids))
    params = {"layer": {"kernel": np.ones(2)}}
    assert Forward(run, tokenizer)._written(params, SimpleNamespace(prompts=lambda: [[4]])) == ["[4]"]
    model, found, *_ = Backwards.made[0]
    assert model == "smaller model" and found["layer"]["kernel"].tolist() == [2, 2]


class Sequences:
    """Three sequences of one token."""

    offsets = np.arange(4)

    def __len__(self) -> int:
        return 3


@pytest.mark.parametrize(
    ("terms", "names"),
    [
        (("one",), ["loss", "f1"]),
        (("one", "two"), ["loss", "one_loss", "two_loss", "joint_loss", "f1"]),
    ],
)
def test_several_terms_have_a_loss_each_and_a_joint_one(terms: tuple[str, ...], names: list[str]) -> None:
    objective = SimpleNamespace(
        weights=lambda batch: dict.fromkeys(terms, jnp.zeros(())), reported=lambda task: ["f1", "loss"]
    )
    run = SimpleNamespace(objective=objective, data=None)
    found = evaluation.TaskEvaluation(run, None, None, None).names(SimpleNamespace(evaluation_batch={}))
    assert found == names


def test_a_term_that_does_not_occur_in_a_file_has_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch has a little weight of it. The loss is that of the first term that occurs."""
    sums = {"loss": (0.0, 2e-9), "one_loss": (0.0, 2e-9), "two_loss": (6.0, 4.0)}
    monkeypatch.setattr(evaluation, "losses_of", lambda objective, program: list(sums))
    monkeypatch.setattr(
        evaluation, "batches", lambda *given: iter([(sums, (np.zeros((1, 1)), np.full((1, 1), -1), np.zeros((1, 1))))])
    )
    objective = SimpleNamespace(generates=False, per_token=False)
    run = SimpleNamespace(objective=objective, training=SimpleNamespace(seed=0))
    source = SimpleNamespace(validation_rows=SimpleNamespace(encoded=Sequences()))
    means, _ = Forward(run, None)(None, LossInputs(()), source)
    assert means == {"two_loss": 1.5, "loss": 1.5}
