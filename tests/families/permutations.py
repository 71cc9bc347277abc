"""The row of XLNet."""

import dataclasses
import types
from typing import Any

from plmjax.interop import xlnet as xlnet_interop
from plmjax.models.xlnet import heads, xlnet
from tests.families.family import LARGER, Batch, Family, Head, random_tokens
from tests.third_party import experiments

XLNET = xlnet.XlnetConfig(
    vocab_size=53, d_model=24, n_layer=3, n_head=3, d_inner=37, dropout=0.0, summary_last_dropout=0.0
)
XLNET_TRAINED = dataclasses.replace(XLNET.with_dropout(0.2), vocab_size=56, n_layer=2, n_head=4, d_inner=32)


def tokens_of_segments(config: Any) -> Batch:
    """As `random_tokens`, of three segments."""
    sizes = {"vocab_size": config.vocab_size, "pad_token_id": config.pad_token_id, "type_vocab_size": 3}
    return random_tokens(types.SimpleNamespace(**sizes))


def xlnet_counts(config: xlnet.XlnetConfig, encoder: int, pretraining: int) -> tuple:
    return config, ((xlnet.XlnetModel, encoder), (xlnet.XlnetForPreTraining, pretraining))


XLNET_ROW = Family(
    adapter=xlnet_interop.ADAPTER,
    heads=(
        Head(xlnet.XlnetForPreTraining(XLNET)),
        Head(heads.XlnetForSequenceClassification(XLNET, num_labels=5), ("logits",)),
        Head(heads.XlnetForMultipleChoice(XLNET), ("logits",)),
    ),
    bodies=(xlnet.XlnetModel(XLNET),),
    stored=(
        heads.XlnetForQuestionAnswering(XLNET),
        heads.XlnetForSequenceClassification(
            dataclasses.replace(XLNET, ff_activation="relu", summary_last_dropout=0.3), num_labels=4
        ),
    ),
    switches=({"ff_activation": "gelu"}, {"ff_activation": "relu", "clamp_len": 4}),
    trained=Head(xlnet.XlnetForPreTraining(XLNET_TRAINED)),
    sharded=("xlnet/layers/attention/query/kernel", (2, 12, 2, 6)),
    counts={
        "base": xlnet_counts(xlnet.XlnetConfig.base(), 116_718_336, 116_750_336),
        "large": xlnet_counts(xlnet.XlnetConfig.large(), 360_268_800, 360_300_800),
    },
    initial=xlnet.XlnetForPreTraining(xlnet.XlnetConfig.tiny(vocab_size=2000)),
    drawn="(kernel|embedding|segments|(content|distance|segment)_bias)$",
    truncated=False,
    words="word_embeddings/embedding",
    step=experiments.xlnet,
    learning={"model": {"d_model": 32, "d_inner": 64, **LARGER}},
    batches={"tokens": tokens_of_segments},
)
