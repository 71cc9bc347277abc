"""The commands and programs of docs/exports.md, in their order, on a small run."""

import dataclasses
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from plmjax import experiment
from plmjax.commands import cli
from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.interop import huggingface, word2vec
from plmjax.interop.run_directories import import_checkpoint
from plmjax.interop.word_vector_runs import import_vectors
from plmjax.interop.word_vectors import WordVectors
from plmjax.models.bert import BertConfig
from plmjax.training import metrics
from plmjax.training.optimizers import BertAdamW
from tests.interop.odd_bert import SIZES, random_params
from tests.interop.test_import_export import VOCABULARY
from tests.optional import needs_sentence_transformers
from tests.report.test_page import records

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "exports.md").read_text(encoding="utf-8")
SECTIONS = dict(part.split("\n", 1) for part in PAGE.split("\n## ")[1:])
SPEED = {"tokens_per_second": 4000.0, "model_flops_per_second": 3e9}


def executed(text: str, monkeypatch: pytest.MonkeyPatch) -> dict:
    """Runs the commands and programs of a part of the page, but no installation; the names that the programs define."""
    names: dict = {}
    for kind, block in re.findall(r"```(bash|python)\n(.*?)```", text, re.DOTALL):
        if kind == "python":
            exec(compile(block, "docs/exports.md", "exec"), names)
            continue
        for line in block.splitlines():
            program, *arguments = shlex.split(line)
            if program == "plmjax":
                monkeypatch.setattr("sys.argv", ["plmjax", *arguments])
                cli.main()
            elif program == "spacy":
                subprocess.run([sys.executable, "-m", program, *arguments], check=True, capture_output=True)
            else:
                assert line.startswith("pip install '.[sentences]'")
    return names


def test_every_section_with_commands_is_run() -> None:
    found = [name for name, text in SECTIONS.items() if "```bash" in text or "```python" in text]
    assert found == ["sentence-transformers", "A function of jax.export", "gensim", "spaCy", "Model cards"]


@pytest.fixture
def vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WordVectors:
    """Vectors of a few words, which are those of a run that the page names."""
    words = "array hstack doubles an of integers a list numbers".split()
    made = WordVectors("made", words, np.random.default_rng(0).normal(size=(len(words), 6)).astype(np.float32))
    word2vec.write(tmp_path / "given.txt", made.words, made.vectors)
    monkeypatch.chdir(tmp_path)
    import_vectors("given.txt", "runs/word2vec_tiny")
    return made


def test_gensim_finds_the_neighbors_of_the_run(vectors: WordVectors, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gensim", reason="needs gensim, which the extra `test` installs")
    found = executed(SECTIONS["gensim"], monkeypatch)["neighbors"]
    expected = vectors.nearest(["array"], top=3)
    assert [word for word, _ in found] == [word for word, _ in expected]
    np.testing.assert_allclose([cosine for _, cosine in found], [cosine for _, cosine in expected], atol=1e-6)


@pytest.mark.nightly
def test_spacy_opens_the_vectors_as_a_pipeline(vectors: WordVectors, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("spacy", reason="needs spaCy, which no extra installs: pip install spacy")
    means = []
    for text in ("an array of integers", "a list of numbers"):
        means.append(vectors.vectors[[vectors.row(word) for word in text.split()]].mean(axis=0))
    expected = means[0] @ means[1] / np.linalg.norm(means[0]) / np.linalg.norm(means[1])
    names = executed(SECTIONS["spaCy"], monkeypatch)
    assert names["similarity"] == pytest.approx(float(expected), abs=1e-6)
    assert not names["nlp"]("Array")[0].has_vector and not names["nlp"].pipe_names


@pytest.mark.nightly
@needs_sentence_transformers
def test_folders_and_cards_are_written_and_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = BertConfig(**(SIZES | {"max_position_embeddings": 32})).module(Purpose.ENCODING, Execution())
    huggingface.save(model, random_params(model), tmp_path / "there")
    (tmp_path / "there" / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    monkeypatch.chdir(tmp_path)
    import_checkpoint("there", "runs/bert_tiny")
    run = experiment.read(Path("runs/bert_tiny/experiment.json"))
    experiment.write(dataclasses.replace(run, optimizer=BertAdamW()), Path("runs/bert_tiny/experiment.json"))
    Path("runs/bert_tiny/metrics.jsonl").write_text("".join(map(metrics.to_line, records(**SPEED))), encoding="utf-8")
    Path("exported").mkdir()
    text = "\n".join(SECTIONS[name] for name in ("sentence-transformers", "A function of jax.export", "Model cards"))
    names = executed(text, monkeypatch)
    assert names["vectors"].shape == (2, SIZES["hidden_size"])
    assert names["outputs"]["last_hidden_state"].shape == (8, 32, SIZES["hidden_size"])
    assert Path("exported/README.md").read_text(encoding="utf-8").startswith("---\n")
