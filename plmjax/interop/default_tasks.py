"""The default task of an imported module: its objective, and its data settings, which name no files.

A head of a downstream task is fine-tuned; any other module continues the pretraining of its system.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn

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
from plmjax.data.layouts.layout import Layout
from plmjax.experiment import Data
from plmjax.finetuning.tasks import label_schemes
from plmjax.finetuning.tasks.answer_search import AnswerSearch
from plmjax.finetuning.tasks.choices import Choices, MultipleChoice
from plmjax.finetuning.tasks.questions import Questions, SpanExtraction
from plmjax.finetuning.tasks.sentences import Regression, Sentences, SequenceClassification
from plmjax.finetuning.tasks.tagging import Tagging, TokenTagging
from plmjax.finetuning.tasks.task import Task, TaskObjective
from plmjax.finetuning.tasks.text_generation import Translation
from plmjax.finetuning.tasks.text_pairs import TextPairs
from plmjax.models.albert import AlbertConfig
from plmjax.models.bart.bart import BartConfig
from plmjax.models.bert import BertConfig
from plmjax.models.deberta.deberta import DebertaConfig
from plmjax.models.distilbert import DistilBertConfig
from plmjax.models.electra import ElectraConfig
from plmjax.models.elmo import ElmoConfig
from plmjax.models.gpt import GptConfig
from plmjax.models.gpt2 import Gpt2Config
from plmjax.models.longformer.encoder_decoder import LedConfig
from plmjax.models.longformer.longformer import LongformerConfig
from plmjax.models.mobilebert import MobileBertConfig
from plmjax.models.modernbert.decoder import ModernBertDecoderConfig
from plmjax.models.modernbert.eurobert import EuroBertConfig
from plmjax.models.modernbert.modernbert import ModernBertConfig
from plmjax.models.modernbert.neobert import NeoBertConfig
from plmjax.models.reformer.reformer import ReformerConfig
from plmjax.models.roberta import RobertaConfig
from plmjax.models.t5 import T5Config
from plmjax.models.transformer import TransformerConfig
from plmjax.models.ulmfit import UlmfitConfig
from plmjax.models.xlnet.xlnet import XlnetConfig
from plmjax.objectives.albert import AlbertPretraining
from plmjax.objectives.awd_lstm import AwdLstmPretraining
from plmjax.objectives.bert import BertPretraining
from plmjax.objectives.bidirectional_language_model import BidirectionalLanguageModel
from plmjax.objectives.deberta import DebertaPretraining
from plmjax.objectives.denoising import Denoising
from plmjax.objectives.electra import ElectraPretraining
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.objectives.next_token import NextToken
from plmjax.objectives.objective import Objective
from plmjax.objectives.permutation_language_model import PermutationLanguageModel
from plmjax.objectives.roberta import RobertaPretraining
from plmjax.objectives.sequence_to_sequence import SequenceToSequence
from plmjax.objectives.text_to_text.span_corruption import SpanCorruption


@dataclasses.dataclass(frozen=True)
class Pretraining:
    """The pretraining of a system. length: tokens of a row, limited by the model's positions."""

    objective: Objective
    layout: Layout
    length: int


def _translation_of_text(config: TransformerConfig) -> Pretraining:
    """Translate source texts to target texts; the targets of Marian start with the padding token."""
    start = "end" if config.decoder_start_token_id == config.end_token else "pad"
    return Pretraining(SequenceToSequence(label_smoothing=0.1), PairedStreams(start=start), 128)


def _reformer(config: ReformerConfig) -> Pretraining:
    """Predict the next token with a decoder, or masked tokens with an encoder; rows are as long as enwik8's."""
    decoder = Pretraining(NextToken(), Chunks(), 65_536)
    return decoder if config.is_decoder else Pretraining(MaskedLanguageModel(), FullSentences(), 65_536)


_SPANS = SpanCorruption(z_loss=1e-4)

PRETRAINING: Mapping[type, Pretraining | Callable[[Any], Pretraining]] = {
    AlbertConfig: Pretraining(AlbertPretraining(), SentenceOrder(), 128),
    BartConfig: Pretraining(Denoising(), FullSentences(), 512),
    BertConfig: Pretraining(BertPretraining(), SentencePairs(), 128),
    DebertaConfig: Pretraining(DebertaPretraining(), FullSentences(), 512),
    DistilBertConfig: Pretraining(MaskedLanguageModel(), FullSentences(), 512),
    ElectraConfig: Pretraining(ElectraPretraining(), SingleSegment(), 128),
    ElmoConfig: Pretraining(BidirectionalLanguageModel(), BidirectionalStreams(), 20),
    EuroBertConfig: Pretraining(
        RobertaPretraining(rate=0.5, mask_fraction=1.0, random_fraction=0.0), FullSentences(), 2048
    ),
    GptConfig: Pretraining(NextToken(), Chunks(), 512),
    Gpt2Config: lambda config: Pretraining(NextToken(), Chunks(), config.longest),
    LedConfig: lambda config: Pretraining(Denoising(), FullSentences(), config.longest_target),  # the target is the row
    LongformerConfig: Pretraining(RobertaPretraining(), FullSentences(), 4096),
    MobileBertConfig: Pretraining(BertPretraining(), SentencePairs(), 128),
    ModernBertConfig: Pretraining(RobertaPretraining(rate=0.3), FullSentences(), 1024),
    ModernBertDecoderConfig: Pretraining(NextToken(), Chunks(), 1024),
    NeoBertConfig: Pretraining(
        RobertaPretraining(rate=0.2, mask_fraction=1.0, random_fraction=0.0), FullSentences(), 1024
    ),
    ReformerConfig: _reformer,
    RobertaConfig: Pretraining(RobertaPretraining(), FullSentences(), 512),
    T5Config: Pretraining(_SPANS, Chunks(), _SPANS.row_length(512)),  # sources of 512 tokens, as released
    TransformerConfig: _translation_of_text,
    XlnetConfig: Pretraining(PermutationLanguageModel(), ContinuedPairs(), 512),
    UlmfitConfig: Pretraining(AwdLstmPretraining(), Windows(overlap=20), 92),  # fastai's mean length
}
"""Class of a system's configs -> its pretraining, or a function from a config to it."""


def _sentences(module: nn.Module, labels: Sequence[str]) -> tuple[TaskObjective, Task]:
    """A head with one label is a regression unless config.json says otherwise."""
    return Regression() if module.num_labels == 1 else SequenceClassification(
        labels=_label_names(module, labels)
    ), Sentences()


def _tagging(module: nn.Module, labels: Sequence[str]) -> tuple[TaskObjective, Task]:
    labels = _label_names(module, labels)
    scheme = label_schemes.scheme_of(labels)
    return TokenTagging(labels=labels, entities=scheme is not None), Tagging(scheme=scheme or "")


def _translation(module: nn.Module, labels: Sequence[str]) -> tuple[TaskObjective, Task]:
    length = min(TextPairs.target_length, module.config.longest_target)
    return Translation(max_new_tokens=length - 1), TextPairs(target_length=length)


def _questions(objective: type[SpanExtraction], module: nn.Module) -> tuple[TaskObjective, Task]:
    """Use windows that fit the model: the question has at most a third of a row, the stride is half of the rest.

    A config does not say if the model was trained on questions without an answer.
    """
    longest = module.config.longest or Questions.sequence_length
    length = min(Questions.sequence_length, longest)
    question = max(min(Questions.question_length, length // 3), 1)
    rest = length - question - module.config.template.specials(2)
    stride = max(min(Questions.stride, rest // 2), 1)
    return objective(impossible=None), Questions(sequence_length=length, stride=stride, question_length=question)


FINETUNING: Mapping[Purpose, Callable[[nn.Module, Sequence[str]], tuple[TaskObjective, Task]]] = {
    Purpose.SEQUENCE_CLASSIFICATION: _sentences,
    Purpose.TOKEN_CLASSIFICATION: _tagging,
    Purpose.MULTIPLE_CHOICE: lambda module, labels: (MultipleChoice(), Choices()),
    Purpose.QUESTION_ANSWERING: lambda module, labels: _questions(SpanExtraction, module),
    Purpose.ANSWER_SEARCH: lambda module, labels: _questions(AnswerSearch, module),
}
"""Purpose of a module with a head -> module, names of its labels -> the task and its data."""


def task_of(module: nn.Module, labels: Sequence[str] = ()) -> tuple[Objective, Data | Task]:
    """Return (default objective of a module, its data).

    labels: names of the head's labels; by default LABEL_0, LABEL_1, ...
    """
    config, purposes = module.config, module.config.system.purposes(module)
    for purpose in purposes:
        if purpose in FINETUNING:
            return FINETUNING[purpose](module, labels)
    if Purpose.SEQ2SEQ in purposes and type(config) is TransformerConfig:  # the system is for translation alone
        return _translation(module, labels)
    found = PRETRAINING[type(config)]
    found = found(config) if callable(found) else found
    objective = MaskedLanguageModel() if purposes == [Purpose.MASKED_TOKENS] else found.objective
    return objective, Data(found.layout, sequence_length=min(found.length, config.longest or found.length))


def _label_names(module: nn.Module, labels: Sequence[str]) -> tuple[str, ...]:
    return tuple(labels) or tuple(f"LABEL_{label}" for label in range(module.num_labels))
