"""What a model takes, and what it refuses in one sentence: numbers, sizes that do not fit, and inputs."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Purpose
from plmjax.errors import UserError
from plmjax.interop import huggingface
from plmjax.interop import modernbert as of_modernbert
from plmjax.interop.led import read_config, write_config
from plmjax.models.bart.translation import BartTranslationConfig
from plmjax.models.bert import BertModel
from plmjax.models.deberta.encoder import DebertaModel
from plmjax.models.families.task_heads import TokenClassification
from plmjax.models.longformer.encoder_decoder import LedForConditionalGeneration
from plmjax.models.nnlm import Nnlm
from plmjax.models.reformer.reformer import ReformerModel
from plmjax.models.roberta import RobertaModel
from plmjax.models.t5 import T5ForConditionalGeneration
from plmjax.models.transformer import TransformerForConditionalGeneration
from plmjax.models.ulmfit import UlmfitForSequenceClassification
from plmjax.models.xlnet.xlnet import XlnetForPreTraining, XlnetMemory
from plmjax.runs.weight_mappings.biattentive_classifier import BiattentiveClassifier
from plmjax.runs.weight_mappings.longformer import WiderWindows
from plmjax.runs.weight_mappings.token_embeddings import FromTokenEmbeddings
from tests.families.encoder_decoders import LITE, LITE_DECODER, TRANSFORMER
from tests.families.encoders import BERT, ROBERTA
from tests.families.hashes import CHUNKED, ENCODER, REFORMER
from tests.families.long_texts import DECODER, LED, LONGFORMER
from tests.families.memories import SPAN
from tests.families.modern import DEBERTA, MODERNBERT
from tests.families.permutations import XLNET
from tests.families.recurrent import ELMO
from tests.families.students import DISTILBERT
from tests.families.word_vectors import NNLM
from tests.models.declared import CONFIGS, FILES
from tests.systems.modules import random_params

T5 = CONFIGS["T5"].tiny(relative_attention_num_buckets=8, relative_attention_max_distance=20)
UNLIKE = dataclasses.replace(ENCODER, **CHUNKED, lsh_num_chunks_after=0, local_num_chunks_after=1)
LONG_CHUNKS = dataclasses.replace(
    REFORMER, local_attn_chunk_length=24, lsh_attn_chunk_length=32, num_buckets=(4,), axial_pos_shape=(4, 5)
)
TAGGER = CONFIGS["Taglm"](language_model=ELMO, max_characters_per_token=ELMO.max_characters_per_token)
PRUNED = CONFIGS["CompressedBert"].tiny(layer_heads=(1, 1), layer_widths=(3, 3), ranks=(0,) * 6)
CLUSTERS = CONFIGS["TransformerXl"].tiny(vocab_size=20, cutoffs=(5, 10, 15), same_length=True)
MODERN = CONFIGS["ModernBert"].tiny()

FIELDS: list[tuple[ModelConfig, str, list[Any], list[Any], str]] = [
    (CONFIGS["AdaptiveSpan"].tiny(), "computed_span", [1, 256], [0, 257], "from 1 to 256"),
    (CONFIGS["AdaptiveSpan"].tiny(), "initial_fraction", [0, 1], [-0.01, 1.01], "from 0 to 1"),
    (SPAN, "n_head", [3], [4], "18 and 4 heads; change --model.d_model or --model.n_head"),
    (CONFIGS["Albert"].base(), "num_hidden_groups", [1, 12], [0, 13], "from 1 to the 12 layers"),
    (CONFIGS["Bert"].base(), "num_attention_heads", [1, 12], [7], "found 768 and 7 heads"),
    (CONFIGS["Bert"].base(), "hidden_act", ["gelu_new"], ["gelu_nwe"], "'gelu_nwe'"),
    (CONFIGS["Bert"].tiny(max_position_embeddings=9), "attention_window", [2, 8], [0, 7, 10], "2 to 9, the longest"),
    (PRUNED, "layer_heads", [(1, 2)], [(0, 2), (1, 0)], "layer_heads of at least 1"),
    (PRUNED, "layer_widths", [(1, 2)], [(1,), (1, 2, 3)], "layer_widths for each of 2 layers"),
    (PRUNED, "ranks", [(0, 1, 2, 3, 4, 5)], [(1, 1), (0, 1, 2, 3, 4, -1)], "6 numbers from 0"),
    (CONFIGS["Cove"](), "attention", ["dot"], ["dots"], "did you mean 'dot'?"),
    (CONFIGS["Cvt"](), "filter_widths", [(1, 2)], [(0, 2), (2, 0)], "--model.filter_widths of at least 1"),
    (CONFIGS["Cvt"](filter_widths=(2, 5)), "max_characters_per_token", [5], [4], "of at least 5, found 4"),
    (CONFIGS["Deberta"].tiny(), "pos_att_type", [("c2p",)], [("c2p", "p2p"), ("c2p", "c2p")], "p2c and c2p, each once"),
    (CONFIGS["Deberta"].tiny(), "conv_kernel_size", [0], [2], "an odd number of tokens"),
    (CONFIGS["Deberta"].tiny(), "conv_kernel_size", [], [3], "a generator of at least 2 layers"),
    (CONFIGS["Deberta"].tiny(), "position_buckets", [-1, 2], [1, 1024], "--model.position_buckets from 2"),
    (CONFIGS["Deberta"].tiny(), "pooler_hidden_act", ["gelu"], ["mish"], "an activation of gelu"),
    (CONFIGS["Electra"](), "generator_num_attention_heads", [4], [5], "found 64 and 5 heads"),
    (ELMO, "filter_counts", [(1, 1, 1)], [(4,), (0, 2, 5), (4, 2, 0)], "as --model.filter_widths, all of at least 1"),
    (ELMO, "filter_widths", [(1, 9, 2)], [(1, 10, 2)], "at most the 9 characters of a word, found 10"),
    (ELMO, "max_characters_per_token", [3], [2], "of at least 3, found 2"),
    (ELMO, "cell_clip", [1e-6], [0.0], "--model.cell_clip of at least 1e-06"),
    (CONFIGS["Gpt2"].tiny(n_positions=9), "attention_window", [1, 9], [0, 10], "from 1 to 9 tokens, the longest row"),
    (CONFIGS["Gpt2"].tiny(n_embd=12, n_head=3), "n_head", [1, 12], [0, 5], "features that divide by the heads"),
    (LITE, "convolution_heads", [12], [5], "12 features that divide by the heads"),
    (LITE, "cross_attention_heads", [24], [5], "24 features that divide by the heads"),
    (LITE, "encoder_kernel_sizes", [(3, 5, 7)], [(3, 4, 5), (3, 5, 4)], "Expected odd sizes"),
    (LITE, "decoder_kernel_sizes", [(1, 4, 5)], [(3, 5), (3, 0, 5), (3, 5, 0)], "3 sizes from 1, one for each layer"),
    (LITE, "convolution", ["lightweight"], ["dynamical"], "did you mean 'dynamic'?"),
    (LITE_DECODER, "d_model", [36], [27], "make --model.d_model even"),
    (LITE_DECODER, "decoder_attention_heads", [12], [8], "12 features that divide by the heads"),
    (DECODER, "attention_window", [(4, 8), (4,)], [(4, 0), (0, 4), (4, 4, 4)], "one for each of 2 layers"),
    (DECODER, "attention_dilation", [(1, 2)], [(0,), (1, 0), ()], "--model.attention_dilation of numbers from 1"),
    (CONFIGS["LongformerDecoder"].tiny(), "dilated_heads", [0, 4], [-1, 5], "--model.dilated_heads from 0"),
    (LED, "attention_window", [(24,)], [(26,)], "at most the 24 tokens of the longest row"),
    (LED, "max_global_tokens", [1, 6], [0, 7], "from 1 to 6, a quarter of the longest row"),
    (LONGFORMER, "attention_window", [(2,), (4, 64, 2)], [(), (0,), (4, 3, 4), (4, 4), (66,)], "attention_window"),
    (LONGFORMER, "attention_dilation", [(1, 2, 3)], [(2, 2), (), (1, 0, 1)], "one for all or one for each of 3 heads"),
    (CONFIGS["MobileBert"].mini(), "embedding_size", [1, 127], [128], "embedding_size below the hidden size of 128"),
    (CONFIGS["MobileBert"].mini(), "num_attention_heads", [2], [0, 5], "a bottleneck whose size divides by the heads"),
    (CONFIGS["MobileBert"].mini(), "normalization_type", ["no_norm"], ["nonorm"], "did you mean 'no_norm'"),
    (CONFIGS["MobileBert"].mini(), "use_bottleneck_attention", [False], [True], "found both; set the second to False"),
    (MODERN, "num_attention_heads", [1], [3, 128], "divides by the heads into even sizes"),
    (MODERN, "num_key_value_heads", [1], [0, 3], "num_key_value_heads that divides the 2 heads"),
    (MODERN, "local_attention", [2], [0, 7], "an even number of tokens from 2"),
    (MODERN, "norm", ["rms"], ["batch"], "--model.norm, found 'batch'; known: layer, rms"),
    (dataclasses.replace(MODERN, norm="rms"), "norm_bias", [False], [True], "norm_bias False with --model.norm rms"),
    (MODERN, "classifier_pooling", ["mean"], ["late"], "--model.classifier_pooling, found 'late'"),
    (CONFIGS["Nnlm"](), "order", [2], [1], "a word and one before it, found 1"),
    (CONFIGS["Nnlm"](hidden_size=0, direct_connections=True), "direct_connections", [], [False], "found neither"),
    (REFORMER, "attn_layers", [("lsh",)], [(), ("local", "global")], "--model.attn_layers"),
    (REFORMER, "axial_pos_embds_dim", [(9, 9)], [(7, 12), (0, 18), (6, 6, 6)], "--model.axial_pos_embds_dim"),
    (REFORMER, "axial_pos_shape", [(2, 16)], [(32,), (-4, -8)], "as many numbers from 1, at least two"),
    (dataclasses.replace(REFORMER, **CHUNKED), "axial_pos_shape", [(4, 6)], [(5, 6)], "a multiple of 8, in which all"),
    (LONG_CHUNKS, "axial_pos_shape", [(4, 6), (4, 24)], [(5, 5)], "a multiple of 96, in which all chunks end"),
    (REFORMER, "num_buckets", [(2, 16)], [(2, 3), (0,), (2, 0), (), (8, 8)], "--model.num_buckets"),
    (REFORMER, "lsh_num_chunks_after", [0], [1], "--model.local_num_chunks_after 0 and --model.lsh_num_chunks_after 1"),
    (UNLIKE, "is_decoder", [False], [True], "--model.local_num_chunks_after 1 and --model.lsh_num_chunks_after 0"),
    (CONFIGS["Roberta"].tiny(vocab_size=9), "pad_token_id", [0, 8], [-1, 9], "pad_token_id from 0, below the 9 tokens"),
    (CONFIGS["Roberta"].tiny(max_position_embeddings=9), "pad_token_id", [7], [8], "above it in a table of 9"),
    (T5, "feed_forward_proj", ["gated-gelu"], ["gated-tanh"], "found 'tanh'"),
    (T5, "relative_attention_num_buckets", [4], [2, 7], "an even number of at least 4 buckets"),
    (T5, "relative_attention_max_distance", [5], [4], "a largest distance above the 4"),
    (TAGGER, "max_characters_per_token", [9], [12], "--weight_mapping.tagger.max_characters_per_token 9"),
    (TRANSFORMER, "encoder_attention_heads", [4], [5], "24 and 5 heads; change --model.d_model or --model.encoder"),
    (TRANSFORMER, "decoder_attention_heads", [4], [5], "24 and 5 heads; change --model.d_model or --model.decoder"),
    (TRANSFORMER, "activation_function", ["gelu"], ["rellu"], "'rellu'; take one of these"),
    (CLUSTERS, "cutoffs", [(1, 19), ()], [(0, 10), (5, 20), (10, 5)], "from 1 to 19 at most, for 20 tokens"),
    (CLUSTERS, "mem_len", [1], [0], "--model.mem_len of at least 1 with --model.same_length"),
    (CLUSTERS, "initial_memory", ["zeros"], ["none"], "--model.initial_memory, found 'none'"),
    (dataclasses.replace(CLUSTERS, div_val=4, cutoffs=(5, 10)), "d_embed", [16], [15], "embedding size of 16 at least"),
    (XLNET, "n_head", [4], [5], "24 and 5 heads"),
    (XLNET, "ff_activation", ["relu"], ["gelo"], "found 'gelo'"),
]  # fmt: skip
"""A config, a field, values that it takes, others that it refuses, and what is said of each of those."""


@pytest.mark.parametrize(
    ("config", "field", "taken", "refused", "said"),
    [pytest.param(*row, id=f"{type(row[0]).__name__}-{row[1]}-{place}") for place, row in enumerate(FIELDS)],
)
def test_what_does_not_fit(config: ModelConfig, field: str, taken: list[Any], refused: list[Any], said: str) -> None:
    for value in taken:
        assert getattr(dataclasses.replace(config, **{field: value}), field) == value
    for value in refused:
        with pytest.raises(UserError) as raised:
            dataclasses.replace(config, **{field: value})
        assert said in str(raised.value), value


DEFAULTS = [file.SYSTEM.config() for file in FILES if hasattr(file, "SYSTEM")]
UNBOUNDED = {"clamp_len", "max_relative_positions", "position_buckets"}
"""Numbers of which those below 0 mean that there is no limit."""
FROM_0 = {
    "axial_norm_std", "chunk_size_feed_forward", "dilated_heads", "filter_width", "initial_fraction",
    "lsh_num_chunks_after", "lsh_num_chunks_before", "local_num_chunks_after", "local_num_chunks_before", "mem_len",
    "generator_hidden_size", "generator_intermediate_size", "generator_num_attention_heads", "n_highway",
    "persistent_size", "conv_kernel_size", "generator_num_hidden_layers", "initializer_range", "initializer_factor",
    "init_std",
}  # fmt: skip
"""Numbers that may be 0; all others but rates are above it."""
OF_ONE = ((CONFIGS["Nnlm"], "hidden_size"), (CONFIGS["Deberta"], "type_vocab_size"))


@pytest.mark.parametrize("config", DEFAULTS, ids=[type(config).__name__ for config in DEFAULTS])
def test_a_number_outside_of_its_range_is_refused(config: ModelConfig) -> None:
    """In a sentence that names its option. A rate is below 1; special tokens may have any number."""
    names = [field.name for field in dataclasses.fields(config) if type(getattr(config, field.name)) in (int, float)]
    assert names
    for name in names:
        if name.endswith("_token_id") or name in UNBOUNDED:
            continue
        kind, rate = type(getattr(config, name)), "drop" in name
        may_be_0 = rate or name in FROM_0 or (type(config), name) in OF_ONE
        for number in (kind(-1), *([] if may_be_0 else [kind(0)]), *([1.0] if rate else [])):
            with pytest.raises(UserError, match=rf"--model\.{name}\b"):
                dataclasses.replace(config, **{name: number})


def read(module: Any, length: int = 4, **inputs: Any) -> None:
    """Trace the module for rows of so many tokens."""
    ids = jnp.ones((2, length), jnp.int32)
    jax.eval_shape(lambda: module.init(jax.random.key(0), ids, **inputs))


def pair_of(length: int, target: int) -> dict[str, Any]:
    return {"length": length, "decoder_input_ids": jnp.ones((2, target), jnp.int32)}


def normalized_alone() -> None:
    module = UlmfitForSequenceClassification(CONFIGS["Ulmfit"].tiny())
    variables = jax.eval_shape(module.init, jax.random.key(0), np.ones((1, 4), np.int32))
    step = lambda variables: module.apply(  # noqa: E731
        variables, np.ones((1, 4), np.int32), deterministic=False, mutable=["batch_stats"],
        rngs={"dropout": jax.random.key(0)},
    )  # fmt: skip
    jax.eval_shape(step, variables)


SOURCE = TransformerForConditionalGeneration(TRANSFORMER)
LED_MODULE = LedForConditionalGeneration(LED)
TRANSLATION = BartTranslationConfig.before(CONFIGS["Bart"].tiny(), 1)
SEGMENTS = jnp.ones((2, 4), jnp.int32)
OLD = {"model_type": "modernbert", "num_hidden_layers": 4}


def written(**changes: Any) -> Any:
    module = dataclasses.replace(MODERNBERT, **changes).module(Purpose.PRETRAINING, Execution())
    return of_modernbert.write_config(module, ())


REFUSED: list[tuple[str, Callable[[], Any], str]] = [
    ("bert", lambda: read(BertModel(BERT), 20), "at most 19 tokens"),
    ("deberta", lambda: read(DebertaModel(DEBERTA), 20), "rows of at most 19 tokens"),
    ("roberta", lambda: read(RobertaModel(ROBERTA), 18), "at most 17 tokens"),
    ("target", lambda: read(SOURCE, **pair_of(4, 20)), "at most 19 tokens"),
    ("an LED's target", lambda: read(LED_MODULE, **pair_of(20, 20)), "set --model.max_decoder_position_embeddings"),
    ("an LED's source", lambda: read(LED_MODULE, **pair_of(25, 3)), "at most 24 tokens"),
    ("a row with a gap", lambda: REFORMER.check_sequence_length(31), "rows of 32 tokens"),
    ("a longer row", lambda: REFORMER.check_sequence_length(33), "found a sequence length of 33"),
    ("a mask of another shape", lambda: read(BertModel(BERT), 9, attention_mask=jnp.ones((2, 8))), "[B T]"),
    ("types of tokens", lambda: read(DISTILBERT.module(Purpose.ENCODING, Execution()), token_type_ids=SEGMENTS),
     "found token_type_ids; leave them out"),
    ("segments of one side", lambda: read(SOURCE, **pair_of(4, 4), segment_ids=SEGMENTS), "both sides or of neither"),
    ("T5's", lambda: read(T5ForConditionalGeneration(T5), **pair_of(4, 4), segment_ids=SEGMENTS), "both sides or of"),
    ("a packed memory", lambda: read(XlnetForPreTraining(XLNET), segment_ids=SEGMENTS,
     memory=XlnetMemory.empty(XLNET, 2, 3)), "rows of one sequence with a memory"),
    ("a packed cache", lambda: read(ReformerModel(REFORMER), segment_ids=SEGMENTS,
     cache=REFORMER.empty_cache(2, 8, Execution())), "rows of one sequence with a cache, found segment_ids"),
    ("positions of a cache", lambda: read(Nnlm(NNLM), segment_ids=SEGMENTS,
     cache=NNLM.empty_cache(2, 5, Execution())), "a cache without positions and segments"),
    ("one text", normalized_alone, "at least 2 examples"),
    ("widths", lambda: read(TokenClassification(TAGGER, mix=True),
     characters=jnp.ones((2, 4, 9), jnp.int32)), "--objective.mix False"),
    ("labels", lambda: REFORMER.module(Purpose.SEQUENCE_CLASSIFICATION, Execution(), 2), "--model.is_decoder False"),
    ("writing", lambda: ENCODER.module(Purpose.CAUSAL_LM, Execution()), "found ReformerConfig, an encoder"),
    ("a translation", lambda: TRANSLATION.module(Purpose.SEQUENCE_CLASSIFICATION, Execution(), 2), "labels texts"),
    ("its source", lambda: BartTranslationConfig.before(CONFIGS["Bart"].tiny(), 0), "source_layers of at least 1"),
    ("windows of another system", lambda: WiderWindows().model(CONFIGS["Longformer"].tiny()), "found LongformerConfig"),
    ("a table of types", lambda: FromTokenEmbeddings().model(CONFIGS["Bert"].tiny()), "found BertConfig"),
    ("no translation", lambda: BiattentiveClassifier().model(CONFIGS["Bert"].tiny()), "a checkpoint of CoVe"),
    ("windows of config.json", lambda: read_config(write_config(LED_MODULE, []) | {"attention_window": "12"}),
     "attention_window"),
    ("kinds of config.json", lambda: of_modernbert.read_config(OLD | {"layer_types": ["sliding_attention"] * 4}),
     "layer_types of 4 layers"),
    ("scaled rotations", lambda: of_modernbert.read_config(
        OLD | {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}), 'rope_type of "default"'),
    ("an own output layer", lambda: written(tie_word_embeddings=False), "--model.tie_word_embeddings True"),
    ("root mean squares", lambda: written(norm="rms"), "--model.norm layer"),
]  # fmt: skip


@pytest.mark.parametrize(("made", "said"), [pytest.param(*row, id=name) for name, *row in REFUSED])
def test_what_is_refused(made: Callable[[], Any], said: str) -> None:
    with pytest.raises((UserError, ValueError)) as raised:
        made()
    assert said in str(raised.value)


def test_a_window_is_not_written_as_a_bert_of_transformers(tmp_path: Path) -> None:
    module = BertModel(dataclasses.replace(BERT, attention_window=6))
    with pytest.raises(UserError, match="found a window of 6 tokens; export a Longformer"):
        huggingface.save(module, random_params(module), tmp_path / "bert")
