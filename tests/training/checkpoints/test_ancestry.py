"""The record of the checkpoints that a run was made from."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from plmjax.errors import UserError
from plmjax.training.checkpoints import ancestry
from plmjax.training.checkpoints.ancestry import Ancestor


def test_records_are_read_as_they_were_written_the_oldest_first(tmp_path: Path) -> None:
    made = [Ancestor("runs/a", 1200, "abc", "prune", {"density": 0.5}), Ancestor("runs/b", 0, "def", "distil", {})]
    assert ancestry.read(tmp_path) == []
    ancestry.write(tmp_path, made)
    assert ancestry.read(tmp_path) == made
    first, _ = json.loads((tmp_path / "ancestry.json").read_text())["ancestors"]
    assert first == {"from": "runs/a", "step": 1200, "sha256": "abc", "by": "prune", "settings": {"density": 0.5}}


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({}, "found another file (it has no ancestors); restore the file"),
        ({"ancestors": {}}, "(ancestors is no list but {}); restore the file"),
        ({"ancestors": [{"from": "runs/a"}]}, "(a part of ancestors has no step)"),
        (
            {"ancestors": [{"from": "a", "step": "1", "sha256": "", "by": "", "settings": {}}]},
            "step of a part of ancestors",
        ),
    ],
)
def test_another_file_of_that_name_is_refused(tmp_path: Path, contents: dict, message: str) -> None:
    (tmp_path / "ancestry.json").write_text(json.dumps(contents))
    with pytest.raises(UserError, match=re.escape(message)):
        ancestry.read(tmp_path)


def test_a_digest_is_of_paths_and_values_in_any_order() -> None:
    kernel = np.arange(6, dtype=np.float32).reshape(2, 3)
    params = {"a/kernel": kernel, "b/kernel": kernel + 1}
    own = ancestry.digest(params)
    assert own == ancestry.digest(dict(reversed(params.items())))
    assert own == ancestry.digest({name: np.asfortranarray(array) for name, array in params.items()})
    others = [
        {"a/kernel": kernel + 1, "b/kernel": kernel},
        {"a/kernel": kernel, "c/kernel": kernel + 1},
        {"a/kernel": kernel, "b/kernel": kernel + 2},
        {"a/kernel": kernel},
    ]
    assert len({own, *map(ancestry.digest, others)}) == 5
