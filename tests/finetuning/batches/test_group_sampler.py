"""The group of a batch: its rates, its order, and what it needs to know of those before."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import order
from plmjax.finetuning.batches.encoded import Encoded
from plmjax.finetuning.batches.group_sampler import GroupSampler
from plmjax.finetuning.batches.source import ExampleRows, TaskSource


def test_groups_come_in_proportion_to_the_roots_of_their_sizes():
    turns, groups = GroupSampler((100, 400, 2500), order.fold_in(0, 5)), []
    before = [0, 0, 0]
    for number in range(9000):
        group, count = turns(number)
        assert count == before[group]
        before[group] += 1
        groups.append(group)
    assert np.bincount(groups) / 9000 == pytest.approx(np.array([10, 20, 50]) / 80, abs=0.015)
    assert [GroupSampler((100, 400, 2500), order.fold_in(0, 5))(number)[0] for number in (8000, 17)] == [
        groups[8000],
        groups[17],
    ]
    assert [GroupSampler((100, 400, 2500), order.fold_in(1, 5))(number)[0] for number in range(50)] != groups[:50]
    assert groups[:4096] != groups[4096:8192]  # which are drawn together
    rare = GroupSampler((10**12, 1), order.fold_in(0, 5))  # the second one may not be among those
    assert [rare(number) for number in (0, 4095, 4096, 9000)] == [(0, 0), (0, 4095), (0, 4096), (0, 9000)]
    assert [GroupSampler((7,), order.fold_in(0, 5))(number) for number in (0, 5000)] == [(0, 0), (0, 5000)]


def test_a_source_takes_tasks_and_sentences_without_labels_in_turn():
    """From any step on the batches are those of the whole run; every group goes through epochs of its own."""

    def made(first: int, count: int = 30) -> ExampleRows:
        words, nothing = np.arange(first, first + count, dtype=np.int32), np.zeros(count // 3, np.int32)
        return ExampleRows(Encoded(words, None, np.arange(0, count + 1, 3), nothing, {}), 6, 2, 0)

    groups, others = [made(100), made(200, 60)], made(300)
    source = TaskSource(groups, groups[0], Vocabulary.placeholder(400), 0, others)
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
