"""TagLM: a tagger with the states of frozen language models beside its own (Peters et al., ACL 2017, arXiv 1705.00108).

The two language models, one for each direction, are trained on a large text without labels. The outputs of their top
layers for a word in its sentence are concatenated with the output of the tagger's first layer (section 2.4):

    x_k   = [c_k ; w_k]                    characters and word
    h_k,1 = [biRNN_1(x)_k ; h_k^LM]        h_k^LM = [forward LM_k ; backward LM_k]
    h_k,2 = biRNN_2(h_1)_k

A conditional random field over a linear layer labels the sentence. The language models are not trained with the
task: `--optimizer.frozen encoder/language_model`, as in experiments/taglm.py.

Deviation: both language models are parts of one model that reads words by their characters (models/elmo.py); in the
paper the forward and the backward model are separate. The states are zero before each sentence.
Deviation: the tagger's own layers also read the marks of a sentence's ends, which the language models need.
"""

import dataclasses

import jax
import jax.numpy as jnp

from plmjax.contracts.system import declare
from plmjax.models.elmo import ElmoModel
from plmjax.models.taggers.tagger import LanguageModelTaggerConfig, TaggerModule, TaggerOutput, upon_language_models


@dataclasses.dataclass(frozen=True)
class TaglmConfig(LanguageModelTaggerConfig):
    """Sizes: those of `TaggerConfig` and of the language models."""

    def multiplications(self, first: int = 0, second: int = 0) -> int:
        """Return the multiplications for one word; the second layer also reads the language models."""
        return super().multiplications(first, second + self.language_model.width)


class Taglm(TaggerModule):
    """The tagger, with its language models as `language_model`."""

    def setup(self) -> None:
        super().setup()
        self.language_model = ElmoModel(self.config.language_model, self.execution)

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

        The language models have no dropout, even in training.
        """
        reads = self.reads(input_ids, attention_mask, positions, segment_ids)
        language = self.language_model(characters, attention_mask, positions=positions, segment_ids=segment_ids)
        words = self.words(input_ids, characters, deterministic)
        first, _ = self.layer_1(self.dropout(words, deterministic), **reads)
        first = jnp.concatenate([first, language.last_hidden_state], axis=-1)
        last, _ = self.layer_2(self.dropout(first, deterministic), **reads)
        return TaggerOutput(last, (words, first, last) if output_hidden_states else None)


SYSTEM = declare(upon_language_models(TaglmConfig, "taglm", Taglm))
