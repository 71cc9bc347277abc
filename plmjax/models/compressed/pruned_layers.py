"""Encoders whose layers differ in their numbers of heads and in their inner sizes, after structured pruning."""

from collections.abc import Callable
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.contracts.mask_terms import MaskTerms
from plmjax.contracts.system import ParameterGroup
from plmjax.layers.stack import stack_states
from plmjax.models.bert import BertEncoder, BertLayer, BertModel
from plmjax.models.distilbert import DistilBertLayer, DistilBertModel
from plmjax.models.families.encoder import EncoderConfig
from plmjax.models.roberta import RobertaModel


class PrunedLayer(BertLayer):
    """A layer of BERT with the sizes that the config has for layer `number`."""

    number: int = 0

    @property
    def heads(self) -> int:
        return self.config.layer_sizes[self.number][0]

    @property
    def inner_size(self) -> int:
        return self.config.layer_sizes[self.number][1]


class PrunedDistilBertLayer(PrunedLayer, DistilBertLayer):
    """A layer of DistilBERT with the sizes that the config has for layer `number`."""


class PrunedEncoder(BertEncoder):
    """Layers of different sizes: `layer_0`, `layer_1` and so on, each a stack of one."""

    pruned_layer: ClassVar[Callable[..., nn.Module]] = PrunedLayer

    @nn.compact
    def __call__(
        self, x: jax.Array, mask_terms: MaskTerms, *, deterministic: bool, output_hidden_states: bool
    ) -> tuple[jax.Array, jax.Array | None]:
        """Take and return the same as `BertEncoder`."""
        config, execution = self.config, self.execution
        if not config.layer_heads:
            settings = {"deterministic": deterministic, "output_hidden_states": output_hidden_states}
            return super().__call__(x, mask_terms, **settings)

        def apply(layer: nn.Module, x: jax.Array, _: None) -> jax.Array:
            return layer(x, mask_terms)

        states = [x]
        for number in range(config.depth):
            layer = self.pruned_layer(config, execution, deterministic, number, name=f"layer_{number}")
            states.append(
                stack_states(apply, layer, 1, execution=execution, x=states[-1], output_hidden_states=False)[0]
            )
        return states[-1], jnp.stack(states) if output_hidden_states else None


class PrunedDistilBertEncoder(PrunedEncoder):
    """Layers of DistilBERT of different sizes."""

    layer: ClassVar[Callable[..., nn.Module]] = DistilBertLayer
    pruned_layer: ClassVar[Callable[..., nn.Module]] = PrunedDistilBertLayer


class CompressedBertModel(BertModel):
    """A BERT whose layers may differ in their sizes."""

    encoder_class: ClassVar[Callable[..., nn.Module]] = PrunedEncoder


class CompressedRobertaModel(RobertaModel):
    """A RoBERTa whose layers may differ in their sizes."""

    encoder_class: ClassVar[Callable[..., nn.Module]] = PrunedEncoder


class CompressedDistilBertModel(DistilBertModel):
    """A DistilBERT whose layers may differ in their sizes."""

    encoder_class: ClassVar[Callable[..., nn.Module]] = PrunedDistilBertEncoder


def parts(parts: Callable[[Any], tuple[ParameterGroup, ...]], config: EncoderConfig) -> tuple[ParameterGroup, ...]:
    """Return the parameter groups, one for each layer also if the layers are separate.

    parts: the function of the system for layers of equal size.
    """
    if not config.layer_heads:
        return parts(config)
    embeddings, *_, rest = parts(config)
    layers = (ParameterGroup((f"{config.system.name}/encoder/layer_{layer}",), 0) for layer in range(config.depth))
    return embeddings, *layers, rest
