"""A small task for the tests of fine-tuning."""

import numpy as np
import pytest

WORDS = ["good", "fine", "great", "bad", "poor", "awful", "film", "plot", "actor", "scene", "the", "was", "a"]


@pytest.fixture(scope="session")
def sentiment(tmp_path_factory) -> tuple[str, str]:
    """(train, validation) files of sentences that are positive iff they hold a word of praise."""
    directory = tmp_path_factory.mktemp("task")
    draws = np.random.default_rng(0)
    paths = []
    for split, rows in (("train", 200), ("validation", 37)):
        lines = ["label\tsentence"]
        for _ in range(rows):
            positive = bool(draws.integers(2))
            judgement = draws.choice(WORDS[:3] if positive else WORDS[3:6])
            rest = draws.choice(WORDS[6:], size=draws.integers(1, 9))
            lines.append(f"{'positive' if positive else 'negative'}\t{' '.join([*rest[:3], judgement, *rest[3:]])}")
        path = directory / f"{split}.tsv"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        paths.append(str(path))
    return tuple(paths)
