"""ELMo as features: a tagger with mixes of all layers of frozen language models.

Source: Peters et al., NAACL 2018, arXiv 1802.05365, sections 3.2 and 3.3.

    x_k = [c_k ; w_k ; ELMo_k]                 beside the input
    h_k = [biRNN(biRNN(x))_k ; ELMo'_k]        beside the output

ELMo and ELMo' are mixes of the same layers. Each has its own weights and its own scale, which are trained with the
task. A penalty of the squared weights (`--objective.mix_penalty`) keeps the mixes near the plain mean. Dropout is
applied to both. A conditional random field over a linear layer labels the sentence. The language models are not trained
with the task: `--optimizer.frozen encoder/language_model`, as in experiments/taglm.py.

Deviation: the states are zero before each sentence; the released code continues with those after earlier sentences.
Deviation: the tagger's own layers also read the marks of a sentence's ends, which the language models need.
"""

import dataclasses

import jax
import jax.numpy as jnp

from plmjax.contracts.system import declare
from plmjax.errors import FRACTION, check_ranges
from plmjax.layers.dropout import Dropout
from plmjax.layers.scalar_mix import ScalarMix
from plmjax.models.elmo import ElmoModel
from plmjax.models.taggers.tagger import LanguageModelTaggerConfig, TaggerModule, TaggerOutput, upon_language_models


@dataclasses.dataclass(frozen=True)
class ElmoTaggerConfig(LanguageModelTaggerConfig):
    """Sizes: those of `TaggerConfig` and of the language models."""

    elmo_dropout: float = 0.5
    """Dropout rate of both mixes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("model", self, elmo_dropout=FRACTION)

    @property
    def width(self) -> int:
        return super().width + self.language_model.width

    def multiplications(self, first: int = 0, second: int = 0) -> int:
        """Return the number of multiplications for one word; the first layer reads a mix too."""
        return super().multiplications(first + self.language_model.width, second)


class ElmoTagger(TaggerModule):
    """The tagger, with its language models as `language_model`."""

    def setup(self) -> None:
        super().setup()
        self.language_model = ElmoModel(self.config.language_model, self.execution)
        self.scalar_mix_input = ScalarMix()
        self.scalar_mix_output = ScalarMix()
        self.elmo_dropout = Dropout(self.config.elmo_dropout)

    def __call__(
        self,
        input_ids: jax.Array,
        characters: jax.Array,
        attention_mask: jax.Array | None = None,
        *,
        positions: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        deterministic: bool = True,
        output_hidden_states: bool = False,
    ) -> TaggerOutput:
        """Take and return the same as `plmjax.models.taggers.tagger.Tagger`.

        The last hidden state is [B T 2 H + 2 P], where 2 P is the size of the mixes. The language models have no
        dropout, even in training.
        """
        reads = self.reads(input_ids, attention_mask, positions, segment_ids)
        places = {"positions": positions, "segment_ids": segment_ids}
        layers = self.language_model(characters, attention_mask, **places, output_hidden_states=True).hidden_states
        at_input, at_output = (
            self.elmo_dropout(mix(layers).astype(self.execution.dtype), deterministic)
            for mix in (self.scalar_mix_input, self.scalar_mix_output)
        )
        words = jnp.concatenate([self.words(input_ids, characters, deterministic), at_input], axis=-1)
        first, _ = self.layer_1(self.dropout(words, deterministic), **reads)
        second, _ = self.layer_2(self.dropout(first, deterministic), **reads)
        last = jnp.concatenate([second, at_output], axis=-1)
        return TaggerOutput(last, (words, first, last) if output_hidden_states else None)


SYSTEM = declare(upon_language_models(ElmoTaggerConfig, "elmo_tagger", ElmoTagger))
