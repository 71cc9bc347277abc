"""The row of ModernBERT."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from plmjax.interop import modernbert as modernbert_interop
from plmjax.models.modernbert.encoder import ModernBertModel
from plmjax.models.modernbert.eurobert import EuroBertConfig
from plmjax.models.modernbert.heads import (
    ModernBertForMaskedLM,
    ModernBertForMultipleChoice,
    ModernBertForQuestionAnswering,
    ModernBertForSequenceClassification,
    ModernBertForTokenClassification,
)
from plmjax.models.modernbert.modernbert import ModernBertConfig
from plmjax.models.modernbert.neobert import NeoBertConfig
from tests.families.family import WIDER, Family, Head, padded_untyped_tokens
from tests.families.oracles import Inputs, TransformersOracle
from tests.systems.comparison import Reference
from tests.third_party import experiments


class RealTokensOracle(TransformersOracle):
    """ModernBERTs, whose padding may see no key at all in a window: nothing is compared there."""

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
        "eurobert_210m": counts(EuroBertConfig.base(), 211_766_016, 310_266_624),
        "eurobert_610m": counts(EuroBertConfig.medium(), 607_874_688, 755_625_600),
        "eurobert_2b": counts(EuroBertConfig.large(), 2_107_590_912, 2_403_092_736),
        "neobert": counts(NeoBertConfig.base(), 221_665_536, 245_136_954),
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
