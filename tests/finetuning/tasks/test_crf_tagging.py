"""Labels of a sentence together: what a scheme allows, sentences that are cut, packed rows, predictions."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.finetuning.tasks import label_schemes
from plmjax.finetuning.tasks.crf_tagging import CrfTagging
from plmjax.finetuning.tasks.tagging import TaggedExamples, Tagging
from plmjax.layers.crf import TransitionScores
from plmjax.models.bert import BertConfig
from plmjax.models.families.task_heads import TaggingOutput
from tests.finetuning import parity
from tests.finetuning.parity import Numbers

TAGS = ("B-A", "B-B", "I-A", "I-B", "O")
WORDS = ["10+11", "12", "13+14"]
"""Words of one piece or two."""


def examples(labels: list[str], scheme: str = "IOB2") -> TaggedExamples:
    split = [one.split() for one in labels]
    words = [list(itertools.islice(itertools.cycle(WORDS), len(one))) for one in split]
    return TaggedExamples("", [1] * len(split), words, split, [[1] * len(one) for one in split], scheme)


GOLD = examples(["O B-A I-A O", "B-B", "B-A B-B I-B"])
OBJECTIVE = CrfTagging(entities=True).fit_labels(GOLD)


def encode(gold: TaggedExamples, length: int):
    return OBJECTIVE.encode(gold, Numbers(), BertConfig.tiny(), Tagging(sequence_length=length))


def outputs(batch, of_sentence) -> TaggingOutput:
    """Emissions that are the same for a sentence wherever it stands, and drawn scores of what is allowed."""
    logits = np.zeros((*batch["input_ids"].shape, len(TAGS)), np.float32)
    for row, slot in zip(*np.nonzero(np.asarray(batch["example_ids"]) >= 0), strict=True):
        start, sentence = int(batch["sequence_starts"][row, slot]), int(batch["example_ids"][row, slot])
        logits[row, start : start + len(of_sentence[sentence])] = of_sentence[sentence]
    module = TransitionScores(label_schemes.possible(OBJECTIVE.labels, "IOB2"))
    random = np.random.default_rng(3)
    params = jax.tree.map(lambda leaf: random.normal(size=leaf.shape), module.init(jax.random.key(0)))
    return TaggingOutput(jnp.asarray(logits), None, module.apply(jax.tree.map(jnp.asarray, params)))


@jax.jit
def computed(made: TaggingOutput, batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """The nats of all words, and what predictions are made from."""
    return OBJECTIVE.sums_of(made, batch).losses["task"], OBJECTIVE.outputs_for_prediction(made, batch)


@pytest.fixture(scope="module")
def measured():
    """Packing -> (the nats of all words, [prediction] of every sentence), with emissions that like what cannot be."""
    encoded, found = encode(GOLD, 24), {}
    random = np.random.default_rng(0)
    lengths = np.diff(encoded.offsets)
    of_sentence = [2 * random.normal(size=(length, len(TAGS))).astype(np.float32) for length in lengths]
    for logits in of_sentence:
        logits[:, TAGS.index("I-A")] += 3
    for most in (1, 3):
        batch = parity.batch(encoded, 24, most)
        made = outputs(batch, of_sentence)
        nats, collected = jax.device_get(computed(made, batch))
        per_sentence = [None] * len(lengths)
        for row, slot in zip(*np.nonzero(np.asarray(batch["example_ids"]) >= 0), strict=True):
            start, sentence = int(batch["sequence_starts"][row, slot]), int(batch["example_ids"][row, slot])
            per_sentence[sentence] = collected[row, start : start + lengths[sentence]]
        found[most] = float(nats), OBJECTIVE.records(GOLD, encoded, per_sentence), len(batch["input_ids"])
    return found


def test_packed_sentences_are_as_those_in_rows_of_their_own(measured):
    (nats, records, rows), (packed_nats, packed_records, fewer) = measured[1], measured[3]
    assert (rows, fewer) == (3, 1)
    assert nats == pytest.approx(packed_nats, rel=1e-5) and nats > 1
    for one, other in zip(records, packed_records, strict=True):
        assert one["predictions"] == other["predictions"]
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)
        assert len(one["predictions"]) == len(one["words"]) and all(0 < share <= 1 for share in one["probabilities"])
        label_schemes.check_labels(one["predictions"], "IOB2", [1] * len(one["predictions"]), "predictions")
    assert any("I-A" in record["predictions"] for record in records)
    assert (OBJECTIVE.scheme, OBJECTIVE.labels) == ("IOB2", TAGS)


def test_a_line_without_words_says_nothing_of_its_neighbours():
    """Such as between two lines to predict: the first is cut and has no last word, the third is whole."""
    encoded = encode(examples(["O B-A I-A O", "", "O O", ""]), 6)
    assert np.diff(encoded.offsets).tolist() == [6, 2, 5, 2]
    first, last = (encoded.token_fields[name] for name in ("first_words", "last_words"))
    assert np.flatnonzero(first).tolist() == [1, 9] and np.flatnonzero(last).tolist() == [11]
    alone = encode(examples([""]), 6)
    assert not alone.token_fields["first_words"].any() and not alone.token_fields["last_words"].any()
