"""The vector of a text from the hidden states of its tokens: a pooling and the layers after it.

These are the modules of sentence-transformers after the encoder (Reimers and Gurevych 2019, arXiv 1908.10084). They are
computed in numpy, text by text: the encoder takes nearly all of the time.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from plmjax.contracts.template import Template
from plmjax.errors import UserError, check_choice, listed

POOLINGS: Mapping[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "cls": lambda states, places: states[0],
    "lasttoken": lambda states, places: states[-1],
    "max": lambda states, places: states.max(axis=0),
    "mean": lambda states, places: states.mean(axis=0),
    "mean_sqrt_len_tokens": lambda states, places: states.sum(axis=0) / np.sqrt(np.float32(len(states))),
    "weightedmean": lambda states, places: places @ states / places.sum(),
}
"""Dict from name in sentence-transformers to function of hidden states [T D] and positions [T] from 1, both float32."""

ACTIVATIONS: Mapping[str, Callable[[Any], Any]] = {
    "Identity": lambda x: x,
    "Tanh": jax.nn.tanh,
    "ReLU": jax.nn.relu,
    "ReLU6": jax.nn.relu6,
    "LeakyReLU": jax.nn.leaky_relu,
    "GELU": lambda x: jax.nn.gelu(x, approximate=False),
    "SiLU": jax.nn.silu,
    "Sigmoid": jax.nn.sigmoid,
    "ELU": jax.nn.elu,
    "SELU": jax.nn.selu,
    "Softplus": jax.nn.softplus,
    "Softsign": jax.nn.soft_sign,
    "Mish": jax.nn.mish,
    "Hardtanh": jax.nn.hard_tanh,
}
"""Dict from the name of torch's class to the function with its default settings."""


@dataclasses.dataclass(frozen=True)
class Dense:
    """activation(x W + b), plus x R if it has a residual; R is the identity if the sizes are equal."""

    activation: str = "Tanh"
    residual: bool = False

    def __post_init__(self) -> None:
        check_choice("activation", self.activation, ACTIVATIONS)

    def __call__(self, x: np.ndarray, params: Mapping[str, np.ndarray]) -> np.ndarray:
        """Map [B D] to [B E]. params: kernel [D E], and bias [E] and residual [D E] if there are any."""
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            found = np.asarray(ACTIVATIONS[self.activation](x @ params["kernel"] + params.get("bias", 0)))
        if not self.residual:
            return found
        return found + (x @ params["residual"] if "residual" in params else x)

    def __str__(self) -> str:
        return f"Dense with {self.activation}{' and a residual' if self.residual else ''}"


@dataclasses.dataclass(frozen=True)
class LayerNorm:
    """Layer normalisation with torch's epsilon, 1e-5."""

    def __call__(self, x: np.ndarray, params: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return [B D] from [B D]. params: scale and bias [D]."""
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = np.square(centred).mean(axis=-1, keepdims=True)
        return centred / np.sqrt(variance + np.float32(1e-5)) * params["scale"] + params["bias"]

    def __str__(self) -> str:
        return "LayerNorm"


@dataclasses.dataclass(frozen=True)
class Normalize:
    """Division of vectors by their Euclidean norm."""

    def __call__(self, x: np.ndarray, params: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return [B D] from [B D]."""
        return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), np.float32(1e-12))

    def __str__(self) -> str:
        return "length 1"


def tokens_before(prompt: Sequence[int], template: Template) -> int:
    """Return the number of first tokens of a row that belong to the prompt: its tokens and special tokens before it.

    One special token is taken to be at the end of the row. prompt: token ids; empty for no prompt, which gives 0.
    """
    specials = template.specials(1)
    return len(prompt) + specials - min(specials, 1) if prompt else 0


Layer = Dense | LayerNorm | Normalize


@dataclasses.dataclass(frozen=True)
class TextVectors:
    """The computation of text vectors: prompt, pooling, layers and truncation.

    Raises:
        UserError: an unknown pooling or activation, a default prompt without a text, or a size below 1.
    """

    name: ClassVar[str] = "text_vectors"
    """The first name in the paths of its parameters. The second is the number of the layer."""

    pooling: tuple[str, ...] = ("mean",)
    """Keys of `POOLINGS`, whose vectors are joined."""
    layers: tuple[Layer, ...] = ()
    """Layers after the pooling."""
    size: int | None = None
    """Number of features to which the vectors are truncated; None for all."""
    longest: int | None = None
    """Maximum number of tokens of a text, with special tokens; None for the maximum of the model."""
    prompts: tuple[tuple[str, str], ...] = ()
    """Pairs of the name of a prompt and its text, which is put before an input text."""
    default_prompt: str | None = None
    """Name of the prompt that is used unless another is named; None for no prompt."""
    include_prompt: bool = True
    """True to pool the tokens of the prompt too."""
    similarity: str | None = None
    """Name of the function with which sentence-transformers compares the vectors; nothing here reads it."""

    def __post_init__(self) -> None:
        for mode in self.pooling:
            check_choice("pooling", mode, POOLINGS)
        if self.default_prompt is not None:
            self.prompt(self.default_prompt)
        if self.size is not None and self.size < 1:
            raise UserError(f"Expected a size of vectors of at least 1, found {self.size}; change it.")

    def prompt(self, name: str | None = None) -> str:
        """Return the text of a named prompt, or of the default one. Raises UserError for an unknown name."""
        name, known = self.default_prompt if name is None else name, dict(self.prompts)
        if name is not None and name not in known:
            raise UserError(f"Expected a known prompt, found {name!r}; known: {listed(sorted(known))}.")
        return "" if name is None else known[name]

    def truncation_length(self, longest: int | None) -> int | None:
        """Return the number of tokens to which a text is truncated. longest: the maximum of the model."""
        return min((length for length in (longest, self.longest) if length is not None), default=None)

    def pool(self, states: np.ndarray, before: int = 0) -> np.ndarray:
        """Return the pooled vector [D x poolings] of one text's hidden states, float32 [T D].

        before: number of first tokens that belong to the prompt. They are left out unless `include_prompt` is true;
            raises UserError if no token is left then.
        """
        first = 0 if self.include_prompt else before
        if first >= len(states):
            raise UserError(
                f"Expected a prompt that leaves tokens of the text, found one of {first} tokens in a row of "
                f"{len(states)}; take a shorter one."
            )
        places = np.arange(first + 1, len(states) + 1, dtype=np.float32)
        return np.concatenate([POOLINGS[mode](states[first:], places) for mode in self.pooling])

    def finish(self, pooled: np.ndarray, params: Mapping[str, Mapping[str, np.ndarray]]) -> np.ndarray:
        """Apply the layers after the pooling, and truncate to `size`: [B D] -> [B E].

        params: index of a layer, as text -> its parameters.
        """
        for number, layer in enumerate(self.layers):
            pooled = layer(pooled, {name: np.asarray(one) for name, one in params.get(str(number), {}).items()})
        return pooled[:, : self.size]

    def __str__(self) -> str:
        parts = [f"{' and '.join(self.pooling)} pooling", *map(str, self.layers)]
        parts += [f"the first {self.size} features"] if self.size is not None else []
        parts += [f"texts of at most {self.longest} tokens"] if self.longest is not None else []
        parts += [f"prompt {self.prompt()!r}"] if self.prompt() else []
        return ", ".join(parts)
