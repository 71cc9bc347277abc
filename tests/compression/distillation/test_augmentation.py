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


def test_candidates_of_both_kinds(augmenter: Augmenter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are read one after the other have those of rows that are read together."""
    found = augmenter.candidates(TEXTS)
    monkeypatch.setattr(augmentation, "ROWS", 2)
    assert augmenter.candidates(TEXTS) == found and sum(map(len, found)) > 4
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


def test_the_share_is_that_of_the_replaced_words(augmenter: Augmenter) -> None:
    spans = {(0, 3): ["x"], (5, 8): ["y"]}

    def copies(fraction: float) -> list[str]:
        settings = dataclasses.replace(augmenter.settings, fraction=fraction)
        return dataclasses.replace(augmenter, settings=settings).copies("one, two of it", spans, (1, 0))

    assert copies(0.0) == []
    assert copies(1 - 1e-9) == ["x, y of it"]


def test_a_table_is_augmented_in_parts(
    augmenter: Augmenter, small_run: Path, vectors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The words of a further file stay, whatever their capitals."""
    monkeypatch.setattr(augmentation, "PART", 1)
    source, output, keep = (tmp_path / name for name in ("train.csv", "more.csv", "keep.txt"))
    keep.write_text("Class\nEXPRESSION\n", encoding="utf-8")
    lines = ["label,sentence", *(f'{number},"{text}"' for number, text in enumerate(TEXTS))]
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    read, written = augment(
        small_run, source, output, text=("sentence",), vectors=vectors, keep=keep, settings=augmenter.settings
    )
    header, *rows = csv.reader(output.read_text(encoding="utf-8").splitlines())
    assert header == ["label", "sentence"] and rows[0] == ["0", TEXTS[0]] and ["1", TEXTS[1]] in rows
    assert read == 2 and written == len(rows) > 4
    assert all((" class " in text) != (" Expression" in text) for _, text in rows)
    labels = [label for label, _ in rows]
    assert labels == sorted(labels)


def test_one_text_of_a_pair_is_replaced_at_a_time(augmenter: Augmenter, small_run: Path, vectors: Path, tmp_path):
    """Deviation named in the module."""
    pair = {"first": TEXTS[0], "second": TEXTS[1], "label": "1"}
    source, output, text = tmp_path / "pairs.jsonl", tmp_path / "more.jsonl", ("first", "second")
    source.write_text(json.dumps(pair) + "\n", encoding="utf-8")
    augment(small_run, source, output, text=text, vectors=vectors, settings=augmenter.settings)
    rows = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    changed = [tuple(name for name in pair if row[name] != pair[name]) for row in rows]
    assert changed[0] == () and {*changed[1:]} == {("first",), ("second",)}
