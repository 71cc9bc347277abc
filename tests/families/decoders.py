"""The rows of GPT and GPT-2."""

import dataclasses
import math

from plmjax.interop import gpt as gpt_interop
from plmjax.interop import gpt2 as gpt2_interop
from plmjax.models import gpt, gpt2
from plmjax.models.families.decoder import DecoderForMultipleChoice, DecoderForSequenceClassification
from plmjax.models.families.task_heads import QuestionAnswering
from tests.families.family import LARGER, READS_FORWARD, Family, Head, padded_untyped_tokens, untyped_tokens
from tests.third_party import experiments

# ---------------------------------------------------------------------------------------------------------- GPT

GPT = gpt.GptConfig(
    vocab_size=53,
    n_positions=19,
    n_embd=24,
    n_layer=3,
    n_head=3,
    embd_pdrop=0.0,
    resid_pdrop=0.0,
    attn_pdrop=0.0,
    pad_token_id=3,
)
GPT_TRAINED = dataclasses.replace(GPT.with_dropout(0.2), vocab_size=56, n_positions=24, n_layer=2, n_head=4)

GPT_ROW = Family(
    adapter=gpt_interop.ADAPTER,
    heads=(
        Head(gpt.GptForCausalLM(GPT)),
        Head(gpt.GptForSequenceClassification(GPT, num_labels=5), ("logits",)),
        Head(gpt.GptForMultipleChoice(GPT), ("logits",)),
    ),
    bodies=(gpt.GptModel(GPT),),
    stored=(
        gpt.GptForSequenceClassification(
            dataclasses.replace(GPT, activation_function="relu", summary_first_dropout=0.3), num_labels=4
        ),
    ),
    switches=({"activation_function": "relu"},),
    trained=Head(gpt.GptForCausalLM(GPT_TRAINED)),
    sharded=("gpt/table/embedding", (40, 12)),
    counts={"base": (gpt.GptConfig.base(), ((gpt.GptModel, 116_534_784), (gpt.GptForCausalLM, 116_534_784)))},
    initial=gpt.GptForCausalLM(gpt.GptConfig.tiny(vocab_size=2000)),
    truncated=False,
    words="table/embedding",
    token_heads=False,
    step=experiments.gpt,
    learning={"model": {"n_embd": 32, **LARGER}},
    batches={"tokens": padded_untyped_tokens},
    views=READS_FORWARD,
    settings=lambda config: {"afn": gpt_interop.ACTIVATIONS[config.activation_function]},
)

# -------------------------------------------------------------------------------------------------------- GPT-2

GPT2 = gpt2.Gpt2Config(
    vocab_size=53,
    n_positions=19,
    n_embd=24,
    n_layer=3,
    n_head=3,
    n_inner=37,
    embd_pdrop=0.0,
    resid_pdrop=0.0,
    attn_pdrop=0.0,
    bos_token_id=7,
    eos_token_id=None,
)

GPT2_PADDED = dataclasses.replace(GPT2, pad_token_id=3)
GPT2_TRAINED = dataclasses.replace(GPT2.with_dropout(0.2), vocab_size=56, n_layer=2, n_head=4, n_inner=32)


def gpt2_counts(config: gpt2.Gpt2Config, parameters: int) -> tuple:
    return config, ((gpt2.Gpt2Model, parameters), (gpt2.Gpt2ForCausalLM, parameters))


GPT2_ROW = Family(
    adapter=gpt2_interop.ADAPTER,
    heads=(Head(gpt2.Gpt2ForCausalLM(GPT2)),),
    bodies=(gpt2.Gpt2Model(GPT2),),
    stored=(
        gpt2.Gpt2ForCausalLM(dataclasses.replace(GPT2, activation_function="relu")),
        DecoderForSequenceClassification(GPT2_PADDED, num_labels=5),
        DecoderForMultipleChoice(GPT2_PADDED),
        QuestionAnswering(GPT2_PADDED),
    ),
    switches=({"activation_function": "gelu", "n_inner": None},),
    trained=Head(gpt2.Gpt2ForCausalLM(GPT2_TRAINED)),
    sharded=("gpt2/layers/attention/query/kernel", (2, 12, 2, 6)),
    counts={
        "small": gpt2_counts(gpt2.Gpt2Config.small(), 124_439_808),
        "medium": gpt2_counts(gpt2.Gpt2Config.medium(), 354_823_168),
        "large": gpt2_counts(gpt2.Gpt2Config.large(), 774_030_080),
        "xl": gpt2_counts(gpt2.Gpt2Config.xl(), 1_557_611_200),
    },
    initial=gpt2.Gpt2ForCausalLM(gpt2.Gpt2Config.tiny(vocab_size=2000)),
    truncated=False,
    deviations={"position_embeddings": 0.01, "(attention|feed_forward)/output": 0.02 / math.sqrt(2 * 2)},
    words="word_embeddings/embedding",
    token_heads=False,
    step=experiments.gpt2,
    learning={"model": {"n_embd": 32, "n_inner": 64, **LARGER}},
    batches={"tokens": untyped_tokens},
    views=READS_FORWARD,
)
