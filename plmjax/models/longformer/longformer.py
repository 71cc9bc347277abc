"""Longformer: RoBERTa for documents of 4,096 tokens (Beltagy et al. 2020, arXiv 2004.05150; allenai/longformer).

RoBERTa's encoder, in which a token sees only the w tokens around it. The windows of L layers together reach L w tokens.
A few tokens that the task chooses are global: they see the full row, and every token sees them. Time and memory grow
linearly with the length of a row.

    x = norm(words[input_ids] + positions[p] + types[0]),   p as in RoBERTa
    L times:  x = norm(x + longformer_attention(x, w of the layer));  x = norm(x + feed_forward(x))

The global tokens of a task (section 3.1, "symmetric" attention):

    a text                    <s>, which represents it
    the labels of words       none
    an answer in a text       the tokens of the question and <s>: all before the first separator
    the choices of a question the tokens of the question and the choice: all after the two separators
    the masked language model none

It starts from a RoBERTa: the layers are copied, its 512 positions are repeated eight times, and the pretraining of its
masked language model is continued (section 5; `plmjax.runs.weight_mappings.longformer`).

Deviation: a row has at most `max_global_tokens` global tokens, so that all shapes are known while a program is traced.
If a question has more tokens, only the first ones are global. The released code has no such limit.
Deviation: windows may be of any even size in rows of any length; the released code pads rows to a multiple of the
window, which changes no token.
Deviation: as in RoBERTa, rows of the padding token in the tables are initialized like any other.
"""

import dataclasses
import functools
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import MaskTerm
from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Kind, Purpose, System, declare
from plmjax.errors import UserError
from plmjax.layers.attention.recording import OWN, collect
from plmjax.layers.projection import Projection
from plmjax.layers.stack import stack_states
from plmjax.layers.tokens import check_token_inputs, first_tokens
from plmjax.models.bert import BertEmbeddings, BertLayer
from plmjax.models.families.encoder import (
    EncoderForMultipleChoice,
    EncoderOutput,
    encoder_parts,
    encoder_sizes,
)
from plmjax.models.families.task_heads import QuestionAnswering, SpanOutput, TokenClassification
from plmjax.models.longformer.attention import Inputs, LongformerAttention
from plmjax.models.roberta import (
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
    RobertaModel,
    roberta_template,
)

GLOBAL_SHARE = 4
"""Minimum ratio of the tokens in the longest row to its global tokens."""


def check_windows(windows: tuple[int, ...], layers: int, longest: int) -> None:
    """Raise UserError for windows that are odd, longer than the `longest` row, or not one per layer."""
    found = " ".join(map(str, windows)) or "none"
    if len(windows) not in (1, layers):
        raise UserError(
            f"Expected --model.attention_window to be one number, or one for each of {layers} layers, found {found}; "
            f"change it."
        )
    if any(window < 2 or window % 2 for window in windows):
        raise UserError(
            f"Expected --model.attention_window of even numbers from 2, half of the tokens on each side, found "
            f"{found}; change it."
        )
    if max(windows) > longest:
        raise UserError(
            f"Expected --model.attention_window of at most the {longest} tokens of the longest row, found {found}; "
            f"lower it or raise --model.max_position_embeddings."
        )


def for_layers(numbers: tuple[int, ...], layers: int) -> tuple[int, ...]:
    """Return one number for each layer, from one number for all layers or one for each."""
    return numbers * layers if len(numbers) == 1 else numbers


def check_global_tokens(global_tokens: int, longest: int) -> None:
    """Raise UserError for a maximum of global tokens below 1 or above a quarter of the `longest` row."""
    if not 1 <= global_tokens * GLOBAL_SHARE <= longest:
        raise UserError(
            f"Expected --model.max_global_tokens from 1 to {longest // GLOBAL_SHARE}, a quarter of the longest row, "
            f"found {global_tokens}; change it, or raise --model.max_position_embeddings."
        )


@dataclasses.dataclass(frozen=True)
class LongformerConfig(RobertaConfig):
    """Sizes of a Longformer; the defaults are Longformer-Base of 4,096 tokens.

    Raises:
        UserError: as for `RobertaConfig`; or a window is odd or longer than the rows, windows are neither one number
            nor one for each layer, dilations are below 1 or are neither one number nor one for each head, or there are
            more global tokens than a quarter of the longest row.
    """

    max_position_embeddings: int = 4098
    """Number of rows of the position table: the maximum sequence length, plus the padding token's id, plus one."""
    attention_window: tuple[int, ...] = (512,)
    """Number of tokens around a token that it sees, half of them on each side: one number for each layer, or one for
    all layers.
    """
    attention_dilation: tuple[int, ...] = (1,)
    """Distance between adjacent keys of a window: one number for all heads, or one for each head. 1 is none; above 1 no
    token may be global.
    """
    max_global_tokens: int = 128
    """Maximum number of global tokens in a row."""
    sep_token_id: int = 2
    """Token id of the separator, which ends a question; the tokenizer's must be the same."""

    field_names: ClassVar[dict[str, str]] = RobertaConfig.field_names | {"separator_token": "sep_token_id"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.attention_dilation) not in (1, self.num_attention_heads) or min(self.attention_dilation) < 1:
            raise UserError(
                f"Expected --model.attention_dilation of numbers from 1, one for all or one for each of "
                f"{self.num_attention_heads} heads, found {' '.join(map(str, self.attention_dilation)) or 'none'}; "
                f"change it."
            )
        check_global_tokens(self.max_global_tokens, self.longest)

    base = Size(
        "Longformer-Base of 4,096 tokens: 148,711,257 parameters with its masked language model's head.",
        **encoder_sizes(12, 768, 12),
    )
    large = Size(
        "Longformer-Large of 4,096 tokens: 434,653,273 parameters with its masked language model's head.",
        **encoder_sizes(24, 1024, 16),
    )
    tiny = Size(
        "Two layers of 128 for 512 tokens, with windows of 64; none was published.",
        **encoder_sizes(2, 128, 2),
        max_position_embeddings=514,
        attention_window=(64,),
        max_global_tokens=64,
    )

    def check_window(self) -> None:
        """Raise UserError for windows that are odd, longer than the rows, or not one per layer."""
        check_windows(self.attention_window, self.num_hidden_layers, self.longest)

    @classmethod
    def above(
        cls, roberta: RobertaConfig, length: int, attention_window: tuple[int, ...], max_global_tokens: int
    ) -> Self:
        """Return a config with the sizes of a RoBERTa for rows of `length` tokens; its end token is the separator."""
        sizes = {field.name: getattr(roberta, field.name) for field in dataclasses.fields(roberta)}
        separator = cls.sep_token_id if roberta.eos_token_id is None else roberta.eos_token_id
        return cls(
            **sizes
            | {
                "max_position_embeddings": length + roberta.pad_token_id + 1,
                "attention_window": attention_window,
            },
            max_global_tokens=max_global_tokens,
            sep_token_id=separator,
        )

    @property
    def windows(self) -> tuple[MaskTerm, ...]:
        """Empty: no mask term holds for all layers, because each layer has its own window."""
        return ()

    @property
    def layer_windows(self) -> tuple[int, ...]:
        """The window of each layer."""
        return for_layers(self.attention_window, self.num_hidden_layers)

    @property
    def widest_window(self) -> int:
        return max(self.attention_window)

    @property
    def dilated(self) -> bool:
        """True if the window of any head is dilated."""
        return max(self.attention_dilation) > 1

    def layers_flops(self, batch_size: int, sequence_length: int) -> float:
        """Return the model FLOPs of the layers in one training step without global tokens, matrix products only.

        6 (4 D^2 + 2 D F + 2 min(T, w + 1) D) per token and layer with a window of w tokens. For a head of dilation d,
        T / d takes the place of T.
        """
        size, steps = self.hidden_size, self.attention_dilation
        projections = self.num_hidden_layers * (4 * size**2 + 2 * size * self.intermediate_size)
        keys = sum(min(-(-sequence_length // step), window + 1) for window in self.layer_windows for step in steps)
        return 6.0 * batch_size * sequence_length * (projections + 2 * keys / len(steps) * size)


class LongformerLayer(BertLayer):
    """BERT's layer with windowed and global attention."""

    config: LongformerConfig

    def attention(self, x: jax.Array, inputs: Inputs, side: int | jax.Array) -> jax.Array:
        """Attend within rows, [B T D] -> [B T D]; `side` is half of the window."""
        config, init = self.config, self.config.initializer
        size, heads, rate = config.hidden_size, config.num_attention_heads, config.attention_probs_dropout_prob
        dilation = config.attention_dilation
        attention = LongformerAttention(size, heads, rate, init, self.execution, dilation=dilation, name="attention")
        return attention(x, inputs, side, deterministic=self.deterministic)


class LongformerEncoder(nn.Module):
    """L layers whose parameters are stacked [L ...] under `layers`; each has a window of its own."""

    config: LongformerConfig
    execution: Execution

    @nn.compact
    def __call__(
        self, x: jax.Array, inputs: Inputs, *, deterministic: bool, output_hidden_states: bool
    ) -> tuple[jax.Array, jax.Array | None]:
        """Map [B T D] to [B T D] and, if requested, to [L+1 B T D], the input first."""

        def apply(layer: LongformerLayer, x: jax.Array, side: jax.Array) -> jax.Array:
            return layer(x, inputs, side)

        layers = LongformerLayer(self.config, self.execution, deterministic, name="layers")
        depth, sides = self.config.num_hidden_layers, jnp.array(self.config.layer_windows) // 2
        return stack_states(
            apply, layers, depth, execution=self.execution, x=x, inputs=sides, output_hidden_states=output_hidden_states
        )


class LongformerModel(RobertaModel):
    """RoBERTa's embeddings, the encoder and, if `pooling` is set, the pooler tanh(W x_<s> + b)."""

    config: LongformerConfig

    def setup(self) -> None:
        config, execution = self.config, self.execution
        self.embeddings = BertEmbeddings(config, config.hidden_size, execution)
        self.encoder = LongformerEncoder(config, execution)
        if self.pooling:
            self.pooler = Projection((config.hidden_size,), ("embed", "mlp"), config.initializer, execution.dtype)

    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        *,
        token_type_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        cls_positions: jax.Array | None = None,
        global_attention_mask: jax.Array | None = None,
        global_slots: int | None = None,
        deterministic: bool = True,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> EncoderOutput:
        """Encode rows of one sequence each.

        Args:
            input_ids: int [B T].
            attention_mask: [B T], 1 for tokens, 0 for padding; all are tokens by default.
            token_type_ids: int [B T]; 0 by default.
            positions: int [B T], from 0; by default counted over tokens other than the padding token.
            segment_ids: int [B T], above 0 for tokens, 0 for padding, like `attention_mask`.
            cls_positions: int [B 1], the first token of each sequence; by default position 0.
            global_attention_mask: [B T], 1 for global tokens; none by default.
            global_slots: maximum number of global tokens in a row; by default `max_global_tokens`. Within a compiled
                program the number is not checked: the outputs of a row that has more are NaN.
            deterministic: disables dropout; otherwise the random collection "dropout" is needed.
            output_hidden_states: returns the output of every layer.
            output_attentions: returns the weights of attention of every layer (`plmjax.contracts.attentions`).

        Raises:
            UserError: the rows are longer than the position table, have too many global tokens, or have global tokens
                with dilated windows.
            ValueError: an input's shape does not fit the others'.
        """
        others = (attention_mask, token_type_ids, positions, segment_ids, global_attention_mask)
        check_token_inputs(self.config.longest, self.config.option("longest"), input_ids, *others)
        masks = [mask > 0 for mask in (attention_mask, segment_ids) if mask is not None]
        real = functools.reduce(jnp.logical_and, masks, jnp.ones(input_ids.shape, bool))
        widest = self.config.widest_window // 2
        inputs = Inputs(real, real, None, widest)
        if global_attention_mask is not None:
            _check_dilation(self.config)
            slots = self.config.max_global_tokens if global_slots is None else global_slots
            inputs = Inputs.of(real, global_attention_mask > 0, slots, widest)
        x = self.embed(input_ids, token_type_ids, self.position_rows(input_ids, positions), deterministic=deterministic)
        with collect(output_attentions) as attentions:
            x, hidden_states = self.encoder(
                inputs.poison_overfull(x),
                inputs,
                deterministic=deterministic,
                output_hidden_states=output_hidden_states,
            )
        pooled = self.pool(first_tokens(x, cls_positions)) if self.pooling else None
        return EncoderOutput(x, hidden_states, pooled, attentions=attentions.get(OWN))


def _check_dilation(config: LongformerConfig) -> None:
    """Raise UserError for global tokens with dilated windows."""
    if config.dilated:
        raise UserError(
            f"Expected --model.attention_dilation 1 with global tokens, found "
            f"{' '.join(map(str, config.attention_dilation))}; change it, or leave global tokens out."
        )


class LongformerForMaskedLM(RobertaForMaskedLM):
    """Longformer with its pretraining head; no token is global unless `global_attention_mask` says so."""

    config: LongformerConfig


class LongformerForSequenceClassification(RobertaForSequenceClassification):
    """RoBERTa's head of two layers on <s>, which is global."""

    config: LongformerConfig

    def __call__(self, input_ids: jax.Array, **inputs: Any) -> EncoderOutput:
        """Take and return the same as `LongformerModel`, with logits [B labels], or [B 1 labels] at `cls_positions`."""
        if inputs.get("global_attention_mask") is None:
            first = jnp.broadcast_to(jnp.arange(input_ids.shape[1]) == 0, input_ids.shape)
            inputs |= {"global_attention_mask": first, "global_slots": 1}
        return super().__call__(input_ids, **inputs)


class LongformerForQuestionAnswering(QuestionAnswering):
    """The scores of the two ends of an answer; the tokens before the first separator, the question, are global."""

    config: LongformerConfig

    @nn.compact
    def __call__(
        self, input_ids: jax.Array, *, global_attention_mask: jax.Array | None = None, **inputs: Any
    ) -> SpanOutput:
        """Take the same as `LongformerModel` and return the scores of spans."""
        if global_attention_mask is None:
            there, first, places = _first_separator(input_ids, self.config.sep_token_id)
            global_attention_mask = _first_of(there & (places < first), self.config.max_global_tokens)
        return super().__call__(input_ids, global_attention_mask=global_attention_mask, **inputs)


class LongformerForMultipleChoice(EncoderForMultipleChoice):
    """A linear layer on the pooled <s> of every choice; the tokens after the two separators are global."""

    config: LongformerConfig

    def __call__(
        self, input_ids: jax.Array, *, global_attention_mask: jax.Array | None = None, **inputs: Any
    ) -> EncoderOutput:
        """Take and return the same as `LongformerModel`, for C adjacent choices: int [B C T] -> logits [B C]."""
        if global_attention_mask is None:
            there, first, places = _first_separator(input_ids, self.config.sep_token_id)
            global_attention_mask = _first_of(there & (places > first + 1), self.config.max_global_tokens)
        return super().__call__(input_ids, global_attention_mask=global_attention_mask, **inputs)


def _first_separator(input_ids: jax.Array, separator: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Find the first separator in each row, int [... T].

    Return true for rows that have a separator, bool [... 1]; its position, int [... 1]; and all positions, int [T].
    """
    found = input_ids == separator
    first = jnp.argmax(found, axis=-1, keepdims=True)
    return jnp.any(found, axis=-1, keepdims=True), first, jnp.arange(input_ids.shape[-1])


def _first_of(mask: jax.Array, count: int) -> jax.Array:
    """Return a mask, bool [... T], of the first `count` tokens of `mask`."""
    return mask & (jnp.cumsum(mask, axis=-1) <= count)


SYSTEM = declare(
    System(
        LongformerConfig,
        Kind.ENCODER,
        {
            Purpose.PRETRAINING: LongformerForMaskedLM,
            Purpose.MASKED_TOKENS: LongformerForMaskedLM,
            Purpose.ENCODING: LongformerModel,
            Purpose.EMBEDDING: LongformerModel,
            Purpose.SEQUENCE_CLASSIFICATION: LongformerForSequenceClassification,
            Purpose.TOKEN_CLASSIFICATION: TokenClassification,
            Purpose.QUESTION_ANSWERING: LongformerForQuestionAnswering,
            Purpose.MULTIPLE_CHOICE: LongformerForMultipleChoice,
        },
        name="longformer",
        template=roberta_template,
        parts=encoder_parts,
        packs=False,
    )
)
