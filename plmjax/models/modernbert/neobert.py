"""NeoBERT (Le Breton et al., arXiv 2502.19587), in the numbers of ModernBERT's config.

As EuroBERT, deeper and without shared keys; the rotation pairs neighbouring features, and words have a bias.
"""

import dataclasses

from plmjax.contracts.sizes import Size
from plmjax.contracts.system import declare
from plmjax.models.modernbert.eurobert import EuroBertConfig
from plmjax.models.modernbert.modernbert import SYSTEM as MODERNBERT


@dataclasses.dataclass(frozen=True)
class NeoBertConfig(EuroBertConfig):
    """Sizes of a NeoBERT: as EuroBERT, with neighbouring features as pairs of the rotation (arXiv 2502.19587)."""

    vocab_size: int = 30_522
    """Vocabulary size."""
    num_hidden_layers: int = 28
    """Number of layers, L."""
    intermediate_size: int = 2048
    """Inner size of the gated feed-forward network, F."""
    max_position_embeddings: int = 4096
    """Maximum sequence length."""
    rotary_interleaved: bool = True
    """True to rotate neighbouring features; otherwise feature i of both halves of a head."""
    global_rope_theta: float = 10_000.0
    """Base of the wavelengths of the rotation."""
    decoder_bias: bool = True
    """True to add a bias to the scores of words."""
    initialization: str = "uniform"
    """Initial weights: scaled, normal or uniform."""
    pad_token_id: int = 0
    """Padding token id."""
    bos_token_id: int | None = None
    """Token id at the beginning of a text; nothing here reads it."""
    eos_token_id: int | None = None
    """Token id at the end of a text; nothing here reads it."""

    base = Size("NeoBERT: 221,665,536 parameters, 245,136,954 with its head.")


SYSTEM = declare(dataclasses.replace(MODERNBERT, config=NeoBertConfig))
