"""The two networks of DeBERTa version 3: a generator with an enhanced mask decoder, and a discriminator.

The discriminator's word table is the generator's plus a residual. No gradient passes from the discriminator to the
generator (gradient-disentangled embedding sharing, He et al., arXiv 2111.09543, section 3.3).
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Purpose
from plmjax.layers.feed_forward import ACTIVATIONS
from plmjax.layers.normalization import LayerNorm
from plmjax.layers.projection import Projection
from plmjax.layers.tokens import gather_tokens
from plmjax.layers.words.embeddings import Embedding
from plmjax.models.bert import MaskedLanguageModelHead
from plmjax.models.deberta.encoder import DebertaModel
from plmjax.models.families.encoder import EncoderOutput


class DebertaGenerator(DebertaModel):
    """The encoder with logits over the vocabulary. Its last layer is the enhanced mask decoder.

    With `position_biased_input` there is no enhanced mask decoder, as in the released code.
    """

    def setup(self) -> None:
        super().setup()
        config, execution = self.config, self.execution
        if not config.position_biased_input:
            sizes = config.max_position_embeddings, config.hidden_size
            self.position_embeddings = Embedding(*sizes, None, config.initializer, execution.dtype)
        self.masked_language_model = MaskedLanguageModelHead(config, execution)

    def decoder_positions(self, positions: jax.Array) -> jax.Array | None:
        return None if self.config.position_biased_input else self.position_embeddings(positions)

    def __call__(
        self, input_ids: jax.Array, *, masked_positions: jax.Array | None = None, **inputs: Any
    ) -> EncoderOutput:
        """Take and return the same as `DebertaModel`, with logits over the vocabulary.

        `masked_positions` int [B P] limits the logits to these tokens.
        """
        output = super().__call__(input_ids, **inputs)
        hidden = gather_tokens(output.last_hidden_state, masked_positions)
        return output.replace(logits=self.masked_language_model(hidden, self.embeddings.word_embeddings))


class ReplacedTokenDetectionHead(nn.Module):
    """w . activation(W norm(x_[CLS] + x_i) + b) + c, a logit for every token: above 0, the token is replaced."""

    config: ModelConfig
    execution: Execution

    @nn.compact
    def __call__(self, x: jax.Array, cls: jax.Array) -> jax.Array:
        """Map [B T D] to float32 [B T]. cls: the hidden state of each token's [CLS], [B 1 D] or [B T D]."""
        config, dtype, init = self.config, self.execution.dtype, self.config.initializer
        x = LayerNorm(config.layer_norm_eps, dtype, name="layer_norm")(cls + x)
        x = Projection((config.hidden_size,), ("embed", "mlp"), init, dtype, name="transform")(x)
        x = ACTIVATIONS[config.hidden_act](x)
        return Projection((1,), ("mlp", None), init, dtype, logits=True, name="output")(x)[..., 0]


class DebertaForPreTraining(nn.Module):
    """The generator and the discriminator with their heads.

    A subclass that calls only one network has only the parameters of that network.
    """

    config: ModelConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        config, execution = self.config, self.execution
        self.generator = DebertaGenerator(config.generator, execution)
        self.deberta = config.module(Purpose.ENCODING, execution, pooling=True, base=self.generator.embeddings)
        self.replaced_token_detection = ReplacedTokenDetectionHead(config, execution)

    def generate(self, input_ids: jax.Array, **inputs: Any) -> EncoderOutput:
        """Run the generator, called as `DebertaGenerator`: logits [B T V], or [B P V] at `masked_positions`."""
        return self.generator(input_ids, **inputs)

    def discriminate(
        self, input_ids: jax.Array, *, segment_ids: jax.Array | None = None, **inputs: Any
    ) -> EncoderOutput:
        """Run the discriminator, called as `DebertaModel`: logits [B T].

        Packed sequences need their `cls_positions`; otherwise [CLS] is at position 0.
        """
        output = self.deberta(input_ids, segment_ids=segment_ids, **inputs)
        cls = output.pooler_output
        if cls.ndim == 2:
            cls = cls[:, None]
        else:
            cls = jnp.take_along_axis(cls, segment_ids[..., None] - 1, axis=1, mode="clip")
        return output.replace(logits=self.replaced_token_detection(output.last_hidden_state, cls))

    def __call__(
        self, input_ids: jax.Array, *, masked_positions: jax.Array | None = None, **inputs: Any
    ) -> tuple[EncoderOutput, EncoderOutput]:
        """Return the outputs of `generate` and of `discriminate` for the same tokens."""
        generated = self.generate(input_ids, masked_positions=masked_positions, **inputs)
        return generated, self.discriminate(input_ids, **inputs)


class DebertaGeneratorForMaskedLM(DebertaForPreTraining):
    """The generator alone, with the parameter names of `DebertaForPreTraining`."""

    def __call__(self, input_ids: jax.Array, **inputs: Any) -> EncoderOutput:
        """Take and return the same as `generate`."""
        return self.generate(input_ids, **inputs)
