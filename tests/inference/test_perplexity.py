"""Windows that slide over a text give every token once, with the context that they promise."""

import dataclasses
import math
from pathlib import Path

import jax
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.data import tokenizers
from plmjax.data.preparation import prepare
from plmjax.inference import perplexity
from plmjax.inference.evaluate import evaluate
from plmjax.training.checkpoints import checkpoints
from tests.metric_names import undocumented
from tests.small_runs import DECODER_ROW
from tests.third_party import experiments

TEXT = (
    "A First line of text, è.\nAnd a second one:\n\nanother document  which is short.\n\nThe END of it all, 7 times.\n"
)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def tokens(decoder_run: Path) -> list[int]:
    """The documents' sentences with single spaces, and the end token after each document."""
    tokenizer = tokenizers.load(decoder_run / "tokenizer")
    documents = [" ".join(document.split()) for document in TEXT.split("\n\n")]
    return [token for document in documents for token in (*tokenizer.encode(document), tokenizer.vocabulary.end)]


@pytest.mark.parametrize(("window", "stride"), [(24, 7), pytest.param(64, 64, marks=pytest.mark.nightly)])
def test_every_token_is_told_once_from_the_context_of_its_window(decoder_run, text, tokens, oracle, window, stride):
    expected, contexts = 0.0, []
    for token in range(1, len(tokens)):
        first = stride * max(0, math.ceil((token - window) / stride))
        contexts.append(token - first)
        expected -= oracle(tokens[first:token])[-1, tokens[token]]
    assert all(window - stride < context <= window for context in contexts[window:])
    found = evaluate(decoder_run, text, window=window, stride=stride)
    assert (found["eval/window"], found["eval/stride"], found["eval/tokens"]) == (window, stride, len(tokens) - 1)
    assert found["eval/loss"] == pytest.approx(expected / (len(tokens) - 1), abs=1e-5)
    assert found["eval/perplexity"] == pytest.approx(math.exp(found["eval/loss"]))


@pytest.mark.nightly
@pytest.mark.parametrize(("window", "stride"), [(24, 7), (24, 24)])
def test_a_prefix_language_model_takes_what_is_not_asked_for_as_its_prefix(
    decoder_run, prefix_run, text, tokens, window, stride
):
    params, description = checkpoints.load_parameters(prefix_run)
    module, expected = description.experiment.model.module(Purpose.PRETRAINING, Execution()), 0.0

    @jax.jit
    def nats(row, place, prefix):
        likely = jax.nn.log_softmax(module.apply({"params": params}, row[None], prefix_lengths=prefix[None]).logits[0])
        return -likely[place - 1, row[place]]

    for token in range(1, len(tokens)):
        first = stride * max(0, math.ceil((token - window) / stride))
        row = np.pad(tokens[first : token + 1], (0, window - token + first))
        expected += float(nats(row, token - first, np.int32(window - stride + 1 if first else 1)))
    found = evaluate(prefix_run, text, window=window, stride=stride)
    assert found["eval/loss"] == pytest.approx(expected / (len(tokens) - 1), abs=1e-5)
    assert found["eval/prefix"] == "the tokens of a row before the first one asked for, at least 1"
    causal = evaluate(decoder_run, text, window=window, stride=stride)["eval/loss"]
    assert (found["eval/loss"] == pytest.approx(causal, rel=1e-6)) == (stride == window)  # a prefix of one token


@pytest.mark.nightly
def test_the_window_as_stride_is_the_evaluation_of_the_run(decoder_run, prose, tmp_path):
    tokenizer = tokenizers.load(decoder_run / "tokenizer")
    some = tmp_path / "some.txt"
    some.write_text(prose.read_text(encoding="utf-8")[:20_000], encoding="utf-8")
    prepare([some], "text", tokenizer, tmp_path / "dataset", validation=0.3, progress=False)
    own = evaluate(decoder_run, tmp_path / "dataset")
    found = evaluate(decoder_run, tmp_path / "dataset", stride=DECODER_ROW)
    assert own.items() <= found.items()
    assert found.keys() - own.keys() == {"eval/window", "eval/stride", "eval/tokens"}
    assert evaluate(decoder_run, tmp_path / "dataset", stride=DECODER_ROW // 2)["eval/tokens"] == found["eval/tokens"]


def test_names_in_raw_text_are_read_as_the_run_does(decoder_run: Path, tmp_path: Path) -> None:
    """The setting of the run counts unless another is given."""
    (tmp_path / "text.txt").write_text("A line of text </s> and another one </s>", encoding="utf-8")
    params, description = checkpoints.load_parameters(decoder_run)
    own = description.experiment
    own = dataclasses.replace(own, data=dataclasses.replace(own.data, special_names=("</s>",)))
    checkpoints.save_parameters(tmp_path / "run", params, own, tokenizer=description.tokenizer)
    plain, named = (evaluate(tmp_path / "run", tmp_path / "text.txt", **given) for given in ({"special_names": ()}, {}))
    assert plain["eval/tokens"] == named["eval/tokens"] + 2 * (len("</s>") - 1)


def test_bits_are_of_the_text_as_it_was_written(decoder_run, text, tokens):
    found = evaluate(decoder_run, text)
    lines = [line for line in TEXT.splitlines(keepends=True) if line.strip()]
    size = len("".join(lines).encode()), len("".join(lines)), len(TEXT.split())
    assert (found["eval/bytes"], found["eval/characters"], found["eval/words"]) == size
    assert not undocumented(found)
    nats = found["eval/loss"] * (len(tokens) - 1)
    assert found["eval/bits_per_byte"] == pytest.approx(nats / math.log(2) / size[0])
    assert found["eval/bits_per_character"] == pytest.approx(nats / math.log(2) / size[1])
    assert found["eval/word_perplexity"] == pytest.approx(math.exp(nats / size[2]))
    assert (found["eval/lowercased"], found["eval/unknown_tokens"]) == (False, 0)


def test_what_a_tokenizer_leaves_out_is_said(tmp_path, text):
    words = tokenizers.train("word", 12, ["a first line of text and the end"], tmp_path / "tokenizer")
    dataset = prepare([text], "text", words, tmp_path / "dataset", validation=0, max_unknown=1, progress=False)
    unknown = words.encode(TEXT).count(words.vocabulary.unknown)
    assert unknown > 10 and perplexity.unknown_tokens(words, dataset.all_held_out()).count == unknown
    assert perplexity.lowercases(words)
    # One that knows neither "a" nor "A" keeps the capitals of the words that it knows.
    names = tokenizers.from_words(["It", "The"], tmp_path / "names")
    assert not perplexity.lowercases(names)


def test_the_window_is_by_default_that_of_the_runs_evaluations() -> None:
    run = experiments.changed(experiments.gpt2(), training={"evaluation_sequence_length": 24})
    assert [perplexity.row_length(run, window) for window in (1, 32)] == [1, 32]  # to all positions of the model
    assert [perplexity.row_length(one, None) for one in (experiments.gpt2(), run)] == [16, 24]
    for window, length in ((None, 24), (20, 20)):
        slid = perplexity.with_sliding_window(run, window)
        assert (slid.data.sequence_length, slid.training.evaluation_sequence_length) == (length, 0)
