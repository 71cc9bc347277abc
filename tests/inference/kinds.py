"""A small run on every kind of task, with a labelled file and the same without labels."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.experiment import Experiment, Training
from plmjax.finetuning.tasks.choices import Choices, MultipleChoice
from plmjax.finetuning.tasks.label_sets import LabelSets, MultiLabelClassification
from plmjax.finetuning.tasks.questions import Questions, SpanExtraction
from plmjax.finetuning.tasks.sentences import Regression, Sentences, SequenceClassification
from plmjax.finetuning.tasks.tagging import Tagging, TokenTagging
from plmjax.training.checkpoints import checkpoints

WORDS = "the film was a fine plot of poor scenes and great actors".split()
COUNT = 23
KINDS = {
    "single": (Sentences(), SequenceClassification()),
    "pairs": (Sentences(text_pair="b"), SequenceClassification()),
    "numbers": (Sentences(), Regression()),
    "topics": (LabelSets(), MultiLabelClassification()),
    "choices": (Choices(), MultipleChoice()),
    "tagged": (Tagging(scheme="IOB2"), TokenTagging(entities=True)),
    "questions": (Questions(stride=6, question_length=8), SpanExtraction()),
}
Draw = Callable[[], str]
ROWS: dict[str, tuple[str, Callable[[Draw, int], dict[str, Any]]]] = {
    "single": ("tsv", lambda text, n: {"text": text(), "label": "abc"[n % 3]}),
    "pairs": ("csv", lambda text, n: {"label": ("no", "yes")[n % 2], "text": text(), "b": text()}),
    "numbers": ("jsonl", lambda text, n: {"text": text(), "label": n / 2}),
    "topics": ("jsonl", lambda text, n: {"text": text(), "label": list("abc"[: n % 4])}),
    "choices": ("jsonl", lambda text, n: {"context": text(), "choices": [text() for _ in range(3)], "label": n % 3}),
}


def table(path: Path, rows: list[dict]) -> str:
    """Rows as a table of the path's kind."""
    file = io.StringIO()
    if path.suffix == ".jsonl":
        file.writelines(json.dumps(row) + "\n" for row in rows)
    else:
        writer = csv.DictWriter(file, rows[0], delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writeheader()
        writer.writerows(rows)
    path.write_text(file.getvalue(), encoding="utf-8")
    return str(path)


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
    suffix, row = ROWS[kind]
    rows = [row(text, number) for number in range(COUNT)]
    bare = [{name: cell for name, cell in one.items() if name != "label"} for one in rows]
    return table(folder / f"{kind}.{suffix}", rows), table(folder / f"bare.{suffix}", bare)


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
