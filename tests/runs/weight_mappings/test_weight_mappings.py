"""The sizes, the rates and the parameters of a start are those of the model that it makes."""

import dataclasses

import numpy as np

from plmjax.models.awd_lstm import AwdLstmConfig
from plmjax.models.bart.bart import BartConfig
from plmjax.models.cove.cove import CoveConfig
from plmjax.models.gpt2 import Gpt2Config
from plmjax.models.longformer.decoder import LongformerDecoderConfig
from plmjax.models.taggers.tagger import TaggerConfig
from plmjax.models.taglm import TaglmConfig
from plmjax.runs.weight_mappings.awd_lstm_dropouts import AwdLstmDropouts
from plmjax.runs.weight_mappings.biattentive_classifier import BiattentiveClassifier
from plmjax.runs.weight_mappings.longformer import WiderWindows
from plmjax.runs.weight_mappings.new_source_encoder import NewSourceEncoder
from plmjax.runs.weight_mappings.tagger import FromLanguageModel, FromWordVectors
from plmjax.runs.weight_mappings.token_embeddings import FromTokenEmbeddings
from tests.families.recurrent import ELMO

PLACES = ("embedding", "input", "weight", "hidden", "output")
WORDS = Gpt2Config.tiny(vocab_size=5, n_embd=6)


def test_each_dropout_is_at_its_place() -> None:
    model = AwdLstmDropouts(embedding=0.05, hidden=0.3).model(AwdLstmConfig.tiny(vocab_size=30))
    assert [getattr(model, f"{place}_dropout") for place in PLACES] == [0.05, 0.4, 0.5, 0.3, 0.4]  # of fastai


def test_the_network_above_vectors_has_the_sizes_asked_for() -> None:
    cove = CoveConfig.tiny()
    model = BiattentiveClassifier(size=5, dropout=0.3).model(cove)
    assert (model.vectors, model.hidden_size, model.dropout) == (cove, 5, 0.3)
    words = BiattentiveClassifier(contextual=False, size=7).model(WORDS)
    assert (words.vectors.vocab_size, words.vectors.token_width, words.hidden_size) == (5, 6, 7)
    assert BiattentiveClassifier(size=9).model(model) == model  # which another stage goes on with


def test_the_source_encoder_and_the_windows_are_as_large_as_asked_for() -> None:
    assert NewSourceEncoder(layers=3).model(BartConfig.tiny()).source_layers == 3
    decoder = dataclasses.replace(LongformerDecoderConfig.tiny(), attention_window=(2, 4))
    assert WiderWindows(factor=3).model(decoder).attention_window == (6, 12)


def test_rows_of_a_table_behind_its_words_are_left_out() -> None:
    """Two of seven rows belong to no token."""
    table = np.arange(7 * 6, dtype=np.float32).reshape(7, 6)
    params = {WORDS.system.token_table: table, "gpt2/final_layer_norm/scale": np.ones(6)}
    for start in (FromTokenEmbeddings(), FromWordVectors(TaggerConfig(hidden_size=3))):
        model = start.model(WORDS)
        ((name, found),) = start.map(params, WORDS, model).items()
        assert name == model.system.token_table
        np.testing.assert_array_equal(found, table[:5])
    assert not start.is_sampled(name) and start.is_sampled(f"{name}s") and start.is_sampled("tagger/layer_1/kernel")


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
    assert not any(map(start.is_sampled, found))
    assert start.is_sampled(f"{model.system.name}/layer_1/kernel") and start.is_sampled("classifier/kernel")
    assert start.model(model) is model and start.map(params, model, model) is params
