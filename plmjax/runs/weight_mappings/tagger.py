"""Fine-tuning of a tagger that starts from parts of another model: its language models or its word embeddings."""

import dataclasses
from typing import Any

import numpy as np

from plmjax.contracts.model_config import ModelConfig
from plmjax.errors import UserError
from plmjax.experiment import WeightMapping
from plmjax.models.elmo import ElmoConfig
from plmjax.models.taggers.tagger import LanguageModelTaggerConfig, TaggerConfig
from plmjax.models.taglm import TaglmConfig
from plmjax.runs.weight_mappings.token_embeddings import check_vectors

LANGUAGE_MODEL = "language_model"


@dataclasses.dataclass(frozen=True)
class FromLanguageModel(WeightMapping):
    """A tagger on top of the checkpoint's language models; the tagger itself is initialized from the seed.

    The checkpoint is a model with a language model for each direction, such as ELMo, or a tagger of this class, which
    is taken unchanged.
    """

    tagger: LanguageModelTaggerConfig = TaglmConfig()
    """Sizes of the tagger; its words and its language models are those of the checkpoint."""

    def model(self, origin: Any) -> LanguageModelTaggerConfig:
        """Return the tagger with the checkpoint's words and language models.

        Raises:
            UserError: the checkpoint's model does not read in both directions.
        """
        if isinstance(origin, type(self.tagger)):
            return origin
        if not isinstance(origin, ElmoConfig):
            raise UserError(
                f"Expected a checkpoint of a language model for each direction, to take their states as features, "
                f"found {type(origin).__name__}; name a checkpoint of ELMo."
            )
        length = origin.max_characters_per_token
        sizes = {"vocab_size": origin.vocab_size, "max_characters_per_token": length, "language_model": origin}
        return dataclasses.replace(self.tagger, **sizes)

    def map(self, params: dict[str, np.ndarray], origin: Any, model: Any) -> dict[str, np.ndarray]:
        """Return the language models without their softmax, under the tagger's name."""
        if isinstance(origin, type(self.tagger)):
            return params
        within = f"{origin.system.name}/"
        names = {name: f"{model.system.name}/{LANGUAGE_MODEL}/" for name in params if name.startswith(within)}
        return {there + name.removeprefix(within): params[name] for name, there in names.items()}

    def is_sampled(self, parameter: str) -> bool:
        """Return true for all parameters but those of the language models."""
        return parameter.split("/")[1] != LANGUAGE_MODEL


@dataclasses.dataclass(frozen=True)
class FromWordVectors(WeightMapping):
    """A tagger with the word embeddings of the checkpoint. All other parameters are initialized from the seed.

    The checkpoint is any model with a word table, such as word2vec or GloVe.
    """

    tagger: ModelConfig = TaggerConfig()
    """Sizes of the tagger; its words and its embedding size are those of the checkpoint."""

    def model(self, origin: Any) -> ModelConfig:
        """Return the tagger with the checkpoint's words.

        Raises:
            UserError: the checkpoint's model has no token embeddings.
        """
        check_vectors(origin)
        return dataclasses.replace(self.tagger, vocab_size=origin.vocab_size, word_dim=origin.token_width)

    def map(self, params: dict[str, np.ndarray], origin: Any, model: Any) -> dict[str, np.ndarray]:
        """Return only the embedding table."""
        return {model.system.token_table: origin.system.vectors(params)[: model.vocab_size]}

    def is_sampled(self, parameter: str) -> bool:
        """Return true for all parameters but the embedding table."""
        return parameter != self.tagger.system.token_table
