"""The rows of ModernBERT and DeBERTa."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from plmjax.interop import deberta as deberta_interop
from plmjax.interop import modernbert as modernbert_interop
from plmjax.models.deberta.deberta import DebertaConfig
from plmjax.models.deberta.encoder import DebertaModel
from plmjax.models.deberta.heads import (
    DebertaForMaskedLM,
    DebertaForMultipleChoice,
    DebertaForSequenceClassification,
)
from plmjax.models.deberta.pretraining import DebertaForPreTraining
from plmjax.models.modernbert.encoder import ModernBertModel
from plmjax.models.modernbert.heads import (
    ModernBertForMaskedLM,
    ModernBertForMultipleChoice,
    ModernBertForQuestionAnswering,
    ModernBertForSequenceClassification,
    ModernBertForTokenClassification,
)
from plmjax.models.modernbert.modernbert import ModernBertConfig
from tests.families.family import DROPOUT, SIZES, WIDER, Family, Head, padded_untyped_tokens
from tests.families.oracles import Inputs, TransformersOracle
from tests.systems.comparison import Reference
from tests.third_party import experiments


class RealTokensOracle(TransformersOracle):
    """Models whose padding sees what it does not see here, or no key at all: nothing is compared there."""

    def of_model(self, module: nn.Module, model: Any, batch: Inputs) -> Reference:
        reference, real = super().of_model(module, model, batch), np.asarray(batch["attention_mask"]) > 0

        def compared(output: np.ndarray) -> np.ndarray:
            of_tokens = output.shape[:2] == real.shape
            return (
                np.where(real.reshape(*real.shape, *[1] * (output.ndim - 2)), output, np.nan) if of_tokens else output
            )

        return dataclasses.replace(reference, outputs=jax.tree.map(compared, dict(reference.outputs)))


MODERNBERT = ModernBertConfig(
    vocab_size=53,
    hidden_size=24,
    num_hidden_layers=4,
    num_attention_heads=3,
    intermediate_size=37,
    max_position_embeddings=19,
    local_attention=6,
    attention_output_dropout=0.0,
    pad_token_id=3,
    bos_token_id=4,
    eos_token_id=5,
)
BIASES = {"attention_bias": True, "mlp_bias": True, "norm_bias": True}
MODERNBERT_TRAINED = dataclasses.replace(
    MODERNBERT, vocab_size=56, num_attention_heads=4, num_hidden_layers=7, intermediate_size=32, local_attention=4
).with_dropout(0.2)


def counts(config: Any, encoder: int, masked_language_model: int) -> tuple:
    return config, ((ModernBertModel, encoder), (ModernBertForMaskedLM, masked_language_model))


MODERNBERT_ROW = Family(
    adapter=modernbert_interop.ADAPTER,
    heads=(
        Head(ModernBertForMaskedLM(MODERNBERT), predicts=True),
        Head(ModernBertForSequenceClassification(MODERNBERT, num_labels=5), ("logits",)),
        Head(ModernBertForMultipleChoice(MODERNBERT), ("logits",)),
    ),
    bodies=(ModernBertModel(MODERNBERT),),
    stored=(
        ModernBertForSequenceClassification(dataclasses.replace(MODERNBERT, classifier_pooling="mean"), num_labels=4),
        ModernBertForTokenClassification(MODERNBERT, num_labels=4),
        ModernBertForQuestionAnswering(MODERNBERT),
        ModernBertForMaskedLM(dataclasses.replace(MODERNBERT, num_hidden_layers=6)),
        ModernBertForMaskedLM(dataclasses.replace(MODERNBERT, **BIASES)),
    ),
    switches=(
        {"hidden_activation": "silu"},
        {"global_attn_every_n_layers": 1},
        {"global_attn_every_n_layers": 2},
        {"num_hidden_layers": 6},
        BIASES,
        {"decoder_bias": False},
        {"local_rope_theta": 160_000.0},
    ),
    trained=Head(ModernBertForMaskedLM(MODERNBERT_TRAINED)),
    sharded=("modernbert/layers/layer_0/attention/query/kernel", (2, 12, 2, 6)),
    counts={
        "base": counts(ModernBertConfig.base(), 149_014_272, 149_655_232),
        "large": counts(ModernBertConfig.large(), 394_781_696, 395_881_664),
        "ettin_17m": counts(ModernBertConfig.ettin_17m(), 16_797_440, 16_913_600),
        "ettin_32m": counts(ModernBertConfig.ettin_32m(), 31_883_136, 32_081_344),
        "ettin_68m": counts(ModernBertConfig.ettin_68m(), 68_144_640, 68_457_664),
        "ettin_1b": counts(ModernBertConfig.ettin_1b(), 1_028_050_688, 1_031_314_112),
        "mmbert_small": counts(ModernBertConfig.mmbert_small(), 140_493_696, 140_897_536),
        "mmbert_base": counts(ModernBertConfig.mmbert_base(), 306_939_648, 307_786_240),
    },
    initial=ModernBertForMaskedLM(ModernBertConfig.tiny(vocab_size=2000)),
    deviations={"output/kernel$": 0.02 / 8**0.5},
    own_loop=True,
    words="word_embeddings/embedding",
    token_heads=False,
    step=experiments.modernbert,
    learning={
        "model": {name: WIDER[name] for name in ("hidden_size", "intermediate_size")} | {"initializer_range": 0.1}
    },
    batches={"tokens": padded_untyped_tokens},
    transformers_oracle=RealTokensOracle,
)

# ------------------------------------------------------------------------------------------------------ DeBERTa

DEBERTA = DebertaConfig(
    **SIZES | {"type_vocab_size": 0}, max_position_embeddings=19, position_buckets=6, generator_num_hidden_layers=2
)
DEBERTA_TRAINED = dataclasses.replace(
    DEBERTA, vocab_size=56, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32, **DROPOUT
)


class BothNetworks(DebertaForPreTraining):
    """Both networks in one output: what the discriminator says beside what the generator does."""

    def __call__(self, input_ids: jax.Array, **inputs: Any) -> Any:
        generated, scored = super().__call__(input_ids, **inputs)
        return generated.replace(pooler_output=scored.logits)


def deberta_counts(config: Any, encoder: int, masked_language_model: int, both: int | None = None) -> tuple:
    counted = ((DebertaModel, encoder), (DebertaForMaskedLM, masked_language_model), (DebertaForPreTraining, both))
    return config, counted[: 2 if both is None else 3]


DEBERTA_ROW = Family(
    adapter=deberta_interop.ADAPTER,
    heads=(
        Head(DebertaForMaskedLM(DEBERTA), predicts=True),
        Head(DebertaForSequenceClassification(DEBERTA, num_labels=5), ("logits",)),
        Head(DebertaForMultipleChoice(DEBERTA), ("logits",)),
    ),
    bodies=(DebertaModel(DEBERTA),),
    stored=(
        DebertaForMaskedLM(dataclasses.replace(DEBERTA, conv_kernel_size=3)),
        DebertaForSequenceClassification(
            dataclasses.replace(DEBERTA, type_vocab_size=3, cls_dropout=0.3, pooler_hidden_act="relu"), num_labels=4
        ),
    ),
    switches=(
        {"conv_kernel_size": 3},
        {"conv_kernel_size": 5, "conv_act": "relu"},
        {"position_biased_input": True},
        {"position_buckets": -1},
        {"position_buckets": -1, "max_relative_positions": 7},
        {"max_relative_positions": 30, "position_buckets": 9},
        {"pos_att_type": ("c2p",)},
        {"pos_att_type": ("p2c",)},
        {"pos_att_type": ()},
        {"type_vocab_size": 3},
        {"hidden_act": "gelu_new"},
    ),
    trained=Head(BothNetworks(DEBERTA_TRAINED), ("pooler_output",)),
    sharded=("deberta/encoder/layers/attention/query/kernel", (2, 12, 2, 6)),
    counts={
        "xsmall": deberta_counts(DebertaConfig.xsmall(), 70_682_112, 70_958_820, 131_536_357 - 512 * 384),
        "small": deberta_counts(DebertaConfig.small(), 141_304_320, 142_024_548, 263_444_581 - 512 * 768),
        "base": deberta_counts(DebertaConfig.base(), 183_831_552, 184_551_780, 327_235_429 - 512 * 768),
        "large": deberta_counts(DebertaConfig.large(), 434_012_160, 435_191_908, 720_150_629 - 512 * 1024),
        "multilingual_base": deberta_counts(DebertaConfig.multilingual_base(), 278_218_752, 279_061_880),
        "v2_xlarge": deberta_counts(DebertaConfig.v2_xlarge(), 884_593_152, 887_085_156),
        "v2_xxlarge": deberta_counts(DebertaConfig.v2_xxlarge(), 1_564_549_632, 1_567_041_636),
    },
    initial=DebertaForPreTraining(DebertaConfig.tiny(vocab_size=2000)),
    truncated=False,
    constants={"residual$": 0.0},
    own_loop=True,
    step=experiments.deberta,
    learning={"objective": {"discriminator_weight": 1.0}, "model": WIDER},
    settings=lambda config: (
        {name: value for name, value in deberta_interop.REQUIRED.items() if value is not None} | {"legacy": False}
    ),
    batches={"tokens": padded_untyped_tokens},
    transformers_oracle=RealTokensOracle,
)
"""The released code also has a residual of the positions, which no output reads."""
