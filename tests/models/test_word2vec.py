"""word2vec and GloVe from raw text to neighbours, by the commands; tests/families has their rows."""

import contextlib
import io
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.inference.evaluate import evaluate
from plmjax.interop import word2vec
from plmjax.interop.word_vectors import read
from plmjax.training import loop, metrics

WORDS = [a + b for a in "bcdfg" for b in ("ar", "el", "in", "op", "un")]
ALL = "--tokenizer.vocab_size 30 --model.vocab_size 30 --training.evaluate_every 0 --checkpoint.every 0"
WORD2VEC = (
    f"{ALL} --model.vector_size 12 --objective.window 1 --objective.threshold 0 --objective.row_updates 8 "
    "--data.held_out 0.1 --data.sequence_length 32 --training.batch_size 16 --optimizer.learning_rate 0.1"
)
GLOVE = (
    f"{ALL} --model.vector_size 40 --data.layout.window 2 --data.layout.held_out 0.04 --data.sequence_length 8 "
    "--training.batch_size 4 --objective.x_max 100"
)
PAGE = Path(__file__).resolve().parents[2] / "docs" / "word_vectors.md"


def trained(folder: Path, experiment: str, options: str) -> Path:
    """The run of an experiment on a text of which each word is one of five that stand beside the same others."""
    random = np.random.default_rng(0)
    documents = [" ".join(WORDS[5 * (i % 5) + random.integers(5)] for i in range(40)) for _ in range(400)]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n")
    named = ["--workdir", f"{folder}/run", "--data.input", f"{folder}/text.txt"]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        cli.run(["pretrain", experiment, *named, *options.split()])
    assert re.search(r"held-out   loss [\d.]+; with the counts of words only [\d.]+\n", said.getvalue())
    return folder / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A small run, as short as commands need it."""
    return trained(tmp_path_factory.mktemp("word2vec"), "word2vec_tiny", f"{WORD2VEC} --training.steps 20")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("experiment", "options", "size", "learned"),
    [
        ("word2vec_tiny", f"{WORD2VEC} --training.steps 300", 12, lambda found, counts: found < counts - 0.2),
        ("glove_tiny", f"{GLOVE} --training.steps 600", 40, lambda found, counts: found < counts / 4),
    ],
)
def test_learns_which_words_stand_in_the_same_places(experiment, options, size, learned, tmp_path):
    run = trained(tmp_path, experiment, options)
    found = metrics.read(run / "metrics.jsonl")[-1]
    assert learned(found["eval/loss"], found["eval/unigram_loss"])
    assert "eval/perplexity" not in evaluate(run)  # of choices between two classes, or of no words
    vectors = read(run)
    assert vectors.vectors.shape == (25, size) and sorted(vectors.words) == sorted(WORDS)
    for place, word in enumerate(WORDS):
        alike = set(WORDS[place // 5 * 5 : place // 5 * 5 + 5]) - {word}
        assert {near for near, _ in vectors.nearest([word], top=4)} == alike


@pytest.mark.parametrize("form", ["text", "binary", "glove"])
def test_vectors_are_exported_in_every_form(run, form, tmp_path, capsys):
    cli.run(["export", str(run), str(tmp_path / "vectors"), "--vectors", form])
    assert f"25 vectors of 12 numbers to {tmp_path / 'vectors'} ({form})" in capsys.readouterr().out
    with word2vec.open_tensors(tmp_path / "vectors") as tensors:
        assert list(tensors.words) == read(run).words
        np.testing.assert_array_equal(tensors.read(word2vec.VECTORS), read(run).vectors)


class Reached(Exception):
    """The command has come to its training."""


def test_the_commands_of_the_page(run, tmp_path, monkeypatch, capsys):
    """The commands of docs/word_vectors.md run in its order, with words of the text, up to the start of a training.

    The tests above prove the pretraining.
    """

    def reached(*given, **named):
        raise Reached

    blocks = re.findall(r"```bash\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    commands = [shlex.split(line)[1:] for block in blocks for line in block.splitlines()]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loop, "train", reached)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "word2vec_tiny").symlink_to(run)
    (tmp_path / "wordsim").mkdir()
    (tmp_path / "wordsim" / "pairs.txt").write_text("bar bel 9\nbar car 1\nBop cin 2.5\n")
    (tmp_path / "questions-words.txt").write_text(": same\nbar bel car cel\nbar bel dar xyz\n")
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text("sentence\tlabel\nbar bel\tgood\ncar cel\tbad\n")
    for name in ("a", "b"):
        (tmp_path / f"{name}.tsv").write_text("premise\thypothesis\tlabel\nbar\tbel\tyes\ncar\tdar\tno\n")
    others = {"array": "bar", "integers": "car", "integer": "cel"}
    assert len(commands) == 15 and sum(command[0] == "finetune" for command in commands) == 2
    for command in commands:
        if command[0] == "finetune":
            with pytest.raises(Reached):
                cli.run([*command, "--workdir", f"runs/{command[1]}"])
        elif command[0] != "pretrain":
            cli.run([others.get(word, word) for word in command])
    shown = capsys.readouterr().out
    assert re.search(r"similarity/pairs +1\n", shown) and re.search(r"analogy/unknown_questions +1\n", shown)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert 'aria-label="Words of word2vec_tiny"' in page and all(f">{word}</text>" in page for word in others.values())
    assert re.search(r"similarity/pairs/pairs +3\n", shown) and "25 vectors of 12 numbers to vectors.txt" in shown
    assert "imported   25 vectors of 12 numbers from vectors.txt to runs/vectors" in shown
