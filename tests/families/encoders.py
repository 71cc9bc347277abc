"""The rows of BERT, RoBERTa, ALBERT and ELECTRA."""

import dataclasses
from typing import Any

import jax

from plmjax.interop import albert as albert_interop
from plmjax.interop import bert as bert_interop
from plmjax.interop import electra as electra_interop
from plmjax.interop import roberta as roberta_interop
from plmjax.models import albert, bert, electra, roberta
from tests.families.family import DROPOUT, LENGTH, SIZES, WIDER, Family, Head, padded_tokens, random_tokens
from tests.third_party import experiments

# --------------------------------------------------------------------------------------------------------- BERT

BERT = bert.BertConfig(**SIZES, max_position_embeddings=19)
BERT_TRAINED = dataclasses.replace(BERT, vocab_size=56, num_attention_heads=4, intermediate_size=32, **DROPOUT)
NEXT = "seq_relationship_logits"


def bert_counts(config: Any, encoder: int, pretraining: int | None = None) -> tuple:
    both = ((bert.BertModel, encoder), (bert.BertForPreTraining, pretraining))
    return config, both[: 1 if pretraining is None else 2]


BERT_ROW = Family(
    adapter=bert_interop.ADAPTER,
    heads=(
        Head(bert.BertForPreTraining(BERT), ("pooler_output", NEXT), predicts=True),
        Head(bert.BertForMaskedLM(BERT), predicts=True),
        Head(bert.BertForSequenceClassification(BERT, num_labels=5), ("pooler_output", "logits")),
        Head(bert.BertForMultipleChoice(BERT), ("pooler_output", "logits")),
    ),
    bodies=(bert.BertModel(BERT), bert.BertForNextSentencePrediction(BERT)),
    stored=(
        bert.BertModel(BERT, pooling=False),
        bert.BertForSequenceClassification(dataclasses.replace(BERT, classifier_dropout=0.3), num_labels=4),
    ),
    switches=({"hidden_act": "gelu"}, {"hidden_act": "relu"}),
    trained=Head(bert.BertForPreTraining(BERT_TRAINED), (NEXT,)),
    sharded=("bert/encoder/layers/attention/query/kernel", (3, 12, 2, 6)),
    counts={
        "base": bert_counts(bert.BertConfig.base(), 109_482_240, 110_106_428),
        "large": bert_counts(bert.BertConfig.large(), 335_141_888, 336_226_108),
        "base_cased": bert_counts(bert.BertConfig.base_cased(), 108_310_272, 108_932_934),
        "large_cased": bert_counts(bert.BertConfig.large_cased(), 333_579_264, 334_661_958),
        "base_chinese": bert_counts(
            bert.BertConfig.base_chinese(), 109_482_240 - (30522 - 21128) * 768, 110_106_428 - (30522 - 21128) * 769
        ),
        "tiny": bert_counts(bert.BertConfig.tiny(), 4_385_920),
        "mini": bert_counts(bert.BertConfig.mini(), 11_170_560),
        "small": bert_counts(bert.BertConfig.small(), 28_763_648),
        "medium": bert_counts(bert.BertConfig.medium(), 41_373_184),
        "tinybert_4": bert_counts(bert.BertConfig.tinybert_4(), 14_350_248, 14_350_248 + 312 * 315 + 30522 + 2 * 313),
        "tinybert_6": bert_counts(bert.BertConfig.tinybert_6(), 66_955_008, 66_955_008 + 768 * 771 + 30522 + 2 * 769),
    },
    initial=bert.BertForPreTraining(bert.BertConfig.mini(vocab_size=2000)),
    own_loop=True,
    step=experiments.bert,
)

# ------------------------------------------------------------------------------------------------------ RoBERTa

ROBERTA = roberta.RobertaConfig(**SIZES, max_position_embeddings=LENGTH + 4, pad_token_id=3)
ROBERTA_TRAINED = dataclasses.replace(
    ROBERTA, vocab_size=56, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32, **DROPOUT
)


def roberta_counts(config: Any, with_pooler: int, masked_language_model: int) -> tuple:
    return config, (
        (lambda config: roberta.RobertaModel(config, pooling=True), with_pooler),
        (roberta.RobertaModel, with_pooler - config.hidden_size * (config.hidden_size + 1)),
        (roberta.RobertaForMaskedLM, masked_language_model),
    )


ROBERTA_ROW = Family(
    adapter=roberta_interop.ADAPTER,
    heads=(
        Head(roberta.RobertaForMaskedLM(ROBERTA), predicts=True),
        Head(roberta.RobertaForSequenceClassification(ROBERTA, num_labels=5), ("logits",)),
        Head(roberta.RobertaForMultipleChoice(ROBERTA), ("logits",)),
    ),
    bodies=(roberta.RobertaModel(ROBERTA, pooling=True),),
    stored=(
        roberta.RobertaModel(ROBERTA),
        roberta.RobertaForMaskedLM(dataclasses.replace(ROBERTA, hidden_act="relu")),
        roberta.RobertaForMaskedLM(dataclasses.replace(ROBERTA, hidden_act="gelu_new")),
        roberta.RobertaForSequenceClassification(
            dataclasses.replace(ROBERTA, hidden_act="relu", classifier_dropout=0.3), num_labels=4
        ),
    ),
    switches=({"hidden_act": "gelu_new"}, {"hidden_act": "relu"}),
    trained=Head(roberta.RobertaForMaskedLM(ROBERTA_TRAINED)),
    sharded=("roberta/encoder/layers/attention/query/kernel", (2, 12, 2, 6)),
    counts={
        "base": roberta_counts(roberta.RobertaConfig.base(), 124_645_632, 124_697_433),
        "large": roberta_counts(roberta.RobertaConfig.large(), 355_359_744, 355_412_057),
    },
    initial=roberta.RobertaForMaskedLM(roberta.RobertaConfig.tiny(vocab_size=2000)),
    truncated=False,
    step=experiments.roberta,
    batches={"padding tokens": padded_tokens, "other ids at padding": random_tokens},
)

# ------------------------------------------------------------------------------------------------------- ALBERT

ALBERT = albert.AlbertConfig(**SIZES, embedding_size=11, max_position_embeddings=19)
ALBERT_TRAINED = dataclasses.replace(
    ALBERT, vocab_size=56, embedding_size=10, num_attention_heads=4, intermediate_size=32, **DROPOUT
)
ALBERT_GROUPED = dataclasses.replace(ALBERT, num_hidden_layers=2, num_hidden_groups=2, inner_group_num=2, **DROPOUT)
ORDER = "sop_logits"


def albert_counts(name: str, encoder: int, pretraining: int) -> dict[str, tuple]:
    """Any number of layers has as many parameters."""
    config = getattr(albert.AlbertConfig, name)()
    configs = {name: config, f"{name} of 2 layers": dataclasses.replace(config, num_hidden_layers=2)}
    both = ((albert.AlbertModel, encoder), (albert.AlbertForPreTraining, pretraining))
    return {name: (config, both) for name, config in configs.items()}


ALBERT_ROW = Family(
    adapter=albert_interop.ADAPTER,
    heads=(
        Head(albert.AlbertForPreTraining(ALBERT), ("pooler_output", ORDER), predicts=True),
        Head(albert.AlbertForMaskedLM(ALBERT), predicts=True),
        Head(albert.AlbertForSequenceClassification(ALBERT, num_labels=5), ("pooler_output", "logits")),
        Head(albert.AlbertForMultipleChoice(ALBERT), ("pooler_output", "logits")),
    ),
    bodies=(albert.AlbertModel(ALBERT),),
    stored=(
        albert.AlbertModel(ALBERT, pooling=False),
        albert.AlbertModel(dataclasses.replace(ALBERT, num_hidden_groups=2, inner_group_num=3)),
        albert.AlbertForPreTraining(dataclasses.replace(ALBERT, num_hidden_groups=2, inner_group_num=3)),
        albert.AlbertForSequenceClassification(dataclasses.replace(ALBERT, classifier_dropout_prob=0.2), num_labels=4),
    ),
    switches=({"hidden_act": "gelu"}, {"embedding_size": 24}),
    trained=Head(albert.AlbertForPreTraining(ALBERT_TRAINED), (ORDER,)),
    executed=(Head(albert.AlbertForPreTraining(ALBERT_GROUPED), (ORDER,)),),
    sharded=("albert/encoder/group_0/layer_0/attention/query/kernel", (12, 2, 6)),
    counts=albert_counts("base", 11_683_584, 11_813_810)
    | albert_counts("large", 17_683_968, 17_847_474)
    | albert_counts("xlarge", 58_724_864, 59_021_490)
    | albert_counts("xxlarge", 222_595_584, 223_158_450),
    initial=albert.AlbertForPreTraining(albert.AlbertConfig.tiny(vocab_size=2000)),
    own_loop=True,
    step=experiments.albert,
)

# ------------------------------------------------------------------------------------------------------ ELECTRA

ELECTRA = electra.ElectraConfig(
    **SIZES,
    generator_hidden_size=10,
    generator_num_attention_heads=2,
    generator_intermediate_size=23,
    max_position_embeddings=19,
    embedding_size=14,
    hidden_act="gelu_new",
)
ELECTRA_TRAINED = dataclasses.replace(
    ELECTRA,
    vocab_size=56,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=32,
    embedding_size=16,
    generator_hidden_size=12,
    generator_intermediate_size=20,
    **DROPOUT,
)


class BothNetworks(electra.ElectraForPreTraining):
    """Both networks in one output: what the discriminator says beside what the generator does."""

    def __call__(self, input_ids: jax.Array, **inputs: Any) -> Any:
        generated, scored = super().__call__(input_ids, **inputs)
        return generated.replace(pooler_output=scored.logits)


def electra_counts(config: Any, encoder: int, discriminator: int, *, generator: int, both: int) -> tuple:
    return config, (
        (electra.ElectraModel, encoder),
        (electra.ElectraForReplacedTokenDetection, discriminator),
        (electra.ElectraForMaskedLM, generator),
        (electra.ElectraForPreTraining, both),
    )


SMALL = {"encoder": 13_483_008, "discriminator": 13_549_057, "generator": 4_620_026, "both": 14_196_219}
NOT_PROJECTED = {
    "hidden_act": "relu",
    "embedding_size": 24,
    "generator_hidden_size": 24,
    "generator_num_attention_heads": 4,
}
ELECTRA_ROW = Family(
    adapter=electra_interop.ADAPTER,
    heads=(
        Head(electra.ElectraForReplacedTokenDetection(ELECTRA)),
        Head(electra.ElectraForMaskedLM(ELECTRA), predicts=True),
        Head(electra.ElectraForSequenceClassification(ELECTRA, num_labels=5), ("pooler_output", "logits")),
        Head(electra.ElectraForMultipleChoice(ELECTRA), ("pooler_output", "logits")),
    ),
    bodies=(electra.ElectraModel(ELECTRA),),
    switches=({"hidden_act": "gelu"}, NOT_PROJECTED),
    trained=Head(BothNetworks(ELECTRA_TRAINED), ("pooler_output",)),
    sharded=("generator/encoder/layers/attention/query/kernel", (2, 6, 1, 6)),
    counts={
        "small": electra_counts(electra.ElectraConfig.small(), **SMALL),
        "default": electra_counts(electra.ElectraConfig(), **SMALL),
        "base": electra_counts(
            electra.ElectraConfig.base(), 108_891_648, 109_483_009, generator=33_740_602, both=119_386_427
        ),
        "large": electra_counts(
            electra.ElectraConfig.large(), 334_092_288, 335_142_913, generator=51_295_290, both=354_655_291
        ),
    },
    initial=electra.ElectraForPreTraining(electra.ElectraConfig.tiny(vocab_size=2000)),
    step=experiments.electra,
    learning={"objective": {"discriminator_weight": 1.0}, "model": {**WIDER, "generator_hidden_size": 32}},
    reference_config=lambda module: (
        module.config.generator if isinstance(module, electra.ElectraForMaskedLM) else module.config
    ),
)
