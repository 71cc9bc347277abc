"""Arrays that a checkpoint stores in int8."""

import jax
import numpy as np
import pytest

from plmjax.data.layouts import FullSentences
from plmjax.errors import UserError
from plmjax.experiment import Data, Experiment
from plmjax.training.checkpoints import checkpoints, items, stored

VALUES = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)


@pytest.mark.parametrize("shared", [(1, 2), (1,), (0, 1, 2)])
def test_the_published_rule(shared: tuple[int, ...]) -> None:
    form = stored.encode(VALUES, shared)
    scale = 127 / np.abs(VALUES).max(axis=shared, keepdims=True)
    assert form["int8"].dtype == np.int8 and form["scale"].dtype == np.float32
    np.testing.assert_array_equal(form["int8"], np.round(VALUES * scale))
    assert np.abs(form["int8"]).max(axis=shared).min() == 127
    back = stored.decode({"a": {"kernel": form}})["a"]["kernel"]
    assert back.dtype == np.float32 and np.all(np.abs(back - VALUES) <= 0.5001 / scale)
    again = stored.encode(back, shared)
    np.testing.assert_array_equal(again["int8"], form["int8"])


def test_other_arrays_are_left_as_they_are_and_zeros_stay_zeros() -> None:
    tree = {"norm": {"scale": VALUES}, "layer": {"kernel": stored.encode(np.zeros((2, 3)), (1,)), "bias": VALUES}}
    assert stored.paths(tree) == ["layer/kernel"] and stored.paths((VALUES, VALUES)) == []
    found = stored.decode(tree)
    assert found["norm"]["scale"] is VALUES and found["layer"]["bias"] is VALUES
    assert np.all(tree["layer"]["kernel"]["scale"] == 1) and not np.any(found["layer"]["kernel"])


def saved(tmp_path, form) -> tuple:
    run = Experiment(None, None, Data(FullSentences()))
    checkpoints.save_parameters(tmp_path / "run", {"kernel": form, "bias": VALUES[0]}, run, tokenizer={})
    return checkpoints.find(tmp_path / "run"), {"bias": VALUES[0].shape, "kernel": VALUES.shape}


def described(shapes) -> dict:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("data",))
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    places = {"kernel": place, "bias": whole}
    return {name: jax.ShapeDtypeStruct(shape, np.float32, sharding=places[name]) for name, shape in shapes.items()}


def test_a_checkpoint_gives_float32_on_any_mesh(tmp_path) -> None:
    form = stored.encode(VALUES, (1,))
    directory, shapes = saved(tmp_path, form)
    assert items.int8_paths(directory, "params") == ["kernel"]
    expected = {"kernel": form["int8"] / form["scale"], "bias": VALUES[0]}
    found, placed = (items.restore(directory, "params", abstract) for abstract in (None, described(shapes)))
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)
        np.testing.assert_array_equal(placed[name], value)
        assert placed[name].sharding == described(shapes)[name].sharding
    with pytest.raises(UserError, match=r"expected params/kernel of shape \(2, 5, 4\), found \(2, 5, 3\)"):
        items.restore(directory, "params", described(shapes | {"kernel": (2, 5, 4)}))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"int8": VALUES}, "kernel is stored as float32 with scales of float32"),
        ({"scale": np.ones((2, 1, 4), np.float32)}, r"kernel of shape \(2, 5, 3\) has scales of shape \(2, 1, 4\)"),
        ({"scale": np.zeros((2, 1, 3), np.float32)}, "kernel has a scale that is not above 0"),
    ],
)
def test_a_form_that_nobody_wrote_is_a_damaged_checkpoint(tmp_path, changes, sentence) -> None:
    directory, _ = saved(tmp_path, stored.encode(VALUES, (1,)) | changes)
    with pytest.raises(UserError, match=f"Expected a whole checkpoint in .*{sentence}; remove that folder"):
        items.restore(directory, "params", None)
