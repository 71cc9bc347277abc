"""Further examples of a task: each word of a copy is the word itself, or one of its candidates."""

import csv
import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest

from plmjax.compression.distillation import augmentation
from plmjax.compression.distillation.augmentation import Augmenter, Settings, augment
from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose

TEXTS = ["The class of an object, in 3 words.", "an attribute of the Expression"]


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vectors of all words of the texts: a word and the same with x are the nearest."""
    words = sorted({word for text in TEXTS for word in text.lower().replace(",", " ").replace(".", " ").split()})
    draws, lines = np.random.default_rng(0), []
    for word in words:
        vector = draws.normal(size=8)
        lines += [" ".join([name, *map(str, vector + shift)]) for name, shift in ((word, 0), (f"{word}x", 0.01))]
    path = tmp_path_factory.mktemp("vectors") / "vectors.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def augmenter(small_run: Path, vectors: Path) -> Augmenter:
    settings = Settings(copies=30, candidates=5, fraction=0.5, kept=frozenset({"of"}))
    read = Augmenter.read(small_run, vectors, settings)
    # Parameters so large that predictions depend on the tokens around them.
    return dataclasses.replace(read, params=jax.tree.map(lambda leaf: 3 * leaf, read.params))


def test_candidates_of_both_kinds(augmenter: Augmenter) -> None:
    found = augmenter.candidates(TEXTS)
    tokenizer, config = augmenter.tokenizer, augmenter.config
    kinds = {1: 0, 2: 0}
    for text, spans in zip(TEXTS, found, strict=True):
        assert not {text[begin:end] for begin, end in spans} & {"of", "3"}
        for (begin, end), names in spans.items():
            word = text[begin:end]
            pieces = len(tokenizer.encode(word))
            kinds[min(pieces, 2)] += 1
            if pieces > 1:
                assert names[0].lower() == f"{word.lower()}x" and names[0].istitle() == word.istitle()
                continue
            ids = tokenizer.encode(text)
            masked = [*ids]
            place = len(tokenizer.encode(text[:begin]))
            masked[place] = tokenizer.vocabulary.mask
            row = config.template.lay_out((masked, ids), tokenizer.vocabulary)
            inputs = {"input_ids": np.array([row.tokens]), "token_type_ids": np.array([row.token_types])}
            module = config.module(Purpose.MASKED_TOKENS, Execution())
            logits = np.array(jax.jit(module.apply)({"params": augmenter.params}, **inputs).logits)[0, 1 + place]
            logits[list(tokenizer.vocabulary.special)] = -np.inf
            best = tokenizer.tokens(np.argsort(-logits, kind="stable")[:5].tolist())
            assert [name.lower() for name in names] == [token for token in best if not token.startswith("##")]
    assert min(kinds.values()) > 0, kinds


def test_rows_that_are_read_one_after_the_other_have_the_same_candidates(augmenter: Augmenter, monkeypatch) -> None:
    together = augmenter.candidates(TEXTS)
    monkeypatch.setattr(augmentation, "ROWS", 2)
    assert augmenter.candidates(TEXTS) == together and sum(map(len, together)) > 4


def test_copies(augmenter: Augmenter) -> None:
    text, (candidates, _) = TEXTS[0], augmenter.candidates(TEXTS)
    copies = augmenter.copies(text, candidates, (1, 0))
    assert copies == augmenter.copies(text, candidates, (1, 0)) != augmenter.copies(text, candidates, (2, 0))
    assert 1 < len(copies) == len({*copies, text}) - 1
    for copy in copies:
        rest = copy
        for place, (begin, end) in enumerate(sorted(candidates)):
            before = sorted(candidates)[place - 1][1] if place else 0
            gap = text[before:begin]
            assert rest.startswith(gap)
            rest = rest.removeprefix(gap)
            allowed = sorted({text[begin:end], *candidates[begin, end]}, key=len, reverse=True)
            word = next(word for word in allowed if rest.startswith(word))
            rest = rest.removeprefix(word)
        assert rest == text[max(candidates)[1] :]


def test_the_share_is_that_of_the_replaced_words(augmenter: Augmenter) -> None:
    spans = {(0, 3): ["x"], (5, 8): ["y"]}

    def copies(fraction: float) -> list[str]:
        settings = dataclasses.replace(augmenter.settings, fraction=fraction)
        return dataclasses.replace(augmenter, settings=settings).copies("one, two of it", spans, (1, 0))

    assert copies(0.0) == []
    assert copies(1 - 1e-9) == ["x, y of it"]


@pytest.mark.parametrize("suffix", [".tsv", ".jsonl", ".csv"])
def test_files(
    augmenter: Augmenter, small_run: Path, vectors: Path, tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read in parts; the words of a further file stay, whatever their capitals."""
    monkeypatch.setattr(augmentation, "PART", 1)
    keep = tmp_path / "keep.txt"
    keep.write_text("Class\nEXPRESSION\n", encoding="utf-8")
    lines = [json.dumps({"label": str(number), "sentence": text}) for number, text in enumerate(TEXTS)]
    if suffix != ".jsonl":
        mark, quote = ("\t", "") if suffix == ".tsv" else (",", '"')
        lines = [f"label{mark}sentence", *(f"{number}{mark}{quote}{text}{quote}" for number, text in enumerate(TEXTS))]
    source, output = tmp_path / f"train{suffix}", tmp_path / f"more{suffix}"
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    read, written = augment(
        small_run, source, output, text=("sentence",), vectors=vectors, keep=keep, settings=augmenter.settings
    )
    found = output.read_text(encoding="utf-8").splitlines()
    assert all((" class " in line) != (" Expression" in line) for line in found[suffix != ".jsonl" :])
    if suffix == ".csv":
        rows = list(csv.reader(found))
        assert rows[:2] == [["label", "sentence"], ["0", TEXTS[0]]] and ["1", TEXTS[1]] in rows
    assert read == 2 and written == len(found) - (suffix != ".jsonl") > 4
    assert found[: 1 + (suffix != ".jsonl")] == lines[: 1 + (suffix != ".jsonl")] or suffix == ".csv"
    labels = [json.loads(line)["label"] if suffix == ".jsonl" else line[0] for line in found]
    assert [label for label in labels if label != "l"] == sorted(label for label in labels if label != "l")


def test_one_text_of_a_pair_is_replaced_at_a_time(
    augmenter: Augmenter, small_run: Path, vectors: Path, tmp_path
) -> None:
    """Deviation named in the module."""
    pair, output = {"first": TEXTS[0], "second": TEXTS[1], "label": "1"}, tmp_path / "more.jsonl"
    (tmp_path / "pairs.jsonl").write_text(json.dumps(pair) + "\n", encoding="utf-8")
    augment(
        small_run,
        tmp_path / "pairs.jsonl",
        output,
        text=("first", "second"),
        vectors=vectors,
        settings=augmenter.settings,
    )
    rows = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    changed = [tuple(name for name in pair if row[name] != pair[name]) for row in rows]
    assert changed[0] == () and {*changed[1:]} == {("first",), ("second",)}
