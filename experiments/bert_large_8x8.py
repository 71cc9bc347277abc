"""BERT-Large."""

from plmjax.data.layouts import SentencePairs
from plmjax.experiment import Checkpoint, Data, Experiment, Optimizer, Phase, Tokenizer, Training
from plmjax.models.bert import BertConfig
from plmjax.objectives.bert import BertPretraining


def experiment() -> Experiment:
    """x."""
    return Experiment(
        model=BertConfig.large(),
        objective=BertPretraining(),
        data=Data(layout=SentencePairs()),
        tokenizer=Tokenizer(kind="wordpiece", vocab_size=30522),
        optimizer=Optimizer(learning_rate=1e-4, warmup_steps=10_000),
        training=Training(steps=1_000_000, batch_size=256),
        checkpoint=Checkpoint(every=50_000),
        phases=(Phase(fraction=0.9, sequence_length=128), Phase(fraction=0.1, sequence_length=512)),
    )
