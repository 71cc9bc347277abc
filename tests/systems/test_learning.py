"""Every system learns from its context: a text in which each sequence repeats one word is learned within seconds.

The docstrings of the experiments say how much a system learns from real text; here a defect that keeps a gradient from
flowing, or a position from being seen, shows at once.
"""

from pathlib import Path

import jax
import numpy as np
import pytest

from plmjax.training import loop
from plmjax.training.optimizers.schedules import Constant
from tests.families import FAMILIES
from tests.families.family import WORDS, Family
from tests.third_party import experiments
from tests.third_party.source import ChainSource

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""Those of `Vocabulary.placeholder`, before its words."""
WORDS_OF_A_BATCH = {"input_ids", "decoder_input_ids", "next_ids", "backward_input_ids", "backward_next_ids"}


class Repeated(ChainSource):
    """Every packed sequence is one of a few words again and again, the special tokens aside."""

    def rows(self, phase, place):
        batch = super().rows(phase, place)
        drawn = self._generator(place, 2).integers(5, 5 + WORDS, (len(batch["segment_ids"]), len(batch["input_ids"])))
        for name in batch.keys() & WORDS_OF_A_BATCH:
            target = "decoder_segment_ids" in batch and name != "input_ids"
            segments = batch["decoder_segment_ids" if target else "segment_ids"]
            words = np.take_along_axis(drawn, segments, axis=1)
            batch[name] = np.where(batch[name] >= 5, words, batch[name]).astype(np.int32)
        return batch


BY_DAY = ("glove",)
"""The quickest. That nothing keeps a gradient of the others from flowing, or a position from being seen, test_parity
and test_invariants prove; their losses, tests/objectives."""
# Two programs of 2 to 7 s for each of the others: pytest -m nightly tests/systems/test_learning.py
LEARNERS = [
    pytest.param(family, id=name, marks=() if name in BY_DAY else pytest.mark.nightly)
    for name, family in FAMILIES.items()
    if family.learning is not None
]


@pytest.mark.parametrize("family", LEARNERS)
def test_restores_a_word_from_those_around_it(family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "devices", lambda platform: jax.devices()[:1])
    run = experiments.changed(experiments.without_dropout(family.step()), **family.learning)
    run = experiments.changed(
        run,
        training={"steps": 100, "log_every": 100, "batch_size": 32, "unroll": 1},
        optimizer={"learning_rate": 3e-3, "schedule": Constant(warmup_steps=20)} | family.learning.get("optimizer", {}),
        checkpoint={"every": 0},
    )
    source = (Repeated if family.repeats else family.source)(run.data)
    vocabulary = "\n".join([*SPECIAL, *map(str, range(len(SPECIAL), source.size))])
    found = loop.train(run, tmp_path, source, tokenizer={"vocab.txt": vocabulary.encode()}).metrics
    assert family.learned(found), found
