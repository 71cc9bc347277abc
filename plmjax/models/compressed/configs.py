"""The configs and the declarations of compressed models.

A compressed BERT has a `CompressedBertConfig`: a `BertConfig` with three more settings, which the command
`plmjax compress` chooses. Its parameters have the same names as in a BERT, except in layers of different sizes, which
are separate, and in factorized matrices, which are pairs.
"""

import dataclasses
import functools
from typing import Any

import flax.linen as nn

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Purpose, System, declare
from plmjax.errors import UserError
from plmjax.models import albert, bert, distilbert, electra, gpt, gpt2, roberta
from plmjax.models.compressed import low_rank, pruned_layers
from plmjax.models.compressed.low_rank import KINDS, LowRank


@dataclasses.dataclass(frozen=True)
class LowRankConfig(ModelConfig):
    """The settings of a model whose matrices may have a lower rank.

    Raises:
        UserError: `ranks` is not empty, and is not one number from 0 for each of `KINDS`.
    """

    ranks: tuple[int, ...] = ()
    """Ranks of six projections, which are products of two matrices after factorization: query, key, value and output of
    attention, and both of the feed-forward network. 0 is full rank; empty is full rank for all.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ranks and (len(self.ranks) != len(KINDS) or min(self.ranks) < 0):
            raise UserError(
                f"Expected --model.ranks of {len(KINDS)} numbers from 0, found {' '.join(map(str, self.ranks))}; "
                f"change them."
            )

    def module(self, purpose: Purpose, execution: Execution, *args: Any, **options: Any) -> nn.Module:
        if self.ranks and purpose in (Purpose.ENCODING, Purpose.EMBEDDING):
            execution = dataclasses.replace(execution, projection=LowRank(self.ranks, execution.projection))
        return super().module(purpose, execution, *args, **options)

    @property
    def layer_sizes(self) -> tuple[tuple[int, int], ...]:
        """The number of attention heads and the inner size of the feed-forward network of each layer."""
        raise NotImplementedError

    def layers_products(self, keys: int) -> int:
        """Return the multiplications of all layers for one token that sees `keys` keys."""
        size = self.head_size
        return sum(
            low_rank.layer_products(self.ranks, self.width, heads * size, inner) + 2 * keys * heads * size
            for heads, inner in self.layer_sizes
        )


class LowRankEncoder(LowRankConfig):
    """The settings of an encoder whose matrices may have a lower rank."""

    @property
    def layer_sizes(self) -> tuple[tuple[int, int], ...]:
        return ((self.num_attention_heads, self.intermediate_size),) * self.depth


class LowRankDecoder(LowRankConfig):
    """The settings of a decoder whose matrices may have a lower rank."""

    @property
    def head_size(self) -> int:
        """Number of features of an attention head, H."""
        return self.n_embd // self.n_head

    @property
    def layer_sizes(self) -> tuple[tuple[int, int], ...]:
        return ((self.n_head, self.inner_size),) * self.depth


@dataclasses.dataclass(frozen=True)
class PrunedEncoder(LowRankEncoder):
    """The settings of an encoder whose layers may have lost heads and features.

    Raises:
        UserError: not one number of heads and one inner size for every layer, or a number below 1.
    """

    layer_heads: tuple[int, ...] = ()
    """Number of attention heads of each layer after structured pruning; empty: all have `num_attention_heads`."""
    layer_widths: tuple[int, ...] = ()
    """Inner size of the feed-forward network of each layer after structured pruning; empty: `intermediate_size`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("layer_heads", "layer_widths"):
            sizes = getattr(self, name)
            if (sizes or self.layer_heads or self.layer_widths) and len(sizes) != self.depth:
                raise UserError(
                    f"Expected one --model.{name} for each of {self.depth} layers, or none of both, found "
                    f"{len(sizes)}; change them."
                )
            if min(sizes, default=1) < 1:
                raise UserError(f"Expected --model.{name} of at least 1, found {min(sizes)}; change it.")

    @property
    def layer_sizes(self) -> tuple[tuple[int, int], ...]:
        if not self.layer_heads:
            return super().layer_sizes
        return tuple(zip(self.layer_heads, self.layer_widths, strict=True))


@dataclasses.dataclass(frozen=True)
class CompressedBertConfig(PrunedEncoder, bert.BertConfig):
    """Sizes of a compressed BERT."""


@dataclasses.dataclass(frozen=True)
class CompressedRobertaConfig(PrunedEncoder, roberta.RobertaConfig):
    """Sizes of a compressed RoBERTa."""


@dataclasses.dataclass(frozen=True)
class CompressedDistilBertConfig(PrunedEncoder, distilbert.DistilBertConfig):
    """Sizes of a compressed DistilBERT."""


@dataclasses.dataclass(frozen=True)
class CompressedAlbertConfig(LowRankEncoder, albert.AlbertConfig):
    """Sizes of a compressed ALBERT."""


@dataclasses.dataclass(frozen=True)
class CompressedElectraConfig(LowRankEncoder, electra.ElectraConfig):
    """Sizes of a compressed ELECTRA. Its generator has full rank."""

    @property
    def generator(self) -> electra.ElectraConfig:
        """The config of the generator as a network of its own."""
        return with_compression(self, ranks=()).generator


@dataclasses.dataclass(frozen=True)
class CompressedGptConfig(LowRankDecoder, gpt.GptConfig):
    """Sizes of a compressed GPT."""


@dataclasses.dataclass(frozen=True)
class CompressedGpt2Config(LowRankDecoder, gpt2.Gpt2Config):
    """Sizes of a compressed GPT-2."""


COMPRESSED: dict[type[ModelConfig], type[LowRankConfig]] = {
    bert.BertConfig: CompressedBertConfig,
    roberta.RobertaConfig: CompressedRobertaConfig,
    distilbert.DistilBertConfig: CompressedDistilBertConfig,
    albert.AlbertConfig: CompressedAlbertConfig,
    electra.ElectraConfig: CompressedElectraConfig,
    gpt.GptConfig: CompressedGptConfig,
    gpt2.Gpt2Config: CompressedGpt2Config,
}
"""Dict from the config of a system to the config of its compressed models."""


def compressed_class(config: ModelConfig) -> type[LowRankConfig] | None:
    """Return the class of the config's compressed models; None for a system that has none."""
    return type(config) if isinstance(config, LowRankConfig) else COMPRESSED.get(type(config))


def with_compression(config: ModelConfig, **settings: tuple[int, ...]) -> Any:
    """Return the config with other ranks or sizes of layers; if all of them are empty, the original system's config.

    Raises:
        TypeError: the system has no compressed models.
    """
    compressed = compressed_class(config)
    if compressed is None:
        raise TypeError(f"Expected a system of {', '.join(each.__name__ for each in COMPRESSED)}, found {config}.")
    plain = next(each for each, other in COMPRESSED.items() if other is compressed)
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)} | settings
    own = {field.name: values[field.name] for field in dataclasses.fields(plain)}
    return compressed(**values) if any(values[name] for name in values.keys() - own.keys()) else plain(**own)


def check_prunable(model: ModelConfig) -> None:
    """Raise UserError for a model whose layers must have equal sizes."""
    compressed = compressed_class(model)
    if compressed is None or not issubclass(compressed, PrunedEncoder):
        raise UserError(
            f"Expected a BERT, a DistilBERT or a RoBERTa, whose layers may differ in their heads and features, found "
            f"{model.system}; take a method that sets single weights to 0."
        )


def layer_sizes(model: Any) -> tuple[tuple[int, int], ...]:
    """Return the number of heads and the inner size of the feed-forward network of each layer."""
    if isinstance(model, PrunedEncoder):
        return model.layer_sizes
    return ((model.num_attention_heads, model.intermediate_size),) * model.depth


def divides_heads(model: Any, block: int) -> bool:
    """Return whether blocks of `block` rows and columns divide the attention matrices of a head."""
    return model.head_size % block == 0 and model.width % block == 0


def _declare(system: System, model: type[nn.Module] | None = None) -> System:
    """Declare the compressed models of a system.

    model: class of the encoder, if its layers may differ in size; otherwise None.
    """
    config = COMPRESSED[system.config]
    if model is None:
        return declare(dataclasses.replace(system, config=config))
    encoders = dict.fromkeys((Purpose.ENCODING, Purpose.EMBEDDING), functools.partial(model, pooling=False))
    modules, parts = {**system.modules, **encoders}, functools.partial(pruned_layers.parts, system.parts)
    return declare(dataclasses.replace(system, config=config, modules=modules, parts=parts))


SYSTEMS = (
    _declare(bert.SYSTEM, pruned_layers.CompressedBertModel),
    _declare(roberta.SYSTEM, pruned_layers.CompressedRobertaModel),
    _declare(distilbert.SYSTEM, pruned_layers.CompressedDistilBertModel),
    *map(_declare, (albert.SYSTEM, electra.SYSTEM, gpt.SYSTEM, gpt2.SYSTEM)),
)
