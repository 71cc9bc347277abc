"""The capabilities of each objective; the base has none."""

import dataclasses

import pytest

from plmjax.errors import UserError
from plmjax.finetuning.tasks.mixture import MixedTextGeneration
from plmjax.finetuning.tasks.sentences import SequenceClassification
from plmjax.finetuning.tasks.text_generation import Summarization, Translation
from plmjax.inference import perplexity
from plmjax.objectives.awd_lstm import AwdLstmPretraining
from plmjax.objectives.bert import BertPretraining
from plmjax.objectives.bidirectional_language_model import BidirectionalLanguageModel
from plmjax.objectives.capabilities import (
    LanguageModel,
    ReadsDirections,
    ReadsPrefix,
    ReadsRows,
    ScoresNextToken,
    WritesTexts,
    prefix_of,
    rows_of,
)
from plmjax.objectives.hierarchical_softmax import HierarchicalSoftmax
from plmjax.objectives.negative_sampling import NegativeSampling
from plmjax.objectives.next_token import NextToken
from plmjax.objectives.objective import Objective
from plmjax.objectives.prefix_language_model import NextTokenAfterPrefix, PrefixLanguageModel
from plmjax.objectives.text_to_text.span_corruption import SpanCorruption
from plmjax.objectives.weighted_least_squares import WeightedLeastSquares
from tests.strangers import experiments
from tests.strangers.recurrent import NextTokenOfStream

CAPABILITIES = {LanguageModel, ScoresNextToken, ReadsDirections, ReadsPrefix, ReadsRows, WritesTexts}
NEXT = {LanguageModel, ScoresNextToken}
HAVE = {
    NextToken: NEXT,
    AwdLstmPretraining: NEXT,
    PrefixLanguageModel: NEXT | {ReadsPrefix},
    NextTokenAfterPrefix: NEXT | {ReadsPrefix},
    BidirectionalLanguageModel: {ReadsDirections},
    NegativeSampling: {ReadsRows},
    HierarchicalSoftmax: {ReadsRows},
    Translation: {WritesTexts},
    Summarization: {WritesTexts},
    MixedTextGeneration: {WritesTexts},
    BertPretraining: set(),
    SpanCorruption: set(),
    WeightedLeastSquares: set(),
    SequenceClassification: set(),
    NextTokenOfStream: set(),
}


@pytest.mark.parametrize("kind", HAVE, ids=lambda kind: kind.__name__)
def test_an_objective_has_the_capabilities_of_its_family_alone(kind: type[Objective]) -> None:
    assert {capability for capability in CAPABILITIES if issubclass(kind, capability)} == HAVE[kind]


def test_the_base_has_no_name_of_a_capability() -> None:
    names = {name for each in CAPABILITIES for name in {*vars(each), *each.__annotations__} if not name.startswith("_")}
    assert names == {"language_model_task", "score", "directions", "prefix", "rows", "decoding", "prompts"}
    assert not names & {*vars(Objective), *Objective.__annotations__}


def test_a_language_model_names_the_objective_of_the_next_token() -> None:
    assert NextToken().language_model_task() == NextToken()
    assert PrefixLanguageModel().language_model_task() == NextTokenAfterPrefix()


def test_an_objective_without_a_capability_has_no_rows_and_no_prefix() -> None:
    assert rows_of(NextTokenOfStream(), {}) == {} and prefix_of(NextTokenOfStream()) == ""
    assert prefix_of(NextTokenAfterPrefix()).startswith("the tokens of a row")


def test_what_is_no_language_model_is_refused_in_one_sentence() -> None:
    run = dataclasses.replace(experiments.bert(), objective=BertPretraining())
    with pytest.raises(UserError, match=r"Expected a language model, .* found a run of BertPretraining; name the"):
        perplexity.language_model(run)
