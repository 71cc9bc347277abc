"""Scores of rows, LAMBADA's last words and BLiMP's pairs, against each text alone in transformers."""

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.special import log_softmax

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.data import tokenizers
from plmjax.data.unknown_tokens import UnknownTokens
from plmjax.errors import UserError
from plmjax.inference import language_model
from plmjax.inference.language_model import LanguageModel, Scores
from plmjax.inference.zero_shot import blimp, lambada, zero_shot
from plmjax.training.checkpoints import checkpoints
from tests.metric_names import undocumented
from tests.small_runs import DECODER_ROW
from tests.systems.modules import outputs

PAIRS = {
    ("syntax", "islands"): [("Who is it that left?", "Who it is that left?"), ("What did he see?", "What he did see?")],
    ("syntax", "gaps"): [("I know what you saw.", "I know that you saw.")],
    ("morphology", "agreement"): [("These books are old.", "These book are old."), ("He runs.", "He run.")],
}
CONTEXTS = ("a list", "it is the first", "when the name of a class is not", "an object that is a")


@pytest.fixture(scope="module")
def tokenizer(decoder_run: Path) -> tokenizers.Tokenizer:
    return tokenizers.load(decoder_run / "tokenizer")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("blimp")
    for (field, paradigm), sentences in PAIRS.items():
        rows = [{"sentence_good": a, "sentence_bad": b, "field": field, "UID": paradigm} for a, b in sentences]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{paradigm}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    return folder


def greedy_word(context: str, tokenizer, oracle) -> str | None:
    """The word that the model itself goes on with, where it goes on with one."""
    ids = [tokenizer.vocabulary.end, *tokenizer.encode(context)]
    word = tokenizer.decode([int(oracle(ids)[-1].argmax())])
    return word if word[:1] == " " and word[1:].isalpha() else None


@pytest.fixture(scope="module")
def passages(prose: Path, tokenizer, oracle) -> list[str]:
    """Passages that end in a word that the model gets right, in one whose beginning alone it gets right, in others."""
    words = prose.read_text(encoding="utf-8").split()
    contexts = (" ".join(words[start : start + 3]) for start in range(400))
    right = [(context, word) for context in contexts if (word := greedy_word(context, tokenizer, oracle))][:3]
    assert right
    longer = [f"{context}{word}xq" for context, word in right]
    return [context + word for context, word in right] + longer + [f"{context} word" for context in CONTEXTS]


@pytest.mark.nightly
def test_a_prefix_language_model_reads_the_passage_from_both_sides(prefix_run, tokenizer, passages, tmp_path):
    (tmp_path / "lambada.txt").write_text("\n".join(passages[:2]) + "\n", encoding="utf-8")
    params, description = checkpoints.load_parameters(prefix_run)
    module, nats = description.experiment.model.module(Purpose.PRETRAINING, Execution()), []
    for passage in passages[:2]:
        ids = [tokenizer.vocabulary.end, *tokenizer.encode(passage)]
        last = len(ids) - 1 - len(tokenizer.encode(passage.rpartition(" ")[0]))
        prefix = np.array([len(ids) - last])
        logits = outputs(module, params, {"input_ids": np.array([ids[:-1]]), "prefix_lengths": prefix}).logits
        chances = log_softmax(np.asarray(logits)[0, -last:], axis=-1)
        nats.append(-chances[np.arange(last), ids[-last:]].sum())
    found = zero_shot(prefix_run, "lambada", tmp_path / "lambada.txt")
    assert found["lambada/perplexity"] == pytest.approx(math.exp(np.mean(nats)), rel=1e-5)
    assert found["lambada/prefix"].startswith("the tokens of a row before the first one asked for")


@pytest.mark.parametrize("cuts", [False, True])
def test_last_words_are_those_of_transformers(decoder_run, tokenizer, oracle, passages, tmp_path, cuts):
    """In a window for all passages, and in one that holds the passage of median length to the last token."""
    path = tmp_path / "lambada.txt"
    path.write_text("\n".join(passages) + "\n\n", encoding="utf-8")
    rows = [[tokenizer.vocabulary.end, *tokenizer.encode(passage)] for passage in passages]
    window = sorted(len(ids) - 1 for ids in rows)[len(rows) // 2] if cuts else DECODER_ROW
    right, nats, cut = [], [], 0
    for passage, ids in zip(passages, rows, strict=True):
        last = len(ids) - 1 - len(tokenizer.encode(passage.rpartition(" ")[0]))
        cut += len(ids) - 1 > window
        ids = ids[-window - 1 :]
        scores = oracle(ids[:-1])[-last:]
        right.append((scores.argmax(axis=-1) == ids[-last:]).all())
        nats.append(-scores[range(last), ids[-last:]].sum())
    found = zero_shot(decoder_run, "lambada", path, window=window)
    assert found["lambada/accuracy"] == np.mean(right) and (cuts or 0 < np.mean(right) < 1)
    assert found["lambada/perplexity"] == pytest.approx(math.exp(np.mean(nats)), rel=1e-5)
    assert (found["lambada/passages"], found["lambada/cut"]) == (len(passages), cut)
    assert (cut > 0) == cuts
    assert found["lambada/unknown_words"] == 0 and not undocumented(found)


def test_pairs_are_those_of_transformers(decoder_run, tokenizer, oracle, pairs, tmp_path):
    def log_probability(sentence: str) -> float:
        ids = [tokenizer.vocabulary.end, *tokenizer.encode(sentence)]
        return oracle(ids)[range(len(ids) - 1), ids[1:]].sum()

    expected = {
        names: np.mean([log_probability(good) > log_probability(bad) for good, bad in sentences])
        for names, sentences in PAIRS.items()
    }
    found = zero_shot(decoder_run, "blimp", pairs, tmp_path / "out", window=64)
    for (field, paradigm), share in expected.items():
        assert found[f"blimp/{field}/{paradigm}"] == share
        assert found[f"blimp/{field}"] == np.mean([expected[names] for names in expected if names[0] == field])
    assert found["blimp/accuracy"] == pytest.approx(np.mean(list(expected.values())))
    assert found["blimp/pairs"] == 5 and found["blimp/unknown_tokens"] == 0 and not undocumented(found)
    assert json.loads((tmp_path / "out" / "evaluation.json").read_text()) == found


class Omniscient:
    """A language model to which every token is the likeliest."""

    window, begin = 8, 3

    def __init__(self, tokenizer: tokenizers.Tokenizer):
        self.tokenizer = tokenizer

    def score(self, rows, asked=None):
        counts = [len(row) - 1 for row in rows] if asked is None else asked
        return [Scores(np.zeros(count, np.float32), np.ones(count, bool)) for count in counts]


def test_what_the_tokenizer_lacks_is_counted_and_never_right(pairs, tmp_path):
    words = tokenizers.train("word", 8, ["one two what did he see"], tmp_path / "tokenizer")
    known = [word for word in ("one", "two") if words.encode(word) != [words.vocabulary.unknown]]
    (tmp_path / "lambada.txt").write_text(f"one {known[0]}\none three\n")
    found = lambada(Omniscient(words), tmp_path / "lambada.txt", UnknownTokens(words.vocabulary, 1))
    assert (found["accuracy"], found["unknown_words"]) == (0.5, 1)
    sentences = [sentence for group in PAIRS.values() for pair in group for sentence in pair]
    unknown = sum(words.encode(sentence).count(words.vocabulary.unknown) for sentence in sentences)
    with pytest.raises(UserError, match=r"Expected text that the tokenizer knows in .*lambada.txt, found 25.0%"):
        lambada(Omniscient(words), tmp_path / "lambada.txt", UnknownTokens(words.vocabulary))
    found = blimp(Omniscient(words), pairs, UnknownTokens(words.vocabulary, 1))
    assert found["unknown_tokens"] == unknown > 0
    assert found["accuracy"] == 0  # of two sentences that are as likely neither is preferred


def test_texts_may_be_as_long_as_the_window(pairs, tmp_path):
    """The longer of two passages with last words of one token is cut; a sentence is never cut."""
    words = tokenizers.train("word", 12, ["one two three four what did he see"], tmp_path / "tokenizer")
    model, unknown = Omniscient(words), lambda: UnknownTokens(words.vocabulary, 1)
    (tmp_path / "lambada.txt").write_text("one two\ntwo one two\n")
    for window, cut in ((3, 0), (2, 1), (1, 2)):
        model.window = window
        assert lambada(model, tmp_path / "lambada.txt", unknown())["cut"] == cut
    sentences = [sentence for group in PAIRS.values() for pair in group for sentence in pair]
    model.window = max(len(words.encode(sentence)) for sentence in sentences)
    assert blimp(model, pairs, unknown())["pairs"] == 5
    model.window -= 1
    with pytest.raises(UserError, match=f"sentences of 1 to {model.window} tokens in .*, found {model.window + 1} in"):
        blimp(model, pairs, unknown())


@pytest.mark.parametrize("given", [True, False])
def test_each_row_has_the_scores_of_its_last_tokens(given: bool, decoder_run, oracle, monkeypatch) -> None:
    """Thirteen rows of two widths in batches of three, as transformers scores each alone, without dropout."""
    monkeypatch.setattr(language_model, "ROWS", 3)
    model, draws = LanguageModel(decoder_run), np.random.default_rng(0)
    rows = [draws.integers(5, 300, 2 + 5 * row % 23).tolist() for row in range(1, 14)]
    counts = [1 + row % (len(tokens) - 1) for row, tokens in enumerate(rows)]
    found = model.score(rows, counts if given else None)
    for tokens, count, scores in zip(rows, counts, found, strict=True):
        asked = count if given else len(tokens) - 1
        expected = oracle(tokens[:-1])[-asked:]
        np.testing.assert_allclose(scores.nats, -expected[range(asked), tokens[-asked:]], rtol=1e-5, atol=1e-5)
        assert scores.likeliest.tolist() == (expected.argmax(axis=-1) == tokens[-asked:]).tolist()


def test_a_text_is_read_after_a_token_that_begins_it_in_the_window_of_the_run_or_that_asked_for(decoder_run) -> None:
    model = LanguageModel(decoder_run)
    assert model.begin == model.tokenizer.vocabulary.document_end >= 0
    assert (model.window, LanguageModel(decoder_run, 5).window) == (DECODER_ROW, 5)
