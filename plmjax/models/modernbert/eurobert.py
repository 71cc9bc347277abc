"""EuroBERT (Boizard et al., arXiv 2503.05500), in the numbers of ModernBERT's config: an encoder like Llama.

    x = words[input_ids]
    L times:  x = x + attention(norm(x));  x = x + (silu(norm(x) W1) * (norm(x) V)) W2
    masked token:  softmax(W norm(x)_i)

Norms are root mean squares. All layers are global, and several heads of queries share keys and values. The output layer
is a matrix of its own.
"""

import dataclasses

from plmjax.contracts.sizes import Size
from plmjax.contracts.system import declare
from plmjax.models.modernbert.modernbert import SYSTEM as MODERNBERT
from plmjax.models.modernbert.modernbert import ModernBertConfig


@dataclasses.dataclass(frozen=True)
class EuroBertConfig(ModernBertConfig):
    """Sizes of a EuroBERT: RMS norms, SwiGLU, only global layers, an output layer of its own (arXiv 2503.05500)."""

    vocab_size: int = 128_256
    """Vocabulary size."""
    num_hidden_layers: int = 12
    """Number of layers, L."""
    intermediate_size: int = 3072
    """Inner size of the gated feed-forward network, F."""
    hidden_activation: str = "silu"
    """Activation of the gate."""
    norm: str = "rms"
    """Norm: layer (centred) or rms (root mean square)."""
    embedding_norm: bool = False
    """True to normalise the embeddings; then the attention of layer 0 reads them as they are."""
    global_rope_theta: float = 250_000.0
    """Base of the wavelengths of the rotation. 10,000 in the phase of 2,048 tokens."""
    global_attn_every_n_layers: int = 1
    """Layer i is global if n divides i; with 1 all layers are."""
    head: str = "plain"
    """Head before the scores of words: transformed (dense, activation, norm) or plain."""
    tie_word_embeddings: bool = False
    """True if the word table is the output layer too."""
    decoder_bias: bool = False
    """True to add a bias to the scores of words."""
    attention_output_dropout: float = 0.0
    """Dropout rate of the output of attention."""
    initialization: str = "normal"
    """Initial weights: scaled, normal or uniform."""
    pad_token_id: int = 128_001
    """Padding token id; transformers needs it."""
    bos_token_id: int | None = 128_000
    """Token id at the beginning of a text; transformers needs it."""
    eos_token_id: int | None = 128_001
    """Token id at the end of a text; transformers needs it."""

    base = Size("EuroBERT of 210 million: 211,766,016 parameters, 310,266,624 with its head.")
    medium = Size(
        "EuroBERT of 610 million: 607,874,688 parameters, 755,625,600 with its head.",
        hidden_size=1152,
        num_hidden_layers=26,
        num_attention_heads=18,
        num_key_value_heads=6,
        intermediate_size=4096,
    )
    large = Size(
        "EuroBERT of 2.1 billion: 2,107,590,912 parameters, 2,403,092,736 with its head.",
        hidden_size=2304,
        num_hidden_layers=32,
        num_attention_heads=18,
        num_key_value_heads=6,
        intermediate_size=6144,
    )


SYSTEM = declare(dataclasses.replace(MODERNBERT, config=EuroBertConfig))
