"""ULMFiT: universal language model fine-tuning (Howard and Ruder, ACL 2018, arXiv 1801.06146; fastai 2.8.12).

A language model, an AWD-LSTM (awd_lstm.py), is trained on general text, then on the texts of a task. Then a classifier
is put on its layers. The classifier reads a text in windows. The state passes from one window to the next, but the
gradient does not (section 3.3, "BPT3C"; text/models/core.py):

    features = [last h, max of h, mean of h]          over all tokens of the text, h before the output's dropout
    scores   = W2 drop(norm(relu(W1 drop(norm(features)))))                    norm over the batch, relu of 50 numbers

A text is read completely, up to the length of a row. The backward pass includes every window. fastai includes only the
last 1,440 tokens, which limits memory; here the length of a row limits it. A second model reads every text from its end
and gives a second classifier; the mean of both predictions is better (section 3.3).

The other ideas of the paper are parts of the training: discriminative rates (`layer_decay` of an optimizer), slanted
triangular rates (`SlantedTriangular`) and gradual unfreezing (`finetuning.unfreeze`).

Deviation: fastai initializes the biases of norm to 0.001; here they are initialized to 0.
"""

import dataclasses
from typing import Self

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from plmjax.contracts.execution import Execution
from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Purpose, System, declare
from plmjax.errors import FRACTION, check_ranges
from plmjax.layers.dropout import Dropout
from plmjax.layers.initializers import uniform
from plmjax.layers.kinks import largest
from plmjax.layers.normalization import BatchNorm
from plmjax.layers.partitioning import shard_hidden
from plmjax.layers.projection import Projection
from plmjax.layers.recurrent.lstm import LstmState
from plmjax.layers.recurrent.masks import text_starts
from plmjax.layers.stack import repeat
from plmjax.layers.tokens import check_token_inputs, last_tokens
from plmjax.models import awd_lstm
from plmjax.models.awd_lstm import AwdLstmConfig, AwdLstmModel

WINDOW = 72
"""Number of tokens in a classifier's window. No gradient passes back beyond the first token of the window."""
HIDDEN_FEATURES = 50
"""Hidden size between the two linear maps of a classifier."""


@dataclasses.dataclass(frozen=True)
class UlmfitConfig(AwdLstmConfig):
    """Sizes and dropout rates of an AWD-LSTM and of its classifier.

    The output dropout rate of the last layer is also that of the classifier's pooled features.
    """

    classifier_dropout: float = 0.1
    """Dropout rate of the features between the two linear maps of a classifier."""
    backwards: bool = False
    """True to read texts from their end to their beginning. The layout's rows must have the same direction."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("model", self, classifier_dropout=FRACTION)

    base = Size(
        "44,333,280 parameters: as fastai trains it on WikiText-103, wider and with smaller dropouts.",
        vocab_size=60_000,
        hidden_size=1152,
        embedding_dropout=0.02,
        input_dropout=0.25,
        weight_dropout=0.2,
        hidden_dropout=0.15,
        output_dropout=0.1,
    )

    @classmethod
    def above(cls, language_model: AwdLstmConfig) -> Self:
        """Return the config of a classifier above a language model, of the same sizes and dropout rates."""
        return cls(**dataclasses.asdict(language_model))

    @property
    def system(self) -> System:
        """The declaration. A model that reads texts from their end generates no text."""
        return _backward_system(SYSTEM) if self.backwards else SYSTEM


@flax.struct.dataclass
class UlmfitOutput:
    """The output of the classifier.

    logits: float32 [B labels], or [B K labels] of packed texts.
    """

    logits: jax.Array


class UlmfitForSequenceClassification(nn.Module):
    """ULMFiT's classifier: the layers over complete texts, and a head on their pooled outputs."""

    config: UlmfitConfig
    execution: Execution = Execution()
    num_labels: int = 2

    def setup(self) -> None:
        self.encoder = self.config.module(Purpose.ENCODING, self.execution)
        dropouts = self.config.output_dropout, self.config.classifier_dropout
        self.classifier = PoolingClassifier(self.num_labels, dropouts, self.execution.dtype)

    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        *,
        positions: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        cls_positions: jax.Array | None = None,
        deterministic: bool = True,
    ) -> UlmfitOutput:
        """Return the scores of texts: [B labels], or [B K labels] of the packed texts that end at `cls_positions`.

        Args:
            input_ids: int [B T].
            attention_mask: [B T], the padding mask, 1 for tokens; all by default.
            positions: int [B T]; they have no effect.
            segment_ids: int [B T], the packed text of each token, numbered from 1 in their order, 0 for padding.
            cls_positions: int [B K], the last token of each text; without it a row is one text.
            deterministic: disables dropout, and normalizes by the running statistics of batches.
        """
        check_token_inputs(None, "", input_ids, attention_mask, positions, segment_ids)
        segments = jnp.ones_like(input_ids) if segment_ids is None else segment_ids
        if attention_mask is not None:
            segments = jnp.where(attention_mask > 0, segments, 0)
        hidden = self._read(input_ids, segments, deterministic)
        ends = cls_positions
        if ends is None:
            places = jnp.broadcast_to(jnp.arange(input_ids.shape[1]), input_ids.shape)
            ends = last_tokens(places[..., None], segments > 0, None)
        logits = self.classifier(hidden, segments, ends, deterministic)
        return UlmfitOutput(logits if cls_positions is not None else logits[:, 0])

    def _read(self, input_ids: jax.Array, segments: jax.Array, deterministic: bool) -> jax.Array:
        """Compute the last layer's output for every token, [B T] -> [B T E], window by window."""
        batch, length = input_ids.shape
        count = -(-length // WINDOW)
        starts = text_starts(segments)

        def windows(x: jax.Array) -> jax.Array:  # [B T] -> [windows B WINDOW]
            padded = jnp.pad(x, ((0, 0), (0, count * WINDOW - length)))
            return jnp.moveaxis(padded.reshape(batch, count, WINDOW), 1, 0)

        def read(encoder: AwdLstmModel, states: tuple[LstmState, ...], window: tuple) -> tuple:
            before = jax.lax.stop_gradient(states)
            outputs = encoder(*window, before, deterministic=deterministic)
            return outputs.states, outputs.raw_hidden_state

        inputs = jax.tree.map(windows, (input_ids, segments, starts))
        execution = dataclasses.replace(self.execution, unroll=1)
        _, hidden = repeat(
            read, self.encoder, count, execution=execution, x=self.config.zero_states(batch), inputs=inputs
        )
        hidden = jnp.moveaxis(hidden, 0, 1).reshape(batch, count * WINDOW, -1)[:, :length]
        return shard_hidden(hidden)


class PoolingClassifier(nn.Module):
    """Concat pooling, and two linear maps of normalized features.

    dropouts: dropout rates of the pooled features, and of the features between the two maps.
    """

    num_labels: int
    dropouts: tuple[float, float]
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, hidden: jax.Array, segments: jax.Array, ends: jax.Array, deterministic: bool) -> jax.Array:
        """Map hidden states [B T E] to float32 [B K labels].

        segments: int [B T], the text of each token, from 1; 0 for padding.
        ends: int [B K], the last token of each text; 0 at the end of rows with fewer than K texts.
        """
        x = hidden.astype(jnp.float32)
        number = jnp.take_along_axis(segments, ends, axis=1, mode="clip")
        exists = number == jnp.arange(1, ends.shape[1] + 1)
        own = ((number[..., None] == segments[:, None]) & exists[..., None])[..., None]  # [B K T 1]
        last = jnp.take_along_axis(x, ends[..., None], axis=1, mode="clip")
        highest = largest(jnp.where(own, x[:, None], -jnp.inf), axis=2)
        mean = jnp.einsum("BKT,BTE->BKE", own[..., 0].astype(jnp.float32), x) / jnp.maximum(jnp.sum(own, axis=2), 1)
        features = jnp.concatenate([last, jnp.where(exists[..., None], highest, 0), mean], axis=-1)
        features = nn.with_logical_constraint(features, ("batch", None, "embed"))
        feature_dropout, hidden_dropout = self.dropouts
        hidden = nn.relu(
            self._dense(
                "hidden", HIDDEN_FEATURES, feature_dropout, x=features, exists=exists, deterministic=deterministic
            )
        )
        return self._dense(
            "output", self.num_labels, hidden_dropout, x=hidden, exists=exists, deterministic=deterministic
        )

    def _dense(
        self, name: str, size: int, rate: float, *, x: jax.Array, exists: jax.Array, deterministic: bool
    ) -> jax.Array:
        """Compute W drop(norm(x)): [B K D] -> float32 [B K size]."""
        x = Dropout(rate)(BatchNorm(name=f"{name}_norm")(x, exists, deterministic), deterministic)
        init = uniform(x.shape[-1] ** -0.5)
        return Projection((size,), ("embed", None), init, self.dtype, logits=True, use_bias=False, name=name)(x)


def _backward_system(system: System) -> System:
    """Return the same system for texts that are read from the end to the beginning."""
    return dataclasses.replace(
        system,
        modules={purpose: made for purpose, made in system.modules.items() if purpose is not Purpose.CAUSAL_LM},
        template=lambda config: dataclasses.replace(system.template(config), backwards=True),
        cache=None,
        backwards=True,
    )


SYSTEM = declare(
    dataclasses.replace(
        awd_lstm.SYSTEM,
        config=UlmfitConfig,
        modules={**awd_lstm.SYSTEM.modules, Purpose.SEQUENCE_CLASSIFICATION: UlmfitForSequenceClassification},
    )
)
