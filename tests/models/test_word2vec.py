"""word2vec from raw text to neighbours, by the commands; its sizes and its first vectors."""

import contextlib
import io
import re
import shlex
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax import cli
from plmjax.interop import word2vec
from plmjax.layers.execution import Execution
from plmjax.models.word2vec import Word2VecConfig
from plmjax.training import loop, metrics
from plmjax.word_vectors.vectors import read

PAGE = Path(__file__).resolve().parents[2] / "docs" / "word_vectors.md"
WORDS = [a + b for a in "bcdfg" for b in ("ar", "el", "in", "op", "un")]


def test_the_published_size_and_the_first_vectors():
    ids = jnp.zeros((1, 1), jnp.int32)
    shapes = jax.eval_shape(Word2VecConfig.google_news().for_pretraining(Execution()).init, jax.random.key(0), ids, ids)
    assert sum(leaf.size for leaf in jax.tree.leaves(nn.meta.unbox(shapes))) == 1_800_000_000
    module = Word2VecConfig(vocab_size=50, vector_size=40).for_pretraining(Execution())
    params = nn.meta.unbox(module.init(jax.random.key(0), ids, ids))["params"]
    inputs = np.asarray(params["input_vectors"]["embedding"])
    assert -1 / 80 <= inputs.min() < -0.012 and 0.012 < inputs.max() <= 1 / 80
    assert not params["output_vectors"]["embedding"].any()


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run on a text in which each word is one of five, which all stand beside the same others."""
    folder = tmp_path_factory.mktemp("word2vec")
    random = np.random.default_rng(0)
    documents = [" ".join(WORDS[5 * (i % 5) + random.integers(5)] for i in range(40)) for _ in range(400)]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n")
    options = (
        "--tokenizer.vocab_size 30 --model.vocab_size 30 --model.vector_size 12 --objective.window 1 "
        "--objective.threshold 0 --objective.row_updates 8 --data.held_out 0.1 --data.sequence_length 32 "
        "--training.batch_size 16 --training.steps 300 --training.evaluate_every 0 --checkpoint.every 0 "
        "--optimizer.learning_rate 0.1"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "devices", lambda platform: jax.devices()[:1])
        named = ["--workdir", f"{folder}/run", "--data.input", f"{folder}/text.txt"]
        with contextlib.redirect_stdout(io.StringIO()) as said:
            cli.run(["pretrain", "word2vec_tiny", *named, *options.split()])
    assert re.search(r"held-out   loss [\d.]+; from the counts of words alone [\d.]+\n", said.getvalue())
    return folder / "run"


def test_learns_which_words_stand_in_the_same_places(run):
    found = metrics.read(run / "metrics.jsonl")[-1]
    assert found["eval/loss"] < found["eval/unigram_loss"] - 0.2
    vectors = read(run)
    assert sorted(vectors.words) == sorted(WORDS) and vectors.vectors.shape == (25, 12)
    for place, word in enumerate(WORDS):
        alike = set(WORDS[place // 5 * 5 : place // 5 * 5 + 5]) - {word}
        assert {near for near, _ in vectors.nearest([word], top=4)} == alike


@pytest.mark.parametrize("form", ["text", "binary", "glove"])
def test_vectors_are_exported_in_every_form(run, form, tmp_path, capsys):
    cli.run(["export", str(run), str(tmp_path / "vectors"), "--vectors", form])
    assert f"25 vectors of 12 numbers to {tmp_path / 'vectors'} ({form})" in capsys.readouterr().out
    with word2vec.opened(tmp_path / "vectors") as tensors:
        assert list(tensors.words) == read(run).words
        np.testing.assert_array_equal(tensors.read(word2vec.VECTORS), read(run).vectors)


def test_what_has_no_vectors_and_what_transformers_does_not_know(run, fails, tmp_path, capsys):
    assert "Expected a run directory or a checkpoint" in fails("nearest", tmp_path, "bar")
    assert "found Word2Vec of a Word2VecConfig" in fails("export", run, tmp_path / "folder")
    assert "--architecture" in fails("export", run, tmp_path / "v", "--vectors", "text", "--architecture", "BertModel")


def test_the_commands_of_the_page(run, tmp_path, monkeypatch, capsys):
    """Of docs/word_vectors.md, in its order and with words of the text; that runs are trained is proved above."""
    blocks = re.findall(r"```bash\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    commands = [shlex.split(line)[1:] for block in blocks for line in block.splitlines()]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "word2vec_tiny").symlink_to(run)
    (tmp_path / "wordsim").mkdir()
    (tmp_path / "wordsim" / "pairs.txt").write_text("bar bel 9\nbar car 1\nBop cin 2.5\n")
    (tmp_path / "questions-words.txt").write_text(": same\nbar bel car cel\nbar bel dar xyz\n")
    others = {"array": "bar", "integers": "car", "integer": "cel"}
    assert len(commands) == 14
    for command in commands:
        if command[0] not in ("pretrain", "finetune"):
            cli.run([others.get(word, word) for word in command])
    shown = capsys.readouterr().out
    assert re.search(r"similarity/pairs +1\n", shown) and re.search(r"analogy/unknown_questions +1\n", shown)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert 'aria-label="Words of word2vec_tiny"' in page and all(f">{word}</text>" in page for word in others.values())
    assert re.search(r"similarity/pairs/pairs +3\n", shown) and "25 vectors of 12 numbers to vectors.txt" in shown
