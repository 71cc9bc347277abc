"""GloVe from raw text to neighbours, by the commands; tests/families has its row."""

import re
from pathlib import Path

import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.data import cooccurrence
from plmjax.interop.word_vectors import read
from plmjax.training import metrics
from plmjax.training.checkpoints import checkpoints
from tests.models import alike_words

OPTIONS = (
    "--tokenizer.vocab_size 30 --model.vocab_size 30 --model.vector_size 40 --data.layout.window 2 "
    "--data.layout.held_out 0.04 --data.sequence_length 8 --training.batch_size 4 --training.evaluate_every 0 "
    "--checkpoint.every 0 --objective.x_max 100 --training.steps"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A small run, as short as commands need it."""
    return alike_words.trained(tmp_path_factory.mktemp("glove"), "glove_tiny", f"{OPTIONS} 20")


@pytest.mark.nightly
def test_learns_which_words_stand_in_the_same_places(tmp_path):
    learned = alike_words.trained(tmp_path, "glove_tiny", f"{OPTIONS} 600")
    found = metrics.read(learned / "metrics.jsonl")[-1]
    assert found["eval/loss"] < found["eval/unigram_loss"] / 4
    vectors = read(learned)
    assert vectors.vectors.shape == (25, 40)
    alike_words.check_neighbours(vectors)


def test_the_vectors_are_sums_and_what_is_asked_of_them_is_answered(run, tmp_path, capsys):
    params, _ = checkpoints.load_parameters(run)
    total = np.asarray(params["words"]["embedding"]) + np.asarray(params["contexts"]["embedding"])
    found = read(run)
    assert "<unk>" not in found.words  # which the released program writes
    assert {tuple(row) for row in found.vectors.tolist()} <= {tuple(row) for row in total.tolist()}
    cli.run(["export", str(run), str(tmp_path / "vectors.txt"), "--vectors", "glove"])
    np.testing.assert_array_equal(read(tmp_path / "vectors.txt").vectors, found.vectors)
    (tmp_path / "pairs.txt").write_text("bar bel 9\nbar car 1\nbop cin 2.5\n")
    cli.run(["evaluate", str(run), "--task", "similarity", "--data", str(tmp_path / "pairs.txt")])
    assert re.search(r"similarity/pairs/pairs +3\n", capsys.readouterr().out)


def test_the_count_is_the_commands(run, tmp_path, fails, capsys):
    """The run's count of its own dataset is what the command writes; another run names that folder."""
    output = tmp_path / "count"
    cli.run(["cooccurrence", str(run / "dataset"), "--output", str(output), "--window", "2", "--processes", "1"])
    assert re.search(r"cells      [\d,]+ of 25 words in ", capsys.readouterr().out)
    own = run / "dataset" / "cooccurrence"
    for name in ("manifest.json", "cells-00000.bin"):
        assert (output / name).read_bytes() == (own / name).read_bytes()
    cells = cooccurrence.open_cells(output)
    named = ["--data.path", run / "dataset", "--data.layout.path", output]
    said = fails("pretrain", "glove_tiny", "--workdir", tmp_path / "run", *named, *OPTIONS.split()[:6])
    assert "found --data.layout.window 2; set these or count again" in said and cells.count == 500
    more = ["--training.batch_size", "64"]
    said = fails("pretrain", "glove_tiny", "--workdir", tmp_path / "run", *named, *OPTIONS.split(), "600", *more)
    assert "lower --training.batch_size" in said
