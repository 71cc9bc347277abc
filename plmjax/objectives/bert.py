"""BERT's pretraining objective: the sum of the masked language model and next sentence prediction."""

import dataclasses
from typing import ClassVar

from plmjax.objectives.next_sentence import NEXT_SENTENCE
from plmjax.objectives.sentence_pairs import MaskedTokensAndPairs, PairLabels


@dataclasses.dataclass(frozen=True)
class BertPretraining(MaskedTokensAndPairs):
    """mean nats of the hidden tokens + mean nats of the sentence pairs (google-research/bert run_pretraining.py)."""

    pairs: ClassVar[PairLabels] = NEXT_SENTENCE
