"""The language model of these tests in transformers, and small runs on a task."""

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.experiment import Experiment, Training
from plmjax.finetuning.tasks.questions import Questions, SpanExtraction
from plmjax.finetuning.tasks.sentences import Sentences, SequenceClassification
from plmjax.finetuning.tasks.tagging import Tagging, TokenTagging
from plmjax.models.baselines.static_vectors import StaticVectorsConfig
from plmjax.training.checkpoints import checkpoints
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


WORDS = "the film was a fine plot of poor scenes and great actors".split()
COUNT = 23
KINDS = {
    "single": (Sentences(), SequenceClassification()),
    "tagged": (Tagging(scheme="IOB2"), TokenTagging(entities=True)),
    "questions": (Questions(stride=6, question_length=8), SpanExtraction()),
}


def files(kind: str, folder: Path) -> tuple[str, str]:
    """(labelled file, the same without labels)."""
    draws = np.random.default_rng(0)

    def text() -> str:
        return " ".join(draws.choice(WORDS, draws.integers(2, 9)))

    if kind == "tagged":
        texts = [text().split() for _ in range(COUNT)]
        texts[3] += WORDS * 5  # more than a row holds
        for name, tag in (
            ("tagged", lambda word: f"{word}\t{'B-A' if len(word) > 4 else 'O'}\n"),
            ("bare", "{}\n".format),
        ):
            (folder / f"{name}.conll").write_text("\n".join("".join(map(tag, words)) for words in texts))
        return str(folder / "tagged.conll"), str(folder / "bare.conll")
    if kind == "questions":
        texts = [" ".join(text() for _ in range(3)) for _ in range(COUNT)]
        for name in ("asked", "bare"):
            paragraphs = []
            for number, context in enumerate(texts):
                word = context.split()[2]
                answers = [{"text": word, "answer_start": context.index(word)}] if number % 4 else []
                judged = {"answers": answers, "is_impossible": not answers} if name == "asked" else {}
                entries = [{"id": f"q{number}{part}", "question": "what was fine?", **judged} for part in "ab"]
                paragraphs.append({"context": context, "qas": entries})
            (folder / f"{name}.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
        return str(folder / "asked.json"), str(folder / "bare.json")
    texts = [text() for _ in range(COUNT)]
    rows = "".join(f"{text}\t{'abc'[number % 3]}\n" for number, text in enumerate(texts))
    (folder / "single.tsv").write_text(f"text\tlabel\n{rows}")
    (folder / "bare.tsv").write_text("\n".join(["text", *texts]) + "\n")
    return str(folder / "single.tsv"), str(folder / "bare.tsv")


def make(kind: str, pretrained: Path, folder: Path) -> tuple[Path, str, str]:
    """(checkpoint, labelled file, the same without labels); drawn so large that predictions differ.

    Labels of words differ by the word, whatever the tokenizer made of this Python's documentation.
    """
    labelled, bare = files(kind, folder)
    data, objective = KINDS[kind]
    data = type(data)(**vars(data) | {"train": labelled, "sequence_length": 32, "pack": 3})
    description = checkpoints.describe(checkpoints.find(pretrained))
    model, objective = description.experiment.model, objective.fit_labels(data.read("train"))
    init = jax.jit(objective.module(model, Execution()).init)
    drawn = init(jax.random.key(1), jnp.ones((1, 4), jnp.int32))["params"]
    flat = flax.traverse_util.flatten_dict(jax.tree.map(np.asarray, flax.core.meta.unbox(drawn)))
    large = {"kernel", "word_embeddings"} if kind == "tagged" else {"kernel"}
    flat = {path: leaf if large.isdisjoint(path) else 12 * leaf for path, leaf in flat.items()}
    run = Experiment(model=model, objective=objective, data=data, training=Training(batch_size=8, unroll=1))
    checkpoints.save_parameters(
        folder / "run", flax.traverse_util.unflatten_dict(flat), run, tokenizer=description.tokenizer
    )
    return folder / "run", labelled, bare


@pytest.fixture(scope="session")
def tuned(small_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, str, str]]:
    """Kind of a task -> (checkpoint, labelled file, the same without labels)."""
    return functools.cache(lambda kind: make(kind, small_run, tmp_path_factory.mktemp(kind)))
