"""Taggers that start from parts of another model: the parameters that are taken, and those that are drawn."""

import numpy as np

from plmjax.models.baselines.static_vectors import StaticVectorsConfig
from plmjax.models.taglm import TaglmConfig
from plmjax.runs.weight_mappings.tagger import FromLanguageModel, FromWordVectors
from tests.families.recurrent import ELMO


def test_a_tagger_takes_the_language_models_without_their_softmax() -> None:
    start = FromLanguageModel()
    model = start.model(ELMO)
    assert type(model) is TaglmConfig and model.language_model == ELMO
    assert (model.vocab_size, model.max_characters_per_token) == (29, 9)
    within = f"{ELMO.system.name}/"
    params = {f"{within}layers/kernel": np.ones(2), f"{within}word/bias": np.zeros(3), "head/kernel": np.ones(4)}
    found = start.map(params, ELMO, model)
    there = f"{model.system.name}/language_model/"
    assert found == {
        f"{there}layers/kernel": params[f"{within}layers/kernel"],
        f"{there}word/bias": params[f"{within}word/bias"],
    }
    assert not any(map(start.draws, found))
    assert start.draws(f"{model.system.name}/layer_1/kernel") and start.draws("classifier/kernel")
    assert start.model(model) is model and start.map(params, model, model) is params


def test_a_tagger_takes_the_vectors_of_its_words_alone() -> None:
    """A table may have more rows than there are tokens."""
    start, origin = FromWordVectors(), StaticVectorsConfig(7, 8)
    model = start.model(origin)
    assert (model.vocab_size, model.word_dim) == (7, 8)
    table = np.arange(72.0).reshape(9, 8)
    ((name, taken),) = start.map({origin.system.token_table: table, "other": table}, origin, model).items()
    assert name == model.system.token_table and taken.tolist() == table[:7].tolist()
    assert not start.draws(name) and start.draws(f"{name}s") and start.draws("tagger/layer_1/kernel")
