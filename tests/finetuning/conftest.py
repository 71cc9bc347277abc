"""A small task for the tests of fine-tuning."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plmjax.data import tokenizers
from plmjax.data.layouts import ContinuedPairs, FullSentences
from plmjax.experiment import Data, Experiment
from plmjax.finetuning.batches.source import TaskSource
from plmjax.models.bart.bart import BartConfig, BartForConditionalGeneration
from plmjax.models.xlnet.xlnet import XlnetConfig, XlnetForPreTraining
from plmjax.objectives.denoising import Denoising
from plmjax.objectives.permutation_language_model import PermutationLanguageModel
from plmjax.parallel.stopping import Interrupted
from plmjax.training.checkpoints import checkpoints
from tests.once import made_once
from tests.systems.modules import initial_params

WORDS = ["good", "fine", "great", "bad", "poor", "awful", "film", "plot", "actor", "scene", "the", "was", "a"]


@pytest.fixture(scope="session")
def sentiment(tmp_path_factory) -> tuple[str, str]:
    """(train, validation) files of sentences that are positive iff they hold a word of praise."""

    def make(folder: Path) -> None:
        draws = np.random.default_rng(0)
        for split, rows in (("train", 200), ("validation", 37)):
            lines = ["label\tsentence"]
            for _ in range(rows):
                positive = bool(draws.integers(2))
                judgement = draws.choice(WORDS[:3] if positive else WORDS[3:6])
                words = draws.choice(WORDS[6:], size=draws.integers(1, 9))
                label, words = "positive" if positive else "negative", [*words[:3], judgement, *words[3:]]
                lines.append(f"{label}\t{' '.join(words)}")
            (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")

    folder = made_once(tmp_path_factory, "sentiment", make)
    return str(folder / "train.tsv"), str(folder / "validation.tsv")


@contextlib.contextmanager
def stopping(after: int) -> Iterator[None]:
    """Runs on a task get SIGTERM at this batch, and have to end as interrupted ones."""
    train = TaskSource.train

    def batches(self: TaskSource, *arguments: Any) -> Iterator[Any]:
        for number, batch in enumerate(train(self, *arguments)):
            if number == after:
                os.kill(os.getpid(), signal.SIGTERM)
            yield batch

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupted, match="SIGTERM"):
        patch.setattr(TaskSource, "train", batches)
        yield


def saved_run(folder: Path, *, model: Any, module: Any, objective: Any, layout: Any) -> Path:
    """The run directory of a model of random parameters, with the tokenizer in the folder."""
    run = Experiment(model, objective, Data(layout, sequence_length=16))
    files = checkpoints.tokenizer_files(folder / "tokenizer")
    checkpoints.save_parameters(folder / "run", initial_params(module), run, tokenizer=files)
    return folder / "run"


@pytest.fixture(scope="session")
def bart_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BART whose tokenizer knows the words of the tasks."""
    folder = tmp_path_factory.mktemp("bart")
    tokenizer = tokenizers.train("byte-bpe", 300, [" ".join(WORDS)] * 3, folder / "tokenizer", lowercase=False)
    sizes = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    others = {"max_position_embeddings": 48, "dropout": 0.0, "init_std": 0.1}
    model = BartConfig.tiny(vocab_size=tokenizer.vocabulary.size, **sizes, **others)
    return saved_run(
        folder, model=model, module=BartForConditionalGeneration(model), objective=Denoising(), layout=FullSentences()
    )


@pytest.fixture(scope="session")
def xlnet_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An XLNet whose tokenizer knows the words of the tasks."""
    folder = tmp_path_factory.mktemp("xlnet")
    tokenizer = tokenizers.train("xlnet-unigram", 60, [" ".join([*WORDS, "what", "praise"])] * 20, folder / "tokenizer")
    sizes = {"d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 64}
    model = XlnetConfig(vocab_size=tokenizer.vocabulary.size, initializer_range=0.1, **sizes).with_dropout(0.0)
    return saved_run(
        folder,
        model=model,
        module=XlnetForPreTraining(model),
        objective=PermutationLanguageModel(),
        layout=ContinuedPairs(),
    )
