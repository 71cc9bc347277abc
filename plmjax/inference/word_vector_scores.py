"""Scores of word vectors: human similarity ratings, and analogies.

Similarity (WordSim-353, Finkelstein et al. 2002; RG-65; MTurk-287): lines of two words and a number. The score is
Spearman's rank correlation between these numbers and the cosines of the words' vectors.

Analogy (Mikolov et al., ICLR 2013 workshop; questions-words.txt): lines of four words a b c d, under headings such as
": family". A question is answered correctly if d, among all words except a, b and c, has the largest cosine with
b - a + c, computed from vectors of length 1 (3CosAdd).

As in compute-accuracy.c of word2vec, case is ignored: words that differ only in case are one word, with the vector of
the first. Pairs and questions with a word that has no vector are left out and counted.
"""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from plmjax.errors import UserError, check_choice, quoted
from plmjax.files import storage
from plmjax.files.decimals import decimal
from plmjax.interop.word_vectors import WordVectors
from plmjax.training.metrics import write_evaluation

SYNTACTIC = "gram"
"""Prefix of the names of syntactic categories. All other categories are semantic."""


def score(vectors: WordVectors, task: str, data: str | Path, output: str | Path | None = None) -> dict[str, Any]:
    """Return the scores of word vectors on published word lists.

    Args:
        task: "similarity", where `data` is a file of pairs or a folder of such files, or "analogy", where it is one
            file. Files may be compressed.
        output: folder for evaluation.json.

    Returns:
        for "similarity", of each file NAME.txt: "similarity/NAME", the rank correlation; "similarity/NAME/pairs", the
            number of scored pairs; and "similarity/NAME/unknown_pairs", the number of pairs that were left out because
            a word has no vector.
        for "analogy": "analogy/accuracy" over all scored questions; "analogy/semantic", "analogy/syntactic" and
            "analogy/CATEGORY" over the questions of one group or category, left out if there are none; and
            "analogy/questions" and "analogy/unknown_questions", the numbers of questions that are scored and left out.

    Raises:
        UserError: a file does not belong to the task, or fewer than two pairs or no questions are left.
    """
    check_choice("--task", task, TASKS)
    metrics = {
        f"{task}/{name}": value for name, value in TASKS[task](vectors.without_case(), storage.path(data)).items()
    }
    if output is not None:
        storage.path(output).mkdir(parents=True, exist_ok=True)
        write_evaluation(storage.path(output), metrics, {})
    return metrics


def similarity(vectors: WordVectors, path: Path) -> dict[str, Any]:
    """Return the rank correlation and the numbers of pairs of each file. `vectors` must be without case."""
    from scipy.stats import spearmanr

    from plmjax.data import formats

    metrics: dict[str, Any] = {}
    for file in formats.files([path]):
        pairs = _pairs(file)
        known = [(vectors.rows[a], vectors.rows[b], number) for a, b, number in pairs if {a, b} <= vectors.rows.keys()]
        if len(known) < 2:
            raise UserError(
                f"Expected vectors of both words of two or more pairs of {file}, found {len(known)} such pairs of "
                f"{len(pairs)} in {vectors.origin}; take vectors of more words."
            )
        first, second, numbers = map(np.array, zip(*known, strict=True))
        cosines = np.sum(vectors.directions[first] * vectors.directions[second], axis=1)
        name = file.name.split(".")[0]
        metrics[name] = float(spearmanr(cosines, numbers).statistic)
        metrics[f"{name}/pairs"], metrics[f"{name}/unknown_pairs"] = len(known), len(pairs) - len(known)
    return metrics


def _pairs(path: Path) -> list[tuple[str, str, float]]:
    from plmjax.data import text_files

    pairs = []
    for number, line in enumerate(text_files.lines(path), start=1):
        fields = line.split()
        try:
            if fields:
                first, second, value = fields
                pairs.append((first.lower(), second.lower(), decimal(value)))
        except ValueError:
            raise UserError(
                f"Expected two words and a number in line {number} of {path}, found {quoted(line)}; correct the line."
            ) from None
    return pairs


def analogy(vectors: WordVectors, path: Path) -> dict[str, Any]:
    """Return accuracies and the numbers of questions. `vectors` must be without case."""
    right: dict[str, list[bool]] = defaultdict(list)
    unknown = 0
    for category, questions in _questions(path).items():
        known = [[vectors.rows[word] for word in four] for four in questions if set(four) <= vectors.rows.keys()]
        unknown += len(questions) - len(known)
        a, b, c, d = np.array(known, np.int64).reshape(-1, 4).T
        directions = vectors.directions
        found = vectors.nearest_rows(directions[b] - directions[a] + directions[c], np.stack([a, b, c], axis=1))
        right[category] = (found == d).tolist()
    answered = [hit for hits in right.values() for hit in hits]
    if not answered:
        raise UserError(
            f"Expected vectors of all four words of a question of {path}, found none in {vectors.origin}; take vectors "
            "of more words."
        )
    groups = {"semantic": [], "syntactic": []}
    for category, hits in right.items():
        groups["syntactic" if category.startswith(SYNTACTIC) else "semantic"] += hits
    return {
        "accuracy": float(np.mean(answered)),
        **{name: float(np.mean(hits)) for name, hits in [*groups.items(), *right.items()] if hits},
        "questions": len(answered),
        "unknown_questions": unknown,
    }


def _questions(path: Path) -> dict[str, list[list[str]]]:
    """Return a dict from category to its questions, each of four words."""
    from plmjax.data import text_files

    questions: dict[str, list[list[str]]] = {}
    category = None
    for number, line in enumerate(text_files.lines(path), start=1):
        fields = line.lower().split()
        if fields[:1] == [":"] and len(fields) == 2:
            category = fields[1]
            questions.setdefault(category, [])
        elif fields and (category is None or len(fields) != 4):
            raise UserError(
                f"Expected four words under a heading (: category) in line {number} of {path}, found {quoted(line)}; "
                "correct the line."
            )
        elif fields:
            questions[category].append(fields)
    return questions


TASKS = {"similarity": similarity, "analogy": analogy}
