"""Fine-tuning of a tagger that starts from the parts of another model: its language models, or its vectors of words."""

import dataclasses
from typing import Any

import numpy as np

from plmjax.contracts.model_config import ModelConfig
from plmjax.errors import UserError
from plmjax.experiment import Start
from plmjax.finetuning.starts.token_embeddings import check_vectors
from plmjax.models.elmo import ElmoConfig
from plmjax.models.taggers.tagger import LanguageModelTaggerConfig, TaggerConfig
from plmjax.models.taglm import TaglmConfig

LANGUAGE_MODEL = "language_model"


@dataclasses.dataclass(frozen=True)
class FromLanguageModel(Start):
    """A tagger above the checkpoint's language models; the tagger itself is drawn from the seed.

    The checkpoint is of a language model for each direction, such as ELMo's, or of such a tagger, which is taken as it
    is.
    """

    tagger: LanguageModelTaggerConfig = TaglmConfig()
    """Sizes of the tagger; its words and its language models are those of the checkpoint."""

    def model(self, origin: Any) -> LanguageModelTaggerConfig:
        """The tagger of the checkpoint's words and language models.

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
        """The language models without their softmax, below the tagger's name."""
        if isinstance(origin, type(self.tagger)):
            return params
        within = f"{origin.system.name}/"
        names = {name: f"{model.system.name}/{LANGUAGE_MODEL}/" for name in params if name.startswith(within)}
        return {there + name.removeprefix(within): params[name] for name, there in names.items()}

    def draws(self, parameter: str) -> bool:
        """All but the language models."""
        return parameter.split("/")[1] != LANGUAGE_MODEL


@dataclasses.dataclass(frozen=True)
class FromWordVectors(Start):
    """A tagger whose words begin with the checkpoint's vectors; all else is drawn from the seed.

    The checkpoint is of any model with a table of words, such as word2vec or GloVe.
    """

    tagger: ModelConfig = TaggerConfig()
    """Sizes of the tagger; its words and their width are those of the checkpoint."""

    def model(self, origin: Any) -> ModelConfig:
        """The tagger of the checkpoint's words.

        Raises:
            UserError: the checkpoint's model has no vectors of tokens.
        """
        check_vectors(origin)
        return dataclasses.replace(self.tagger, vocab_size=origin.vocab_size, word_dim=origin.token_width)

    def map(self, params: dict[str, np.ndarray], origin: Any, model: Any) -> dict[str, np.ndarray]:
        """The table alone."""
        return {model.system.token_table: origin.system.vectors(params)[: model.vocab_size]}

    def draws(self, parameter: str) -> bool:
        """All but the table."""
        return parameter != self.tagger.system.token_table
