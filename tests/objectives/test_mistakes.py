"""Settings, tokenizers and texts that an objective refuses, in one sentence that names them."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError
from plmjax.models.adaptive_span import AdaptiveSpanConfig
from plmjax.models.elmo import ElmoConfig
from plmjax.models.transformer_xl import TransformerXlConfig
from plmjax.objectives.adaptive_span import AdaptiveSpanPretraining
from plmjax.objectives.bidirectional_language_model import BidirectionalLanguageModel
from plmjax.objectives.deberta import DebertaPretraining
from plmjax.objectives.denoising import Denoising
from plmjax.objectives.electra import ElectraPretraining
from plmjax.objectives.hierarchical_softmax import HierarchicalSoftmax
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.objectives.negative_sampling import NegativeSampling
from plmjax.objectives.objective import ConstantSources, Objective
from plmjax.objectives.permutation_language_model import PermutationLanguageModel
from plmjax.objectives.sequence_to_sequence import SequenceToSequence
from plmjax.objectives.text_to_text.independent_noise import ReplacedSpans
from plmjax.objectives.text_to_text.prefix_language_model import TextToTextPrefixLanguageModel
from plmjax.objectives.text_to_text.span_corruption import SpanCorruption
from plmjax.objectives.transformer_xl import TransformerXlPretraining
from plmjax.objectives.weighted_least_squares import WeightedLeastSquares
from tests.objectives.text_to_text.test_span_corruption import VOCABULARY as SENTINELS

PLAIN = Vocabulary.placeholder(30)
WORDS = Vocabulary(
    30, cls=0, pad=1, sep=2, unknown=3, mask=29, special=(0, 1, 2, 3, 29), continuation=np.arange(30) % 3 == 0,
    full_stop=4,
)  # fmt: skip
MEMORY = TransformerXlConfig.tiny(vocab_size=30, mem_len=4)


def row(objective: Objective, vocabulary: Vocabulary, tokens: int = 9, **lacks: Any) -> None:
    """Make a step's inputs of a row, by a tokenizer without something."""
    ids = np.full((1, tokens), 5, np.int32)
    batch = {"input_ids": ids, "segment_ids": np.ones_like(ids), "row_ids": np.zeros(1, np.int32)}
    objective.corrupt(batch, jax.random.key(0), dataclasses.replace(vocabulary, **lacks))


def text(objective: Objective, counts: list[int], config: Any = None) -> None:
    """Make the constants of a training text with these counts of tokens."""
    counts = np.array(counts)
    vocabulary = Vocabulary.placeholder(len(counts))
    objective.constants(config, ConstantSources(vocabulary, counts, list, lambda checkpoint, init: None))


MISTAKES: dict[str, list[tuple[str, Callable[[], Any], str]]] = {
    "settings": [
        ("masking", lambda: MaskedLanguageModel(masking="statc"), "did you mean 'static'"),
        ("shares", lambda: MaskedLanguageModel(mask_fraction=0.9, random_fraction=0.2), "add up to at most 1"),
        *((f"rate {kind.__name__} {rate}", lambda kind=kind, rate=rate: kind(rate=rate), "rate between 0 and 1")
          for kind in (MaskedLanguageModel, ElectraPretraining) for rate in (0.0, 1.0)),
        ("a weight", lambda: DebertaPretraining(discriminator_weight=-1), "discriminator_weight of at least 0"),
        ("window", lambda: NegativeSampling(window=0), "--objective.window of at least 1"),
        ("x_max", lambda: WeightedLeastSquares(x_max=0), "--objective.x_max above 0, found 0"),
        ("smoothing", lambda: SequenceToSequence(label_smoothing=1.0), "below 1, found 1.0"),
        ("unit", lambda: Denoising(unit="spans"), "--objective.unit, found 'spans'"),
        ("a share", lambda: Denoising(rotate=-0.5), "rotate from 0 to 1, found -0.5"),
        ("mean", lambda: Denoising(mean_length=16.5), "above 0 and up to 16, found 16.5"),
        ("T5", lambda: SpanCorruption(rate=1.0), "between 0 and 1, found 1.0"),
    ],
    "rows": [
        ("predictions", lambda: PermutationLanguageModel(predictions=40).goals(32), "20 and 20 to predict, found 16"),
        ("parts", lambda: PermutationLanguageModel(permutation_size=5).goals(32), "5 tokens, found rows of 32"),
        ("T5", lambda: SpanCorruption().row_length(2), "at least 3 tokens, found 2"),
        ("short T5", lambda: row(TextToTextPrefixLanguageModel(), SENTINELS, 2), "found 2"),
        ("long T5", lambda: row(ReplacedSpans(rate=0.5), SENTINELS, 170), "43 sentinels"),
    ],
    "tokenizers": [
        ("mask", lambda: row(MaskedLanguageModel(), Vocabulary(size=10)), "mask token"),
        ("words", lambda: row(MaskedLanguageModel(whole_word=True), Vocabulary(size=10, mask=4)), "continuation"),
        ("bart's mask", lambda: row(Denoising(), WORDS, mask=-1), "<s> and <mask>"),
        ("bart's words", lambda: row(Denoising(), WORDS, continuation=None), "set --objective.unit token"),
        ("full stop", lambda: row(Denoising(), WORDS, full_stop=-1), "set --objective.permute 0"),
        ("end", lambda: row(SpanCorruption(), SENTINELS, 60, end=-1), "an end token"),
    ],
    "texts": [
        ("least", lambda: text(NegativeSampling(min_count=30), [20] * 30), "at least 30 occurrences"),
        ("tree", lambda: text(HierarchicalSoftmax(longest_path=3), [0] * 5 + [5, 6, 100, 3000, 9000, 7]), "3 nodes"),
        ("memory", lambda: text(TransformerXlPretraining(), [1, 2], MEMORY), "found 4; lower --model.mem_len"),
        ("evaluation", lambda: text(TransformerXlPretraining(evaluation_mem_len=9), [1, 2],
         dataclasses.replace(MEMORY, mem_len=2)), "found 9; lower --objective.evaluation_mem_len"),
        ("span", lambda: text(AdaptiveSpanPretraining(), [100, 100], AdaptiveSpanConfig.tiny(attn_span=256)),
         "the 200 tokens of the training text, found 256"),
        ("draws", lambda: text(BidirectionalLanguageModel(negatives=30), [0] * 30, ElmoConfig.tiny(vocab_size=30)),
         "the 30 words of the model, found 30"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("made", "said"),
    [pytest.param(*rest, id=f"{kind}: {name}") for kind, rows in MISTAKES.items() for name, *rest in rows],
)
def test_what_is_refused(made: Callable[[], Any], said: str) -> None:
    with pytest.raises(UserError) as raised:
        made()
    assert said in str(raised.value)


def test_a_memory_or_a_span_may_be_as_long_as_the_text_and_a_plan_has_no_text() -> None:
    text(TransformerXlPretraining(evaluation_mem_len=4), [1, 3], MEMORY)
    text(TransformerXlPretraining(), [0, 0], MEMORY)
    text(AdaptiveSpanPretraining(), [100, 100], AdaptiveSpanConfig.tiny(attn_span=200))
