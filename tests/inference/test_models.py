"""The calls of `import plmjax` that load a model, on runs and on folders of transformers, with all or a part of it."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import plmjax
from plmjax.commands import cli
from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.errors import UserError
from plmjax.inference.models import Model
from plmjax.models.elmo import ElmoConfig
from plmjax.models.gpt2 import Gpt2Config
from plmjax.models.t5 import T5Config
from plmjax.models.word2vec import Word2VecConfig
from tests.systems.modules import outputs, random_params

TEXTS = ["One text.", ("The first of a pair,", "and the second.")]


def test_a_run_and_what_is_saved_of_it_have_the_same_outputs(small_run: Path, tmp_path: Path) -> None:
    loaded = plmjax.load(small_run)
    found = loaded(TEXTS, output_hidden_states=True, output_attentions=True)
    layers = loaded.config.num_hidden_layers
    assert found.hidden_states.shape == (layers + 1, *found.last_hidden_state.shape)
    assert found.attentions.shape[:2] == (layers, 2)
    plmjax.save(loaded, tmp_path / "saved")
    np.testing.assert_array_equal(plmjax.load(tmp_path / "saved")(TEXTS).logits, found.logits)


def test_a_classifier_keeps_its_labels_and_predicts_a_list(
    tuned: Callable[[str], tuple[Path, str, str]], tmp_path: Path
) -> None:
    run, _, _ = tuned("single")
    loaded = plmjax.load(run)
    plmjax.save(loaded, tmp_path / "saved")
    assert plmjax.load(tmp_path / "saved").labels == loaded.labels and len(loaded.labels) == 3
    (tmp_path / "texts.txt").write_text("a fine film\na poor film\n")
    found, of_file = (
        list(plmjax.predict(run, one)) for one in (["a fine film", "a poor film"], tmp_path / "texts.txt")
    )
    assert found == of_file
    for texts, said in ((["a", "b\nc"], "one line, found 2 lines in text 2"), ([("a", "b")], "found .* as number 1")):
        with pytest.raises(UserError, match=said):
            list(plmjax.predict(run, texts))


def test_vectors_are_those_of_the_file_and_a_string_is_no_list(small_run: Path, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("a film\nanother one\n")
    cli.run(["embed", str(small_run), "--input", str(tmp_path / "lines.txt"), "--output", str(tmp_path / "v.npz")])
    with np.load(tmp_path / "v.npz") as arrays:
        np.testing.assert_array_equal(plmjax.embed(small_run, ["a film", "another one"]), arrays["embeddings"])
    tokens = plmjax.embed(small_run, ["a film", "another one"], pooling="none")
    mask = np.asarray(plmjax.load(small_run).inputs(["a film", "another one"])["attention_mask"])
    assert [len(one) for one in tokens] == mask.sum(axis=1).tolist()


@pytest.mark.parametrize("texts", ["one text", [], [("a", "b", "c")]], ids=repr)
def test_what_is_no_list_of_texts_is_one_sentence(small_run: Path, texts: Any) -> None:
    with pytest.raises(UserError, match=r"^Expected "):
        plmjax.load(small_run)(texts)
    with pytest.raises(UserError, match=r"^Expected "):
        plmjax.embed(small_run, texts)


def test_the_batches_of_a_run_are_those_of_its_experiment_from_any_step(small_run: Path) -> None:
    first, second = itertools.islice(plmjax.batches(small_run), 2)
    (again,) = itertools.islice(plmjax.batches(small_run, first_step=1), 1)
    np.testing.assert_array_equal(again["input_ids"], second["input_ids"])
    assert (first["input_ids"] != second["input_ids"]).any()


def test_a_language_model_reads_a_text_alone(small_run: Path) -> None:
    """Its tasks add special tokens, which the tokenizer of a language model need not have."""
    tokenizer = plmjax.load(small_run).tokenizer
    config = Gpt2Config.tiny(vocab_size=tokenizer.vocabulary.size)
    module = config.module(Purpose.PRETRAINING, Execution())
    ids = jnp.asarray([tokenizer.encode("One text.")])
    params = random_params(module)
    found = Model(module, params, tokenizer)(["One text."])
    np.testing.assert_allclose(found.logits, outputs(module, params, {"input_ids": ids}).logits, atol=1e-6)
    with pytest.raises(UserError, match="Expected a text of at least one token, found empty ones alone"):
        Model(module, params, tokenizer)([""])


def test_a_model_that_needs_other_inputs_or_options_says_so(small_run: Path) -> None:
    loaded = plmjax.load(small_run)
    with pytest.raises(UserError, match=r"^Expected options that BertModel takes, found 'output_hidden_state'"):
        loaded(TEXTS, output_hidden_state=True)
    for config, sentence in (
        (T5Config, "Expected decoder_input_ids for T5ForConditionalGeneration besides the texts, found none"),
        (ElmoConfig, r"Expected inputs of ElmoForPreTraining \(characters, .*\), found attention_mask, input_ids"),
        (Word2VecConfig, "Expected a model that reads texts"),
    ):
        module = config.tiny().module(Purpose.PRETRAINING, Execution())
        with pytest.raises(UserError, match=sentence):
            Model(module, {}, loaded.tokenizer)(["One text."])
