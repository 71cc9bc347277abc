"""The rows of DistilBERT, of MobileBERT, and of IB-BERT, the teacher of MobileBERT."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.interop import distilbert as distilbert_interop
from plmjax.interop import mobilebert as mobilebert_interop
from plmjax.models import distilbert, mobilebert
from plmjax.models.families.task_heads import TokenClassification
from tests.families.family import DROPOUT, LARGER, SIZES, Family, Head, padded_tokens, padded_untyped_tokens
from tests.families.oracles import FormulaOracle, Inputs, TransformersOracle
from tests.optional import torch
from tests.systems.comparison import Reference
from tests.third_party import experiments

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

# --------------------------------------------------------------------------------------------------- MobileBERT

MOBILEBERT = mobilebert.MobileBertConfig(
    **SIZES,
    max_position_embeddings=19,
    embedding_size=7,
    intra_bottleneck_size=15,
    num_feedforward_networks=3,
    classifier_activation=True,
)
TINY = {"use_bottleneck_attention": True, "key_query_shared_bottleneck": False, "num_feedforward_networks": 2}
"""Sizes of a MobileBERT-TINY."""
EVEN = {"vocab_size": 56, "embedding_size": 8, "intra_bottleneck_size": 16, "num_attention_heads": 4}
MOBILEBERT_TRAINED = dataclasses.replace(MOBILEBERT, **EVEN, num_hidden_layers=2, intermediate_size=32, **DROPOUT)
NEXT = "seq_relationship_logits"


class PaddingOfZeros(TransformersOracle):
    """The vector of the padding token is zero: where it is not, the last word of a text reads it in transformers.

    The first token of the padding reads the last word there; nothing is asked of padding.
    """

    def model(self, module: nn.Module, arguments: Mapping[str, Any] | None = None) -> Any:
        model = super().model(module, arguments)
        with torch.no_grad():
            model.get_input_embeddings().weight[module.config.pad_token_id] = 0
        return model

    def __call__(self, module: nn.Module, batch: Inputs) -> Reference:
        found, mask = super().__call__(module, batch), batch["attention_mask"]

        def of_words(output: np.ndarray) -> np.ndarray:
            if output.shape[:2] != mask.shape:  # of a whole text
                return output
            return np.where(mask.reshape(*mask.shape, *[1] * (output.ndim - 2)) > 0, output, np.nan)

        return dataclasses.replace(found, outputs=jax.tree.map(of_words, dict(found.outputs)))


def mobilebert_counts(config: Any, encoder: int, pretraining: int) -> tuple:
    return config, ((mobilebert.MobileBertModel, encoder), (mobilebert.MobileBertForPreTraining, pretraining))


MOBILEBERT_ROW = Family(
    adapter=mobilebert_interop.ADAPTER,
    transformers_oracle=PaddingOfZeros,
    heads=(
        Head(mobilebert.MobileBertForPreTraining(MOBILEBERT), ("pooler_output", NEXT), predicts=True),
        Head(mobilebert.MobileBertForMaskedLM(MOBILEBERT), predicts=True),
        Head(mobilebert.MobileBertForSequenceClassification(MOBILEBERT, num_labels=5), ("pooler_output", "logits")),
        Head(mobilebert.MobileBertForMultipleChoice(MOBILEBERT), ("pooler_output", "logits")),
    ),
    bodies=(
        mobilebert.MobileBertModel(MOBILEBERT),
        mobilebert.MobileBertForNextSentencePrediction(dataclasses.replace(MOBILEBERT, classifier_activation=False)),
    ),
    stored=(
        mobilebert.MobileBertModel(dataclasses.replace(MOBILEBERT, **TINY), pooling=False),
        mobilebert.MobileBertForSequenceClassification(
            dataclasses.replace(MOBILEBERT, **TINY, classifier_activation=False, classifier_dropout=0.3), num_labels=4
        ),
    ),
    switches=(TINY, {"num_feedforward_networks": 1, "hidden_act": "gelu", "classifier_activation": False}),
    trained=Head(mobilebert.MobileBertForPreTraining(MOBILEBERT_TRAINED), (NEXT,)),
    sharded=("mobilebert/encoder/layers/attention/query/kernel", (2, 8, 2, 4)),
    counts={
        "base": mobilebert_counts(mobilebert.MobileBertConfig.base(), 24_581_888, 36_597_564),
        "default": mobilebert_counts(mobilebert.MobileBertConfig(), 24_581_888, 36_597_564),
        "base with a pooler": mobilebert_counts(
            mobilebert.MobileBertConfig.base(classifier_activation=True), 24_844_544, 36_860_220
        ),
        "tiny": mobilebert_counts(mobilebert.MobileBertConfig.tiny(), 15_485_696, 27_501_372),
    },
    initial=mobilebert.MobileBertForPreTraining(mobilebert.MobileBertConfig.mini(vocab_size=2000)),
    step=experiments.mobilebert,
    learning={"model": {"hidden_size": 32, "intra_bottleneck_size": 16, "embedding_size": 16, **LARGER}},
    batches={"tokens": padded_tokens},
)

# ------------------------------------------------------------------------------------------------------ IB-BERT

IB_BERT = dataclasses.replace(
    MOBILEBERT, **mobilebert.TEACHER | {"hidden_dropout_prob": 0.0, "intra_bottleneck_size": 30, "num_hidden_layers": 2}
)
IB_BERT_TRAINED = dataclasses.replace(IB_BERT, **EVEN | {"intra_bottleneck_size": 32}, intermediate_size=40, **DROPOUT)


def teacher_states(config: Any, params: Mapping[str, Any], text: Inputs, inside: str) -> list[Any]:
    """The embeddings and the output of each layer (google-research/mobilebert modeling.py), [T D] each.

    inside: what the paths of the parameters begin with.
    """

    def normal(x: Any, name: str, of: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        deviation = jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
        return centred / deviation * of(f"{name}/scale") + of(f"{name}/bias")

    def linear(x: Any, name: str, of: Any) -> Any:
        return x @ of(f"{name}/kernel") + of(f"{name}/bias")

    def of_embeddings(name: str) -> Any:
        return params[f"{inside}embeddings/{name}"]

    words = of_embeddings("word_embeddings/embedding")[text["input_ids"]]
    nothing = jnp.zeros_like(words[:1])
    three = [jnp.concatenate([words[1:], nothing]), words, jnp.concatenate([nothing, words[:-1]])]
    x = linear(jnp.concatenate(three, axis=1), "transformation", of_embeddings)
    x += of_embeddings("position_embeddings/embedding")[: len(words)]
    x += of_embeddings("token_type_embeddings/embedding")[text["token_type_ids"]]
    states = [normal(x, "layer_norm", of_embeddings)]
    for layer in range(config.num_hidden_layers):
        x = states[-1]

        def of(name: str, layer: int = layer) -> Any:
            return params[f"{inside}encoder/layers/{name}"][layer]

        z = normal(linear(x, "bottleneck_input", of), "bottleneck_input_layer_norm", of)
        query, key, value = (
            jnp.einsum("td,dnh->nth", x, of(f"attention/{name}/kernel")) + of(f"attention/{name}/bias")[:, None]
            for name in ("query", "key", "value")
        )
        shares = jax.nn.softmax(query @ key.swapaxes(1, 2) / query.shape[-1] ** 0.5, axis=-1)
        attended = jnp.einsum("nth,nhd->td", shares @ value, of("attention/output/kernel"))
        z = normal(z + attended + of("attention/output/bias"), "attention_layer_norm", of)
        inner = linear(z, "feed_forward_0/intermediate", of)
        inner = jax.nn.gelu(inner, approximate=config.hidden_act == "gelu_new")
        z = normal(z + linear(inner, "feed_forward_0/output", of), "feed_forward_0_layer_norm", of)
        states.append(normal(x + linear(z, "bottleneck_output", of), "bottleneck_output_layer_norm", of))
    return states


def teacher(config: Any, params: Mapping[str, Any], text: Inputs, inside: str = "") -> dict[str, Any]:
    """Outputs of the encoder, and of the pooler."""
    states = teacher_states(config, params, text, inside)
    pooled = jnp.tanh(states[-1][0] @ params[f"{inside}pooler/kernel"] + params[f"{inside}pooler/bias"])
    return {"last_hidden_state": states[-1], "hidden_states": tuple(states), "pooler_output": pooled}


def pretraining_teacher(config: Any, params: Mapping[str, Any], text: Inputs) -> dict[str, Any]:
    """The same, with the scores of both pretraining tasks (run_pretraining.py)."""
    found = teacher(config, params, text, "mobilebert/")

    def of(name: str) -> Any:
        return params[f"masked_language_model/{name}"]

    x = found["last_hidden_state"] @ of("transform/kernel") + of("transform/bias")
    x = jax.nn.gelu(x, approximate=config.hidden_act == "gelu_new")
    x = x - x.mean(-1, keepdims=True)
    x = x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-12) * of("layer_norm/scale") + of("layer_norm/bias")
    words = params["mobilebert/embeddings/word_embeddings/embedding"]
    table = jnp.concatenate([words, of("other_features/embedding")], axis=1)
    follows = found["pooler_output"] @ params["next_sentence/kernel"] + params["next_sentence/bias"]
    return found | {"logits": x @ table.T + of("bias"), NEXT: follows}


IB_BERT_ROW = Family(
    oracle=FormulaOracle(
        {mobilebert.MobileBertModel: teacher, mobilebert.MobileBertForPreTraining: pretraining_teacher}
    ),
    heads=(Head(mobilebert.MobileBertForPreTraining(IB_BERT), ("pooler_output", NEXT), predicts=True),),
    bodies=(mobilebert.MobileBertModel(IB_BERT),),
    switches=({"hidden_act": "gelu", "intra_bottleneck_size": 12},),
    trained=Head(mobilebert.MobileBertForPreTraining(IB_BERT_TRAINED), (NEXT,)),
    sharded=("mobilebert/encoder/layers/attention/query/kernel", (2, 12, 2, 8)),
    counts={"large": mobilebert_counts(mobilebert.MobileBertConfig.ib_bert_large(), 294_467_840, 306_483_516)},
    initial=mobilebert.MobileBertForPreTraining(mobilebert.MobileBertConfig.ib_bert_mini(vocab_size=2000)),
    step=experiments.ib_bert,
    learning={"model": {"hidden_size": 32, "intra_bottleneck_size": 64, "embedding_size": 16, **LARGER}},
    batches={"tokens": padded_tokens},
)
