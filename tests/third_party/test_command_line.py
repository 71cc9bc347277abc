"""A stranger is pretrained by the command line from raw text: tokenizer, dataset, run, resume."""

import re

import pytest

from plmjax.commands import cli
from plmjax.training import metrics


@pytest.mark.nightly
def test_pretrains_from_raw_text_and_goes_on(tmp_path, capsys):
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    sentences = [" ".join(words[(begin + i) % 9] for i in range(7)).capitalize() + "." for begin in range(9)]
    documents = [" ".join(sentences[(number + i) % 9] for i in range(12)) for number in range(60)]
    (tmp_path / "counting.txt").write_text("\n\n".join(documents) + "\n")
    arguments = ["pretrain", "tests/third_party/experiments.py:recurrent", "--workdir", str(tmp_path / "run")]
    arguments += ["--data.input", str(tmp_path / "counting.txt"), "--data.held_out", "0.2"]
    arguments += ["--tokenizer.vocab_size", "64", "--training.evaluation_batches", "2"]
    cli.run(arguments)
    assert re.search(r"step +8/8", capsys.readouterr().out)
    before = metrics.read(tmp_path / "run" / "metrics.jsonl")
    cli.run(arguments)
    assert metrics.read(tmp_path / "run" / "metrics.jsonl") == before
    assert [line["step"] for line in before] == [2, 4, 6, 8, 8] and "eval/unigram_entropy" in before[-1]
