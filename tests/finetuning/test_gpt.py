"""GPT's fine-tuning: special tokens that it was pretrained without, the next token as a second term."""

import dataclasses
from pathlib import Path
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.data import tokenizers
from plmjax.data.layouts import Chunks
from plmjax.experiment import Checkpoint, Data, Experiment, Finetuning, Training
from plmjax.finetuning.tasks.sentences import Sentences, SequenceClassification
from plmjax.finetuning.tasks.sequences import next_token_weights
from plmjax.models.gpt import GptConfig, GptForCausalLM, GptForSequenceClassification
from plmjax.objectives.next_token import NextToken
from plmjax.runs import special_tokens
from plmjax.runs.finetuning import finetune
from plmjax.training.checkpoints import checkpoints
from plmjax.training.optimizers import AdamW
from tests.families.decoders import GPT
from tests.finetuning.conftest import WORDS
from tests.systems.modules import outputs, random_params

TABLE = "gpt/table/embedding"


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a random GPT without special tokens for tasks, its table two rows longer than its tokenizer."""
    folder = tmp_path_factory.mktemp("gpt")
    tokenizer = tokenizers.train("bpe", 90, [" ".join(WORDS)] * 3, folder / "tokenizer")
    model = GptConfig.tiny(vocab_size=tokenizer.vocabulary.size + 2, n_positions=48, n_embd=32).with_dropout(0.0)
    run = Experiment(model, NextToken(), Data(Chunks(), sequence_length=16))
    params = jax.tree.map(lambda x: 0.5 * x, random_params(GptForCausalLM(model)))
    checkpoints.save_parameters(
        folder / "run", params, run, tokenizer=checkpoints.tokenizer_files(folder / "tokenizer")
    )
    return folder / "run"


@pytest.mark.nightly
def test_a_run_learns_the_task_and_the_next_token(pretrained: Path, sentiment: tuple[str, str], tmp_path: Path) -> None:
    """With special tokens behind those of its tokenizer."""
    run = Experiment(
        model=None, objective=SequenceClassification(language_model=0.5), optimizer=AdamW(learning_rate=1e-2),
        data=Sentences(*sentiment, sequence_length=32, pack=4, text="sentence"), finetuning=Finetuning(epochs=20.0),
        training=Training(steps=0, batch_size=8, log_every=50, unroll=1), checkpoint=Checkpoint(every=0, minutes=0),
    )  # fmt: skip
    metrics = finetune(run, pretrained, tmp_path / "run")
    assert metrics["eval/accuracy"] > 0.8
    terms = {name: metrics[f"eval/{name}_loss"] for name in ("task", "next_token", "joint")}
    assert terms["joint"] == pytest.approx(terms["task"] + 0.5 * terms["next_token"])
    assert metrics["eval/loss"] == terms["task"]
    assert terms["next_token"] < 2.5  # a random token of the task's words has log(13) = 2.6 nats
    own, after = (tokenizers.load(path / "tokenizer") for path in (pretrained, tmp_path / "run"))
    size = own.vocabulary.size
    assert after.tokens(range(size, size + 3)) == ["_start_", "_delimiter_", "_classify_"]
    assert after.vocabulary.others == {"start": size, "delimiter": size + 1, "extract": size + 2}
    config = checkpoints.describe(checkpoints.find(tmp_path / "run")).experiment.model
    assert (config.vocab_size, config.pad_token_id) == (size + 3, own.vocabulary.pad)


def test_new_rows_are_drawn_between_the_tokens_and_the_positions(pretrained: Path) -> None:
    """Rows that the table had too many of are used; all others stay as they were."""
    params, description = checkpoints.load_parameters(pretrained)
    run = dataclasses.replace(description.experiment, training=Training(seed=1))
    tokenizer = tokenizers.load(pretrained / "tokenizer")
    first, before = tokenizer.vocabulary.size, flat(params)[TABLE]
    larger, changed, extended = special_tokens.add(run, params, tokenizer)
    after = flat(changed)[TABLE]
    assert len(after) == len(before) + 1 == larger.model.vocab_size + 48
    np.testing.assert_array_equal(after[:first], before[:first])
    np.testing.assert_array_equal(after[first + 3 :], before[first + 2 :])
    new = after[first : first + 3]
    assert 0.01 < new.std() < 0.03 < before.std()
    again, other = (
        flat(special_tokens.add(dataclasses.replace(run, training=Training(seed=seed)), params, tokenizer)[1])[TABLE]
        for seed in (1, 2)
    )
    np.testing.assert_array_equal(again, after)
    assert (other[first : first + 3] != new).all()
    assert special_tokens.add(larger, changed, extended) == (larger, changed, extended)


def flat(params: Any) -> dict[str, np.ndarray]:
    return flax.traverse_util.flatten_dict(params, sep="/")


def test_the_loss_of_the_next_token_is_a_mean_of_means() -> None:
    """Sequences of 3, 5 and 2 tokens are packed: the mean over them of the mean over all their tokens but the first."""
    lengths = (3, 5, 2)
    segments = np.array([[1] * 3 + [2] * 5 + [0] * 2, [1] * 2 + [0] * 8])
    ids = np.random.default_rng(0).integers(0, 53, segments.shape)
    places = np.array([[*range(3), *range(5), 0, 0], [0, 1, *[0] * 8]])
    module = GptForSequenceClassification(GPT)
    found = outputs(module, random_params(module), {"input_ids": ids, "segment_ids": segments, "positions": places})
    batch = {"input_ids": ids, "segment_ids": segments, "labels": np.array([[0, 1], [1, 0]])}
    batch |= {"example_ids": np.array([[0, 1], [2, -1]])}
    batch = {name: jnp.asarray(field) for name, field in batch.items()}
    found = found.replace(logits=jnp.zeros((2, 2, 2)))
    objective = SequenceClassification(labels=("a", "b"), language_model=0.5)
    losses, weights = jax.jit(lambda: (objective.sums_of(found, batch).losses, objective.weights(batch)))()

    nats, scores = [], np.asarray(found.next_token_logits, np.float64)
    shares = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    for row, start, length in zip((0, 0, 1), (0, 3, 0), lengths, strict=True):
        asked = range(start, start + length - 1)
        nats.append(np.mean([-shares[row, place, ids[row, place + 1]] for place in asked]))
    assert losses["next_token"] / weights["next_token"] == pytest.approx(np.mean(nats), rel=1e-5)
    assert weights["next_token"] == pytest.approx(3)
    assert objective.coefficients() == {"next_token": 0.5}
    plain = SequenceClassification(labels=("a", "b"))
    assert set(plain.weights(batch)) == set(jax.eval_shape(plain.sums_of, found, batch).losses) == {"task"}
    assert not plain.coefficients()
    of_choices = next_token_weights(jnp.asarray(segments)[None])
    np.testing.assert_array_equal(of_choices[0], next_token_weights(jnp.asarray(segments)))
