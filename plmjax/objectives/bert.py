"""BERT's pretraining objective: the sum of the masked language model and next sentence prediction."""

import dataclasses
from typing import ClassVar

from plmjax.objectives.next_sentence import NEXT_SENTENCE
from plmjax.objectives.sentence_pairs import MaskedLanguageModelWithPairs, PairLabels


@dataclasses.dataclass(frozen=True)
class BertPretraining(MaskedLanguageModelWithPairs):
    """Mean nats of the masked tokens + mean nats of the sentence pairs (google-research/bert run_pretraining.py)."""

    pairs: ClassVar[PairLabels] = NEXT_SENTENCE
