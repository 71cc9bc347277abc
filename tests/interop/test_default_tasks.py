"""The data, the objective and the labels of an imported module, unless a run says otherwise."""

from typing import Any

import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Purpose
from plmjax.data.layouts import (
    BidirectionalStreams,
    Chunks,
    ContinuedPairs,
    FullSentences,
    PairedStreams,
    SentenceOrder,
    SentencePairs,
    SingleSegment,
    Windows,
)
from plmjax.errors import UserError
from plmjax.finetuning.tasks.sentences import Regression, Sentences, SequenceClassification
from plmjax.finetuning.tasks.tagging import Tagging, TokenTagging
from plmjax.finetuning.tasks.text_generation import Translation
from plmjax.finetuning.tasks.text_pairs import TextPairs
from plmjax.interop import labels
from plmjax.interop.default_tasks import task_of
from plmjax.models.albert import AlbertConfig, AlbertForMaskedLM
from plmjax.models.bart.bart import BartConfig
from plmjax.models.bert import BertConfig, BertForMaskedLM
from plmjax.models.distilbert import DistilBertConfig
from plmjax.models.electra import ElectraConfig, ElectraForMaskedLM
from plmjax.models.elmo import ElmoConfig
from plmjax.models.gpt import GptConfig
from plmjax.models.gpt2 import Gpt2Config
from plmjax.models.longformer.encoder_decoder import LedConfig
from plmjax.models.longformer.longformer import LongformerConfig
from plmjax.models.mobilebert import MobileBertConfig
from plmjax.models.reformer.reformer import ReformerConfig
from plmjax.models.roberta import RobertaConfig
from plmjax.models.t5 import T5Config
from plmjax.models.transformer import TransformerConfig, TransformerModel
from plmjax.models.ulmfit import UlmfitConfig
from plmjax.models.xlnet.xlnet import XlnetConfig
from plmjax.objectives.albert import AlbertPretraining
from plmjax.objectives.awd_lstm import AwdLstmPretraining
from plmjax.objectives.bert import BertPretraining
from plmjax.objectives.bidirectional_language_model import BidirectionalLanguageModel
from plmjax.objectives.denoising import Denoising
from plmjax.objectives.electra import ElectraPretraining
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.objectives.next_token import NextToken
from plmjax.objectives.permutation_language_model import PermutationLanguageModel
from plmjax.objectives.roberta import RobertaPretraining
from plmjax.objectives.sequence_to_sequence import SequenceToSequence
from plmjax.objectives.text_to_text.span_corruption import SpanCorruption
from tests.optional import transformers

PRETRAINING: dict[type[ModelConfig], tuple[Any, Any, int]] = {
    AlbertConfig: (AlbertPretraining(), SentenceOrder(), 128),
    BartConfig: (Denoising(), FullSentences(), 512),
    BertConfig: (BertPretraining(), SentencePairs(), 128),
    DistilBertConfig: (MaskedLanguageModel(), FullSentences(), 512),
    ElectraConfig: (ElectraPretraining(), SingleSegment(), 128),
    ElmoConfig: (BidirectionalLanguageModel(), BidirectionalStreams(), 20),
    GptConfig: (NextToken(), Chunks(), 512),
    Gpt2Config: (NextToken(), Chunks(), 1024),
    LedConfig: (Denoising(), FullSentences(), 1024),
    LongformerConfig: (RobertaPretraining(), FullSentences(), 4096),
    MobileBertConfig: (BertPretraining(), SentencePairs(), 128),
    ReformerConfig: (NextToken(), Chunks(), 65_536),
    RobertaConfig: (RobertaPretraining(), FullSentences(), 512),
    T5Config: (SpanCorruption(z_loss=1e-4), Chunks(), 568),
    XlnetConfig: (PermutationLanguageModel(), ContinuedPairs(), 512),
    UlmfitConfig: (AwdLstmPretraining(), Windows(overlap=20), 92),
}
"""Class of a published config -> the objective, the layout, and the tokens of a row, by the papers and their code."""


@pytest.mark.parametrize("kind", PRETRAINING, ids=lambda kind: kind.__name__)
def test_a_module_goes_on_with_its_pretraining(kind: type[ModelConfig]) -> None:
    objective, data = task_of(kind().module(Purpose.PRETRAINING, Execution()))
    assert (objective, data.layout, data.sequence_length) == PRETRAINING[kind]


def test_rows_are_no_longer_than_a_model_has_positions() -> None:
    for config, length in ((BertConfig(max_position_embeddings=64), 64), (Gpt2Config(n_positions=2048), 2048)):
        assert task_of(config.module(Purpose.PRETRAINING, Execution()))[1].sequence_length == length


@pytest.mark.parametrize(
    "module", [BertForMaskedLM(BertConfig()), AlbertForMaskedLM(AlbertConfig()), ElectraForMaskedLM(ElectraConfig())]
)
def test_a_masked_language_model_alone_has_no_labels_of_pairs(module: Any) -> None:
    assert task_of(module)[0] == MaskedLanguageModel()


@pytest.mark.parametrize(("first", "start"), [(1, "end"), (0, "pad")])
def test_a_translation_model_begins_with_its_own_token(first: int, start: str) -> None:
    ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": first}
    objective, data = task_of(TransformerModel(TransformerConfig.tiny(**ids, max_position_embeddings=40)))
    assert objective == SequenceToSequence(label_smoothing=0.1)
    assert data.layout == PairedStreams(start=start) and data.sequence_length == 40


@pytest.mark.parametrize(("positions", "target"), [(24, 24), (512, 128)])
def test_a_translation_is_as_long_as_the_decoder_has_positions(positions: int, target: int) -> None:
    """The token that begins it takes one of them."""
    config = TransformerConfig.tiny(max_position_embeddings=positions)
    objective, data = task_of(config.module(Purpose.SEQ2SEQ, Execution()))
    assert isinstance(objective, Translation) and objective.max_new_tokens == target - 1
    assert isinstance(data, TextPairs) and data.target_length == target


def test_heads_are_tuned_with_the_names_of_their_labels() -> None:
    config = BertConfig()

    def tuned(purpose: Purpose, count: int, *labels: str) -> tuple[Any, Any]:
        return task_of(config.module(purpose, Execution(), count), labels)

    assert tuned(Purpose.SEQUENCE_CLASSIFICATION, 1) == (Regression(), Sentences())
    assert tuned(Purpose.SEQUENCE_CLASSIFICATION, 2, "no", "yes") == (
        SequenceClassification(labels=("no", "yes")),
        Sentences(),
    )
    assert tuned(Purpose.SEQUENCE_CLASSIFICATION, 2)[0].labels == ("LABEL_0", "LABEL_1")
    words = TokenTagging(labels=("DET", "NOUN"), entities=False)
    assert tuned(Purpose.TOKEN_CLASSIFICATION, 2, "DET", "NOUN") == (words, Tagging(scheme=""))
    entities = TokenTagging(labels=("O", "B-X", "I-X"), entities=True)
    assert tuned(Purpose.TOKEN_CLASSIFICATION, 3, "O", "B-X", "I-X") == (entities, Tagging(scheme="IOB2"))


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"num_labels": 3},
        {"num_labels": 1},
        {"id2label": {"0": "no", "1": "yes", "2": "so"}, "num_labels": 3},
        {"id2label": {"0": "no", "1": "yes", "2": "so"}},
        {"id2label": {str(number): f"kind {number % 7} {number}" for number in (10, *range(10), 11)}},
    ],
)
def test_labels_are_those_of_transformers(found: dict) -> None:
    theirs = transformers.BertConfig.from_dict(found)
    assert labels.count(found) == theirs.num_labels
    assert labels.names(found) == tuple(theirs.id2label[number] for number in range(theirs.num_labels))


@pytest.mark.parametrize("number", [0, -1, 10**6 + 1, True, 2.0, "2", None])
def test_a_number_of_labels_that_is_none_is_named(number: object) -> None:
    with pytest.raises(UserError, match="a number of labels as num_labels of the config"):
        labels.count({"num_labels": number})
    assert labels.count({"num_labels": 10**6}) == 10**6


@pytest.mark.parametrize("named", [["a", "b"], {"1": "a", "2": "b"}, {"0": "a", "1": "a"}, {"0": "a", "1": 1}])
def test_names_of_labels_are_different_texts_by_numbers_from_zero(named: object) -> None:
    for read in (labels.count, labels.names):
        with pytest.raises(UserError, match="different names of labels in the config"):
            read({"id2label": named, "num_labels": 2})


def test_a_checkpoint_is_evaluated_and_trained_on_as_it_was_pretrained() -> None:
    """The released code's rows: 568 tokens of text, of which sources of 512 and targets of 114 are made."""
    objective, data = task_of(T5Config.tiny().module(Purpose.PRETRAINING, Execution()))
    assert objective == SpanCorruption(z_loss=1e-4)
    assert (data.layout, data.sequence_length) == (Chunks(), 568)
    assert objective.lengths(data.sequence_length) == (512, 114)
