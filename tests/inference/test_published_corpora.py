"""Published corpora are counted as their papers count, and texts by models whose state goes from row to row."""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.data import formats, tokenizers
from plmjax.data.formats.corpora import CORPORA
from plmjax.data.layouts import BidirectionalStreams, Windows
from plmjax.errors import UserError
from plmjax.experiment import Data, Experiment, Training
from plmjax.inference.evaluate import evaluate
from plmjax.models.awd_lstm import AwdLstmConfig
from plmjax.objectives.awd_lstm import AwdLstmPretraining
from plmjax.objectives.bidirectional_language_model import BidirectionalLanguageModel
from plmjax.training.checkpoints import checkpoints
from tests.data.formats.published import DECLARED, WIKITEXT, WORDS, write
from tests.families.recurrent import ELMO
from tests.systems.modules import random_params


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """The declarations of small corpora in place of those of the published ones."""
    with pytest.MonkeyPatch.context() as patch:
        for name, corpus in DECLARED.items():
            patch.setitem(CORPORA, name, corpus)
        yield


@pytest.fixture(autouse=True)
def one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight would read the text in eight parts."""
    monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[:1])


def test_perplexity_is_of_words_and_line_ends(decoder_run, tmp_path):
    """A model of byte-level pieces: its nats are divided by words all the same."""
    folder = write("wikitext-103", tmp_path)
    found = evaluate(decoder_run, folder, format="wikitext-103", split="validation")
    tokenizer = tokenizers.load(decoder_run / "tokenizer")
    (document,) = formats.documents([folder], format="wikitext-103", split="validation")
    tokens = [*itertools.chain.from_iterable(map(tokenizer.encode, formats.prose(document))), tokenizer.vocabulary.end]
    assert found["eval/tokens"] == len(tokens) - 1
    nats = found["eval/loss"] * (len(tokens) - 1)
    assert found["eval/word_perplexity"] == pytest.approx(math.exp(nats / WORDS["validation"]))
    assert found["eval/bits_per_byte"] == pytest.approx(nats / math.log(2) / len(WIKITEXT["validation"].encode()))
    assert evaluate(decoder_run, folder, format="wikitext-103", split="test")["eval/words"] == WORDS["test"]


TEXT = "a film of the plot .\nit was a scene .\n\nthe film was it and a plot of it .\n"
SENTENCES, TOLD = 3, 21
SIZE = 19


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("carried")
    (folder / "text.txt").write_text(TEXT)
    tokenizers.train("word", SIZE, [TEXT], folder / "tokenizer")
    return folder / "text.txt"


def saved(text: Path, run: Experiment, params: Any, name: str) -> Path:
    """A run of one place, so that all of the text is one row after another."""
    run = dataclasses.replace(run, training=Training(batch_size=1, unroll=1))
    checkpoints.save_parameters(
        text.parent / name, params, run, tokenizer=checkpoints.tokenizer_files(text.parent / "tokenizer")
    )
    return text.parent / name


def test_every_token_is_told_from_all_before_it_in_its_document(text: Path) -> None:
    config = AwdLstmConfig(vocab_size=SIZE, embedding_size=6, hidden_size=10, num_layers=1)
    module = config.module(Purpose.PRETRAINING, Execution())
    params = random_params(module)
    data = Data(layout=Windows(overlap=3), sequence_length=9)
    run = saved(text, Experiment(config, AwdLstmPretraining(), data), params, "awd_lstm")
    tokenizer = tokenizers.load(run / "tokenizer")
    end = tokenizer.vocabulary.document_end
    ids = [token for part in TEXT.split("\n\n") for token in (*tokenizer.encode(" ".join(part.split())), end)]
    found = evaluate(run, text)
    given, asked = np.array([ids[:-1]]), np.array([ids[1:]])
    apply = jax.jit(lambda: module.apply({"params": params}, given, starts=given == end).scores.cross_entropy(asked))
    nats, _ = apply()
    assert found["eval/tokens"] == len(ids) - 1 == TOLD + 1
    assert found["eval/loss"] == pytest.approx(float(nats.mean()), rel=1e-5)
    assert found["eval/bits_per_byte"] == pytest.approx(float(nats.sum()) / math.log(2) / found["eval/bytes"], rel=1e-5)
    with pytest.raises(UserError, match="Expected no --stride for a model that carries its state"):
        evaluate(run, text, stride=4)


@pytest.mark.nightly
def test_a_model_that_reads_both_ways_has_a_perplexity_for_each(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text, with its sentences' ends, is told twice."""
    config = dataclasses.replace(ELMO, vocab_size=SIZE, n_layers=1)
    kernel = 9 * np.random.default_rng(0).normal(size=(SIZE, config.projection_dim)).astype(np.float32)
    params = {
        "elmo": random_params(config.module(Purpose.ENCODING, Execution()), deviation=0.5),
        "softmax_kernel": kernel,
        "softmax_bias": 0 * kernel[:, 0],
    }
    data = Data(layout=BidirectionalStreams(), sequence_length=7)
    run = saved(text, Experiment(config, BidirectionalLanguageModel(negatives=4), data), params, "elmo")
    spelling = np.random.default_rng(1).integers(1, 200, (SIZE, config.max_characters_per_token))
    monkeypatch.setattr(checkpoints, "load_constants", lambda directory, abstract: {"spelling": jnp.asarray(spelling)})
    one = evaluate(run, text)
    perplexities = {way: one[f"eval/{way}_perplexity"] for way in ("forward", "backward")}
    assert perplexities == {way: pytest.approx(math.exp(one[f"eval/{way}_nats"])) for way in perplexities}
    assert one["eval/tokens"] == TOLD + SENTENCES and one["eval/words"] == TOLD
    assert perplexities["forward"] != pytest.approx(perplexities["backward"], rel=1e-2)
    assert one["eval/perplexity"] == pytest.approx(math.sqrt(math.prod(perplexities.values())), rel=1e-5)
    for way, perplexity in perplexities.items():
        bits = math.log2(perplexity) * one["eval/tokens"]
        assert one[f"eval/{way}_bits_per_byte"] == pytest.approx(bits / len(TEXT.replace("\n\n", "\n")), rel=1e-5)
