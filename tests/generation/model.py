"""Small models of random parameters whose texts differ from each other, for the tests of generation."""

import functools
from pathlib import Path
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Kind, Purpose
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.experiment import Experiment
from plmjax.finetuning.tasks.text_generation import Translation
from plmjax.finetuning.tasks.text_pairs import TextPairs
from plmjax.generation.batch_generator import BatchGenerator
from plmjax.generation.generate import Generator
from plmjax.interop import huggingface
from plmjax.models.awd_lstm import AwdLstmConfig
from plmjax.models.bart.bart import BartConfig
from plmjax.models.gpt2 import Gpt2Config
from plmjax.models.modernbert.decoder import ModernBertDecoderConfig
from plmjax.models.nnlm import NnlmConfig
from plmjax.models.reformer.reformer import ReformerConfig
from plmjax.models.t5 import T5Config
from plmjax.models.transformer import TransformerConfig
from plmjax.models.transformer_xl import TransformerXlConfig
from tests.finetuning import parity
from tests.optional import transformers

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
    module = CONFIG.module(Purpose.CAUSAL_LM, Execution())
    params = nn.meta.unbox(module.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))["params"]
    positions = params["gpt2"]["position_embeddings"]
    positions["embedding"] = 60 * positions["embedding"]  # otherwise every text soon repeats one token
    return params


@functools.cache
def writer() -> BatchGenerator:
    return BatchGenerator(CONFIG, parameters(), VOCABULARY)


TRANSLATOR = TransformerConfig.tiny(
    vocab_size=29, max_position_embeddings=48, d_model=24, encoder_layers=1, encoder_attention_heads=4,
    decoder_attention_heads=4, encoder_ffn_dim=40, decoder_ffn_dim=40, pad_token_id=28, eos_token_id=END,
    decoder_start_token_id=27, output_bias=True,
)  # fmt: skip
"""A small Transformer. One that nobody trained repeats itself: its texts are written without any token twice."""


def initial(config: ModelConfig, seed: int = 0, kernels: float = 1.0) -> dict[str, Any]:
    """Parameters by their paths, the kernels multiplied."""
    module, token = config.module(Purpose.CAUSAL_LM, Execution()), jnp.zeros((1, 1), jnp.int32)
    given = {"decoder_input_ids": token} if config.system.kind is Kind.ENCODER_DECODER else {}
    params = nn.meta.unbox(jax.jit(functools.partial(module.init, **given))(jax.random.key(seed), token))["params"]
    flat = flax.traverse_util.flatten_dict(params, sep="/")
    return {name: kernels * array if name.endswith("kernel") else array for name, array in flat.items()}


@functools.cache
def translator_parameters() -> Any:
    flat = initial(TRANSLATOR, kernels=2)
    bias = 0.5 * jax.random.normal(jax.random.key(1), (TRANSLATOR.vocab_size,))
    flat["final_logits_bias"] = bias.at[END].add(2.5)
    return flax.traverse_util.unflatten_dict(flat, sep="/")


@functools.cache
def translator() -> BatchGenerator:
    return BatchGenerator(TRANSLATOR, translator_parameters(), VOCABULARY)


T5 = T5Config.tiny(
    vocab_size=29, d_model=24, d_kv=8, num_heads=3, d_ff=40, pad_token_id=28, eos_token_id=END,
    decoder_start_token_id=27, dropout_rate=0.0,
)  # fmt: skip


@functools.cache
def t5_parameters() -> Any:
    flat = initial(T5, kernels=2)
    flat["t5/shared/embedding"] = flat["t5/shared/embedding"].at[END].multiply(2)  # which ends some of the texts
    return flax.traverse_util.unflatten_dict(flat, sep="/")


BART = BartConfig.tiny(
    vocab_size=29, max_position_embeddings=48, d_model=24, encoder_layers=1, encoder_attention_heads=4,
    decoder_attention_heads=4, encoder_ffn_dim=40, decoder_ffn_dim=40, pad_token_id=28, eos_token_id=END,
    decoder_start_token_id=27, init_std=0.4,
)  # fmt: skip


SYSTEMS = {
    "bart": (BART, lambda: flax.traverse_util.unflatten_dict(initial(BART), sep="/"), "BartForConditionalGeneration"),
    "marian": (TRANSLATOR, translator_parameters, "MarianMTModel"),
    "t5": (T5, t5_parameters, "T5ForConditionalGeneration"),
    "gpt2": (CONFIG, parameters, "GPT2LMHeadModel"),
}
"""System -> its config, its parameters, and its class in transformers."""


def in_both(system: str, folder: Path) -> tuple[BatchGenerator, Any]:
    """A writer of a system, and transformers' model with the same parameters."""
    config, params, kind = SYSTEMS[system]
    huggingface.save(config.module(Purpose.CAUSAL_LM, Execution()), params(), folder)
    return BatchGenerator(config, params(), VOCABULARY), getattr(transformers, kind).from_pretrained(folder).eval()


AWD_LSTM = AwdLstmConfig(vocab_size=29, embedding_size=24, hidden_size=32, num_layers=2, initializer_range=1.0)
NNLM = NnlmConfig(
    vocab_size=29, vector_size=12, hidden_size=16, order=4, direct_connections=True, initializer_range=0.7
)

TRANSFORMER_XL = TransformerXlConfig(
    vocab_size=29, cutoffs=(12, 20), d_embed=16, d_model=16, n_layer=2, n_head=2, d_head=8, d_inner=32, mem_len=32,
    init_std=0.4,
)  # fmt: skip


@functools.cache
def scaled_parameters(config: ModelConfig) -> Any:
    """Parameters of a decoder alone, with large kernels: otherwise every text soon repeats one token."""
    return flax.traverse_util.unflatten_dict(initial(config, 1, kernels=6), sep="/")


REFORMER = ReformerConfig(
    vocab_size=29, hidden_size=16, attn_layers=("local", "lsh"), num_attention_heads=2, attention_head_size=8,
    feed_forward_size=32, axial_pos_shape=(4, 8), axial_pos_embds_dim=(8, 8), local_attn_chunk_length=32,
    lsh_attn_chunk_length=32, num_buckets=(4,), num_hashes=2, initializer_range=0.4,
)  # fmt: skip
"""Its rows are one chunk: earlier tokens of a longer row change with the chunks."""


MODERNBERT = ModernBertDecoderConfig(
    vocab_size=29, hidden_size=24, num_hidden_layers=4, num_attention_heads=3, intermediate_size=32,
    max_position_embeddings=48, local_attention=8, global_attn_every_n_layers=2, pad_token_id=28, bos_token_id=None,
    eos_token_id=None,
)  # fmt: skip
"""Stacks of all kinds; a token sees three tokens before it in every second layer."""


class Numbers(parity.Numbers):
    """Texts that are numbers, for the models of 29 tokens."""

    vocabulary = Vocabulary(29, end=END, others={"start": 24, "delimiter": 25, "extract": 26, "between": 6})

    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))


def of_task(model: ModelConfig, **task: Any) -> Generator:
    """A generator of a run that was fine-tuned to write texts."""
    run = Experiment(model=model, objective=Translation(beams=1, max_new_tokens=6), data=TextPairs(**task))
    params = translator_parameters() if model is TRANSLATOR else parameters()
    return Generator(model, params, Numbers(), run=run)


def uncached(prompt: list[int], new: int, **reading: Any) -> tuple[list[int], float]:
    """(tokens, their log-probability) of the likeliest text of `writer`, read whole for each of its tokens."""
    row, total = list(prompt), 0.0
    while len(row) < len(prompt) + new and (row == prompt or row[-1] != END):
        padded = np.zeros((1, 32), np.int32)
        padded[0, : len(row)] = row
        token, nats = _likeliest(padded, len(row), reading)
        row, total = [*row, int(token)], total + float(nats)
    return row[len(prompt) :], total


@jax.jit
def _likeliest(row: jax.Array, length: jax.Array, reading: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    module = CONFIG.module(Purpose.CAUSAL_LM, Execution())
    logits = module.apply({"params": parameters()}, row, **reading).logits[0, length - 1]
    return jnp.argmax(logits), jax.nn.log_softmax(logits).max()
