"""ModernBERT: a pre-norm encoder with rotary positions and local attention (Warner et al., arXiv 2412.13663).

Other values of its config give Ettin (arXiv 2507.11412), mmBERT (arXiv 2509.06888), EuroBERT (arXiv 2503.05500) and
NeoBERT (arXiv 2502.19587). They set the norm, biases, the activation of the gate, the pairs of the rotation, theta and
the window of each kind of layer, the number of key and value heads, the head, and the initial values.

    x = norm(words[input_ids])
    L times:  x = x + attention(norm(x));  x = x + (activation(norm(x) W1) * (norm(x) V)) W2
    masked token:  softmax(words . norm(gelu(W norm(x)_i)) + c)

The attention of layer 0 has no norm, because the embeddings are normalised already. Every n-th layer, from layer 0, is
global: each token sees its whole sequence. In the local layers between them it sees w / 2 tokens on each side. Both
kinds rotate queries and keys, each with its own theta. The only bias is that of the logits.

Deviation: the paper applies dropout only to the output of attention, at a rate of 0.1 (`attention_output_dropout`).
transformers has one rate for it and for the attention probabilities, and released configs set it to 0. An import keeps
0.1.
Deviation: a window has w + 1 keys, as in the released code, which includes both ends; the paper says w.
"""

import dataclasses
import math
from typing import ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import Window
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Kind, ParameterGroup, Purpose, System, declare
from plmjax.contracts.template import Template
from plmjax.errors import ABOVE_0, FRACTION, FROM_0, FROM_1, UserError, check_choice, check_ranges
from plmjax.layers.feed_forward import check_activation
from plmjax.layers.normalization import LayerNorm, RmsNorm
from plmjax.models.modernbert.encoder import GLOBAL, LOCAL, LayerRun, ModernBertModel
from plmjax.models.modernbert.heads import (
    ModernBertForMaskedLM,
    ModernBertForMultipleChoice,
    ModernBertForQuestionAnswering,
    ModernBertForSequenceClassification,
    ModernBertForTokenClassification,
)

NORMS = ("layer", "rms")
INITIALIZATIONS = ("scaled", "normal", "uniform")
HEADS = ("transformed", "plain")


@dataclasses.dataclass(frozen=True)
class ModernBertConfig(ModelConfig):
    """Sizes of a ModernBERT; the defaults are ModernBERT-Base.

    Arguments override the fields of a named size: `ModernBertConfig.base(vocab_size=8192)`.

    Raises:
        UserError: sizes that do not fit each other, an unknown name, or a number out of its range.
    """

    vocab_size: int = 50368
    """Vocabulary size."""
    hidden_size: int = 768
    """Hidden size, D."""
    num_hidden_layers: int = 22
    """Number of layers, L."""
    num_attention_heads: int = 12
    """Number of attention heads of queries, N."""
    num_key_value_heads: int | None = None
    """Number of attention heads of keys and values, K; None is N."""
    intermediate_size: int = 1152
    """Inner size of the gated feed-forward network, F."""
    hidden_activation: str = "gelu"
    """Activation of the gate: gelu (exact; GeGLU), gelu_new (tanh form) or silu (SwiGLU)."""
    max_position_embeddings: int = 8192
    """Maximum sequence length."""
    norm: str = "layer"
    """Norm: layer (centred) or rms (root mean square)."""
    norm_bias: bool = False
    """True to add biases to layer norms."""
    norm_eps: float = 1e-5
    """Added to the variance, or to the mean of squares, in a norm."""
    embedding_norm: bool = True
    """True to normalise the embeddings; then the attention of layer 0 has no norm of its own."""
    attention_bias: bool = False
    """True to add biases to the projections of attention."""
    mlp_bias: bool = False
    """True to add biases to the projections of the feed-forward network."""
    rotary_interleaved: bool = False
    """True to rotate pairs of neighbouring features; otherwise feature i of the first half of a head with feature i of
    the second.
    """
    global_rope_theta: float = 160_000.0
    """Base of the wavelengths of the rotation in global layers; 10,000 in the phase with rows of 1,024 tokens."""
    local_rope_theta: float = 10_000.0
    """Base of the wavelengths of the rotation in local layers."""
    local_attention: int = 128
    """Size of the window in local layers: a token sees half as many tokens on each side of itself."""
    global_attn_every_n_layers: int = 3
    """Layer i is global if this number divides i; 1 makes all layers global."""
    head: str = "transformed"
    """Layers before the output layer: transformed (dense, activation, norm) or plain (none)."""
    tie_word_embeddings: bool = True
    """True if the word table is the output layer too."""
    decoder_bias: bool = True
    """True to add a bias to the logits."""
    embedding_dropout: float = 0.0
    """Dropout rate of the embeddings."""
    attention_dropout: float = 0.0
    """Dropout rate of attention probabilities."""
    attention_output_dropout: float = 0.1
    """Dropout rate of the output of attention."""
    mlp_dropout: float = 0.0
    """Dropout rate inside the feed-forward network."""
    classifier_dropout: float = 0.0
    """Dropout rate before the last layer of a downstream task's head."""
    classifier_pooling: str = "cls"
    """The vector of a sequence: that of its first token (cls), or the mean of all its tokens (mean)."""
    initializer_range: float = 0.02
    """Standard deviation of the initial weights, or the bound of uniform ones."""
    initialization: str = "scaled"
    """Initial weights: scaled (truncated at two standard deviations; output projections smaller by sqrt(2 L)), normal
    or uniform.
    """
    pad_token_id: int = 50283
    """Padding token id; transformers needs it, attention reads the mask instead."""
    bos_token_id: int | None = 50281
    """Token id of [CLS]; transformers needs it."""
    eos_token_id: int | None = 50282
    """Token id of [SEP]; transformers needs it."""

    poolings: ClassVar[tuple[str, ...]] = ("cls", "mean")
    """Values of `classifier_pooling`."""
    field_names: ClassVar[dict[str, str]] = {
        "width": "hidden_size",
        "depth": "num_hidden_layers",
        "longest": "max_position_embeddings",
        "padding_token": "pad_token_id",
    }

    base = Size("ModernBERT-Base: 149,014,272 parameters, 149,655,232 with its head.")
    large = Size(
        "ModernBERT-Large: 394,781,696 parameters, 395,881,664 with its head.",
        hidden_size=1024,
        num_hidden_layers=28,
        num_attention_heads=16,
        intermediate_size=2624,
    )
    ettin_17m = Size(
        "Ettin of 17 million: 16,797,440 parameters, 16,913,600 with its head.",
        hidden_size=256,
        num_hidden_layers=7,
        num_attention_heads=4,
        intermediate_size=384,
        local_rope_theta=160_000.0,
    )
    ettin_32m = Size(
        "Ettin of 32 million: 31,883,136 parameters, 32,081,344 with its head.",
        hidden_size=384,
        num_hidden_layers=10,
        num_attention_heads=6,
        intermediate_size=576,
        local_rope_theta=160_000.0,
    )
    ettin_68m = Size(
        "Ettin of 68 million: 68,144,640 parameters, 68,457,664 with its head.",
        hidden_size=512,
        num_hidden_layers=19,
        num_attention_heads=8,
        intermediate_size=768,
        local_rope_theta=160_000.0,
    )
    ettin_1b = Size(
        "Ettin of a billion: 1,028,050,688 parameters, 1,031,314,112 with its head.",
        hidden_size=1792,
        num_hidden_layers=28,
        num_attention_heads=28,
        intermediate_size=3840,
        local_rope_theta=160_000.0,
    )
    mmbert_small = Size(
        "mmBERT-small: 140,493,696 parameters, 140,897,536 with its head.",
        vocab_size=256_000,
        hidden_size=384,
        num_attention_heads=6,
        local_rope_theta=160_000.0,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=1,
    )
    mmbert_base = Size(
        "mmBERT-base: 306,939,648 parameters, 307,786,240 with its head.",
        vocab_size=256_000,
        local_rope_theta=160_000.0,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=1,
    )
    tiny = Size(
        "Four layers of 128; none was published.",
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=192,
        max_position_embeddings=1024,
    )

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
        sizes += ("max_position_embeddings", "global_attn_every_n_layers")
        check_ranges("model", self, **dict.fromkeys(sizes, FROM_1), initializer_range=FROM_0, norm_eps=ABOVE_0)
        thetas = {"global_rope_theta": ABOVE_0, "local_rope_theta": ABOVE_0}
        rates = [field.name for field in dataclasses.fields(self) if field.name.endswith("dropout")]
        check_ranges("model", self, **thetas, **dict.fromkeys(rates, FRACTION))
        check_activation(self.hidden_activation)
        check_choice("--model.norm", self.norm, NORMS)
        check_choice("--model.head", self.head, HEADS)
        check_choice("--model.initialization", self.initialization, INITIALIZATIONS)
        check_choice("--model.classifier_pooling", self.classifier_pooling, self.poolings)
        heads, keys = self.num_attention_heads, self.heads_of_keys
        if self.hidden_size % heads or self.head_size % 2:
            raise UserError(
                f"Expected a hidden size that divides by the heads into even sizes, whose features rotate in pairs, "
                f"found {self.hidden_size} and {heads} heads; change --model.hidden_size or "
                f"--model.num_attention_heads."
            )
        if keys < 1 or heads % keys:
            raise UserError(
                f"Expected --model.num_key_value_heads that divides the {heads} heads of queries, found {keys}; change "
                f"it."
            )
        if self.norm == "rms" and self.norm_bias:
            raise UserError(
                "Expected --model.norm_bias False with --model.norm rms, whose norms have no bias, found True; change "
                "one of them."
            )
        if self.local_attention < 2 or self.local_attention % 2:
            raise UserError(
                f"Expected --model.local_attention of an even number of tokens from 2, half of them on each side, "
                f"found {self.local_attention}; change it."
            )

    @property
    def heads_of_keys(self) -> int:
        """Number of attention heads of keys and values, K."""
        return self.num_attention_heads if self.num_key_value_heads is None else self.num_key_value_heads

    @property
    def head_size(self) -> int:
        """Number of features of an attention head, H."""
        return self.hidden_size // self.num_attention_heads

    @property
    def head_dropout(self) -> float:
        """Dropout rate before the last layer of a downstream task's head."""
        return self.classifier_dropout

    @property
    def layer_kinds(self) -> tuple[str, ...]:
        """The kind of each layer, global or local."""
        every = self.global_attn_every_n_layers
        return tuple(LOCAL if layer % every else GLOBAL for layer in range(self.num_hidden_layers))

    @property
    def layer_runs(self) -> tuple[LayerRun, ...]:
        """The stacks of layers: layer 0 if the embeddings are normalised, repeated periods, and remaining layers."""
        kinds, period, first = self.layer_kinds, self.global_attn_every_n_layers, int(self.embedding_norm)
        repetitions = (len(kinds) - first) // period
        end = first + repetitions * period
        runs = (
            LayerRun("first_layers", kinds[:first], 1, 0),
            LayerRun("layers", kinds[first : first + period], repetitions, first),
            LayerRun("last_layers", kinds[end:], 1, end),
        )
        return tuple(run for run in runs if run.kinds and run.repetitions)

    @property
    def local_window(self) -> Window:
        """The tokens that a token sees in local layers, besides itself."""
        half = self.local_attention // 2
        return Window(half, half)

    def theta(self, kind: str) -> float:
        """Return theta, the base of the rotary positions, of the layers of a kind."""
        return self.global_rope_theta if kind == GLOBAL else self.local_rope_theta

    def with_dropout(self, rate: float) -> Self:
        """Return the config with this dropout rate for embeddings, attention and feed-forward networks."""
        rates = ("embedding_dropout", "attention_dropout", "attention_output_dropout", "mlp_dropout")
        return dataclasses.replace(self, **dict.fromkeys(rates, rate))

    @property
    def initializer(self) -> Initializer:
        """Initializer of all weights but those of `output_initializer`."""
        return self._initializer(self.initializer_range)

    @property
    def output_initializer(self) -> Initializer:
        """Initializer of the last projection of each sublayer."""
        scaled = self.initialization == "scaled"
        return self._initializer(self.initializer_range / (math.sqrt(2 * self.num_hidden_layers) if scaled else 1))

    def _initializer(self, size: float) -> Initializer:
        if self.initialization == "uniform":
            return lambda key, shape, dtype=jnp.float32: jax.random.uniform(key, shape, dtype, -size, size)
        if self.initialization == "normal":
            return nn.initializers.normal(size)
        return nn.initializers.truncated_normal(size)

    def norm_of(self, execution: Execution, name: str | None = None) -> nn.Module:
        """Return a module of the config's norm, `LayerNorm` or `RmsNorm`."""
        if self.norm == "rms":
            return RmsNorm(self.norm_eps, execution.dtype, name=name)
        return LayerNorm(self.norm_eps, execution.dtype, self.norm_bias, name=name)

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """Return the model FLOPs of one training step (backward = 2 x forward).

        6 (2 D N H + 2 D K H + 3 D F + 2 S N H) per token and layer, where S is T, or the number of keys in the window
        of a local layer; and 6 (D^2 + D V) per prediction, without D^2 for a plain head.
        """
        size, inner = self.hidden_size, self.intermediate_size
        projections = 2 * size**2 + 2 * size * self.heads_of_keys * self.head_size + 3 * size * inner
        window = self.local_window
        keys = {GLOBAL: sequence_length, LOCAL: min(sequence_length, window.before + 1 + window.after)}
        layers = sum(projections + 2 * keys[kind] * size for kind in self.layer_kinds)
        head = size * self.vocab_size + (size**2 if self.head == "transformed" else 0)
        return 6.0 * batch_size * (sequence_length * layers + predictions * head)


def _parts(config: ModernBertConfig) -> tuple[ParameterGroup, ...]:
    """Return the parameter groups: the embeddings, each layer, and the last norm."""
    layers = (
        ParameterGroup((f"modernbert/{run.name}/layer_{number}",), repetition)
        for run in config.layer_runs
        for repetition in range(run.repetitions)
        for number in range(len(run.kinds))
    )
    names = ("modernbert/word_embeddings", *(("modernbert/embedding_norm",) if config.embedding_norm else ()))
    return ParameterGroup(names), *layers, ParameterGroup(("modernbert",))


SYSTEM = declare(
    System(
        ModernBertConfig,
        Kind.ENCODER,
        {
            Purpose.PRETRAINING: ModernBertForMaskedLM,
            Purpose.MASKED_TOKENS: ModernBertForMaskedLM,
            Purpose.ENCODING: ModernBertModel,
            Purpose.EMBEDDING: ModernBertModel,
            Purpose.SEQUENCE_CLASSIFICATION: ModernBertForSequenceClassification,
            Purpose.TOKEN_CLASSIFICATION: ModernBertForTokenClassification,
            Purpose.QUESTION_ANSWERING: ModernBertForQuestionAnswering,
            Purpose.MULTIPLE_CHOICE: ModernBertForMultipleChoice,
        },
        name="modernbert",
        template=lambda config: Template(pair="cls A sep B sep"),
        parts=_parts,
        token_table="modernbert/word_embeddings/embedding",
    )
)
