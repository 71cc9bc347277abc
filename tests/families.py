"""One row a system: all that the suite in tests/systems must know of it. Adding a system is adding its row.

A row names small models of odd sizes, the numbers that were published, and a run so small that a step takes
milliseconds. What is peculiar to one system stands in a file of its own in tests/models.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from plmjax.experiment import Experiment
from plmjax.interop import albert as albert_interop
from plmjax.interop import bart as bart_interop
from plmjax.interop import bert as bert_interop
from plmjax.interop import electra as electra_interop
from plmjax.interop import gpt as gpt_interop
from plmjax.interop import gpt2 as gpt2_interop
from plmjax.interop import marian as marian_interop
from plmjax.interop import roberta as roberta_interop
from plmjax.interop import t5 as t5_interop
from plmjax.interop.adapter import Adapter
from plmjax.models import albert, bart, bert, electra, gpt, gpt2, roberta, t5, transformer
from plmjax.models.heads import QuestionAnswering
from tests.strangers import experiments
from tests.strangers.source import ChainSource, LabelledSource
from tests.systems.modules import taken_sides

SIZES = {
    "vocab_size": 53,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 37,
    "type_vocab_size": 3,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
"""Odd ones, so that no axis is mistaken for another; with room for `LENGTH` positions beside them."""
DROPOUT = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2}
LARGER = {"initializer_range": 0.1}
"""Of narrow models, which learn faster when they begin larger."""
WIDER = {"hidden_size": 32, "intermediate_size": 64, **LARGER}
ROWS, LENGTH = 3, 17

Batch = dict[str, np.ndarray]


def random_tokens(config: Any) -> Batch:
    """Rows of 17, 11 and 1 real tokens; none is the padding token, whose table row torch never gives a gradient."""
    random = np.random.default_rng(0)
    ids = random.integers(0, config.vocab_size - 1, (ROWS, LENGTH), np.int32)
    return {
        "input_ids": ids + (ids >= config.pad_token_id),
        "attention_mask": (np.arange(LENGTH)[None] < np.array([[17], [11], [1]])).astype(np.int32),
        "token_type_ids": random.integers(0, config.type_vocab_size, (ROWS, LENGTH), np.int32),
    }


def untyped_tokens(config: Any) -> Batch:
    """Rows of the same lengths for a model without types of tokens and without a padding token."""
    ids = np.random.default_rng(0).integers(0, config.vocab_size, (ROWS, LENGTH), np.int32)
    mask = np.arange(LENGTH)[None] < np.array([[17], [11], [1]])
    return {"input_ids": ids, "attention_mask": mask.astype(np.int32)}


def padded_untyped_tokens(config: Any) -> Batch:
    """The same with the padding token where there is padding and nowhere else: transformers finds a row's end by it."""
    batch = untyped_tokens(dataclasses.replace(config, vocab_size=config.vocab_size - 1))
    ids, pad = batch["input_ids"], config.pad_token_id
    return batch | {"input_ids": np.where(batch["attention_mask"] == 1, ids + (ids >= pad), pad)}


def padded_tokens(config: Any) -> Batch:
    """The same with the padding token where there is padding, from which RoBERTa's positions know it."""
    batch = random_tokens(config)
    return batch | {"input_ids": np.where(batch["attention_mask"] == 1, batch["input_ids"], config.pad_token_id)}


def both_sides(config: Any) -> Batch:
    """Sources of 17, 11 and 1 real tokens with targets of 13, 6 and 2; the padding token is as in `random_tokens`."""
    random, batch = np.random.default_rng(0), {}
    for side, length, lengths in (("", LENGTH, (17, 11, 1)), ("decoder_", 13, (13, 6, 2))):
        ids = random.integers(0, config.vocab_size - 1, (ROWS, length), np.int32)
        batch[f"{side}input_ids"] = ids + (ids >= config.pad_token_id)
        batch[f"{side}attention_mask"] = (np.arange(length) < np.array(lengths)[:, None]).astype(np.int32)
    return batch


def ended_sources(config: Any) -> Batch:
    """The same with the end token where a source ends and nowhere else: transformers' BART finds the end by it."""
    batch = both_sides(config)
    ids, end = batch["input_ids"], config.eos_token_id
    ids = np.where(ids == end, end + 1, ids)
    ids[np.arange(ROWS), batch["attention_mask"].sum(axis=1) - 1] = end
    return batch | {"input_ids": ids}


def side_of(name: str) -> str:
    """What the names of the fields of its side begin with: of a decoder beside an encoder, with decoder_."""
    return "decoder_" if name.startswith("decoder_") else ""


def same_sequence(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """int [T], int [S] of segments -> bool [T S]: a token sees those of its own sequence; 0 is padding."""
    return (queries[:, None] == keys) & (queries[:, None] > 0)


def earlier_in_sequence(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """As `same_sequence`, but of a decoder's token: it sees none that comes after it."""
    return same_sequence(queries, keys) & np.tri(len(queries), dtype=bool)


def nothing(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """No token is seen."""
    return np.zeros((len(queries), len(keys)), bool)


@dataclasses.dataclass(frozen=True)
class View:
    """Which tokens reach an output.

    queries, keys: the sides that output and tokens are of: what the names of their fields begin with.
    visible: segments of both, int [T] and int [S] -> bool [T S].
    """

    visible: Callable[[np.ndarray, np.ndarray], np.ndarray]
    output: str = "last_hidden_state"
    queries: str = ""
    keys: str = ""


READS_BOTH_WAYS = (View(same_sequence),)
READS_FORWARD = (View(earlier_in_sequence),)
READS_AND_WRITES = (
    View(same_sequence, "encoder_last_hidden_state"),
    View(nothing, "encoder_last_hidden_state", "", "decoder_"),
    View(same_sequence, "last_hidden_state", "decoder_", ""),
    View(earlier_in_sequence, "last_hidden_state", "decoder_", "decoder_"),
)
"""Of encoders, decoders, and encoder-decoders."""


@dataclasses.dataclass(frozen=True)
class Head:
    """A module that is held to every invariant.

    of_sequences: its outputs of a whole sequence, [B ...], or [B K ...] of packed ones.
    predicts: whether `masked_positions` chooses among its logits.
    """

    module: nn.Module
    of_sequences: tuple[str, ...] = ()
    predicts: bool = False


@dataclasses.dataclass(frozen=True)
class Family:
    """A system.

    adapter: its checkpoints in transformers.
    heads: modules that equal those of transformers and keep the invariants.
    bodies: modules that equal those of transformers; the first is the encoder, whose tokens' view is proved.
    switches: fields of the config that change what is computed -> compared with transformers for the first head.
    trained: the module whose loss, gradients included, every execution and every mesh leaves as it is, with dropout.
    stored: other modules that a checkpoint may hold: without pooler, with other settings.
    executed: modules beside `trained` whose layers are looped over in another way.
    sharded: `trained` with sizes that two devices divide, and one parameter's path with its shape on a 2 x 2 x 2 mesh.
    counts: name of a published size -> its config and (module of the config, parameters) pairs.
    initial: a module with tables large enough to measure what its parameters are drawn from.
    own_loop: whether its loop over the layers is its own; one that it has from another system is proved there, and here
        in the slow tests.
    truncated: whether they are drawn from a normal distribution cut at two standard deviations.
    deviations: pattern of a parameter's path -> its standard deviation, where that is not 0.02.
    uniform: pattern of the paths of parameters that are drawn from a uniform distribution instead.
    words: the path of the word table in the first of the bodies.
    token_heads: whether transformers has it with the heads for tagging and for questions.
    step: its pretraining in milliseconds a step.
    learning: fields of that run, by group, that it learns faster with.
    batches: name -> what the modules of a config are given.
    views: which tokens reach which.
    reference_config: module -> the config of transformers' class, where it is not the module's own.
    settings: config -> what transformers' config has besides its fields.
    """

    adapter: Adapter
    heads: tuple[Head, ...]
    bodies: tuple[nn.Module, ...]
    switches: tuple[dict[str, Any], ...]
    trained: Head
    sharded: tuple[Head, str, tuple[int, ...]]
    counts: Mapping[str, tuple[Any, tuple[tuple[Callable[[Any], nn.Module], int], ...]]]
    initial: nn.Module
    step: Callable[[], Experiment]
    learning: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=lambda: {"model": WIDER})
    stored: tuple[nn.Module, ...] = ()
    executed: tuple[Head, ...] = ()
    own_loop: bool = False
    truncated: bool = True
    deviations: Mapping[str, float] = dataclasses.field(default_factory=dict)
    uniform: str | None = None
    words: str = "embeddings/word_embeddings/embedding"
    token_heads: bool = True
    batches: Mapping[str, Callable[[Any], Batch]] = dataclasses.field(default_factory=lambda: {"tokens": random_tokens})
    views: tuple[View, ...] = READS_BOTH_WAYS
    reference_config: Callable[[nn.Module], Any] = lambda module: module.config
    settings: Callable[[Any], dict[str, Any]] = lambda config: {}

    def batch(self, module: nn.Module) -> Batch:
        """What the module is given, the first kind; a head that takes no target has none."""
        batch = next(iter(self.batches.values()))(module.config)
        sides = taken_sides(module)
        return {name: field for name, field in batch.items() if side_of(name) in sides}


# --------------------------------------------------------------------------------------------------------- BERT

BERT = bert.BertConfig(**SIZES, max_position_embeddings=19)
BERT_SHARDED = dataclasses.replace(
    BERT, vocab_size=56, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32, **DROPOUT
)
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
    trained=Head(bert.BertForPreTraining(dataclasses.replace(BERT, **DROPOUT)), (NEXT,)),
    sharded=(
        Head(bert.BertForPreTraining(BERT_SHARDED), (NEXT,)),
        "bert/encoder/layers/attention/query/kernel",
        (2, 12, 2, 6),
    ),
    counts={
        "base": bert_counts(bert.BertConfig.base(), 109_482_240, 110_106_428),
        "large": bert_counts(bert.BertConfig.large(), 335_141_888, 336_226_108),
        "base_cased": bert_counts(bert.BertConfig.base_cased(), 108_310_272, 108_932_934),
        "large_cased": bert_counts(bert.BertConfig.large_cased(), 333_579_264, 334_661_958),
        "base_chinese": bert_counts(
            bert.BertConfig.base_chinese(),
            109_482_240 - (30522 - 21128) * 768,
            110_106_428 - (30522 - 21128) * 769,
        ),
        "tiny": bert_counts(bert.BertConfig.tiny(), 4_385_920),
        "mini": bert_counts(bert.BertConfig.mini(), 11_170_560),
        "small": bert_counts(bert.BertConfig.small(), 28_763_648),
        "medium": bert_counts(bert.BertConfig.medium(), 41_373_184),
    },
    initial=bert.BertForPreTraining(bert.BertConfig.mini(vocab_size=2000)),
    own_loop=True,
    step=experiments.bert,
)

# ------------------------------------------------------------------------------------------------------ RoBERTa

ROBERTA = roberta.RobertaConfig(**SIZES, max_position_embeddings=LENGTH + 4, pad_token_id=3)
ROBERTA_SHARDED = dataclasses.replace(
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
    trained=Head(roberta.RobertaForMaskedLM(dataclasses.replace(ROBERTA, **DROPOUT))),
    sharded=(
        Head(roberta.RobertaForMaskedLM(ROBERTA_SHARDED)),
        "roberta/encoder/layers/attention/query/kernel",
        (2, 12, 2, 6),
    ),
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
ALBERT_SHARDED = dataclasses.replace(
    ALBERT,
    vocab_size=56,
    embedding_size=10,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=32,
    **DROPOUT,
)
ALBERT_GROUPED = dataclasses.replace(ALBERT, num_hidden_groups=2, inner_group_num=2, **DROPOUT)
ORDER = "sop_logits"


def albert_counts(name: str, encoder: int, pretraining: int) -> dict[str, tuple]:
    """Of both versions; any number of layers has as many parameters."""
    first, second = getattr(albert.AlbertConfig, name)(), getattr(albert.AlbertConfig, f"{name}_v2")()
    configs = {
        name: first,
        f"{name}_v2": second,
        f"{name} of 2 layers": dataclasses.replace(first, num_hidden_layers=2),
    }
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
    trained=Head(albert.AlbertForPreTraining(dataclasses.replace(ALBERT, **DROPOUT)), (ORDER,)),
    executed=(Head(albert.AlbertForPreTraining(ALBERT_GROUPED), (ORDER,)),),
    sharded=(
        Head(albert.AlbertForPreTraining(ALBERT_SHARDED), (ORDER,)),
        "albert/encoder/group_0/layer_0/attention/query/kernel",
        (12, 2, 6),
    ),
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
ELECTRA_SHARDED = dataclasses.replace(
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


def electra_counts(config: Any, encoder: int, discriminator: int, generator: int, both: int) -> tuple:
    return config, (
        (electra.ElectraModel, encoder),
        (electra.ElectraForReplacedTokenDetection, discriminator),
        (electra.ElectraForMaskedLM, generator),
        (electra.ElectraForPreTraining, both),
    )


SMALL = (13_483_008, 13_549_057, 4_620_026, 14_196_219)
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
    trained=Head(BothNetworks(dataclasses.replace(ELECTRA, **DROPOUT)), ("pooler_output",)),
    sharded=(
        Head(BothNetworks(ELECTRA_SHARDED), ("pooler_output",)),
        "generator/encoder/layers/attention/query/kernel",
        (2, 6, 1, 6),
    ),
    counts={
        "small": electra_counts(electra.ElectraConfig.small(), *SMALL),
        "default": electra_counts(electra.ElectraConfig(), *SMALL),
        "base": electra_counts(electra.ElectraConfig.base(), 108_891_648, 109_483_009, 33_740_602, 119_386_427),
        "large": electra_counts(electra.ElectraConfig.large(), 334_092_288, 335_142_913, 51_295_290, 354_655_291),
    },
    initial=electra.ElectraForPreTraining(electra.ElectraConfig.tiny(vocab_size=2000)),
    step=experiments.electra,
    learning={"objective": {"discriminator_weight": 1.0}, "model": {**WIDER, "generator_hidden_size": 32}},
    reference_config=lambda module: (
        module.config.generator if isinstance(module, electra.ElectraForMaskedLM) else module.config
    ),
)

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
GPT_SHARDED = dataclasses.replace(GPT.with_dropout(0.2), vocab_size=56, n_positions=24, n_layer=2, n_head=4)

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
    trained=Head(gpt.GptForCausalLM(GPT.with_dropout(0.2))),
    sharded=(Head(gpt.GptForCausalLM(GPT_SHARDED)), "gpt/table/embedding", (40, 12)),
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


def gpt2_counts(config: gpt2.Gpt2Config, parameters: int) -> tuple:
    return config, ((gpt2.Gpt2Model, parameters), (gpt2.Gpt2ForCausalLM, parameters))


GPT2_ROW = Family(
    adapter=gpt2_interop.ADAPTER,
    heads=(Head(gpt2.Gpt2ForCausalLM(GPT2)),),
    bodies=(gpt2.Gpt2Model(GPT2),),
    stored=(gpt2.Gpt2ForCausalLM(dataclasses.replace(GPT2, activation_function="relu")),),
    switches=({"activation_function": "gelu", "n_inner": None},),
    trained=Head(gpt2.Gpt2ForCausalLM(GPT2.with_dropout(0.2))),
    sharded=(
        Head(
            gpt2.Gpt2ForCausalLM(
                dataclasses.replace(GPT2.with_dropout(0.2), vocab_size=56, n_layer=2, n_head=4, n_inner=32)
            )
        ),
        "gpt2/layers/attention/query/kernel",
        (2, 12, 2, 6),
    ),
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

# -------------------------------------------------------------------------------------------------- Transformer

WRITER_SIZES = {
    "vocab_size": 53,
    "max_position_embeddings": 19,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 37,
    "decoder_ffn_dim": 29,
    "dropout": 0.0,
    "pad_token_id": 3,
    "eos_token_id": 4,
    "decoder_start_token_id": 4,
}
"""Odd ones, with unequal sides."""
WRITER_DROPOUT = {"dropout": 0.2, "encoder_layers": 2, "decoder_layers": 2}
"""A random mask takes long to compile, and so does every layer of an unrolled loop."""
WRITER_DIVIDED = {"vocab_size": 56, "decoder_attention_heads": 4, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
TRANSFORMER = transformer.TransformerConfig(**WRITER_SIZES)
MARIAN = dataclasses.replace(TRANSFORMER, output_bias=True)


def transformer_counts(config: Any, parameters: int) -> tuple:
    return config, (
        (transformer.TransformerModel, parameters),
        (transformer.TransformerForConditionalGeneration, parameters),
    )


TRANSFORMER_ROW = Family(
    adapter=marian_interop.ADAPTER,
    heads=(Head(transformer.TransformerForConditionalGeneration(TRANSFORMER)),),
    bodies=(transformer.TransformerModel(TRANSFORMER),),
    stored=(transformer.TransformerForConditionalGeneration(MARIAN),),
    switches=(
        {"activation_function": "swish", "scale_embedding": False},
        {"activation_function": "gelu", "d_model": 15, "encoder_attention_heads": 3, "encoder_layers": 1},
    ),
    trained=Head(transformer.TransformerForConditionalGeneration(dataclasses.replace(MARIAN, **WRITER_DROPOUT))),
    sharded=(
        Head(
            transformer.TransformerForConditionalGeneration(
                dataclasses.replace(TRANSFORMER, **WRITER_DIVIDED, **WRITER_DROPOUT)
            )
        ),
        "transformer/decoder_layers/cross_attention/query/kernel",
        (2, 12, 2, 6),
    ),
    counts={
        "base": transformer_counts(transformer.TransformerConfig.base(), 63_082_496),
        "big": transformer_counts(transformer.TransformerConfig.big(), 214_245_376),
    },
    initial=transformer.TransformerForConditionalGeneration(transformer.TransformerConfig.tiny(vocab_size=2000)),
    truncated=False,
    deviations={"feed_forward": math.sqrt(2 / (128 + 512)), "": 128**-0.5},
    uniform="kernel",
    words="words/embedding",
    token_heads=False,
    step=experiments.transformer,
    learning={"model": {"d_model": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}},
    batches={"both sides": both_sides},
    views=READS_AND_WRITES,
)

# --------------------------------------------------------------------------------------------------------- BART

BART = bart.BartConfig(**WRITER_SIZES, activation_function="gelu")


def bart_counts(config: Any, parameters: int) -> tuple:
    return config, ((bart.BartModel, parameters), (bart.BartForConditionalGeneration, parameters))


BART_ROW = Family(
    adapter=bart_interop.ADAPTER,
    heads=(
        Head(bart.BartForConditionalGeneration(BART)),
        Head(bart.BartForSequenceClassification(BART, num_labels=5), ("logits",)),
    ),
    bodies=(bart.BartModel(BART),),
    stored=(
        QuestionAnswering(BART),
        bart.BartForSequenceClassification(dataclasses.replace(BART, classifier_dropout=0.3), num_labels=4),
    ),
    switches=({"activation_function": "relu", "d_model": 15, "encoder_attention_heads": 3},),
    trained=Head(bart.BartForConditionalGeneration(dataclasses.replace(BART, **WRITER_DROPOUT))),
    sharded=(
        Head(bart.BartForConditionalGeneration(dataclasses.replace(BART, **WRITER_DIVIDED, **WRITER_DROPOUT))),
        "bart/encoder_layers/attention/query/kernel",
        (2, 12, 2, 6),
    ),
    counts={
        "base": bart_counts(bart.BartConfig.base(), 139_420_416),
        "large": bart_counts(bart.BartConfig.large(), 406_291_456),
    },
    initial=bart.BartForConditionalGeneration(bart.BartConfig.tiny(vocab_size=2000)),
    truncated=False,
    words="words/embedding",
    token_heads=False,
    step=experiments.bart,
    learning={"model": {"d_model": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "init_std": 0.1}},
    batches={"both sides": ended_sources},
    views=READS_AND_WRITES,
)

# ----------------------------------------------------------------------------------------------------------- T5

T5 = t5.T5Config(
    vocab_size=53,
    d_model=24,
    d_kv=5,
    d_ff=37,
    num_layers=2,
    num_decoder_layers=3,
    num_heads=3,
    relative_attention_num_buckets=8,
    relative_attention_max_distance=12,
    dropout_rate=0.0,
    initializer_factor=0.3,
    pad_token_id=3,
    decoder_start_token_id=3,
)


def t5_counts(config: t5.T5Config, parameters: int) -> tuple:
    own = 0 if config.tie_word_embeddings else config.vocab_size * config.d_model
    return config, ((t5.T5Model, parameters - own), (t5.T5ForConditionalGeneration, parameters))


T5_ROW = Family(
    adapter=t5_interop.ADAPTER,
    heads=(Head(t5.T5ForConditionalGeneration(T5)),),
    bodies=(t5.T5Model(T5),),
    stored=(t5.T5ForConditionalGeneration(dataclasses.replace(T5, feed_forward_proj="gated-gelu")),),
    switches=({"feed_forward_proj": "gated-gelu", "num_layers": 1},),
    trained=Head(t5.T5ForConditionalGeneration(dataclasses.replace(T5.with_dropout(0.2), num_layers=3))),
    sharded=(
        Head(
            t5.T5ForConditionalGeneration(
                dataclasses.replace(
                    T5.with_dropout(0.2), vocab_size=56, d_kv=6, d_ff=32, num_heads=4, num_decoder_layers=2
                )
            )
        ),
        "t5/decoder/layers/cross_attention/query/kernel",
        (2, 12, 2, 6),
    ),
    counts={
        "small": t5_counts(t5.T5Config.small(), 60_506_624),
        "base": t5_counts(t5.T5Config.base(), 222_903_552),
        "large": t5_counts(t5.T5Config.large(), 737_668_096),
        "3B": t5_counts(t5.T5Config.three_billion(), 2_851_598_336),
        "11B": t5_counts(t5.T5Config.eleven_billion(), 11_307_321_344),
        "small 1.1": t5_counts(t5.T5Config.small_v1_1(), 76_961_152),
        "base 1.1": t5_counts(t5.T5Config.base_v1_1(), 247_577_856),
        "large 1.1": t5_counts(t5.T5Config.large_v1_1(), 783_150_080),
        "xl 1.1": t5_counts(t5.T5Config.xl_v1_1(), 2_849_757_184),
        "xxl 1.1": t5_counts(t5.T5Config.xxl_v1_1(), 11_135_332_352),
    },
    initial=t5.T5ForConditionalGeneration(
        t5.T5Config.tiny(vocab_size=2000, feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    ),
    truncated=False,
    deviations={
        "shared": 1.0,
        "query": (128 * 32) ** -0.5,
        "feed_forward/output": 512**-0.5,
        "": 128**-0.5,
    },
    words="shared/embedding",
    token_heads=False,
    step=experiments.t5,
    learning={"model": {"d_model": 32, "d_ff": 64}},
    batches={"both sides": both_sides},
    views=READS_AND_WRITES,
)

# -------------------------------------------------------------------------------------------------------- tables

FAMILIES: dict[str, Family] = {
    "bert": BERT_ROW,
    "roberta": ROBERTA_ROW,
    "albert": ALBERT_ROW,
    "electra": ELECTRA_ROW,
    "gpt": GPT_ROW,
    "gpt2": GPT2_ROW,
    "transformer": TRANSFORMER_ROW,
    "bart": BART_ROW,
    "t5": T5_ROW,
}

STEPS: dict[str, tuple[Callable[[], Experiment], type[ChainSource]]] = {
    **{name: (family.step, ChainSource) for name, family in FAMILIES.items()},
    "classification": (experiments.classification, LabelledSource),
    "recurrent": (experiments.recurrent, ChainSource),
}
"""Name -> (its experiment, where its batches come from): what every step must do is asked of all of them."""
