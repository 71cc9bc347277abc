"""Reformer: attention to similar tokens and reversible layers.

Sources: Kitaev et al., ICLR 2020, arXiv 2001.04451; trax/models/reformer of google/trax.

Two streams begin as the same embedding. Local layers and LSH layers follow each other in the order of `attn_layers`
(models/reformer/attention.py). The input of a layer can be computed from its output, so no layer keeps its hidden
states for the backward pass (layers/reversible_stack.py):

    x1 = x2 = words[input_ids] + axial_positions[p]
    L times:  x1 = x1 + attention(norm(x2));  x2 = x2 + feed_forward(norm(x1))
    next token:  softmax(W norm([x1, x2]) + b)

A decoder (`is_decoder`) reads from left to right; otherwise the model is an encoder with a masked language model.

A row that is longer than a chunk is padded to whole chunks. In pretraining, a row has as many tokens as the axial
tables have positions: --data.sequence_length is the product of `axial_pos_shape`.

Deviation: the rotations of the hashes are those of `hash_seed` outside of pretraining, so that the outputs of a row
are always the same. transformers draws new ones at every call, unless its config has a `hash_seed` for torch.
Deviation: axial tables are initialized as in transformers, with `axial_norm_std`.
"""

import dataclasses
import math
from typing import ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Kind, ParameterGroup, Purpose, System, declare
from plmjax.contracts.template import TEXT_ALONE, Template
from plmjax.errors import ABOVE_0, FRACTION, FROM_0, FROM_1, UserError, check_choice, check_ranges
from plmjax.layers.attention.cache import KeyValueCache
from plmjax.layers.attention.recording import OWN, collect
from plmjax.layers.dropout import Dropout
from plmjax.layers.feed_forward import check_activation
from plmjax.layers.normalization import LayerNorm
from plmjax.layers.partitioning import shard_hidden
from plmjax.layers.reversible_stack import reversible_stack
from plmjax.layers.stack import stack
from plmjax.layers.tokens import check_token_inputs
from plmjax.layers.words.embeddings import Embedding
from plmjax.models.families.task_heads import QuestionAnswering
from plmjax.models.reformer.axial_positions import AxialPositions
from plmjax.models.reformer.cache import ReformerCache
from plmjax.models.reformer.chunked_attention import Chunks
from plmjax.models.reformer.hashing import bucket_type
from plmjax.models.reformer.heads import (
    ReformerForCausalLM,
    ReformerForMaskedLM,
    ReformerForSequenceClassification,
    ReformerOutput,
)
from plmjax.models.reformer.layers import ReformerBlock

LAYERS = ("local", "lsh")


@dataclasses.dataclass(frozen=True)
class ReformerConfig(ModelConfig):
    """Sizes of a Reformer, named as in transformers' config.json; the defaults are those of `enwik8`.

    Raises:
        UserError: sizes do not fit each other, a layer is unknown, the features of the axial tables do not sum to the
            hidden size, the longest row does not divide into chunks, or the factors of the buckets are odd or their
            product exceeds the longest row.
    """

    vocab_size: int = 258
    """Vocabulary size."""
    hidden_size: int = 1024
    """Hidden size of each stream, D."""
    attn_layers: tuple[str, ...] = ("local", "local", "lsh", "local") * 3
    """Attention of each layer: local or lsh."""
    num_attention_heads: int = 8
    """Number of attention heads, N."""
    attention_head_size: int = 128
    """Size of a head, H."""
    feed_forward_size: int = 4096
    """Inner size of the feed-forward network, F."""
    hidden_act: str = "relu"
    """Activation: relu, gelu (exact), gelu_new (tanh form) or swish."""
    axial_pos_shape: tuple[int, ...] = (128, 512)
    """Rows of each axial table; their product is the maximum sequence length."""
    axial_pos_embds_dim: tuple[int, ...] = (256, 768)
    """Features of each axial table; their sum is the hidden size."""
    axial_norm_std: float = 1.0
    """Standard deviation of the initial values of the axial tables."""
    is_decoder: bool = True
    """True for a decoder, whose tokens see no later token."""
    local_attn_chunk_length: int = 128
    """Number of tokens in a chunk of a local layer."""
    local_num_chunks_before: int = 1
    """Number of chunks before its own that a token of a local layer sees."""
    local_num_chunks_after: int = 0
    """Number of chunks after its own that a token of a local layer sees, only in an encoder; 0 for none."""
    lsh_attn_chunk_length: int = 256
    """Number of tokens in a chunk of an LSH layer, after they are sorted."""
    lsh_num_chunks_before: int = 1
    """Number of chunks before its own that a token of an LSH layer sees."""
    lsh_num_chunks_after: int = 0
    """Number of chunks after its own that a token of an LSH layer sees, only in an encoder; 0 for none."""
    num_buckets: tuple[int, ...] = (512,)
    """Factors of the number of buckets, even numbers; their product is about twice the number of chunks."""
    num_hashes: int = 4
    """Number of rounds of hashing, R."""
    hash_seed: int | None = None
    """Seed of the hashes outside of pretraining, which draws new ones at every step; None for 0."""
    chunk_size_feed_forward: int = 0
    """Number of tokens that the feed-forward network reads at a time; 0 for all."""
    hidden_dropout_prob: float = 0.2
    """Dropout rate of embeddings, sublayers and the last hidden states."""
    local_attention_probs_dropout_prob: float = 0.2
    """Dropout rate of attention probabilities in local layers."""
    lsh_attention_probs_dropout_prob: float = 0.1
    """Dropout rate of attention probabilities in LSH layers."""
    classifier_dropout: float | None = None
    """Dropout rate of the input of a downstream task's head; None for that of the hidden states."""
    layer_norm_eps: float = 1e-12
    """Added to the variance in layer normalisation."""
    initializer_range: float = 0.02
    """Standard deviation of the normal distribution of initial weights."""
    pad_token_id: int | None = 0
    """Padding token id; the model itself does not need it."""
    eos_token_id: int | None = 2
    """Token id that ends a generated text; None for an encoder."""

    field_names: ClassVar[dict[str, str]] = {
        "width": "hidden_size",
        "longest": "axial_pos_shape",
        "end_token": "eos_token_id",
    }

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "num_attention_heads", "attention_head_size", "feed_forward_size")
        chunks = ("local_attn_chunk_length", "lsh_attn_chunk_length", "num_hashes")
        neighbours = ("local_num_chunks_before", "local_num_chunks_after", "lsh_num_chunks_before")
        others = (*neighbours, "lsh_num_chunks_after", "chunk_size_feed_forward", "axial_norm_std", "initializer_range")
        check_ranges("model", self, **dict.fromkeys((*sizes, *chunks), FROM_1), **dict.fromkeys(others, FROM_0))
        rates = ("hidden_dropout_prob", "local_attention_probs_dropout_prob", "lsh_attention_probs_dropout_prob")
        check_ranges("model", self, **dict.fromkeys(rates, FRACTION), layer_norm_eps=ABOVE_0)
        check_activation(self.hidden_act)
        if not self.attn_layers:
            raise UserError("Expected --model.attn_layers of local or lsh, one for each layer, found none; set it.")
        for layer in self.attn_layers:
            check_choice("--model.attn_layers", layer, LAYERS)
        self._check_positions()
        self._check_buckets()
        if self.is_decoder and (self.local_num_chunks_after or self.lsh_num_chunks_after):
            raise UserError(
                "Expected no chunks after a token's own in a decoder, found --model.local_num_chunks_after "
                f"{self.local_num_chunks_after} and --model.lsh_num_chunks_after {self.lsh_num_chunks_after}; set both "
                f"to 0, or --model.is_decoder False."
            )

    def _check_positions(self) -> None:
        shape, sizes = self.axial_pos_shape, self.axial_pos_embds_dim
        if len(shape) != len(sizes) or len(shape) < 2 or min((*shape, *sizes)) < 1:
            raise UserError(
                f"Expected --model.axial_pos_shape and --model.axial_pos_embds_dim of as many numbers from 1, at least "
                f"two, found {_spaced(shape)} and {_spaced(sizes)}; change them."
            )
        if sum(sizes) != self.hidden_size:
            raise UserError(
                f"Expected --model.axial_pos_embds_dim whose sum is the hidden size {self.hidden_size}, found "
                f"{_spaced(sizes)}, whose sum is {sum(sizes)}; change it or --model.hidden_size."
            )
        multiple = self.padding_multiple
        if self.longest > self.smallest_chunk and self.longest % multiple:
            raise UserError(
                f"Expected --model.axial_pos_shape whose product is a multiple of {multiple}, in which all chunks end, "
                f"found {_spaced(shape)}, whose product is {self.longest}; change it or the chunks."
            )

    def _check_buckets(self) -> None:
        if not self.num_buckets or any(factor < 2 or factor % 2 for factor in self.num_buckets):
            raise UserError(
                f"Expected --model.num_buckets of even numbers from 2, found {_spaced(self.num_buckets)}; change it."
            )
        if "lsh" in self.attn_layers and math.prod(self.num_buckets) > self.longest:
            raise UserError(
                f"Expected --model.num_buckets whose product is at most the {self.longest} tokens of the longest row, "
                f"found {_spaced(self.num_buckets)}, whose product is {math.prod(self.num_buckets)}; lower it."
            )

    enwik8 = Size("The published model for enwik8, 65,536 bytes: 149,182,722 parameters.")
    enwik8_base = Size(
        "The model for enwik8 on devices of 16 GB: 56,406,786 parameters.",
        hidden_size=768,
        attention_head_size=64,
        feed_forward_size=2048,
        axial_pos_embds_dim=(256, 512),
        num_hashes=2,
        lsh_attention_probs_dropout_prob=0.2,
    )
    crime_and_punishment = Size(
        "The published model for Crime and Punishment, 524,288 tokens: 2,748,224 parameters.",
        vocab_size=320,
        hidden_size=256,
        attn_layers=("local", "lsh") * 3,
        num_attention_heads=2,
        attention_head_size=64,
        feed_forward_size=512,
        axial_pos_shape=(512, 1024),
        axial_pos_embds_dim=(64, 192),
        local_attn_chunk_length=64,
        lsh_attn_chunk_length=64,
        num_buckets=(64, 128),
        num_hashes=1,
        hidden_dropout_prob=0.05,
        local_attention_probs_dropout_prob=0.05,
        lsh_attention_probs_dropout_prob=0.0,
    )
    tiny = Size(
        "Four layers of 128 for rows of 512 tokens.",
        hidden_size=128,
        attn_layers=("local", "lsh") * 2,
        num_attention_heads=2,
        attention_head_size=64,
        feed_forward_size=512,
        axial_pos_shape=(16, 32),
        axial_pos_embds_dim=(32, 96),
        local_attn_chunk_length=32,
        lsh_attn_chunk_length=32,
        num_buckets=(32,),
        num_hashes=2,
        hidden_dropout_prob=0.0,
        local_attention_probs_dropout_prob=0.0,
        lsh_attention_probs_dropout_prob=0.0,
    )

    @property
    def system(self) -> System:
        return SYSTEM if self.is_decoder else ENCODER

    @property
    def depth(self) -> int:
        return len(self.attn_layers)

    @property
    def longest(self) -> int:
        return math.prod(self.axial_pos_shape)

    @property
    def period(self) -> tuple[str, ...]:
        """The shortest pattern of layers whose repetition gives all layers. Each layer of it is stacked."""
        layers, depth = self.attn_layers, self.depth
        lengths = (length for length in range(1, depth + 1) if depth % length == 0)
        return next(layers[:length] for length in lengths if layers == layers[:length] * (depth // length))

    @property
    def chunk_lengths(self) -> tuple[int, ...]:
        """The chunk lengths of the layers that the model has."""
        lengths = {"local": self.local_attn_chunk_length, "lsh": self.lsh_attn_chunk_length}
        return tuple(lengths[layer] for layer in LAYERS if layer in self.attn_layers)

    @property
    def smallest_chunk(self) -> int:
        """Maximum number of tokens in a row that is a single chunk in all layers."""
        return min(self.chunk_lengths)

    @property
    def padding_multiple(self) -> int:
        """Rows longer than `smallest_chunk` are padded to a multiple of this number of tokens."""
        return math.lcm(*self.chunk_lengths)

    @property
    def head_dropout(self) -> float:
        """Dropout rate of the input of a downstream task's head."""
        return self.hidden_dropout_prob if self.classifier_dropout is None else self.classifier_dropout

    @property
    def initializer(self) -> Initializer:
        """Normal distribution, not truncated."""
        return nn.initializers.normal(self.initializer_range)

    def check_sequence_length(self, length: int) -> None:
        """Raise UserError for a pretraining whose rows do not have all positions of the axial tables.

        The missing positions would keep their initial values.
        """
        if length != self.longest:
            raise UserError(
                f"Expected rows of {self.longest} tokens, the product of --model.axial_pos_shape "
                f"{_spaced(self.axial_pos_shape)}, found a sequence length of {length}; change it or "
                f"--model.axial_pos_shape."
            )

    def with_dropout(self, rate: float) -> Self:
        """Return the same sizes with another dropout rate of hidden states and of attention probabilities."""
        return dataclasses.replace(
            self,
            hidden_dropout_prob=rate,
            local_attention_probs_dropout_prob=rate,
            lsh_attention_probs_dropout_prob=rate,
        )

    def with_tokens(self, size: int, padding: int) -> Self:
        """Return the same model with a vocabulary of `size` tokens and the padding id `padding`."""
        return dataclasses.replace(self, vocab_size=size, pad_token_id=padding)

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """Return the model FLOPs of one training step (backward = 2 x forward, without the second forward pass).

        There are `predictions` scored positions per row. Matrix products only; a token has scores for the chunks that
        it sees, in each round. No gradient passes through the product with the rotations.
        """
        length, inner = self.padded_length(sequence_length), self.num_attention_heads * self.attention_head_size
        total = hashing = 0
        for layer in self.attn_layers:
            local = layer == "local"
            chunks = self.chunks(layer)
            single = length <= chunks.size
            keys = length if single else chunks.size * (1 + chunks.before + chunks.after)
            rounds = 1 if local or single else self.num_hashes
            projections = (4 if local else 3) * self.hidden_size * inner + 2 * self.hidden_size * self.feed_forward_size
            total += length * (projections + 2 * rounds * keys * inner)
            hashing += 0 if local else length * inner * self.num_hashes * (sum(self.num_buckets) // 2)
        head = predictions * 2 * self.hidden_size * self.vocab_size
        return 6.0 * batch_size * (total + head) + 2.0 * batch_size * hashing

    def chunks(self, layer: str) -> Chunks:
        """Return the chunk length of local or lsh layers, and how many chunks before and after a chunk also sees."""
        if layer == "local":
            return Chunks(self.local_attn_chunk_length, self.local_num_chunks_before, self.local_num_chunks_after)
        return Chunks(self.lsh_attn_chunk_length, self.lsh_num_chunks_before, self.lsh_num_chunks_after)

    def padded_length(self, length: int) -> int:
        """Return the length to which rows of `length` tokens are padded."""
        return length if length <= self.smallest_chunk else length + -length % self.padding_multiple


def _spaced(numbers: tuple[int, ...]) -> str:
    return " ".join(map(str, numbers)) or "none"


class ReformerModel(nn.Module):
    """Embeddings, L reversible layers whose parameters are stacked by period under `layers`, and a norm."""

    config: ReformerConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        config, dtype = self.config, self.execution.dtype
        self.word_embeddings = Embedding(config.vocab_size, config.hidden_size, "vocab", config.initializer)
        self.position_embeddings = AxialPositions(
            config.axial_pos_shape, config.axial_pos_embds_dim, config.axial_norm_std, config.hidden_dropout_prob
        )
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.layer_norm = LayerNorm(config.layer_norm_eps, dtype)

    @nn.compact
    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        *,
        positions: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        cache: ReformerCache | None = None,
        deterministic: bool = True,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> ReformerOutput:
        """Read rows of tokens; with a cache, the first tokens of each row or one more token.

        Args:
            input_ids: int [B T].
            attention_mask: [B T], 1 for tokens that may be attended to; all by default.
            positions: int [B T], from 0; by default 0..T-1, or the positions after the cache.
            segment_ids: int [B T], the document of each token, 0 for padding; not with a cache. Tokens see their own
                document only; the chunks are those of the row.
            cache: the tokens before these, with capacity for T more. Only an empty cache takes several tokens at once.
            deterministic: disables dropout; otherwise the random collection "dropout" is needed. With a collection
                "sampling" the hashes are drawn from it, otherwise from `hash_seed`.
            output_hidden_states: returns the streams before every layer.
            output_attentions: returns the weights of attention of every layer (`plmjax.contracts.attentions`). A key
                that a query sees in several chunks or rounds has the sum of its weights.

        Raises:
            UserError: the rows are longer than the axial tables.
            ValueError: an input's shape does not fit the others', or segments are given with a cache.
        """
        config, length = self.config, input_ids.shape[1]
        others = (attention_mask, positions, segment_ids)
        check_token_inputs(config.longest, config.option("longest"), input_ids, *others)
        if cache is not None and segment_ids is not None:
            raise ValueError(
                "Expected rows of one sequence with a cache, found segment_ids; read them without a cache."
            )
        documents = jnp.ones(input_ids.shape, jnp.int32) if segment_ids is None else segment_ids
        documents = documents if attention_mask is None else documents * (attention_mask > 0)
        if positions is None:
            positions = jnp.broadcast_to(jnp.arange(length), input_ids.shape)
            positions = positions if cache is None else cache.key_values.positions(documents)
        x = self.dropout(self.word_embeddings(input_ids), deterministic)
        x = shard_hidden(x + self.position_embeddings(positions, deterministic))
        if cache is not None:
            cache = cache.with_mask(documents)
        added = 0
        if cache is None or length > 1:
            added = config.padded_length(length) - length
            x, documents = jnp.pad(x, ((0, 0), (0, added), (0, 0))), jnp.pad(documents, ((0, 0), (0, added)))

        block = ReformerBlock(config, self.execution, deterministic, name="layers")
        repetitions = config.depth // len(config.period)
        numbers, streams, states = jnp.arange(config.depth).reshape(repetitions, -1), (x, x), None

        def body(block: ReformerBlock, carried: tuple, numbers: jax.Array) -> tuple[tuple, jax.Array | None]:
            carried, states = block.read(*carried, documents, numbers)
            return carried, states if output_hidden_states else None

        with collect(output_attentions) as attentions:
            if cache is None and not output_hidden_states and not output_attentions:
                streams = reversible_stack(
                    block, repetitions, self.execution, streams=streams, context=documents, inputs=numbers
                )
            else:
                (streams, cache), states = stack(
                    body, block, repetitions, execution=self.execution, x=(streams, cache), inputs=numbers
                )
        x = self.dropout(self.layer_norm(jnp.concatenate(streams, axis=-1)[:, :length]), deterministic)
        x = shard_hidden(x)
        if states is not None:
            states = states.reshape(-1, *states.shape[2:])[:, :, :length].astype(x.dtype)
            states = jnp.concatenate([states, x[None]])
        weights = attentions.get(OWN)
        return ReformerOutput(
            x,
            hidden_states=states,
            cache=None if cache is None else cache.advance(length),
            attentions=None if weights is None else weights[..., :length, : weights.shape[-1] - added],
        )


def _parts(config: ReformerConfig) -> tuple[ParameterGroup, ...]:
    """Return the parameter groups: the embeddings, each layer, and the last norm."""
    period = len(config.period)
    layers = (
        ParameterGroup((f"reformer/layers/layer_{layer % period}",), layer // period) for layer in range(config.depth)
    )
    embeddings = ParameterGroup(("reformer/word_embeddings", "reformer/position_embeddings"))
    return embeddings, *layers, ParameterGroup(("reformer/layer_norm",))


def _empty_cache(config: ReformerConfig, batch: int, capacity: int, execution: Execution) -> ReformerCache:
    heads, size = config.num_attention_heads, config.attention_head_size
    key_values = KeyValueCache.empty(config.depth, batch, capacity, heads=heads, size=size, dtype=execution.dtype)
    shape = (config.attn_layers.count("lsh"), batch, heads, config.num_hashes, capacity)
    buckets = jnp.full(shape, math.prod(config.num_buckets), bucket_type(config.num_buckets))
    return ReformerCache(key_values, buckets, config.smallest_chunk, config.padding_multiple)


ENCODER = System(
    ReformerConfig,
    Kind.ENCODER,
    {
        Purpose.PRETRAINING: ReformerForMaskedLM,
        Purpose.MASKED_TOKENS: ReformerForMaskedLM,
        Purpose.ENCODING: ReformerModel,
        Purpose.EMBEDDING: ReformerModel,
        Purpose.SEQUENCE_CLASSIFICATION: ReformerForSequenceClassification,
        Purpose.QUESTION_ANSWERING: QuestionAnswering,
    },
    name="reformer",
    template=lambda config: Template("cls A sep", "cls A sep B sep"),
    parts=_parts,
    token_table="reformer/word_embeddings/embedding",
    packs=False,
)
SYSTEM = declare(
    dataclasses.replace(
        ENCODER,
        kind=Kind.DECODER,
        modules={
            Purpose.PRETRAINING: ReformerForCausalLM,
            Purpose.CAUSAL_LM: ReformerForCausalLM,
            Purpose.ENCODING: ReformerModel,
            Purpose.EMBEDDING: ReformerModel,
        },
        returns=("scores",),
        template=lambda config: TEXT_ALONE,
        cache=_empty_cache,
        instead="pretrain one with --model.is_decoder False",
    )
)
