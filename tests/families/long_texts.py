"""The row of Longformer."""

import dataclasses

import numpy as np

from plmjax.interop import longformer as longformer_interop
from plmjax.models.families.task_heads import TokenClassification
from plmjax.models.longformer import longformer
from tests.families.family import DROPOUT, SIZES, Batch, Family, Head, padded_tokens
from tests.strangers import experiments

# transformers' code has no windows of 2, and each window must divide the longest one.
LONGFORMER = longformer.LongformerConfig(
    **SIZES, max_position_embeddings=68, pad_token_id=3, attention_window=(12, 4, 6), max_global_tokens=5
)
LONGFORMER_TRAINED = dataclasses.replace(
    LONGFORMER,
    vocab_size=56,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=32,
    attention_window=(4, 6),
    **DROPOUT,
)


def with_global_tokens(config: longformer.LongformerConfig) -> Batch:
    """As `padded_tokens`, with other global tokens in each row; one of them is padding, which sees nothing."""
    batch = padded_tokens(config)
    mask = np.zeros_like(batch["input_ids"])
    mask[0, [0, 3, 4, 16]] = mask[1, [2, 13]] = mask[2, 0] = 1
    return batch | {"global_attention_mask": mask}


def longformer_counts(config: longformer.LongformerConfig, with_pooler: int, masked_language_model: int) -> tuple:
    return config, (
        (lambda config: longformer.LongformerModel(config, pooling=True), with_pooler),
        (longformer.LongformerForMaskedLM, masked_language_model),
    )


BODY = longformer.LongformerModel(LONGFORMER, pooling=True)
LONGFORMER_ROW = Family(
    adapter=longformer_interop.ADAPTER,
    heads=(
        Head(longformer.LongformerForMaskedLM(LONGFORMER), predicts=True, packs=False),
        Head(longformer.LongformerForSequenceClassification(LONGFORMER, num_labels=5), ("logits",), packs=False),
        Head(longformer.LongformerForMultipleChoice(LONGFORMER), ("logits",), packs=False),
        Head(BODY, ("pooler_output",), outputs=("last_hidden_state",), packs=False),
    ),
    bodies=(BODY,),
    stored=(
        longformer.LongformerModel(LONGFORMER),
        longformer.LongformerForMaskedLM(dataclasses.replace(LONGFORMER, attention_window=(8, 8, 8))),
        longformer.LongformerForQuestionAnswering(LONGFORMER),
        TokenClassification(LONGFORMER, num_labels=4),
    ),
    switches=({"hidden_act": "gelu_new"}, {"attention_window": (4, 4, 12)}),
    trained=Head(longformer.LongformerForSequenceClassification(LONGFORMER_TRAINED), ("logits",), outputs=("logits",)),
    sharded=("longformer/encoder/layers/attention/query/kernel", (2, 12, 2, 6)),
    counts={
        "base": longformer_counts(longformer.LongformerConfig.base(), 148_659_456, 148_711_257),
        "large": longformer_counts(longformer.LongformerConfig.large(), 434_600_960, 434_653_273),
    },
    initial=longformer.LongformerForMaskedLM(longformer.LongformerConfig.tiny(vocab_size=2000)),
    truncated=False,
    token_heads=False,  # its head for questions has global tokens: it is among those above
    step=experiments.longformer,
    batches={"global tokens": with_global_tokens, "no global tokens": padded_tokens},
)
