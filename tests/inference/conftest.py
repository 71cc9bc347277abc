"""The language model of these tests in transformers, and small runs on a task."""

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.experiment import Experiment, Training
from plmjax.finetuning.tasks.sentences import Sentences, SequenceClassification
from plmjax.models.baselines.static_vectors import StaticVectorsConfig
from plmjax.training.checkpoints import checkpoints
from tests.inference import kinds
from tests.optional import torch, transformers
from tests.systems.modules import random_params

Oracle = Callable[[Sequence[int]], np.ndarray]


@pytest.fixture(scope="session")
def oracle(decoder_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    """Tokens -> log-probabilities of the token after each, float64 [T V], of `decoder_run` in transformers."""

    from plmjax.interop.run_directories import export_checkpoint

    folder = tmp_path_factory.mktemp("exported")
    export_checkpoint(decoder_run, folder)
    model = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()

    def log_probabilities(tokens: Sequence[int]) -> np.ndarray:
        with torch.no_grad():
            return torch.log_softmax(model(torch.tensor([list(tokens)])).logits[0].double(), -1).numpy()

    return log_probabilities


LABELS = ("a", "b", "c")
TEXTS = [{"text": f"a film {number} of the plot", "label": LABELS[number % 3]} for number in range(7)]


@pytest.fixture(scope="session")
def classifiers(small_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs on one task, of models of different widths and of rows of different lengths; one on other labels."""
    folder = tmp_path_factory.mktemp("members")
    (folder / "dev.jsonl").write_text("".join(json.dumps(text) + "\n" for text in TEXTS))
    description = checkpoints.describe(checkpoints.find(small_run))
    for name, width, labels in (("one", 4, LABELS), ("two", 6, LABELS), ("other", 4, ("a", "b"))):
        config = StaticVectorsConfig(description.experiment.model.vocab_size, width)
        objective = SequenceClassification(labels=labels)
        data = Sentences(validation=str(folder / "dev.jsonl"), sequence_length=8 * width, pack=width)
        params = jax.tree.map(lambda leaf: 4 * leaf, random_params(objective.module(config, Execution())))
        run = Experiment(model=config, objective=objective, data=data, training=Training(batch_size=2, unroll=1))
        checkpoints.save_parameters(folder / name, params, run, tokenizer=description.tokenizer)
    return folder


@pytest.fixture(scope="session")
def tuned(small_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, str, str]]:
    """Kind of a task -> (checkpoint, labelled file, the same without labels)."""
    return functools.cache(lambda kind: kinds.make(kind, small_run, tmp_path_factory.mktemp(kind)))
