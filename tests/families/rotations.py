"""The rows of the decoder of ModernBERT's layers, of EuroBERT and of NeoBERT."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from plmjax.interop import eurobert as eurobert_interop
from plmjax.interop import modernbert_decoder as modernbert_decoder_interop
from plmjax.models.families.task_heads import TokenClassification
from plmjax.models.modernbert.decoder import (
    ModernBertDecoderConfig,
    ModernBertDecoderForCausalLM,
    ModernBertDecoderForSequenceClassification,
    ModernBertDecoderModel,
)
from plmjax.models.modernbert.encoder import ModernBertModel
from plmjax.models.modernbert.eurobert import EuroBertConfig, EuroBertForSequenceClassification
from plmjax.models.modernbert.heads import ModernBertForMaskedLM
from plmjax.models.modernbert.neobert import NeoBertConfig, NeoBertForSequenceClassification
from tests.families.family import READS_FORWARD, WIDER, Family, Head, padded_untyped_tokens
from tests.families.modern import BIASES, MODERNBERT, RealTokensOracle, counts
from tests.families.oracles import Inputs, TorchOracle
from tests.optional import torch
from tests.third_party import experiments

# ------------------------------------------------------------------------------------------- ModernBERT's decoder

DECODER = ModernBertDecoderConfig(
    **{field.name: getattr(MODERNBERT, field.name) for field in dataclasses.fields(ModernBertDecoderConfig)}
)
DECODER_TRAINED = dataclasses.replace(
    DECODER, vocab_size=56, num_attention_heads=4, num_hidden_layers=7, intermediate_size=32, local_attention=4
).with_dropout(0.2)


def decoder_counts(config: Any, decoder: int, language_model: int) -> tuple:
    return config, ((ModernBertDecoderModel, decoder), (ModernBertDecoderForCausalLM, language_model))


DECODER_ROW = Family(
    adapter=modernbert_decoder_interop.ADAPTER,
    heads=(
        Head(ModernBertDecoderForCausalLM(DECODER)),
        Head(ModernBertDecoderForSequenceClassification(DECODER, num_labels=5), ("logits",)),
    ),
    bodies=(ModernBertDecoderModel(DECODER),),
    stored=(
        ModernBertDecoderForCausalLM(dataclasses.replace(DECODER, num_hidden_layers=6)),
        ModernBertDecoderForCausalLM(dataclasses.replace(DECODER, **BIASES)),
    ),
    switches=(
        {"hidden_activation": "silu"},
        {"global_attn_every_n_layers": 1},
        {"local_attention": 2},
        {"num_hidden_layers": 6},
        BIASES,
        {"decoder_bias": False},
        {"local_rope_theta": 160_000.0},
    ),
    trained=Head(ModernBertDecoderForCausalLM(DECODER_TRAINED)),
    sharded=("modernbert/layers/layer_0/attention/query/kernel", (2, 12, 2, 6)),
    counts={
        "ettin_17m": decoder_counts(ModernBertDecoderConfig.ettin_17m(), 16_797_440, 16_913_600),
        "ettin_1b": decoder_counts(ModernBertDecoderConfig.ettin_1b(), 1_028_050_688, 1_031_314_112),
    },
    initial=ModernBertDecoderForCausalLM(ModernBertDecoderConfig.tiny(vocab_size=2000)),
    deviations={"output/kernel$": 0.02 / 8**0.5},
    words="word_embeddings/embedding",
    token_heads=False,
    step=experiments.modernbert_decoder,
    learning={
        "model": {name: WIDER[name] for name in ("hidden_size", "intermediate_size")} | {"initializer_range": 0.1}
    },
    batches={"tokens": padded_untyped_tokens},
    views=READS_FORWARD,
    transformers_oracle=RealTokensOracle,
)

# ----------------------------------------------------------------------------------------------------- EuroBERT

EUROBERT = EuroBertConfig(
    vocab_size=53,
    hidden_size=24,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    intermediate_size=37,
    max_position_embeddings=19,
    pad_token_id=3,
    bos_token_id=4,
    eos_token_id=5,
)
EUROBERT_TRAINED = dataclasses.replace(
    EUROBERT, vocab_size=56, num_attention_heads=4, num_hidden_layers=2, intermediate_size=32
).with_dropout(0.2)
WITH_BIASES = {"attention_bias": True, "mlp_bias": True, "decoder_bias": True}


def eurobert_settings(config: EuroBertConfig) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": config.global_rope_theta}
    return {theirs: getattr(config, ours) for ours, theirs in eurobert_interop.FIELDS.items()} | {
        "rope_parameters": rope
    }


EUROBERT_ROW = Family(
    adapter=eurobert_interop.ADAPTER,
    heads=(
        Head(ModernBertForMaskedLM(EUROBERT), predicts=True),
        Head(EuroBertForSequenceClassification(EUROBERT, num_labels=5), ("logits",)),
    ),
    bodies=(ModernBertModel(EUROBERT),),
    stored=(
        *(
            EuroBertForSequenceClassification(dataclasses.replace(EUROBERT, classifier_pooling=pooling), num_labels=4)
            for pooling in ("bos", "mean")
        ),
        TokenClassification(EUROBERT, num_labels=4),
        ModernBertForMaskedLM(dataclasses.replace(EUROBERT, tie_word_embeddings=True)),
        ModernBertForMaskedLM(dataclasses.replace(EUROBERT, **WITH_BIASES)),
    ),
    switches=(
        {"hidden_activation": "gelu"},
        {"num_key_value_heads": 6},
        {"num_key_value_heads": 1},
        {"tie_word_embeddings": True},
        {"global_rope_theta": 10_000.0},
        WITH_BIASES,
    ),
    trained=Head(ModernBertForMaskedLM(EUROBERT_TRAINED)),
    sharded=("modernbert/layers/layer_0/attention/key/kernel", (2, 12, 1, 6)),
    counts={
        "eurobert_210m": counts(EuroBertConfig.base(), 211_766_016, 310_266_624),
        "eurobert_610m": counts(EuroBertConfig.medium(), 607_874_688, 755_625_600),
        "eurobert_2b": counts(EuroBertConfig.large(), 2_107_590_912, 2_403_092_736),
    },
    initial=ModernBertForMaskedLM(EuroBertConfig.base(vocab_size=2000, hidden_size=128, num_attention_heads=2)),
    truncated=False,
    words="word_embeddings/embedding",
    token_heads=False,
    step=experiments.eurobert,
    learning={"model": {name: WIDER[name] for name in ("hidden_size", "intermediate_size", "initializer_range")}},
    batches={"tokens": padded_untyped_tokens},
    settings=eurobert_settings,
)

# ------------------------------------------------------------------------------------------------------ NeoBERT

NEOBERT = NeoBertConfig(
    vocab_size=53,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=40,
    max_position_embeddings=19,
    classifier_dropout=0.0,
    pad_token_id=3,
)
NEOBERT_TRAINED = dataclasses.replace(NEOBERT, vocab_size=56, num_attention_heads=4, intermediate_size=32).with_dropout(
    0.2
)


def neobert(config: NeoBertConfig, state: Mapping[str, Any], ids: Any) -> tuple[Any, ...]:
    """The formula of the paper on the tensors of its released files: int [T] -> the states of all layers, [T D] each.

    The last is normalised. The two features of a pair are a complex number, which is turned.
    """
    functions, size, heads = torch.nn.functional, config.hidden_size, config.num_attention_heads
    width = size // heads
    speeds = 10_000.0 ** (-torch.arange(0, width, 2).double() / width)
    turns = torch.exp(1j * torch.arange(len(ids)).double()[:, None] * speeds)[:, None]  # [T 1 H/2]

    def norm(x: Any, name: str) -> Any:
        return functions.rms_norm(x, (size,), state[name], config.norm_eps)

    def turned(x: Any) -> Any:
        return torch.view_as_real(torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * turns).flatten(2)

    x = state["model.encoder.weight"][ids]
    states = [x]
    for layer in range(config.num_hidden_layers):
        own = f"model.transformer_encoder.{layer}"
        projected = functions.linear(norm(x, f"{own}.attention_norm.weight"), state[f"{own}.qkv.weight"])
        query, key, value = projected.view(len(ids), heads, 3 * width).split(width, dim=-1)
        weights = torch.einsum("tnh,snh->nts", turned(query), turned(key)).div(width**0.5).softmax(-1)
        read = torch.einsum("nts,snh->tnh", weights, value).reshape(len(ids), size)
        x = x + functions.linear(read, state[f"{own}.wo.weight"])
        first, second = functions.linear(norm(x, f"{own}.ffn_norm.weight"), state[f"{own}.ffn.w12.weight"]).chunk(2, -1)
        x = x + functions.linear(functions.silu(first) * second, state[f"{own}.ffn.w3.weight"])
        states.append(x)
    return *states[:-1], norm(x, "model.layer_norm.weight")


def neobert_state(config: NeoBertConfig, params: Mapping[str, Any]) -> dict[str, Any]:
    """The same parameters as tensors of the released files, written out head by head."""
    own = {path.removeprefix("modernbert/"): one for path, one in params.items()}
    state = {
        "model.encoder.weight": own["word_embeddings/embedding"],
        "model.layer_norm.weight": own["final_norm/scale"],
    }
    for layer in range(config.num_hidden_layers):
        part = {path.removeprefix("layers/layer_0/"): one[layer] for path, one in own.items() if "layer_0/" in path}
        heads = [part[f"attention/{name}/kernel"] for name in ("query", "key", "value")]
        inner = [part[f"feed_forward/{name}/kernel"].T for name in ("intermediate", "gate")]
        state |= {
            f"model.transformer_encoder.{layer}.{name}.weight": tensor
            for name, tensor in {
                "attention_norm": part["attention_norm/scale"],
                "qkv": torch.cat([one[:, head].T for head in range(config.num_attention_heads) for one in heads]),
                "wo": part["attention/output/kernel"].flatten(0, 1).T,
                "ffn_norm": part["feed_forward_norm/scale"],
                "ffn.w12": torch.cat(inner),
                "ffn.w3": part["feed_forward/output/kernel"].T,
            }.items()
        }
    return state


def neobert_states(config: NeoBertConfig, params: Mapping[str, Any], text: Inputs) -> dict[str, Any]:
    states = neobert(config, neobert_state(config, params), text["input_ids"])
    return {"hidden_states": states, "last_hidden_state": states[-1]}


def neobert_words(config: NeoBertConfig, params: Mapping[str, Any], text: Inputs) -> dict[str, Any]:
    found = neobert_states(config, params, text)
    head = params["masked_language_model/decoder/kernel"], params["masked_language_model/bias"]
    return found | {"logits": found["last_hidden_state"] @ head[0] + head[1]}


def neobert_labels(config: NeoBertConfig, params: Mapping[str, Any], text: Inputs) -> dict[str, Any]:
    x = neobert_states(config, params, text)["last_hidden_state"][0]
    x = torch.tanh(x @ params["classifier/dense/kernel"] + params["classifier/dense/bias"])
    return {"logits": x @ params["classifier/output/kernel"] + params["classifier/output/bias"]}


NEOBERT_ROW = Family(
    oracle=TorchOracle(
        {
            ModernBertModel: neobert_states,
            ModernBertForMaskedLM: neobert_words,
            NeoBertForSequenceClassification: neobert_labels,
        },
        deviation=0.12,
    ),
    heads=(
        Head(ModernBertForMaskedLM(NEOBERT), predicts=True),
        Head(NeoBertForSequenceClassification(NEOBERT, num_labels=5), ("logits",), outputs=("logits",)),
    ),
    bodies=(ModernBertModel(NEOBERT),),
    switches=({"norm_eps": 1e-2},),
    trained=Head(ModernBertForMaskedLM(NEOBERT_TRAINED)),
    sharded=("modernbert/layers/layer_0/attention/query/kernel", (2, 12, 2, 6)),
    counts={"base": counts(NeoBertConfig.base(), 221_665_536, 245_136_954)},
    initial=ModernBertForMaskedLM(NeoBertConfig.base(vocab_size=2000, hidden_size=128, num_attention_heads=2)),
    uniform="(kernel|embedding)$",
    deviations={"(kernel|embedding)$": 0.02 / 3**0.5},
    words="word_embeddings/embedding",
    token_heads=False,
    step=experiments.neobert,
    learning={"model": {name: WIDER[name] for name in ("hidden_size", "intermediate_size", "initializer_range")}},
    batches={"tokens": padded_untyped_tokens},
)
