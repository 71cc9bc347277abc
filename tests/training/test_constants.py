"""The data that the constants of a run are made from."""

from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError
from plmjax.training import constants
from plmjax.training.checkpoints import checkpoints
from plmjax.training.checkpoints.checkpoints import Description
from tests.third_party import experiments


def test_tokens_that_the_text_lacks_are_counted_as_none() -> None:
    """A model may have more tokens than the text, and a task counts none."""
    vocabulary, description = Vocabulary.placeholder(5), Description(experiments.gpt2(), 0, {})
    for counts, expected in ((np.array([7, 0, 3]), [7, 0, 3, 0, 0]), (None, [0] * 5)):
        found = constants.of_run(vocabulary, counts, description).token_counts
        assert found.tolist() == expected and found.dtype == np.int64


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"lm": {"kernel": np.full((2, 3), 7.0), "bias": np.ones(3)}, "other": np.ones(9)}, ""),
        ({"lm": {"kernel": np.ones((3, 2)), "bias": np.ones(3)}}, r"lm/kernel of shape \(2, 3\) .*, found \(3, 2\)"),
        ({"lm": {"kernel": np.ones((2, 3))}}, r"lm/bias of shape \(3,\) .*runs/lm, found no such parameter"),
    ],
)
def test_parameters_of_another_checkpoint_have_the_axes_of_their_module(
    found: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(key: jax.Array) -> dict[str, Any]:
        kernel = nn.LogicallyPartitioned(jax.random.normal(key, (2, 3)), ("embed", "mlp"))
        return {"lm": {"kernel": kernel, "bias": jnp.zeros(3)}}

    monkeypatch.chdir(tmp_path)
    checkpoints.save_parameters(Path("runs/lm"), found, experiments.gpt2(), tokenizer={})
    sources = constants.of_run(Vocabulary.placeholder(5), None, Description(experiments.gpt2(), 0, {}))
    if message:
        with pytest.raises(UserError, match=message):
            sources.parameters("runs/lm", init)
        return
    params = sources.parameters("runs/lm", init)["lm"]
    assert params["kernel"].names == ("embed", "mlp") and (params["bias"] == 1).all()
    np.testing.assert_array_equal(params["kernel"].value, found["lm"]["kernel"])
