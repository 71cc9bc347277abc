"""Examples as packed batches, the rates of mixed tasks, and groups of batches in turn."""

import dataclasses
import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import order
from plmjax.data.unknown_tokens import UnknownTokens
from plmjax.experiment.phases import ResolvedPhase
from plmjax.finetuning.batches.encoded import Encoded
from plmjax.finetuning.batches.group_sampler import GroupSampler
from plmjax.finetuning.batches.mixing import Mixing
from plmjax.finetuning.batches.source import ExampleRows, TaskSource
from plmjax.finetuning.tasks.choices import ChoiceExamples, Choices, MultipleChoice
from plmjax.finetuning.tasks.sentences import SentenceExamples, Sentences, SequenceClassification
from plmjax.models.bert import BertConfig
from tests.finetuning import parity

VOCABULARY = Vocabulary.placeholder(1000)
LABELLED = SequenceClassification(("a", "b"))


class Numbers(parity.Numbers):
    vocabulary = VOCABULARY


def encoded(count: int) -> Encoded:
    """Pairs of 6 tokens, each with numbers of its own."""
    texts = [(f"{100 + row}", f"{500 + row} {500 + row}") for row in range(count)]
    labels = ["b" if row % 3 else "a" for row in range(count)]
    examples = SentenceExamples("rows.tsv", list(range(2, count + 2)), texts, labels)
    return LABELLED.encode(examples, Numbers(), BertConfig.tiny(), Sentences(sequence_length=8))


def source(seed: int = 0, train: int = 10, length: int = 8, pack: int = 1) -> TaskSource:
    rows = [ExampleRows(encoded(count), length, pack, pad=0) for count in (train, 7)]
    return TaskSource(rows[:1], rows[1], VOCABULARY, seed=seed)


def phase(length: int = 8, rows: int = 4) -> ResolvedPhase:
    return ResolvedPhase(index=0, first_step=0, steps=100, sequence_length=length, batch_size=rows, accumulation=1)


def test_evaluation_passes_over_the_file_once_and_fills_the_last_batch():
    batches = list(source().evaluation(phase()))
    assert [batch["example_ids"][:, 0].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, -1]]
    assert batches[1]["row_ids"].tolist() == [4, 5, 6, -1]
    shapes = source().batch(phase())
    assert all({n: (x.shape, x.dtype) for n, x in b.items()} == {n: (s.shape, s.dtype) for n, s in shapes.items()}
               for b in batches)  # fmt: skip
    assert batches[0]["input_ids"][1].tolist() == [2, 101, 3, 501, 501, 3, 0, 0]
    assert batches[0]["token_type_ids"][1].tolist() == [0, 0, 0, 1, 1, 1, 0, 0]
    assert batches[0]["segment_ids"][1].tolist() == [1, 1, 1, 1, 1, 1, 0, 0]
    assert batches[0]["labels"][:, 0].tolist() == [0, 1, 1, 0]
    empty = {name: array[3] for name, array in batches[1].items()}
    assert not empty["input_ids"].any() and not empty["segment_ids"].any() and not empty["labels"].any()


def test_padding_may_be_on_the_left():
    """Rows of one sequence, and of several; a row that fills the batch is empty."""
    made = encoded(3)
    for pack, length, padding in ((1, 8, 2), (2, 15, 3)):
        rows = ExampleRows(made, length, pack, pad=9, padding="left")
        batch = rows.batch(np.concatenate([rows.in_order[:1], np.full((1, pack), -1)]), np.array([0, -1]))
        assert batch["input_ids"][0, : padding + 6].tolist() == [9] * padding + [2, 100, 3, 500, 500, 3]
        assert batch["segment_ids"][0].tolist() == [0] * padding + np.repeat(np.arange(1, pack + 1), 6).tolist()
        assert batch["positions"][0].tolist() == [0] * padding + [*range(6)] * pack
        assert batch["token_type_ids"][0, : padding + 6].tolist() == [0] * (padding + 3) + [1] * 3
        starts = [padding + 6 * slot for slot in range(pack)]
        assert batch["sequence_starts"][0].tolist() == batch["cls_positions"][0].tolist() == starts
        assert (batch["input_ids"][1] == 9).all() and not batch["segment_ids"][1].any()
        assert not batch["sequence_starts"][1].any()


def test_packed_rows_hold_whole_examples_that_do_not_see_each_other():
    batch = next(source(length=20, pack=4).evaluation(phase(20, rows=2)))
    assert batch["example_ids"].shape == (2, 4) and batch["cls_positions"][0].tolist() == [0, 6, 12, 0]
    assert batch["segment_ids"][0].tolist() == [1] * 6 + [2] * 6 + [3] * 6 + [0] * 2
    assert batch["positions"][0].tolist() == [*range(6)] * 3 + [0, 0]
    for slot, example in enumerate(batch["example_ids"][0, :3]):
        tokens = batch["input_ids"][0, 6 * slot : 6 * slot + 6]
        assert tokens.tolist() == [2, 100 + example, 3, 500 + example, 500 + example, 3]
        assert batch["labels"][0, slot] == (example % 3 > 0)
    assert batch["example_ids"][0, 3] == -1 and batch["labels"][0, 3] == 0


@pytest.mark.parametrize(("length", "pack", "rows"), [(8, 1, 10), (20, 4, 4), (20, 2, 5)])
def test_every_epoch_holds_every_example_once_in_an_order_of_its_own(length, pack, rows):
    made = source(length=length, pack=pack)
    assert made.per_epoch == rows
    batches = itertools.islice(made.train(phase(length, rows=2), 0), 2 * rows)
    ids = np.concatenate([batch["example_ids"] for batch in batches]).reshape(4, rows, pack)
    assert all(sorted(epoch[epoch >= 0]) == list(range(10)) for epoch in ids)
    assert len({epoch.tobytes() for epoch in ids}) == 4
    if pack > 1:
        together = [{frozenset(row[row >= 0].tolist()) for row in epoch} for epoch in ids]
        assert together[0] != together[1]  # who shares a row is drawn anew


def test_a_batch_follows_from_seed_and_step_alone_and_a_host_makes_its_own_rows():
    fifth = list(itertools.islice(source(length=20, pack=3).train(phase(20), 0), 6))[5]
    again = next(source(length=20, pack=3).train(phase(20), 5))
    later = dataclasses.replace(phase(20), first_step=2)
    behind = next(source(length=20, pack=3).train(later, 3))  # of the run, whatever the phase
    for name in fifth:
        np.testing.assert_array_equal(fifth[name], again[name])
        np.testing.assert_array_equal(fifth[name], behind[name])
    part = next(source(length=20, pack=3).train(phase(20), 5, np.array([1, 3])))
    for name in fifth:
        np.testing.assert_array_equal(part[name], fifth[name][[1, 3]])
    for whole, part in zip(source().evaluation(phase()), source().evaluation(phase(), np.array([1, 3])), strict=True):
        np.testing.assert_array_equal(part["example_ids"], whole["example_ids"][[1, 3]])
    others = [next(source(seed, length=20, pack=3).train(phase(20), 5)) for seed in range(1, 4)]
    assert any((other["example_ids"] != fifth["example_ids"]).any() for other in others)


def test_pairs_share_a_row_only_if_both_of_their_sides_fit():
    """4 tokens of a decoder's row of 7 are more than 5 tokens of a row of 10: no two pairs stand side by side."""

    def sequences(length: int) -> dict[str, np.ndarray]:
        offsets = length * np.arange(3)
        return {"tokens": np.arange(offsets[-1], dtype=np.int32) + 5, "token_types": None, "offsets": offsets}

    nothing = {"summaries": np.zeros(2, np.int32), "sequence_fields": {}}
    pairs = Encoded(**sequences(1), **nothing, decoder=Encoded(**sequences(4), **nothing))
    rows = ExampleRows(pairs, 10, 2, pad=0, decoder_length=7)
    batch = rows.batch(rows.in_order, np.arange(len(rows)))
    assert batch["example_ids"].tolist() == [[0, -1], [1, -1]]
    assert batch["decoder_input_ids"].tolist() == [[5, 6, 7, 8, 0, 0, 0], [9, 10, 11, 12, 0, 0, 0]]


def test_choices_of_a_question_stand_side_by_side():
    examples = ChoiceExamples("", [1, 2, 3], ["7", "8", "9"], [["1", "2 2"], ["3", "4"], ["5 5 5", "6"]], [1, 0, 1])
    made = MultipleChoice().encode(examples, Numbers(), BertConfig.tiny(), Choices(sequence_length=20))
    batch = ExampleRows(made, 20, 3, pad=0).batch(np.array([[0, 2, -1], [1, -1, -1]]), np.array([0, 1]))
    assert batch["input_ids"].shape == (2, 2, 20) and batch["example_ids"].shape == (2, 2, 3)
    assert batch["input_ids"][0, 0, :13].tolist() == [2, 7, 3, 1, 3, 2, 9, 3, 5, 5, 5, 3, 0]
    assert batch["input_ids"][0, 1, :11].tolist() == [2, 7, 3, 2, 2, 3, 2, 9, 3, 6, 3]
    assert batch["example_ids"][0].tolist() == [[0, 4, -1], [1, 5, -1]]
    assert batch["cls_positions"][0].tolist() == [[0, 5, 0], [0, 6, 0]]
    assert batch["labels"][:, 0].tolist() == [[1, 1, 0], [0, 0, 0]]
    # The longest choices have 6, 5 and 7 tokens; the others would all fit into one row of 17.
    assert [len(ExampleRows(made, length, 3, pad=0)) for length in (17, 18)] == [2, 1]


def test_the_fingerprint_follows_every_array_of_all_files():
    own, fields = encoded(3), {"labels": np.array([1, 1, 0], np.int32)}
    kinds = {
        "own": own,
        "token types": dataclasses.replace(own, token_types=1 - own.token_types),
        "other borders": dataclasses.replace(own, offsets=own.offsets - np.array([0, 1, 0, 0])),
        "a field of sequences": dataclasses.replace(own, sequence_fields=fields),
        "a field of tokens": dataclasses.replace(own, token_fields={"weights": np.ones(18, np.float32)}),
        "a decoder": dataclasses.replace(own, decoder=encoded(3)),
        "another decoder": dataclasses.replace(own, decoder=dataclasses.replace(encoded(3), tokens=own.tokens + 1)),
    }
    rows = {name: ExampleRows(made, 8, 1, pad=0, decoder_length=8) for name, made in kinds.items()}
    own = rows["own"]
    for files in (lambda one: ([one], own, None), lambda one: ([own], one, None), lambda one: ([own], own, one)):
        found = {
            TaskSource(*these[:2], VOCABULARY, seed=0, unlabelled=these[2]).fingerprint
            for these in map(files, rows.values())
        }
        assert len(found) == len(kinds)


def test_unknown_tokens_are_counted_on_both_sides():
    unknown, made = UnknownTokens(Vocabulary(1000, unknown=500)), encoded(3)
    dataclasses.replace(made, decoder=made).count(unknown)
    assert (unknown.count, unknown.total) == (2 * 2, 2 * 18)


SIZES = {"a": 100, "b": 25, "c": 4}
KEY = order.fold_in(7, 3)


@pytest.mark.parametrize(
    ("limit", "temperature", "rates"),
    [
        (20, 1.0, [20 / 44, 20 / 44, 4 / 44]),
        (1000, 2.0, [10 / 17, 5 / 17, 2 / 17]),
        (1000, math.inf, [1 / 3, 1 / 3, 1 / 3]),
    ],
)
def test_rates(limit: int, temperature: float, rates: list[float]) -> None:
    mixing = Mixing(SIZES, limit, temperature)
    np.testing.assert_allclose(mixing.rates(), rates, rtol=1e-12)
    drawn = np.concatenate([mixing.sample_epoch(epoch, KEY) for epoch in range(40)])
    counts = np.histogram(drawn, bins=[0, 100, 125, 129])[0]
    epochs = 40 * sum(min(size, limit) for size in SIZES.values())
    assert np.abs(counts - epochs * np.array(rates)).max() <= 0.5  # rounded once, over all epochs together


def test_an_example_comes_again_only_after_all_of_its_task() -> None:
    mixing = Mixing(SIZES, 20, 2.0)
    drawn = np.concatenate([mixing.sample_epoch(epoch, KEY) for epoch in range(25)])
    for first, size in zip((0, 100, 125), SIZES.values(), strict=True):
        own = drawn[(drawn >= first) & (drawn < first + size)]
        passes = [sorted(own[begin : begin + size]) for begin in range(0, len(own) - size + 1, size)]
        assert len(passes) >= 3 and all(one == list(range(first, first + size)) for one in passes)
    assert own[:4].tolist() != own[4:8].tolist() or own[:4].tolist() != own[8:12].tolist()  # in other orders


def test_groups_come_in_proportion_to_the_roots_of_their_sizes():
    turns, groups = GroupSampler((100, 400, 2500), order.fold_in(0, 5)), []
    before = [0, 0, 0]
    for number in range(9000):
        group, count = turns(number)
        assert count == before[group]
        before[group] += 1
        groups.append(group)
    assert np.bincount(groups) / 9000 == pytest.approx(np.array([10, 20, 50]) / 80, abs=0.015)
    again, other = (GroupSampler((100, 400, 2500), order.fold_in(seed, 5)) for seed in (0, 1))
    assert [again(number)[0] for number in (8000, 17)] == [groups[8000], groups[17]]
    assert [other(number)[0] for number in range(50)] != groups[:50]
    assert groups[:4096] != groups[4096:8192]  # which are drawn together
    rare = GroupSampler((10**12, 1), order.fold_in(0, 5))  # the second one may not be among those
    assert [rare(number) for number in (0, 4095, 4096, 9000)] == [(0, 0), (0, 4095), (0, 4096), (0, 9000)]
    assert [GroupSampler((7,), order.fold_in(0, 5))(number) for number in (0, 5000)] == [(0, 0), (0, 5000)]


def test_a_source_takes_tasks_and_sentences_without_labels_in_turn():
    """From any step on the batches are those of the whole run; every group goes through epochs of its own."""

    def made(first: int, count: int = 30) -> ExampleRows:
        words, nothing = np.arange(first, first + count, dtype=np.int32), np.zeros(count // 3, np.int32)
        return ExampleRows(Encoded(words, None, np.arange(0, count + 1, 3), nothing, {}), 6, 2, pad=0)

    groups, others = [made(100), made(200, 60)], made(300)
    source = TaskSource(groups, groups[0], Vocabulary.placeholder(400), seed=0, unlabelled=others)
    phase = SimpleNamespace(first_step=0, batch_size=2)
    found = [one["input_ids"] for one in itertools.islice(source.train(phase, 0), 60)]
    taken = [int(one.max()) // 100 for one in found]
    assert taken[1::2] == [3] * 30 and set(taken[::2]) == {1, 2}
    for later, expected in zip(source.train(phase, 7), found[7:], strict=False):
        np.testing.assert_array_equal(later["input_ids"], expected)
    for group, first, rows in ((1, 100, 5), (2, 200, 10), (3, 300, 5)):
        own = np.concatenate([batch for batch, number in zip(found, taken, strict=True) if number == group])[:rows]
        assert sorted(own[own > 0]) == list(range(first, first + 6 * rows))
    assert source.per_epoch == 2 * (5 + 10)
    orders = [np.concatenate([batch - first for batch, n in zip(found, taken, strict=True) if n == group])[:5]
              for group, first in ((1, 100), (3, 300))]  # fmt: skip
    assert not np.array_equal(*orders)
