"""Losses whose exponential is a perplexity, and losses whose exponential is none."""

import pytest

from plmjax.objectives.awd_lstm import AwdLstmPretraining
from plmjax.objectives.bert import BertPretraining
from plmjax.objectives.bidirectional_language_model import BidirectionalLanguageModel
from plmjax.objectives.denoising import Denoising
from plmjax.objectives.hierarchical_softmax import HierarchicalSoftmax
from plmjax.objectives.negative_sampling import NegativeSampling
from plmjax.objectives.next_token import NextToken
from plmjax.objectives.text_to_text.independent_noise import DroppedTokens, MaskedText, ReplacedSpans
from plmjax.objectives.text_to_text.prefix_language_model import TextToTextPrefixLanguageModel
from plmjax.objectives.text_to_text.span_corruption import SpanCorruption
from plmjax.objectives.text_to_text.whole_text import Deshuffling, TextToTextLanguageModel
from plmjax.objectives.weighted_least_squares import WeightedLeastSquares
from plmjax.runs import summary

OF_TOKENS = (
    AwdLstmPretraining, BertPretraining, BidirectionalLanguageModel, HierarchicalSoftmax, NextToken,
    TextToTextLanguageModel, TextToTextPrefixLanguageModel,
)  # fmt: skip
OF_NONE = (
    Denoising, Deshuffling, DroppedTokens, MaskedText, NegativeSampling, ReplacedSpans, SpanCorruption,
    WeightedLeastSquares,
)  # fmt: skip


@pytest.mark.parametrize("objective", [*OF_TOKENS, *OF_NONE])
def test_a_run_shows_a_perplexity_where_its_loss_has_one(objective: type) -> None:
    said: list[str] = []
    summary._show_losses({"eval/loss": 1.0, "eval/unigram_entropy": 2.0}, objective.perplexity, said.append)
    assert said[0].startswith("held-out   loss 1.0000 nats a target; unigram entropy of the same targets 2.0000")
    assert ("perplexity 2.7183 against 7.3891" in said[0]) == (objective in OF_TOKENS)
