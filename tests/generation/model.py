"""Small models of random parameters whose texts differ from each other, for the tests of generation."""

import functools
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Purpose
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.generation.writer import Writer
from plmjax.models.awd_lstm import AwdLstmConfig
from plmjax.models.bart.bart import BartConfig
from plmjax.models.gpt2 import Gpt2Config
from plmjax.models.nnlm import NnlmConfig
from plmjax.models.reformer.reformer import ReformerConfig
from plmjax.models.t5 import T5Config
from plmjax.models.transformer import TransformerConfig
from plmjax.models.transformer_xl import TransformerXlConfig

CONFIG = Gpt2Config(
    vocab_size=29, n_positions=48, n_embd=24, n_layer=2, n_head=4, initializer_range=0.3, bos_token_id=None,
    eos_token_id=None,
)  # fmt: skip
"""Initial weights so large that the scores of tokens differ clearly."""
PROMPTS = [[5, 9, 2, 7, 7], [11], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]]
END = 0
VOCABULARY = Vocabulary(size=CONFIG.vocab_size, end=END)


@functools.cache
def parameters() -> Any:
    module = CONFIG.module(Purpose.WRITING, Execution())
    params = nn.meta.unbox(module.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))["params"]
    positions = params["gpt2"]["position_embeddings"]
    positions["embedding"] = 60 * positions["embedding"]  # otherwise every text soon repeats one token
    return params


@functools.cache
def writer() -> Writer:
    return Writer(CONFIG, parameters(), VOCABULARY)


TRANSLATOR = TransformerConfig.tiny(
    vocab_size=29, max_position_embeddings=48, d_model=24, encoder_layers=1, encoder_attention_heads=4,
    decoder_attention_heads=4, encoder_ffn_dim=40, decoder_ffn_dim=40, pad_token_id=28, eos_token_id=END,
    decoder_start_token_id=27, output_bias=True,
)  # fmt: skip
"""A small Transformer. One that nobody trained repeats itself: its texts are written without any token twice."""


@functools.cache
def translator_parameters() -> Any:
    module, token = TRANSLATOR.module(Purpose.WRITING, Execution()), jnp.zeros((1, 1), jnp.int32)
    init = jax.jit(functools.partial(module.init, decoder_input_ids=token))
    params = nn.meta.unbox(init(jax.random.key(0), token))["params"]
    flat = flax.traverse_util.flatten_dict(params, sep="/")
    flat = {name: 2 * array if name.endswith("kernel") else array for name, array in flat.items()}
    bias = 0.5 * jax.random.normal(jax.random.key(1), (TRANSLATOR.vocab_size,))
    flat["final_logits_bias"] = bias.at[END].add(2.5)
    return flax.traverse_util.unflatten_dict(flat, sep="/")


@functools.cache
def translator() -> Writer:
    return Writer(TRANSLATOR, translator_parameters(), VOCABULARY)


T5 = T5Config.tiny(
    vocab_size=29, d_model=24, d_kv=8, num_heads=3, d_ff=40, pad_token_id=28, eos_token_id=END,
    decoder_start_token_id=27, dropout_rate=0.0,
)  # fmt: skip


@functools.cache
def t5_parameters() -> Any:
    module, token = T5.module(Purpose.WRITING, Execution()), jnp.zeros((1, 1), jnp.int32)
    init = jax.jit(functools.partial(module.init, decoder_input_ids=token))
    params = nn.meta.unbox(init(jax.random.key(0), token))["params"]
    flat = flax.traverse_util.flatten_dict(params, sep="/")
    flat = {name: 2 * array if name.endswith("kernel") else array for name, array in flat.items()}
    flat["t5/shared/embedding"] = flat["t5/shared/embedding"].at[END].multiply(2)  # which ends some of the texts
    return flax.traverse_util.unflatten_dict(flat, sep="/")


BART = BartConfig.tiny(
    vocab_size=29, max_position_embeddings=48, d_model=24, encoder_layers=1, encoder_attention_heads=4,
    decoder_attention_heads=4, encoder_ffn_dim=40, decoder_ffn_dim=40, pad_token_id=28, eos_token_id=END,
    decoder_start_token_id=27, init_std=0.4,
)  # fmt: skip


@functools.cache
def bart_parameters() -> Any:
    module, token = BART.module(Purpose.WRITING, Execution()), jnp.zeros((1, 1), jnp.int32)
    init = jax.jit(functools.partial(module.init, decoder_input_ids=token))
    return nn.meta.unbox(init(jax.random.key(0), token))["params"]


AWD_LSTM = AwdLstmConfig(vocab_size=29, embedding_size=24, hidden_size=32, num_layers=2, initializer_range=1.0)
NNLM = NnlmConfig(
    vocab_size=29, vector_size=12, hidden_size=16, order=4, direct_connections=True, initializer_range=0.7
)

TRANSFORMER_XL = TransformerXlConfig(
    vocab_size=29,
    cutoffs=(12, 20),
    d_embed=16,
    d_model=16,
    n_layer=2,
    n_head=2,
    d_head=8,
    d_inner=32,
    mem_len=32,
    init_std=0.4,
)


@functools.cache
def scaled_parameters(config: ModelConfig) -> Any:
    """Parameters of a decoder alone, with large kernels: otherwise every text soon repeats one token."""
    module = config.module(Purpose.WRITING, Execution())
    params = nn.meta.unbox(jax.jit(module.init)(jax.random.key(1), jnp.zeros((1, 1), jnp.int32)))["params"]
    flat = flax.traverse_util.flatten_dict(params, sep="/")
    flat = {name: 6 * array if name.endswith("kernel") else array for name, array in flat.items()}
    return flax.traverse_util.unflatten_dict(flat, sep="/")


REFORMER = ReformerConfig(
    vocab_size=29,
    hidden_size=16,
    attn_layers=("local", "lsh"),
    num_attention_heads=2,
    attention_head_size=8,
    feed_forward_size=32,
    axial_pos_shape=(4, 8),
    axial_pos_embds_dim=(8, 8),
    local_attn_chunk_length=32,
    lsh_attn_chunk_length=32,
    num_buckets=(4,),
    num_hashes=2,
    initializer_range=0.4,
)
"""Its rows are one chunk: earlier tokens of a longer row change with the chunks."""
