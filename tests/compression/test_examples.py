"""The examples on which a checkpoint is measured are those that its run was trained on."""

import types
from pathlib import Path
from typing import Any

import pytest

from plmjax.compression import examples
from plmjax.data import mixture, remote
from plmjax.data.layouts import Blocks
from plmjax.experiment import Data, Experiment, Mixture, Training
from plmjax.models.bert import BertConfig
from plmjax.objectives.masked_language_model import MaskedLanguageModel

TOKENIZER = types.SimpleNamespace(vocabulary="vocabulary", fingerprint="fingerprint")


@pytest.fixture(autouse=True)
def tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples.start, "tokenizer_of", lambda description: TOKENIZER)


def test_a_task_has_its_rows_to_train_on_and_those_to_evaluate_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "task_source", lambda *arguments: arguments)
    run = types.SimpleNamespace(data=types.SimpleNamespace(read=lambda split: f"rows to {split}"))
    found = examples.examples_of(types.SimpleNamespace(description=None), run)
    assert found == (run, "rows to train", "rows to validation", TOKENIZER)


def test_a_run_on_text_has_its_rows_in_its_own_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In the order of its seed, shuffled as the run shuffles them; of another tokenizer they are refused."""
    opened: list[Any] = []
    dataset = types.SimpleNamespace(check_tokenizer=lambda *arguments: opened.append(arguments))
    monkeypatch.setattr(
        remote, "open_dataset", lambda *arguments, **named: opened.append((arguments, named)) or dataset
    )
    monkeypatch.setattr(remote, "source", lambda *arguments: arguments)
    data = Data(layout=Blocks(), cache_limit="3MB", shuffle_window=77)
    run = Experiment(BertConfig(vocab_size=99), MaskedLanguageModel(), data, training=Training(seed=5))
    source = types.SimpleNamespace(description=None, dataset=lambda run: str(tmp_path))
    assert examples.examples_of(source, run) == (Blocks(), dataset, "vocabulary", 5, 77)
    (arguments, named), (fingerprint, *_) = opened
    assert (arguments, named, fingerprint) == ((tmp_path, 3_000_000), {"vocab_size": 99}, "fingerprint")


def test_a_run_on_a_mixture_has_its_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them have the tokenizer of the checkpoint."""
    opened: list[Any] = []

    def dataset(name: str) -> Any:
        return types.SimpleNamespace(check_tokenizer=lambda fingerprint, *_: opened.append((name, fingerprint)))

    datasets = {name: dataset(name) for name in ("web", "books")}
    monkeypatch.setattr(mixture, "open_sources", lambda *arguments: opened.append(arguments) or datasets)
    monkeypatch.setattr(mixture, "source_of", lambda *arguments: arguments)
    sources = Mixture(sources=("web=/web", "books=/books"))
    data = Data(layout=Blocks(), mixture=sources, cache_limit="3MB", shuffle_window=77)
    run = Experiment(BertConfig(vocab_size=99), MaskedLanguageModel(), data, training=Training(seed=5))
    found = examples.examples_of(types.SimpleNamespace(description=None), run)
    assert found == (Blocks(), sources, datasets, "vocabulary", 5, 77)
    assert opened == [(sources, 3_000_000, 99), ("web", "fingerprint"), ("books", "fingerprint")]
