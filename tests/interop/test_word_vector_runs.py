"""A file of word vectors as a run that every command reads."""

from pathlib import Path

import jax
import numpy as np

from plmjax.commands import cli
from plmjax.interop import word2vec
from plmjax.interop.word_vectors import read
from plmjax.training import loop
from plmjax.training.checkpoints import checkpoints

WORDS = ["the", "good", "<unk>", "bad", "good", "[MASK]"]
NUMBERS = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)


def test_a_file_becomes_a_run_that_serves_a_task(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(loop, "devices", lambda platform: jax.devices()[:1])
    word2vec.write(tmp_path / "vectors", WORDS, NUMBERS, "glove")
    cli.run(["import", str(tmp_path / "vectors"), str(tmp_path / "run")])
    assert f"3 vectors of 5 numbers from {tmp_path / 'vectors'} to {tmp_path / 'run'}" in capsys.readouterr().out
    found = read(tmp_path / "run")
    assert found.words == ["the", "good", "bad"]
    np.testing.assert_array_equal(found.vectors, NUMBERS[[0, 1, 3]])  # the first of a word that stands there twice

    params, description = checkpoints.load_parameters(tmp_path / "run")
    table, tokenizer = params["static_vectors"]["words"]["embedding"], description.load_tokenizer()
    np.testing.assert_array_equal(table[tokenizer.encode("THE worst, good")], [*NUMBERS[[0, 2, 2, 1]]])
    assert not table[tokenizer.vocabulary.pad].any()

    (tmp_path / "rows.tsv").write_text("text\tlabel\n" + "the good\tyes\nthe bad\tno\n" * 8)
    task = ["--data.train", str(tmp_path / "rows.tsv"), "--data.validation", str(tmp_path / "rows.tsv")]
    sizes = "--optimizer.frozen encoder --finetuning.epochs 40 --data.sequence_length 16 --finetuning.evaluations 0.025"
    tuned = ["--from", str(tmp_path / "run"), "--workdir", str(tmp_path / "task"), *task, *sizes.split()]
    cli.run(["finetune", "static_vectors", *tuned])
    assert "accuracy 1.0000" in capsys.readouterr().out
    params, _ = checkpoints.load_parameters(tmp_path / "task")
    np.testing.assert_array_equal(params["static_vectors"]["words"]["embedding"], table)


def test_capital_letters_are_kept_where_words_have_them(tmp_path: Path) -> None:
    word2vec.write(tmp_path / "vectors", ["May", "may"], NUMBERS[:2])
    cli.run(["import", str(tmp_path / "vectors"), str(tmp_path / "run")])
    tokenizer = checkpoints.describe(checkpoints.find(tmp_path / "run")).load_tokenizer()
    may, other = tokenizer.encode("May may")
    assert may != other and not {may, other} & {*tokenizer.vocabulary.special}


def test_what_cannot_be_is_said_in_one_sentence(tmp_path: Path, fails) -> None:
    word2vec.write(tmp_path / "vectors", WORDS, NUMBERS, "binary")
    said = fails("import", tmp_path / "vectors", tmp_path / "run", "--architecture", "BertModel")
    assert "Expected neither --architecture nor --tokenizer" in said
    whole = (tmp_path / "vectors").read_bytes()
    (tmp_path / "vectors").write_bytes(whole[:-30])
    assert "Expected 6 words in" in fails("import", tmp_path / "vectors", tmp_path / "run")
    assert not (tmp_path / "run").exists()
