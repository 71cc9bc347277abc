"""Static vectors as a model of texts, pairs and words: its equations, and every kind of task from a run's table."""

import dataclasses
from pathlib import Path

import flax.traverse_util
import jax
import numpy as np
import pytest

from plmjax import experiment as experiments
from plmjax.data import tokenizers
from plmjax.models.baselines.static_vectors import StaticVectorsConfig, StaticVectorsForSequenceClassification
from plmjax.models.word2vec import Word2VecConfig
from plmjax.runs.finetuning import finetune
from plmjax.training import loop
from plmjax.training.checkpoints import checkpoints
from tests.systems.modules import dropped, outputs, random_params

CONFIG = StaticVectorsConfig(vocab_size=23, vector_size=5)
SEGMENTS = np.array([[1, 1, 1, 1, 1, 2, 2, 2, 0], [1, 2, 2, 2, 2, 2, 2, 0, 0]])
TYPES = np.array([[0, 0, 1, 1, 1, 0, 1, 1, 0], [0, 0, 0, 0, 0, 1, 1, 0, 0]])
PLACES = np.array([[0, 5], [0, 1]])
IDS = np.random.default_rng(1).integers(0, 23, (2, 9))


@pytest.mark.parametrize("types", [TYPES, np.zeros_like(TYPES)], ids=["pairs", "texts"])
def test_logits_are_those_of_the_equations(types: np.ndarray) -> None:
    module = StaticVectorsForSequenceClassification(CONFIG, num_labels=3)
    params = random_params(module)
    table, head = np.float64(params["static_vectors"]["words"]["embedding"]), params["classifier"]
    packed = {"input_ids": IDS, "segment_ids": SEGMENTS, "token_type_ids": types, "cls_positions": PLACES}
    found = outputs(module, params, packed)
    assert found.logits.shape == (2, 2, 3)
    np.testing.assert_array_equal(found.last_hidden_state, np.float32(table)[IDS])
    for row in range(2):
        for sequence in (1, 2):
            own = SEGMENTS[row] == sequence
            first, second = (table[IDS[row][own & (types[row] == text)]] for text in (0, 1))
            features = np.zeros(20)
            features[:5] = first.mean(axis=0)
            if len(second):
                features[5:10] = second.mean(axis=0)
                features[10:15] = abs(features[:5] - features[5:10])
                features[15:] = features[:5] * features[5:10]
            expected = features @ head["kernel"] + head["bias"]
            np.testing.assert_allclose(found.logits[row, sequence - 1], expected, rtol=1e-5, atol=1e-5)


def test_a_row_of_one_sequence_is_what_its_mask_says() -> None:
    module = StaticVectorsForSequenceClassification(CONFIG, num_labels=3)
    params, mask = random_params(module), (np.arange(9) < np.array([[9], [4]])).astype(np.int32)
    masked = outputs(module, params, {"input_ids": IDS, "token_type_ids": TYPES, "attention_mask": mask})
    packed = {"segment_ids": mask, "cls_positions": np.zeros((2, 1), np.int32)}
    same = outputs(module, params, {"input_ids": np.where(mask, IDS, 3), "token_type_ids": TYPES, **packed})
    assert masked.logits.shape == (2, 3)
    np.testing.assert_allclose(masked.logits, same.logits[:, 0], rtol=1e-6)


WORDS = ["good", "fine", "poor", "bad", "cat", "dog"]


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of word2vec that was never trained; what is learned from it is the task's."""
    folder = tmp_path_factory.mktemp("vectors")
    tokenizers.train("word", 11, [" ".join(WORDS)], folder / "tokenizer")
    run = experiments.load("experiments/word2vec_tiny.py")
    run = dataclasses.replace(run, model=Word2VecConfig(vocab_size=12, vector_size=8))
    tables = np.random.default_rng(0).standard_normal((2, 12, 8)).astype(np.float32)
    params = {f"{name}_vectors": {"embedding": table} for name, table in zip(("input", "output"), tables, strict=True)}
    files = checkpoints.tokenizer_files(folder / "tokenizer")
    checkpoints.save_parameters(folder / "run", params, run, tokenizer=files)
    return folder / "run"


TEXTS = [(f"{a} {b} {c}", label) for label, pair in (("up", WORDS[:2]), ("down", WORDS[2:4])) for a in pair
         for b in WORDS[4:] for c in pair]  # fmt: skip
PAIRS = [(f"{a} cat", f"dog {b}", "same" if a == b else "other") for a in WORDS[:4] for b in WORDS[:4]]
FILES = {
    "experiment": ("tsv", "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in TEXTS)),
    "snli": ("tsv", "premise\thypothesis\tlabel\n" + "".join("\t".join(row) + "\n" for row in PAIRS)),
    "choices": (
        "tsv",
        "context\tfirst\tsecond\tlabel\n"
        + "".join(f"{a} cat\tdog cat {b}\tdog cat {a}\t1\n{a} dog\t{a} cat\t{b} cat\t0\n"
                  for a in WORDS[:4] for b in WORDS[:4] if a != b),
    ),
    "parts_of_speech": (
        "conll",
        "".join("\n".join(f"{word}\t{'NOUN' if word in WORDS[4:] else 'ADJ'}" for word in text.split()) + "\n\n"
                for text, _ in TEXTS),
    ),
}  # fmt: skip
"""Function of the experiment -> its train file."""


@pytest.mark.parametrize(
    ("task", "frozen"),
    [
        # 3 s each; the equations of pairs and texts are above, and tests/finetuning has every kind of task
        *(
            pytest.param(*one, marks=pytest.mark.nightly)
            for one in (("snli", False), ("experiment", True), ("choices", False))
        ),
        ("parts_of_speech", True),
    ],
)
def test_every_kind_of_task_is_learned_frozen_or_trained(task, frozen, origin, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(loop, "devices", lambda platform: jax.devices()[:1])
    kind, contents = FILES[task]
    (tmp_path / f"train.{kind}").write_text(contents)
    options = f"--data.train {tmp_path}/train.{kind} --data.validation {tmp_path}/train.{kind} --finetuning.epochs 30"
    options += " --finetuning.evaluations 0 --data.sequence_length 32 --data.pack 4 --optimizer.learning_rate 0.05"
    options += " --checkpoint.best= --checkpoint.prefer last" + " --optimizer.frozen encoder" * frozen
    options += {"parts_of_speech": " --data.columns form upos", "choices": " --data.choices first second"}.get(task, "")
    run = experiments.override(experiments.load(f"experiments/static_vectors.py:{task}"), options.split())
    metrics = finetune(run, origin, tmp_path / "run")
    assert metrics["eval/accuracy"] == 1.0
    before, after = (
        flax.traverse_util.flatten_dict(checkpoints.load_parameters(path)[0], sep="/")
        for path in (origin, tmp_path / "run")
    )
    assert set(after) == {"static_vectors/words/embedding", "classifier/kernel", "classifier/bias"}
    same = np.array_equal(before["input_vectors/embedding"], after["static_vectors/words/embedding"])
    assert same == frozen


def test_a_head_drops_its_input_in_training() -> None:
    """And nothing else: with hardly anything left, the logits are the bias."""
    module = StaticVectorsForSequenceClassification(dataclasses.replace(CONFIG, dropout=0.999), num_labels=3)
    params = random_params(module)
    kept, lost = outputs(module, params, {"input_ids": IDS}), dropped(module, params, {"input_ids": IDS})
    np.testing.assert_allclose(lost.logits, np.broadcast_to(params["classifier"]["bias"], (2, 3)), atol=1e-6)
    assert np.abs(kept.logits - lost.logits).max() > 1e-2
    np.testing.assert_array_equal(kept.last_hidden_state, lost.last_hidden_state)


def test_masked_tokens_of_a_packed_sequence_and_padding_count_nothing() -> None:
    """A sequence whose place is that of a padding token has no token."""
    module = StaticVectorsForSequenceClassification(CONFIG, num_labels=3)
    params, mask = random_params(module), np.ones_like(SEGMENTS)
    mask[0, 1] = 0
    packed = {"input_ids": IDS, "segment_ids": SEGMENTS, "cls_positions": np.array([[0, 8], [0, 1]])}
    logits = outputs(module, params, packed | {"attention_mask": mask}).logits
    np.testing.assert_allclose(logits[0, 1], params["classifier"]["bias"], rtol=1e-6)
    left = packed | {"segment_ids": SEGMENTS * mask}
    np.testing.assert_allclose(logits, outputs(module, params, left).logits, rtol=1e-6)
