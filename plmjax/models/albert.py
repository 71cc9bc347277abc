"""ALBERT: a lite BERT (Lan et al., ICLR 2020, arXiv 1909.11942; google-research/albert).

ALBERT is BERT with two changes that save parameters, and one change that makes the second task harder:

    x = W norm(words[input_ids] + positions[0..T) + types[token_type_ids]) + b     tables of E numbers, W: E -> D
    L times:  x = norm(x + attention(x, x));     x = norm(x + feed_forward(x))     with one and the same layer
              (or, divided into N groups of L / N layers, with one layer a group)
    masked token:    softmax(words . norm(gelu(W' x_i + b')) + c)                  W': D -> E
    sentence order:  softmax(W''' tanh(W'' x_[CLS] + b'') + b''')                  are the two texts in their order?

Factorised embeddings (section 3.1): a vocabulary of V tokens costs V E + E D parameters instead of V D. Cross-layer
sharing: L layers need the memory, the optimizer state and the network traffic of one layer, and the computation of L
layers. Groups (section 4.5): L layers are divided into N groups of M layers, and layers share parameters only within
their group. With a smaller M the model is better and has more parameters. Published models have one group. Only the
released code has `inner_group_num`.

Deviation: the projection from E to D exists also if E = D, as in transformers; the released code omits it then.
Deviation: a row may hold several packed sequences (`segment_ids`), and each attends only to itself; the paper pads.
"""

import dataclasses
import functools
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import MaskTerms
from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Kind, ParameterGroup, Purpose, System, declare
from plmjax.errors import FRACTION, FROM_1, UserError, check_ranges
from plmjax.layers.partitioning import shard_hidden
from plmjax.layers.projection import Projection
from plmjax.layers.stack import repeat
from plmjax.models.bert import BertConfig, BertEmbeddings, BertForMaskedLM, BertLayer, BertModel
from plmjax.models.families.encoder import (
    EncoderConfig,
    EncoderForMultipleChoice,
    EncoderForSequenceClassification,
    EncoderOutput,
    encoder_sizes,
    encoder_template,
)
from plmjax.models.families.task_heads import TOKEN_HEADS

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@dataclasses.dataclass(frozen=True)
class AlbertConfig(EncoderConfig):
    """Sizes of an ALBERT; the defaults are ALBERT-base of version 1.

    Arguments override the fields of a named size: `AlbertConfig.base(vocab_size=8192)`. Version 2 has the same sizes,
    was trained longer, on more text, and without dropout.
    """

    vocab_size: int = 30000
    """Vocabulary size."""
    embedding_size: int = 128
    """Embedding size, the width of a row of the embedding tables, E."""
    num_hidden_groups: int = 1
    """Number of groups of layers; the layers of a group share their parameters."""
    inner_group_num: int = 1
    """Number of encoder layers, each with its own parameters, in one layer of a group."""
    classifier_dropout_prob: float = 0.1
    """Dropout rate before a classifier."""
    bos_token_id: int | None = 2
    """Token id of [CLS]; transformers needs it."""
    eos_token_id: int | None = 3
    """Token id of [SEP]; transformers needs it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("model", self, embedding_size=FROM_1, inner_group_num=FROM_1, classifier_dropout_prob=FRACTION)
        if not 1 <= self.num_hidden_groups <= self.num_hidden_layers:
            raise UserError(
                f"Expected --model.num_hidden_groups from 1 to the {self.num_hidden_layers} layers, found "
                f"{self.num_hidden_groups}; change it."
            )

    @property
    def head_dropout(self) -> float:
        """The dropout rate of the heads, also of models without other dropout."""
        return self.classifier_dropout_prob

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """Number of layers in each group, first to last.

        Layer i is in group int(i / (layers / groups)), as in transformers.
        """
        layers, groups = self.num_hidden_layers, self.num_hidden_groups
        of = [int(layer / (layers / groups)) for layer in range(layers)]
        return tuple(of.count(group) for group in range(groups))

    @classmethod
    def of_bert(cls, bert: BertConfig, groups: int) -> Self:
        """Return the sizes of a BERT whose layers share parameters in groups, with embeddings of the hidden size."""
        return cls(
            **{field.name: getattr(bert, field.name) for field in dataclasses.fields(EncoderConfig)},
            embedding_size=bert.width,
            num_hidden_groups=groups,
            classifier_dropout_prob=bert.head_dropout,
        )

    base = Size("ALBERT-base: 11,813,810 parameters with its pretraining heads.", **encoder_sizes(12, 768, 12))
    large = Size("ALBERT-large: 17,847,474 parameters with its pretraining heads.", **encoder_sizes(24, 1024, 16))
    xlarge = Size("ALBERT-xlarge: 59,021,490 parameters with its pretraining heads.", **encoder_sizes(24, 2048, 16))
    xxlarge = Size(
        "ALBERT-xxlarge: 223,158,450 parameters with its pretraining heads; without dropout in both versions.",
        **encoder_sizes(12, 4096, 64),
        **NO_DROPOUT,
    )
    base_v2 = Size("ALBERT-base, version 2.", **encoder_sizes(12, 768, 12), **NO_DROPOUT)
    tiny = Size(
        "Two trips through a layer of 128, embeddings of 64; not a published size.",
        embedding_size=64,
        **encoder_sizes(2, 128, 2),
    )

    def layers_flops(self, batch_size: int, sequence_length: int) -> float:
        return self.inner_group_num * super().layers_flops(batch_size, sequence_length)

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """Return the model FLOPs of one training step (backward = 2 x forward).

        There are `predictions` gathered positions per row. Matrix products only: 6 (E D + I L (4 D^2 + 2 D F + 2 T D))
        per token and 6 (D E + E V) per prediction, where I is `inner_group_num`.
        """
        mapping = self.embedding_size * self.hidden_size
        head = mapping + self.embedding_size * self.vocab_size
        products = sequence_length * mapping + predictions * head
        return self.layers_flops(batch_size, sequence_length) + 6.0 * batch_size * products


class LayerGroup(nn.Module):
    """The parameters that the layers of a group share: one encoder layer, or several in sequence."""

    config: AlbertConfig
    execution: Execution
    deterministic: bool

    @nn.compact
    def __call__(self, x: jax.Array, mask_terms: MaskTerms) -> jax.Array:
        """Take and return the same as `BertLayer`."""
        for inner in range(self.config.inner_group_num):
            x = BertLayer(self.config, self.execution, self.deterministic, name=f"layer_{inner}")(x, mask_terms)
        return x


class SharedLayers(nn.Module):
    """The projection from the embedding size E to D, then the layers.

    A group has one set of parameters (`LayerGroup`), which is applied once for each layer of the group.
    """

    config: AlbertConfig
    execution: Execution

    @nn.compact
    def __call__(
        self, x: jax.Array, mask_terms: MaskTerms, *, deterministic: bool, output_hidden_states: bool
    ) -> tuple[jax.Array, jax.Array | None]:
        """Map [B T E] to [B T D] and, if requested, all hidden states [L+1 B T D], the projected embeddings first."""
        config, execution = self.config, self.execution
        mapping = Projection(
            (config.hidden_size,),
            (None, "embed"),
            config.initializer,
            execution.dtype,
            name="embedding_hidden_mapping_in",
        )

        def body(layer: LayerGroup, x: jax.Array, inputs: None) -> tuple[jax.Array, jax.Array | None]:
            x = layer(x, mask_terms)
            return x, x if output_hidden_states else None

        x = shard_hidden(mapping(x))
        states = [x[None]]
        for group, size in enumerate(config.group_sizes):
            layer = LayerGroup(config, execution, deterministic, name=f"group_{group}")
            x, outputs = repeat(body, layer, size, execution=execution, x=x)
            states.append(outputs)
        return x, jnp.concatenate(states) if output_hidden_states else None


class AlbertModel(BertModel):
    """Embeddings of size E, the shared layers and, unless `pooling` is off, the pooler tanh(W x_[CLS] + b)."""

    config: AlbertConfig

    def setup(self) -> None:
        config, execution = self.config, self.execution
        self.embeddings = BertEmbeddings(config, config.embedding_size, execution)
        self.encoder = SharedLayers(config, execution)
        if self.pooling:
            self.pooler = Projection((config.hidden_size,), ("embed", "mlp"), config.initializer, execution.dtype)


class AlbertForPreTraining(BertForMaskedLM):
    """ALBERT with both of its pretraining heads."""

    config: AlbertConfig
    pooling: ClassVar[bool] = True

    def setup(self) -> None:
        super().setup()
        init, dtype = self.config.initializer, self.execution.dtype
        self.sentence_order = Projection((2,), ("embed", None), init, dtype, logits=True)

    def __call__(self, input_ids: jax.Array, **inputs: Any) -> EncoderOutput:
        """Take and return the same as `AlbertForMaskedLM`, with `sop_logits`."""
        output = super().__call__(input_ids, **inputs)
        return output.replace(sop_logits=self.sentence_order(output.pooler_output))


class AlbertForMaskedLM(BertForMaskedLM):
    """ALBERT with the masked language model's head alone and no pooler."""

    config: AlbertConfig


class AlbertForSequenceClassification(EncoderForSequenceClassification):
    """ALBERT with a linear layer on the pooled [CLS]."""

    config: AlbertConfig


class AlbertForMultipleChoice(EncoderForMultipleChoice):
    """ALBERT with a linear layer on the pooled [CLS] of every choice."""

    config: AlbertConfig


def _parts(config: AlbertConfig) -> tuple[ParameterGroup, ...]:
    """Return the parameter groups: the embeddings, and all layers, which share their parameters."""
    return ParameterGroup(("albert/embeddings",)), ParameterGroup(("albert",))


SYSTEM = declare(
    System(
        AlbertConfig,
        Kind.ENCODER,
        {
            Purpose.PRETRAINING: AlbertForPreTraining,
            Purpose.MASKED_TOKENS: AlbertForMaskedLM,
            Purpose.ENCODING: functools.partial(AlbertModel, pooling=False),
            Purpose.EMBEDDING: functools.partial(AlbertModel, pooling=False),
            Purpose.SEQUENCE_CLASSIFICATION: AlbertForSequenceClassification,
            Purpose.MULTIPLE_CHOICE: AlbertForMultipleChoice,
            **TOKEN_HEADS,
        },
        name="albert",
        template=encoder_template,
        parts=_parts,
    )
)
