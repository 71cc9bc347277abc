"""The capabilities of each objective; the base has none."""

import pytest

from plmjax.finetuning.tasks.mixture import MixedTextGeneration
from plmjax.finetuning.tasks.sentences import SequenceClassification
from plmjax.finetuning.tasks.text_generation import Summarization, Translation
from plmjax.objectives.awd_lstm import AwdLstmPretraining
from plmjax.objectives.bert import BertPretraining
from plmjax.objectives.bidirectional_language_model import BidirectionalLanguageModel
from plmjax.objectives.capabilities import (
    GeneratesText,
    LanguageModel,
    ReadsDirections,
    ReadsPrefix,
    ReadsRows,
    ScoresNextToken,
    prefix_of,
    rows_of,
)
from plmjax.objectives.denoising import Denoising
from plmjax.objectives.hierarchical_softmax import HierarchicalSoftmax
from plmjax.objectives.negative_sampling import NegativeSampling
from plmjax.objectives.next_token import NextToken
from plmjax.objectives.objective import Objective
from plmjax.objectives.prefix_language_model import NextTokenAfterPrefix, PrefixLanguageModel
from plmjax.objectives.text_to_text.independent_noise import DroppedTokens, MaskedText, ReplacedSpans
from plmjax.objectives.text_to_text.prefix_language_model import TextToTextPrefixLanguageModel
from plmjax.objectives.text_to_text.span_corruption import SpanCorruption
from plmjax.objectives.text_to_text.whole_text import Deshuffling, TextToTextLanguageModel
from plmjax.objectives.weighted_least_squares import WeightedLeastSquares
from tests.third_party.recurrent import NextTokenOfStream

CAPABILITIES = {LanguageModel, ScoresNextToken, ReadsDirections, ReadsPrefix, ReadsRows, GeneratesText}
NEXT = {LanguageModel, ScoresNextToken}
HAVE = {
    NextToken: NEXT,
    AwdLstmPretraining: NEXT,
    PrefixLanguageModel: NEXT | {ReadsPrefix},
    NextTokenAfterPrefix: NEXT | {ReadsPrefix},
    BidirectionalLanguageModel: {ReadsDirections},
    NegativeSampling: {ReadsRows},
    HierarchicalSoftmax: {ReadsRows},
    Translation: {GeneratesText},
    Summarization: {GeneratesText},
    MixedTextGeneration: {GeneratesText},
    BertPretraining: set(),
    SpanCorruption: set(),
    WeightedLeastSquares: set(),
    SequenceClassification: set(),
    NextTokenOfStream: set(),
}


@pytest.mark.parametrize("kind", HAVE, ids=lambda kind: kind.__name__)
def test_an_objective_has_the_capabilities_of_its_family_alone(kind: type[Objective]) -> None:
    assert {capability for capability in CAPABILITIES if issubclass(kind, capability)} == HAVE[kind]


def test_a_language_model_names_the_objective_of_the_next_token() -> None:
    assert NextToken().language_model_task() == NextToken()
    assert PrefixLanguageModel().language_model_task() == NextTokenAfterPrefix()


def test_an_objective_without_a_capability_has_no_rows_and_no_prefix() -> None:
    assert rows_of(NextTokenOfStream(), {}) == {} and prefix_of(NextTokenOfStream()) == ""
    assert prefix_of(NextTokenAfterPrefix()).startswith("the tokens of a row")


OF_TOKENS = (
    AwdLstmPretraining, BertPretraining, BidirectionalLanguageModel, HierarchicalSoftmax, NextToken,
    TextToTextLanguageModel, TextToTextPrefixLanguageModel,
)  # fmt: skip
OF_NONE = (
    Denoising, Deshuffling, DroppedTokens, MaskedText, NegativeSampling, ReplacedSpans, SpanCorruption,
    WeightedLeastSquares,
)  # fmt: skip


@pytest.mark.parametrize("kind", [*OF_TOKENS, *OF_NONE])
def test_the_exponential_of_a_loss_is_a_perplexity_where_it_is_that_of_tokens(kind: type[Objective]) -> None:
    assert kind.perplexity == (kind in OF_TOKENS)
