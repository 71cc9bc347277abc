"""The runs that the core is tested with: every model family and the strangers, so small that a step takes milliseconds.

A new family adds its line to `FAMILIES` and is held to what every step must do: microbatches and meshes of every kind
give the result of one device.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from plmjax.data.layouts import Blocks, FullSentences, Segments, SentenceOrder, SentencePairs, Streams
from plmjax.experiment import Checkpoint, Data, Experiment, Optimizer, Training
from plmjax.finetuning.sentences import Sentences, SequenceClassification
from plmjax.models.albert import AlbertConfig
from plmjax.models.bert import BertConfig
from plmjax.models.electra import ElectraConfig
from plmjax.models.roberta import RobertaConfig
from plmjax.objectives.albert import AlbertPretraining
from plmjax.objectives.bert import BertPretraining
from plmjax.objectives.electra import ElectraPretraining
from plmjax.objectives.roberta import RobertaPretraining
from tests.strangers.causal import CausalConfig, NextToken
from tests.strangers.recurrent import NextTokenOfStream, RecurrentConfig
from tests.strangers.source import ChainSource, LabelledSource

TRAINING = Training(steps=8, batch_size=16, log_every=2, unroll=1)
OPTIMIZER = Optimizer(learning_rate=1e-2, warmup_steps=2)
CHECKPOINT = Checkpoint(every=4, minutes=0)


def bert() -> Experiment:
    """Two sentence pairs a row."""
    model = BertConfig(
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )
    data = Data(layout=SentencePairs(pack=2), sequence_length=16)
    return Experiment(model, BertPretraining(), data, optimizer=OPTIMIZER, training=TRAINING, checkpoint=CHECKPOINT)


def albert() -> Experiment:
    """Two pairs a row, in order or swapped, and two trips through one layer."""
    kept = {field.name for field in dataclasses.fields(AlbertConfig)}
    sizes = {name: value for name, value in dataclasses.asdict(bert().model).items() if name in kept}
    sizes["embedding_size"] = 8
    data = Data(layout=SentenceOrder(pack=2), sequence_length=16)
    return dataclasses.replace(bert(), model=AlbertConfig(**sizes), objective=AlbertPretraining(), data=data)


def electra() -> Experiment:
    """Two texts a row, a generator half as wide as the discriminator, embeddings of a third width."""
    sizes = {**dataclasses.asdict(bert().model), "embedding_size": 12}
    sizes |= {"generator_hidden_size": 8, "generator_num_attention_heads": 2}
    data = Data(layout=Segments(pack=2), sequence_length=16)
    return dataclasses.replace(bert(), model=ElectraConfig(**sizes), objective=ElectraPretraining(), data=data)


def roberta() -> Experiment:
    """Full sentences, some rows of them padded; the padding token is the vocabulary's, 0."""
    sizes = {**dataclasses.asdict(bert().model), "hidden_act": "gelu", "layer_norm_eps": 1e-5, "type_vocab_size": 1}
    data = Data(layout=FullSentences(), sequence_length=16)
    return dataclasses.replace(bert(), model=RobertaConfig(**sizes), objective=RobertaPretraining(), data=data)


def causal() -> Experiment:
    """Rows of consecutive tokens."""
    data = Data(layout=Blocks(), sequence_length=16)
    return Experiment(CausalConfig(), NextToken(), data, optimizer=OPTIMIZER, training=TRAINING, checkpoint=CHECKPOINT)


def recurrent() -> Experiment:
    """Rows that go on from batch to batch."""
    data = Data(layout=Streams(), sequence_length=16)
    return Experiment(
        RecurrentConfig(), NextTokenOfStream(), data, optimizer=OPTIMIZER, training=TRAINING, checkpoint=CHECKPOINT
    )


def classification() -> Experiment:
    """Rows with a label each."""
    return Experiment(
        bert().model,
        SequenceClassification(labels=("even", "odd")),
        Sentences(sequence_length=16),
        optimizer=OPTIMIZER,
        training=TRAINING,
        checkpoint=CHECKPOINT,
    )


FAMILIES: dict[str, tuple[Callable[[], Experiment], type[ChainSource]]] = {
    "bert": (bert, ChainSource),
    "roberta": (roberta, ChainSource),
    "albert": (albert, ChainSource),
    "electra": (electra, ChainSource),
    "classification": (classification, LabelledSource),
    "causal": (causal, ChainSource),
    "recurrent": (recurrent, ChainSource),
}
"""Name -> (its experiment, where its batches come from)."""


def changed(run: Experiment, **groups: dict[str, Any]) -> Experiment:
    """The run with fields of its groups replaced: `changed(run, training={"steps": 3})`."""
    return dataclasses.replace(
        run, **{name: dataclasses.replace(getattr(run, name), **fields) for name, fields in groups.items()}
    )


def without_dropout(run: Experiment) -> Experiment:
    """The run with a deterministic forward pass, for comparing meshes and microbatches."""
    rates = [field.name for field in dataclasses.fields(run.model) if "dropout" in field.name]
    return changed(run, model=dict.fromkeys(rates, 0.0))
