"""A text of which each word is one of five that stand beside the same others, and what vectors must learn from it."""

import contextlib
import io
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.interop.word_vectors import WordVectors
from plmjax.training import loop

WORDS = [a + b for a in "bcdfg" for b in ("ar", "el", "in", "op", "un")]


def trained(folder: Path, experiment: str, options: str) -> Path:
    """The run of an experiment on such a text, by the command and on one device."""
    random = np.random.default_rng(0)
    documents = [" ".join(WORDS[5 * (i % 5) + random.integers(5)] for i in range(40)) for _ in range(400)]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "devices", lambda platform: jax.devices()[:1])
        named = ["--workdir", f"{folder}/run", "--data.input", f"{folder}/text.txt"]
        with contextlib.redirect_stdout(io.StringIO()) as said:
            cli.run(["pretrain", experiment, *named, *options.split()])
    assert re.search(r"held-out   loss [\d.]+; with the counts of words only [\d.]+\n", said.getvalue())
    return folder / "run"


def check_neighbours(vectors: WordVectors) -> None:
    """The four words that are nearest to each are those that stand in its places."""
    assert sorted(vectors.words) == sorted(WORDS)
    for place, word in enumerate(WORDS):
        alike = set(WORDS[place // 5 * 5 : place // 5 * 5 + 5]) - {word}
        assert {near for near, _ in vectors.nearest([word], top=4)} == alike
