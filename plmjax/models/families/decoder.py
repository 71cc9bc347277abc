"""Base classes of decoders such as GPT: config, output, and heads on the last token; their cache and row template."""

import dataclasses
from typing import Any, ClassVar, Self

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.contracts.attentions import Attentions
from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import Window
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.scores import TokenScores
from plmjax.contracts.system import Purpose
from plmjax.contracts.template import Template
from plmjax.errors import ABOVE_0, FRACTION, FROM_0, FROM_1, UserError, check_ranges
from plmjax.layers.attention.cache import KeyValueCache
from plmjax.layers.dropout import Dropout
from plmjax.layers.feed_forward import check_activation
from plmjax.layers.projection import Projection
from plmjax.layers.tokens import last_tokens


@dataclasses.dataclass(frozen=True)
class DecoderConfig(ModelConfig):
    """Sizes of a decoder, named as in transformers' config.json; the defaults are GPT's.

    Raises:
        UserError: sizes that do not fit each other, an unknown activation, or a window longer than a row.
    """

    vocab_size: int = 40478
    """Vocabulary size."""
    n_positions: int = 512
    """Maximum sequence length."""
    n_embd: int = 768
    """Hidden size, D."""
    n_layer: int = 12
    """Number of layers, L."""
    n_head: int = 12
    """Number of attention heads, N."""
    activation_function: str = "gelu_new"
    """Activation: gelu_new (tanh form), gelu (exact) or relu."""
    embd_pdrop: float = 0.1
    """Dropout rate of the embeddings."""
    resid_pdrop: float = 0.1
    """Dropout rate of each sublayer's output."""
    attn_pdrop: float = 0.1
    """Dropout rate of attention probabilities."""
    layer_norm_epsilon: float = 1e-5
    """Added to the variance in layer normalisation."""
    initializer_range: float = 0.02
    """Standard deviation of the normal distribution of initial weights."""
    summary_first_dropout: float = 0.1
    """Dropout rate of the input of a downstream task's head."""
    pad_token_id: int | None = None
    """Padding token id in the rows of a task, by which transformers finds the last token; the model itself does not
    need it. None means that there is no such token.
    """
    attention_window: int | None = None
    """Number of tokens before a token that it sees; None for all."""

    field_names: ClassVar[dict[str, str]] = {"width": "n_embd", "depth": "n_layer", "longest": "n_positions"}

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "n_positions", "n_embd", "n_layer")
        check_ranges("model", self, **dict.fromkeys(sizes, FROM_1), initializer_range=FROM_0)
        check_ranges(
            "model",
            self,
            embd_pdrop=FRACTION,
            resid_pdrop=FRACTION,
            attn_pdrop=FRACTION,
            summary_first_dropout=FRACTION,
        )
        check_ranges("model", self, layer_norm_epsilon=ABOVE_0)
        if self.n_head < 1 or self.n_embd % self.n_head:
            raise UserError(
                f"Expected features that divide by the heads, found {self.n_embd} and {self.n_head} heads; change "
                f"--model.n_embd or --model.n_head."
            )
        check_activation(self.activation_function)
        if self.attention_window is not None and not 1 <= self.attention_window <= self.n_positions:
            raise UserError(
                f"Expected --model.attention_window from 1 to {self.n_positions} tokens, the longest row, found "
                f"{self.attention_window}; change it, or raise --model.n_positions."
            )

    @property
    def windows(self) -> tuple[Window, ...]:
        """The window of all layers, if there is one."""
        return () if self.attention_window is None else (Window(self.attention_window, 0),)

    @property
    def widest_window(self) -> int | None:
        return self.attention_window

    @property
    def inner_size(self) -> int:
        """Inner size of the feed-forward network, F."""
        return 4 * self.n_embd

    @property
    def head_dropout(self) -> float:
        return self.summary_first_dropout

    @property
    def initializer(self) -> Initializer:
        """Normal distribution, not truncated."""
        return nn.initializers.normal(self.initializer_range)

    def with_dropout(self, rate: float) -> Self:
        """Return the same sizes with another dropout rate of embeddings, sublayers and attention probabilities."""
        return dataclasses.replace(self, embd_pdrop=rate, resid_pdrop=rate, attn_pdrop=rate)

    def with_tokens(self, size: int, padding: int) -> Self:
        return dataclasses.replace(self, vocab_size=size, pad_token_id=padding)

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """Return the model FLOPs of one training step (backward = 2 x forward).

        There are `predictions` scored positions per row. Matrix products only: 6 (L (4 D^2 + 2 D F) + 2 L T D) per
        token and 6 D V per prediction. Attention counts all pairs of tokens, as everywhere in this project, although
        half of them are hidden. With a window of w tokens, w + 1 keys take the place of T.
        """
        window = self.attention_window
        keys = sequence_length if window is None else min(sequence_length, window + 1)
        head = predictions * self.n_embd * self.vocab_size
        return 6.0 * batch_size * (sequence_length * self.layers_products(keys) + head)

    def layers_products(self, keys: int) -> int:
        """Return the multiplications of all layers for one token that sees `keys` keys."""
        size = self.n_embd
        return self.n_layer * (4 * size**2 + 2 * size * self.inner_size + 2 * keys * size)


@flax.struct.dataclass
class DecoderOutput(Attentions):
    """The output of the modules of a decoder; fields that a module does not compute are None.

    last_hidden_state: [B T D].
    hidden_states: [L+1 B T D], the embeddings first; only if requested.
    scores: scores of the next token at every position; only for a language model.
    cache: the given cache, with the tokens of this call.
    """

    last_hidden_state: jax.Array
    hidden_states: jax.Array | None = None
    scores: TokenScores | None = None
    cache: KeyValueCache | None = None

    @property
    def logits(self) -> jax.Array:
        """The scores as an array, float32 [B T V]."""
        return self.scores.logits()


@flax.struct.dataclass
class DecoderHeadOutput(DecoderOutput):
    """The output of a decoder with the head of a task; `scores` are still those of its language model.

    logits: float32 [B outputs], or [B K outputs] of packed sequences; of choices [B C] or [B C K].
    """

    logits: jax.Array | None = None

    @property
    def next_token_logits(self) -> jax.Array:
        """The scores of the next token as an array, float32 [B T V]; with choices there are B C rows."""
        return self.scores.logits()


class DecoderForCausalLM(nn.Module):
    """The decoder, under the name of its system, and the scores of the next token.

    Its word table is the output layer.
    """

    config: DecoderConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        self.encoder = self.config.module(Purpose.ENCODING, self.execution)

    def __call__(self, input_ids: jax.Array, **inputs: Any) -> DecoderOutput:
        """Take and return the same as the decoder."""
        return self.encoder(input_ids, **inputs)


class DecoderForSequenceClassification(nn.Module):
    """The decoder with dropout and a linear layer on the last token of a row; with one label it is a regression."""

    config: DecoderConfig
    execution: Execution = Execution()
    num_labels: int = 2

    def setup(self) -> None:
        config, dtype = self.config, self.execution.dtype
        axes, init = ("embed", None), config.initializer
        self.encoder = config.module(Purpose.ENCODING, self.execution)
        self.dropout = Dropout(config.head_dropout)
        self.classifier = Projection((self.num_labels,), axes, init, dtype, logits=True, use_bias=False)

    def score(self, last: jax.Array, deterministic: bool) -> jax.Array:
        """Map [... D] to float32 [... labels]."""
        return self.classifier(self.dropout(last, deterministic))

    def __call__(self, input_ids: jax.Array, *, deterministic: bool = True, **inputs: Any) -> DecoderHeadOutput:
        """Take and return the same as the decoder, with logits.

        Logits are [B labels], or [B K labels] of the sequences that end at `cls_positions`.
        """
        output, last = read_to_the_end(self.encoder, input_ids, deterministic=deterministic, **inputs)
        return output.replace(logits=self.score(last, deterministic))


class DecoderForMultipleChoice(nn.Module):
    """The decoder with dropout and a linear layer on the last token, which gives every choice one score."""

    config: DecoderConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        config, dtype = self.config, self.execution.dtype
        self.encoder = config.module(Purpose.ENCODING, self.execution)
        self.dropout = Dropout(config.head_dropout)
        self.classifier = Projection((1,), ("embed", None), config.initializer, dtype, logits=True)

    def __call__(self, input_ids: jax.Array, *, deterministic: bool = True, **inputs: Any) -> DecoderHeadOutput:
        """Take and return the same as the decoder, for C adjacent choices of a question: int [B C T] -> logits [B C].

        With `cls_positions` int [B C K] logits are [B C K]. Dropout drops the same elements in all choices of a
        question (train.py of GPT, `model`). Hidden states and scores have B C rows, one for each choice.
        """
        output, last = read_to_the_end(self.encoder, input_ids, deterministic=deterministic, **inputs)
        kept = self.dropout(jnp.ones_like(last[:, :1] if input_ids.ndim == 3 else last), deterministic)
        return output.replace(logits=self.classifier(last * kept)[..., 0])


def read_to_the_end(
    decoder: nn.Module,
    input_ids: jax.Array,
    attention_mask: jax.Array | None = None,
    *,
    cls_positions: jax.Array | None = None,
    deterministic: bool = True,
    output_hidden_states: bool = False,
    output_attentions: bool = False,
    **inputs: jax.Array | None,
) -> tuple[DecoderHeadOutput, jax.Array]:
    """Apply a decoder to rows, int [B T], or to C adjacent rows of each example, int [B C T].

    Return the output for all rows, and the hidden states of the last tokens. These are [B D], or [B K D] at
    `cls_positions`; for adjacent rows [B C D] or [B C K D].
    """
    rows = {"input_ids": input_ids, "attention_mask": attention_mask, "cls_positions": cls_positions, **inputs}
    rows = {name: None if x is None else x.reshape(-1, x.shape[-1]) for name, x in rows.items()}
    positions = rows.pop("cls_positions")
    asked = {"output_hidden_states": output_hidden_states, "output_attentions": output_attentions}
    output = decoder(**rows, deterministic=deterministic, **asked)
    last = last_tokens(output.last_hidden_state, rows["attention_mask"], positions)
    headed = DecoderHeadOutput(
        output.last_hidden_state, output.hidden_states, output.scores, attentions=output.attentions
    )
    return headed, last.reshape(*input_ids.shape[:-1], *last.shape[1:])


def decoder_cache(config: DecoderConfig, batch: int, capacity: int, execution: Execution) -> KeyValueCache:
    """Return an empty cache of keys and values."""
    heads, size = config.n_head, config.n_embd // config.n_head
    return KeyValueCache.empty(config.n_layer, batch, capacity, heads=heads, size=size, dtype=execution.dtype)


DECODER_TEMPLATE = Template("start A extract", "start A delimiter B extract", "last")
"""The rows of a decoder's tasks (Radford et al. 2018, figure 1)."""
