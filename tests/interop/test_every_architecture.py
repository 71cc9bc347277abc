"""The import and the export of every architecture of every adapter: whole folders, with their tokenizers."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import flax.linen as nn
import pytest

from plmjax.contracts.execution import Execution
from plmjax.data import tokenizers
from plmjax.experiment import Data
from plmjax.finetuning.tasks.task import Task
from plmjax.interop import huggingface
from plmjax.interop.default_tasks import task_of
from plmjax.interop.run_directories import export_checkpoint, import_checkpoint
from tests.families import IN_TRANSFORMERS
from tests.optional import needs_torch
from tests.systems.comparison import architecture_name
from tests.systems.modules import random_params

TEXT = "The quick brown fox jumps over the lazy dog; two dogs, and (3.5) cats! naïve Zoë paid 日本"
KINDS: Mapping[str, tuple[str, int]] = {
    **dict.fromkeys(("bert", "distilbert", "electra", "mobilebert"), ("wordpiece", 80)),
    **dict.fromkeys(("albert", "deberta-v2", "reformer"), ("sentencepiece-unigram", 80)),
    **dict.fromkeys(("bart", "eurobert", "led", "longformer", "modernbert", "modernbert-decoder", "roberta"),
                    ("byte-bpe", 290)),
    **dict.fromkeys(("marian", "t5"), ("t5-unigram", 160)),
    "gpt2": ("gpt2-bpe", 290), "openai-gpt": ("bpe", 80), "xlnet": ("xlnet-unigram", 80),
}  # fmt: skip
"""Adapter -> kind of its tokenizer and number of tokens."""
DAY, NIGHT = "DistilBertForMaskedLM", pytest.mark.nightly
"""Other architectures by day are in test_import_export.py; 1 to 10 s each: pytest -m nightly tests/interop"""


class Case(NamedTuple):
    """An architecture of an adapter, and a module of it."""

    adapter: str
    architecture: str
    module: nn.Module


CASES = list(
    {
        (adapter, name): Case(adapter, name, module)
        for family in IN_TRANSFORMERS.values()
        for adapter in [next(name for name, known in huggingface.ADAPTERS.items() if known is family.adapter)]
        for module in reversed(family.checkpoints)
        for name in [architecture_name(family.adapter, module)]
    }.values()
)
"""One for each, of the first module that the table of systems has."""


def test_nothing_of_an_adapter_is_left_out() -> None:
    known = {(name, architecture) for name, one in huggingface.ADAPTERS.items() for architecture in one.architectures}
    assert {(case.adapter, case.architecture) for case in CASES} == known
    assert KINDS.keys() == huggingface.ADAPTERS.keys()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.adapter}-{case.architecture}")
def test_every_architecture_has_a_task_that_its_rows_fit(case: Case) -> None:
    objective, data = task_of(case.module)
    assert isinstance(data, Data | Task)
    longest = case.module.config.longest
    assert isinstance(data, Task) or longest is None or 1 < data.sequence_length <= longest
    if isinstance(data, Task):  # its objective trains a head of this class
        assert type(objective.module(case.module.config, Execution())) is type(case.module)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Kind -> folder of a tokenizer."""
    folder = tmp_path_factory.mktemp("tokenizers")

    def trained(adapter: str) -> Path:
        kind, size = KINDS[adapter]
        if not (folder / kind).exists():
            tokenizers.train(kind, size, [TEXT] * 4, folder / kind)
        return folder / kind

    return trained


@needs_torch
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(one, id=f"{one.adapter}-{one.architecture}", marks=() if one.architecture == DAY else NIGHT)
        for one in CASES
    ],
)
def test_an_architecture_is_imported_and_exported(case: Case, tokenizer: Callable[[str], Path], tmp_path: Path) -> None:
    folder, config = tokenizer(case.adapter), case.module.config
    vocabulary = tokenizers.load(folder).vocabulary
    fitting = {"vocab_size": max(vocabulary.size, config.vocab_size)}
    if vocabulary.pad >= 0 and hasattr(config, "pad_token_id"):
        fitting["pad_token_id"] = vocabulary.pad
    module = case.module.clone(config=dataclasses.replace(config, **fitting))
    huggingface.save(module, random_params(module), tmp_path / "source", tokenizer=folder)

    said = import_checkpoint(tmp_path / "source", tmp_path / "run")
    assert said.startswith(f"imported   {case.architecture} of ")
    assert "outputs equal those of transformers" in said and "its tokenizer gives the ids of transformers" in said
    said = export_checkpoint(tmp_path / "run", tmp_path / "out")
    assert "reads back bit for bit" in said and "of 8 texts and pairs are the run's" in said
    export_checkpoint(tmp_path / "run", tmp_path / "same", case.architecture)
    again, source = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("same", "source"))
    assert again == source
