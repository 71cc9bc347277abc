"""Every use of a checkpoint computes as its run does: in its dtype, with its kernels."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from plmjax.contracts.system import Purpose
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.experiment import Experiment
from plmjax.generation.generate import Generator
from plmjax.inference import fill_gaps as gaps
from plmjax.inference.embed import embed
from plmjax.inference.fill_gaps import fill_gaps
from plmjax.inference.fill_mask import fill_mask
from plmjax.inference.language_model import LanguageModel
from plmjax.training import program as programs
from plmjax.training.checkpoints import checkpoints, start
from tests.strangers import experiments


class Reached(Exception):
    """Ends a use of a checkpoint when the test has seen enough."""


class Words:
    """A tokenizer whose every text is two tokens."""

    vocabulary = Vocabulary(9, pad=0, cls=1, sep=2, mask=3, end=4, special=(0, 1, 2, 3, 4))

    def reading(self, special: tuple[int, ...]) -> "Words":
        return self

    def encode(self, text: str) -> list[int]:
        return [5, 6]

    def encode_arrays(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        return np.array([5, 6] * len(texts)), np.full(len(texts), 2)

    def tokens(self, ids: list[int]) -> list[str]:
        return [f"[{number}]" for number in ids]


def embedded(folder: Path) -> None:
    (folder / "text.txt").write_text("a text")
    embed("run", folder / "text.txt", folder / "out.npz")


@pytest.mark.parametrize(
    ("make", "purpose", "use"),
    [
        (experiments.bert, Purpose.EMBEDDING, embedded),
        (experiments.bert, Purpose.MASKED_TOKENS, lambda folder: fill_mask("run", "[MASK]")),
        (experiments.gpt2, Purpose.PRETRAINING, lambda folder: LanguageModel("run")),
        (experiments.bart, "a writer", lambda folder: fill_gaps("run", "a [MASK]")),
        (experiments.gpt2, "a generator", lambda folder: Generator.load("run")),
    ],
    ids=["embed", "fill mask", "language model", "fill gaps", "generate"],
)
def test_a_checkpoint_computes_as_its_run_says(
    make: Callable[[], Experiment],
    purpose: Purpose | str,
    use: Callable[[Path], Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    run, asked = make(), []

    def module(self: Any, purpose: Purpose, execution: Any, *heads: Any) -> None:
        asked.append((purpose, execution))
        raise Reached

    def writer(purpose: str, place: int) -> Callable[..., None]:
        def make(*given: Any, **named: Any) -> None:
            asked.append((purpose, given[place]))
            raise Reached

        return make

    monkeypatch.setattr(checkpoints, "find", lambda checkpoint: tmp_path)
    monkeypatch.setattr(
        checkpoints, "load_parameters", lambda checkpoint: ({}, SimpleNamespace(experiment=run, tokenizer={}))
    )
    monkeypatch.setattr(start, "tokenizer_of", lambda description: Words())
    monkeypatch.setattr(programs, "execution", lambda run, backend: ("the execution of", run, backend))
    monkeypatch.setattr(type(run.model), "module", module)
    monkeypatch.setattr(gaps, "Writer", writer("a writer", 3))
    monkeypatch.setattr(Generator, "__init__", lambda self, *given: writer("a generator", 3)(*given))
    with pytest.raises(Reached):
        use(tmp_path)
    assert asked == [(purpose, ("the execution of", run, "cpu"))]
