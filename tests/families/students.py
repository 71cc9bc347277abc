"""The row of DistilBERT."""

import dataclasses
from typing import Any

from plmjax.interop import distilbert as distilbert_interop
from plmjax.models import distilbert
from plmjax.models.families.task_heads import TokenClassification
from tests.families.family import DROPOUT, SIZES, Family, Head, padded_untyped_tokens
from tests.strangers import experiments

# --------------------------------------------------------------------------------------------------- DistilBERT

DISTILBERT = distilbert.DistilBertConfig(
    **{name: value for name, value in SIZES.items() if name != "type_vocab_size"},
    max_position_embeddings=19,
    seq_classif_dropout=0.0,
    qa_dropout=0.0,
)
DISTILBERT_TRAINED = dataclasses.replace(
    DISTILBERT, vocab_size=56, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32, **DROPOUT
)


def distilbert_counts(config: Any, encoder: int, pretraining: int) -> tuple:
    return config, ((distilbert.DistilBertModel, encoder), (distilbert.DistilBertForMaskedLM, pretraining))


DISTILBERT_ROW = Family(
    adapter=distilbert_interop.ADAPTER,
    heads=(
        Head(distilbert.DistilBertForMaskedLM(DISTILBERT), predicts=True),
        Head(distilbert.DistilBertForSequenceClassification(DISTILBERT, num_labels=5), ("logits",)),
        Head(distilbert.DistilBertForMultipleChoice(DISTILBERT), ("logits",)),
    ),
    bodies=(distilbert.DistilBertModel(DISTILBERT),),
    stored=(
        distilbert.DistilBertForQuestionAnswering(DISTILBERT),
        TokenClassification(DISTILBERT, num_labels=4),
        distilbert.DistilBertForMaskedLM(dataclasses.replace(DISTILBERT, hidden_act="relu", **DROPOUT)),
        distilbert.DistilBertForSequenceClassification(
            dataclasses.replace(DISTILBERT, seq_classif_dropout=0.3, qa_dropout=0.4), num_labels=4
        ),
    ),
    switches=({"hidden_act": "gelu_new"}, {"hidden_act": "relu"}),
    trained=Head(distilbert.DistilBertForMaskedLM(DISTILBERT_TRAINED)),
    sharded=("distilbert/encoder/layers/attention/query/kernel", (2, 12, 2, 6)),
    counts={
        "base": distilbert_counts(distilbert.DistilBertConfig.base(), 66_362_880, 66_985_530),
        "default": distilbert_counts(distilbert.DistilBertConfig(), 66_362_880, 66_985_530),
        "base_cased": distilbert_counts(
            distilbert.DistilBertConfig.base_cased(), 65_190_912, 66_985_530 - (30522 - 28996) * 769
        ),
        "base_multilingual": distilbert_counts(
            distilbert.DistilBertConfig.base_multilingual(), 134_734_080, 66_985_530 + (119547 - 30522) * 769
        ),
    },
    initial=distilbert.DistilBertForMaskedLM(distilbert.DistilBertConfig.tiny(vocab_size=2000)),
    truncated=False,
    step=experiments.distilbert,
    token_heads=False,  # of labels alone: answers have a dropout of their own
    batches={"tokens": padded_untyped_tokens},
    settings=lambda config: {theirs: getattr(config, ours) for ours, theirs in distilbert_interop.FIELDS.items()},
)
