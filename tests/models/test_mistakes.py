"""What a model refuses, in one sentence that names it; test_ranges.py has the range of each number."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.errors import UserError
from plmjax.interop import huggingface
from plmjax.interop.led import read_config, write_config
from plmjax.models.adaptive_span import AdaptiveSpanConfig
from plmjax.models.albert import AlbertConfig
from plmjax.models.bart.bart import BartConfig
from plmjax.models.bart.translation import BartTranslationConfig
from plmjax.models.bert import BertConfig, BertModel
from plmjax.models.cove.cove import CoveConfig
from plmjax.models.distilbert import DistilBertConfig
from plmjax.models.electra import ElectraConfig, ElectraForPreTraining
from plmjax.models.families.task_heads import TokenClassification
from plmjax.models.gpt2 import Gpt2Config
from plmjax.models.longformer.encoder_decoder import LedForConditionalGeneration
from plmjax.models.longformer.longformer import LongformerConfig
from plmjax.models.mobilebert import MobileBertConfig
from plmjax.models.nnlm import Nnlm, NnlmConfig
from plmjax.models.reformer.reformer import ReformerModel
from plmjax.models.roberta import RobertaConfig, RobertaModel
from plmjax.models.t5 import T5Config, T5ForConditionalGeneration
from plmjax.models.taglm import TaglmConfig
from plmjax.models.transformer import TransformerForConditionalGeneration
from plmjax.models.transformer_xl import TransformerXlConfig
from plmjax.models.ulmfit import UlmfitConfig, UlmfitForSequenceClassification
from plmjax.models.xlnet.xlnet import XlnetForPreTraining, XlnetMemory
from plmjax.runs.weight_mappings.biattentive_classifier import BiattentiveClassifier
from plmjax.runs.weight_mappings.longformer import WiderWindows
from plmjax.runs.weight_mappings.token_embeddings import FromTokenEmbeddings
from tests.families.encoder_decoders import LITE, LITE_DECODER, TRANSFORMER
from tests.families.encoders import BERT, ELECTRA, ROBERTA
from tests.families.hashes import CHUNKED, ENCODER, REFORMER
from tests.families.long_texts import DECODER, LED, LONGFORMER
from tests.families.memories import SPAN
from tests.families.permutations import XLNET
from tests.families.recurrent import ELMO
from tests.families.word_vectors import NNLM
from tests.systems.modules import random_params

T5 = T5Config.tiny(relative_attention_num_buckets=8, relative_attention_max_distance=20)
UNLIKE = dataclasses.replace(ENCODER, **CHUNKED, lsh_num_chunks_after=0, local_num_chunks_after=1)
ONE_CHUNK = {"local_attn_chunk_length": 24, "lsh_attn_chunk_length": 32, "num_buckets": (4,)}
TAGGER = TaglmConfig(language_model=ELMO, max_characters_per_token=ELMO.max_characters_per_token)

SIZES: dict[Any, list[tuple[dict[str, Any], str]]] = {
    AlbertConfig.base(): [
        ({"num_hidden_groups": 13}, "num_hidden_groups from 1 to the 12 layers, found 13"),
        ({"num_attention_heads": 7}, "divides by the heads"),
    ],
    AdaptiveSpanConfig.tiny(): [({"computed_span": 257}, "--model.computed_span from 1 to 256, found 257")],
    SPAN: [({"n_head": 4}, "18 and 4 heads; change --model.d_model or --model.n_head")],
    BertConfig.base(): [
        ({"num_attention_heads": 7}, "divides by the heads"), ({"hidden_act": "gelu_nwe"}, "'gelu_nwe'"),
        *(({"attention_window": n}, f"2 to 512, the longest row, found {n}") for n in (7, 0, 514)),
    ],
    CoveConfig(): [({"attention": "dots"}, "'dots'; did you mean 'dot'?")],
    DistilBertConfig.base(): [({"num_attention_heads": 7}, "divides by the heads")],
    ElectraConfig(): [({"generator_num_attention_heads": 5}, "found 64 and 5 heads")],
    ELMO: [
        ({"filter_counts": (4,)}, "all of at least 1, found 1 and 3"),
        ({"filter_widths": (1, 10, 2)}, "--model.filter_widths of at most the 9 characters of a word, found 10"),
        ({"max_characters_per_token": 2}, "--model.max_characters_per_token of at least 3, found 2"),
        ({"cell_clip": 0.0}, "--model.cell_clip of at least 1e-06, found 0.0"),
    ],
    Gpt2Config.small(): [({"attention_window": n}, f"1 to 1024 tokens, the longest row, found {n}") for n in (0, 1025)],
    LITE: [
        ({"d_model": 27, "decoder_attention_heads": 3}, "found 27; make --model.d_model even"),
        ({"convolution_heads": 5}, "12 features that divide by the heads, found 5 heads"),
        ({"cross_attention_heads": 5}, "24 features that divide by the heads, found 5 heads"),
        ({"decoder_attention_heads": 8}, "12 features that divide by the heads, found 8 heads"),
        ({"encoder_kernel_sizes": (3, 5)}, "3 sizes from 1, one for each layer, found (3, 5)"),
        ({"decoder_kernel_sizes": (3, 0, 5)}, "--model.decoder_kernel_sizes"),
        ({"encoder_kernel_sizes": (3, 4, 5)}, "found (3, 4, 5); change --model.encoder_kernel_sizes"),
        ({"convolution": "dynamical"}, "'dynamical'; did you mean 'dynamic'?"),
    ],
    LITE_DECODER: [
        ({"d_model": 27}, "found 27; make --model.d_model even"),
        ({"decoder_attention_heads": 8}, "12 features that divide by the heads, found 8 heads"),
        ({"decoder_kernel_sizes": (3, 5)}, "3 sizes from 1, one for each layer, found (3, 5)"),
        ({"activation_function": "rely"}, "'rely'; take one of these"),
    ],
    DECODER: [
        ({"attention_window": (4, 0)}, "2 layers, found 4 0; change it"),
        ({"attention_window": (4, 4, 4)}, "--model.attention_window of numbers"),
        ({"attention_dilation": (0,)}, "--model.attention_dilation of numbers from 1, one for all"),
        ({"attention_dilation": ()}, "2 layers, found none"), ({"dilated_heads": 4}, "--model.dilated_heads from 0"),
        ({"n_head": 5}, "18 and 5 heads"),
    ],
    LED: [
        ({"attention_window": (7,)}, "half of the tokens on each side, found 7"),
        ({"attention_window": (4, 4, 4)}, "one number, or one for each of 2 layers, found 4 4 4"),
        ({"attention_window": (26,)}, "at most the 24 tokens of the longest row, found 26"),
        ({"max_global_tokens": 7}, "from 1 to 6, a quarter of the longest row, found 7"),
    ],
    LONGFORMER: [
        ({"attention_window": (7,)}, "half of the tokens on each side, found 7"),
        ({"attention_window": (4, 4)}, "one number, or one for each of 3 layers, found 4 4"),
        ({"attention_window": ()}, "layers, found none"),
        ({"attention_window": (66,)}, "at most the 64 tokens of the longest row, found 66"),
        ({"attention_dilation": (2, 2)}, "one for all or one for each of 3 heads, found 2 2"),
        ({"attention_dilation": ()}, "3 heads, found none"),
        ({"max_global_tokens": 17}, "from 1 to 16, a quarter of the longest row, found 17"),
    ],
    MobileBertConfig.mini(): [
        ({"embedding_size": 128}, "embedding_size below the hidden size of 128, found 128"),
        ({"num_attention_heads": 5}, "found 32 and 5 heads"), ({"num_attention_heads": 0}, "found 32 and 0 heads"),
        ({"normalization_type": "nonorm"}, "did you mean 'no_norm'"),
        ({"use_bottleneck_attention": True}, "found both; set the second to False"),
    ],
    NnlmConfig(): [
        ({"order": 1}, "a word and one before it, found 1"),
        ({"hidden_size": 0, "direct_connections": False}, "a hidden layer or direct connections, found neither"),
    ],
    REFORMER: [
        ({"attn_layers": ()}, "--model.attn_layers of local or lsh, one for each layer, found none"),
        ({"attn_layers": ("local", "global")}, "--model.attn_layers, found 'global'"),
        ({"axial_pos_embds_dim": (7, 12)}, "hidden size 18, found 7 12, whose sum is 19"),
        ({"axial_pos_shape": (32,)}, "at least two, found 32 and 7 11"),
        ({"axial_pos_shape": (32,), "axial_pos_embds_dim": (18,)}, "at least two, found 32 and 18"),
        ({"axial_pos_shape": (-4, -8)}, "at least two, found -4 -8 and 7 11"),
        ({"axial_pos_embds_dim": (0, 18)}, "at least two, found 4 8 and 0 18"),
        (CHUNKED | {"axial_pos_shape": (5, 6)}, "a multiple of 8, in which all chunks end, found 5 6"),
        (ONE_CHUNK | {"axial_pos_shape": (5, 5)}, "a multiple of 96, in which all chunks end, found 5 5"),
        *(({"num_buckets": one}, f"even numbers from 2, found {said}") for one, said in (
            ((2, 3), "2 3"), ((0,), "0"), ((), "none"))),
        ({"num_buckets": (8, 8)}, "32 tokens of the longest row, found 8 8, whose product is 64"),
        ({"lsh_num_chunks_after": 1}, "--model.local_num_chunks_after 0 and --model.lsh_num_chunks_after 1"),
    ],
    UNLIKE: [({"is_decoder": True}, "--model.local_num_chunks_after 1 and --model.lsh_num_chunks_after 0")],
    RobertaConfig.base(): [
        ({"pad_token_id": -1}, "pad_token_id from 0, below the 50265 tokens"),
        ({"max_position_embeddings": 2}, "in a table of 2, found 1"),
    ],
    T5: [
        ({"feed_forward_proj": "gated-tanh"}, "found 'tanh'"),
        ({"relative_attention_num_buckets": 7}, "an even number of at least 4 buckets"),
        ({"relative_attention_max_distance": 4}, "a largest distance above the 4"),
    ],
    TAGGER: [({"max_characters_per_token": 12}, "--weight_mapping.tagger.max_characters_per_token 9")],
    TRANSFORMER: [
        ({"decoder_attention_heads": 5}, "24 and 5 heads"), ({"encoder_attention_heads": 5}, "24 and 5 heads"),
        ({"activation_function": "rellu"}, "'rellu'; take one of these"),
    ],
    TransformerXlConfig(): [
        ({"cutoffs": (40, 24)}, "from 1 to 203 at most, for 204 tokens, found 40, 24"),
        ({"same_length": True, "mem_len": 0}, "--model.mem_len of at least 1 with --model.same_length"),
        ({"initial_memory": "none"}, "--model.initial_memory, found 'none'"),
    ],
    XLNET: [({"n_head": 5}, "24 and 5 heads"), ({"ff_activation": "gelo"}, "found 'gelo'")],
}  # fmt: skip


@pytest.mark.parametrize("config", SIZES, ids=lambda config: type(config).__name__)
def test_sizes_that_do_not_fit(config: Any) -> None:
    for changes, said in SIZES[config]:
        with pytest.raises(UserError) as raised:
            dataclasses.replace(config, **changes)
        assert said in str(raised.value), changes


def read(module: Any, length: int = 4, method: str | None = None, **inputs: Any) -> None:
    """Trace the module for rows of so many tokens."""
    ids = jnp.ones((2, length), jnp.int32)
    jax.eval_shape(lambda: module.init(jax.random.key(0), ids, **inputs))


def pair_of(length: int, target: int) -> dict[str, Any]:
    return {"length": length, "decoder_input_ids": jnp.ones((2, target), jnp.int32)}


def normalized_alone() -> None:
    module = UlmfitForSequenceClassification(UlmfitConfig.tiny())
    variables = jax.eval_shape(module.init, jax.random.key(0), np.ones((1, 4), np.int32))
    step = lambda variables: module.apply(  # noqa: E731
        variables, np.ones((1, 4), np.int32), deterministic=False, mutable=["batch_stats"],
        rngs={"dropout": jax.random.key(0)},
    )  # fmt: skip
    jax.eval_shape(step, variables)


SOURCE = TransformerForConditionalGeneration(TRANSFORMER)
SEGMENTS = jnp.ones((2, 4), jnp.int32)
INPUTS: list[tuple[str, Callable[[], Any], str]] = [
    ("bert", lambda: read(BertModel(BERT), 20), "at most 19 tokens"),
    ("electra", lambda: read(ElectraForPreTraining(ELECTRA), 20), "at most 19 tokens"),
    ("roberta", lambda: read(RobertaModel(ROBERTA), 18), "at most 17 tokens"),
    ("target", lambda: read(SOURCE, **pair_of(4, 20)), "at most 19 tokens"),
    ("a mask of another shape", lambda: read(BertModel(BERT), 9, attention_mask=jnp.ones((2, 8))), "[B T]"),
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
]  # fmt: skip
PURPOSES: list[tuple[str, Callable[[], Any], str]] = [
    ("masked tokens", lambda: REFORMER.module(Purpose.MASKED_TOKENS, Execution()), "--model.is_decoder False"),
    ("labels", lambda: REFORMER.module(Purpose.SEQUENCE_CLASSIFICATION, Execution(), 2), "--model.is_decoder False"),
    ("writing", lambda: ENCODER.module(Purpose.CAUSAL_LM, Execution()), "found ReformerConfig, an encoder"),
    ("a translation", lambda: TRANSLATION.module(Purpose.SEQUENCE_CLASSIFICATION, Execution(), 2), "labels texts"),
    ("its pretraining", lambda: TRANSLATION.module(Purpose.PRETRAINING, Execution()), "a pretraining task"),
    ("its source", lambda: BartTranslationConfig.before(BartConfig.tiny(), 0), "source_layers of at least 1"),
    ("windows of another system", lambda: WiderWindows().model(LongformerConfig.tiny()), "found LongformerConfig"),
    ("a table of types", lambda: FromTokenEmbeddings().model(BertConfig.tiny()), "found BertConfig"),
    ("no translation", lambda: BiattentiveClassifier().model(BertConfig.tiny()), "a checkpoint of CoVe"),
    ("windows of config.json", lambda: read_config(
        write_config(LedForConditionalGeneration(LED), []) | {"attention_window": "12"}), "attention_window"),
]  # fmt: skip
TRANSLATION = BartTranslationConfig.before(BartConfig.tiny(), 1)


@pytest.mark.parametrize(("made", "said"), [pytest.param(*row, id=name) for name, *row in INPUTS + PURPOSES])
def test_what_is_refused(made: Callable[[], Any], said: str) -> None:
    with pytest.raises((UserError, ValueError)) as raised:
        made()
    assert said in str(raised.value)


def test_a_window_is_not_written_as_a_bert_of_transformers(tmp_path: Path) -> None:
    module = BertModel(dataclasses.replace(BERT, attention_window=6))
    with pytest.raises(UserError, match="found a window of 6 tokens; export a Longformer"):
        huggingface.save(module, random_params(module), tmp_path / "bert")


def test_types_of_tokens_are_no_setting_of_a_distilbert() -> None:
    with pytest.raises(TypeError, match="type_vocab_size"):
        DistilBertConfig.tiny(type_vocab_size=2)
