"""ELECTRA: replaced token detection (Clark et al., ICLR 2020, arXiv 2003.10555; google-research/electra).

A small generator predicts masked tokens. A discriminator decides for every token whether the generator replaced it.
Both are BERT encoders. After pretraining only the discriminator is used. They share embeddings of size E, and each
network projects them to its own hidden size:

    x = norm(words[input_ids] + positions[0..T) + types[token_type_ids]);  x = W_E x + b_E unless E is the width
    L times:  x = norm(x + attention(x, x));  x = norm(x + feed_forward(x))
    generator, at masked tokens:     softmax(words . norm(gelu(W x_i + b)) + c)
    discriminator, at every token:   sigmoid(w' gelu(W' x_i + b') + b'')

The discriminator's input and both losses are in `plmjax.objectives.electra`. There is no pooler: the hidden state of
[CLS] itself represents the text.

Deviation: the generator's head always has the exact GELU, as in transformers, so that every generator can be exported;
the released code uses the tanh form there too.
Deviation: the heads for sequences and for choices have a layer with GELU before the linear one, as in transformers, so
that fine-tuned models can be exported; the released code has only the linear layer.
Deviation: a row may hold several packed sequences (`segment_ids`), and each attends only to itself; the paper pads.
"""

import dataclasses
from typing import Any, Self

import flax.linen as nn
import jax

from plmjax.contracts.execution import Execution
from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Kind, ParameterGroup, Purpose, System, declare
from plmjax.errors import FRACTION, FROM_0, FROM_1, UserError, check_ranges
from plmjax.layers.dropout import Dropout
from plmjax.layers.feed_forward import ACTIVATIONS
from plmjax.layers.partitioning import shard_hidden
from plmjax.layers.projection import Projection
from plmjax.layers.tokens import gather_tokens
from plmjax.models.bert import BertEmbeddings, BertModel, MaskedLanguageModelHead
from plmjax.models.families.encoder import (
    EncoderConfig,
    EncoderForMultipleChoice,
    EncoderForSequenceClassification,
    EncoderOutput,
    encoder_sizes,
    encoder_template,
)
from plmjax.models.families.task_heads import TOKEN_HEADS


@dataclasses.dataclass(frozen=True)
class ElectraConfig(EncoderConfig):
    """Sizes of a discriminator and of its generator; the defaults are ELECTRA-Small.

    Arguments override the fields of a named size: `ElectraConfig.small(vocab_size=8192)`.
    """

    hidden_size: int = 256
    """Hidden size of the discriminator, D."""
    num_attention_heads: int = 4
    """Number of attention heads of the discriminator, N."""
    intermediate_size: int = 1024
    """Inner size of the discriminator's feed-forward network, F."""
    classifier_dropout: float | None = None
    """Dropout rate of the input of a downstream task's head; None is the rate of the embeddings and sublayers."""
    embedding_size: int = 128
    """Embedding size, shared by both networks, E."""
    generator_hidden_size: int = 0
    """Hidden size of the generator; 0 is a quarter of `hidden_size`. The generator has as many layers as the
    discriminator.
    """
    generator_num_attention_heads: int = 0
    """Number of attention heads of the generator; 0 is one for each 64 features."""
    generator_intermediate_size: int = 0
    """Inner size of the generator's feed-forward network; 0 is four times its hidden size."""
    summary_last_dropout: float = 0.1
    """Dropout rate between the two layers of the multiple choice head."""

    def __post_init__(self) -> None:
        super().__post_init__()
        generators = ("generator_hidden_size", "generator_num_attention_heads", "generator_intermediate_size")
        check_ranges("model", self, **dict.fromkeys(generators, FROM_0))
        check_ranges("model", self, embedding_size=FROM_1, summary_last_dropout=FRACTION)
        size, heads, _ = self._generator_sizes()
        if size % heads:
            raise UserError(
                f"Expected a generator's width that divides by its heads, found {size} and {heads} heads; change "
                "--model.generator_hidden_size or --model.generator_num_attention_heads."
            )

    small = Size(
        "13,549,057 parameters with the discriminator's head, 14,196,219 with the generator.",
        embedding_size=128,
        generator_hidden_size=64,
        **encoder_sizes(12, 256, 4),
    )
    base = Size(
        "109,483,009 parameters with the discriminator's head, 119,386,427 with the generator, a third as wide.",
        embedding_size=768,
        generator_hidden_size=256,
        **encoder_sizes(12, 768, 12),
    )
    large = Size(
        "335,142,913 parameters with the discriminator's head, 354,655,291 with the generator.",
        embedding_size=1024,
        generator_hidden_size=256,
        **encoder_sizes(24, 1024, 16),
    )
    tiny = Size(
        "Two layers of 128 and a generator half as wide.",
        embedding_size=128,
        generator_hidden_size=64,
        **encoder_sizes(2, 128, 2),
    )

    def _generator_sizes(self) -> tuple[int, int, int]:
        size = self.generator_hidden_size or max(1, self.hidden_size // 4)
        heads = self.generator_num_attention_heads or max(1, size // 64)
        return size, heads, self.generator_intermediate_size or 4 * size

    @property
    def generator(self) -> Self:
        """The config of the generator as a network of its own. The generator of that config is the config itself."""
        size, heads, inner = self._generator_sizes()
        return dataclasses.replace(
            self,
            hidden_size=size,
            num_attention_heads=heads,
            intermediate_size=inner,
            generator_hidden_size=size,
            generator_num_attention_heads=heads,
            generator_intermediate_size=inner,
        )

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """Return the model FLOPs of one training step (backward = 2 x forward) of one network.

        With `predictions` per row this is the generator with its head; with 0 it is the discriminator without a head.
        Matrix products: 6 (L (4 D^2 + 2 D F) + 2 L T D + E D unless E = D) per token and 6 (D E + E V) per prediction.
        """
        network = self.generator if predictions else self
        size, embedded = network.hidden_size, self.embedding_size
        widened = embedded * size if embedded != size else 0
        head = size * embedded + embedded * self.vocab_size
        layers = network.layers_flops(batch_size, sequence_length)
        return layers + 6.0 * batch_size * (sequence_length * widened + predictions * head)


class ElectraModel(BertModel):
    """One of the two networks without a head; `pooler_output` is the hidden state of [CLS] itself.

    shared: the embeddings of the other network, which this network uses; None: it has its own embeddings.
    """

    config: ElectraConfig
    pooling: bool = False
    shared: BertEmbeddings | None = None

    def setup(self) -> None:
        config, execution = self.config, self.execution
        if self.shared is None:
            self.embeddings = BertEmbeddings(config, config.embedding_size, execution)
        if config.embedding_size != config.hidden_size:
            self.embeddings_project = Projection(
                (config.hidden_size,), ("embed", "mlp"), config.initializer, execution.dtype
            )
        self.encoder = self.encoder_class(config, execution)

    def embed(self, *inputs: jax.Array | None, deterministic: bool) -> jax.Array:
        """Compute the embeddings of the base class, [B T E], and project them to [B T D]."""
        embeddings = self.embeddings if self.shared is None else self.shared
        x = embeddings(*inputs, deterministic=deterministic)
        if self.config.embedding_size == self.config.hidden_size:
            return x
        return shard_hidden(self.embeddings_project(x))

    def pool(self, x: jax.Array) -> jax.Array:
        return x


class ReplacedTokenDetectionHead(nn.Module):
    """w . activation(W x + b) + c, a score for every token; above 0 means replaced."""

    config: ElectraConfig
    execution: Execution

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map [B T D] to float32 [B T]."""
        config, dtype, init = self.config, self.execution.dtype, self.config.initializer
        x = Projection((config.hidden_size,), ("embed", "mlp"), init, dtype, name="transform")(x)
        x = ACTIVATIONS[config.hidden_act](x)
        return Projection((1,), ("embed", None), init, dtype, logits=True, name="output")(x)[..., 0]


class ElectraForPreTraining(nn.Module):
    """Both networks with their heads.

    A subclass that uses one network has only the parameters of that network.
    """

    config: ElectraConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        config, execution = self.config, self.execution
        self.electra = config.module(Purpose.ENCODING, execution)
        self.generator = ElectraModel(config.generator, execution, shared=self.electra.embeddings)
        exact = dataclasses.replace(config.generator, hidden_act="gelu")
        self.masked_language_model = MaskedLanguageModelHead(exact, execution)
        self.replaced_token_detection = ReplacedTokenDetectionHead(config, execution)

    def generate(
        self, input_ids: jax.Array, *, masked_positions: jax.Array | None = None, **inputs: Any
    ) -> EncoderOutput:
        """Run the generator with the inputs of `ElectraModel`: logits [B T V], or [B P V] at masked_positions [B P]."""
        output = self.generator(input_ids, **inputs)
        hidden = gather_tokens(output.last_hidden_state, masked_positions)
        words = self.electra.embeddings.word_embeddings
        return output.replace(logits=self.masked_language_model(hidden, words))

    def discriminate(self, input_ids: jax.Array, **inputs: Any) -> EncoderOutput:
        """Run the discriminator with the inputs of `ElectraModel`: logits [B T]."""
        output = self.electra(input_ids, **inputs)
        return output.replace(logits=self.replaced_token_detection(output.last_hidden_state))

    def __call__(
        self, input_ids: jax.Array, *, masked_positions: jax.Array | None = None, **inputs: Any
    ) -> tuple[EncoderOutput, EncoderOutput]:
        """Return the outputs of `generate` and of `discriminate` for the same tokens."""
        generated = self.generate(input_ids, masked_positions=masked_positions, **inputs)
        return generated, self.discriminate(input_ids, **inputs)


class ElectraForMaskedLM(ElectraForPreTraining):
    """The generator alone, with its head and the embeddings."""

    def __call__(self, input_ids: jax.Array, **inputs: Any) -> EncoderOutput:
        """Take and return the same as `generate`."""
        return self.generate(input_ids, **inputs)


class ElectraForReplacedTokenDetection(ElectraForPreTraining):
    """The discriminator alone, with its head; transformers calls it ElectraForPreTraining."""

    def __call__(self, input_ids: jax.Array, **inputs: Any) -> EncoderOutput:
        """Take and return the same as `discriminate`."""
        return self.discriminate(input_ids, **inputs)


class ClassificationHead(nn.Module):
    """W' dropout(gelu(W dropout(x) + b)) + b' of [CLS]'s hidden state (transformers' ElectraClassificationHead)."""

    config: ElectraConfig
    execution: Execution
    outputs: int

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """Map [... D] to float32 [... outputs]."""
        config, dtype, init = self.config, self.execution.dtype, self.config.initializer
        dropout = Dropout(config.head_dropout)
        x = Projection((config.hidden_size,), ("embed", "mlp"), init, dtype, name="dense")(dropout(x, deterministic))
        x = dropout(ACTIVATIONS["gelu"](x), deterministic)
        return Projection((self.outputs,), ("mlp", None), init, dtype, logits=True, name="output")(x)


class ElectraForSequenceClassification(EncoderForSequenceClassification):
    """The discriminator with a head of two layers on [CLS], initialized for the task."""

    config: ElectraConfig

    def setup(self) -> None:
        self.encoder = self.config.module(Purpose.ENCODING, self.execution, pooling=True)
        self.classifier = ClassificationHead(self.config, self.execution, self.num_labels)

    def score(self, pooled: jax.Array, deterministic: bool) -> jax.Array:
        return self.classifier(pooled, deterministic)


class MultipleChoiceHead(nn.Module):
    """w . dropout(gelu(W x + b)) + c of the hidden state of [CLS] (transformers' ElectraSequenceSummary)."""

    config: ElectraConfig
    execution: Execution

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """Map [... D] to float32 [... 1]."""
        config, dtype, init = self.config, self.execution.dtype, self.config.initializer
        x = Projection((config.hidden_size,), ("embed", "mlp"), init, dtype, name="summary")(x)
        x = Dropout(config.summary_last_dropout)(ACTIVATIONS["gelu"](x), deterministic)
        return Projection((1,), ("mlp", None), init, dtype, logits=True, name="output")(x)


class ElectraForMultipleChoice(EncoderForMultipleChoice):
    """The discriminator with a head of two layers on [CLS] of every choice, initialized for the task."""

    config: ElectraConfig

    def setup(self) -> None:
        self.encoder = self.config.module(Purpose.ENCODING, self.execution, pooling=True)
        self.classifier = MultipleChoiceHead(self.config, self.execution)

    def score(self, pooled: jax.Array, deterministic: bool) -> jax.Array:
        return self.classifier(pooled, deterministic)


def _parts(config: ElectraConfig) -> tuple[ParameterGroup, ...]:
    """Return the parameter groups: the embeddings, layer i of both networks for each i, and the rest."""

    def both(part: str) -> tuple[str, ...]:
        return tuple(f"{network}/{part}" for network in ("electra", "generator"))

    layers = (ParameterGroup(both("encoder/layers"), layer) for layer in range(config.depth))
    embeddings = (*both("embeddings"), *both("embeddings_project"))
    return ParameterGroup(embeddings), *layers, ParameterGroup(("electra",))


SYSTEM = declare(
    System(
        ElectraConfig,
        Kind.ENCODER,
        {
            Purpose.PRETRAINING: ElectraForPreTraining,
            Purpose.MASKED_TOKENS: ElectraForMaskedLM,
            Purpose.ENCODING: ElectraModel,
            Purpose.EMBEDDING: ElectraModel,
            Purpose.SEQUENCE_CLASSIFICATION: ElectraForSequenceClassification,
            Purpose.MULTIPLE_CHOICE: ElectraForMultipleChoice,
            **TOKEN_HEADS,
        },
        name="electra",
        template=encoder_template,
        parts=_parts,
    )
)
