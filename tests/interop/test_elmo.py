"""ELMo's released files: the outputs of the released code, files written and read again, and mistakes in them."""

import dataclasses
import functools
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import chex
import flax.traverse_util
import h5py
import jax
import numpy as np
import pytest

from plmjax.data import tokenizers
from plmjax.errors import UserError
from plmjax.inference.embed import embed_file
from plmjax.interop import elmo, libraries
from plmjax.interop.conversion import write_tensors
from plmjax.interop.run_directories import export_checkpoint, import_checkpoint
from plmjax.layers.scalar_mix import mix_layers
from plmjax.layers.words.characters import sentence_marks, spell
from tests.families.recurrent import ELMO, WITHOUT_HIGHWAYS, released_tensors
from tests.optional import torch
from tests.paths import beside_the_checkout
from tests.systems.modules import random_params

PLAIN = dataclasses.replace(ELMO, **WITHOUT_HIGHWAYS)
WAYS = {"forward": "fwd", "backward": "bwd"}
CLOSE = {"rtol": 0, "atol": 2e-6}


@pytest.fixture(scope="module")
def released() -> dict[str, Any]:
    """The small model that the released code is tested with, its inputs, and what that code computes of them."""
    folder, found = beside_the_checkout("goldens"), {}
    for name in ("charcnn", "lstm"):
        with np.load(folder / f"elmo_bilmtf_{name}.npz") as arrays:
            found |= dict(arrays)
    return found


@pytest.fixture(scope="module")
def folder(released: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its options and its weights, as they were released."""
    path = tmp_path_factory.mktemp("elmo")
    (path / "options.json").write_text(json.dumps(json.loads(str(released["config"]))["hparams"]))
    with h5py.File(path / "lm_weights.hdf5", "w") as file:
        for name, array in released.items():
            if name.startswith("w/"):
                file[name[2:]] = array
    return path


@pytest.mark.nightly
def test_released_files_give_the_outputs_of_the_released_code(folder: Path, released: dict[str, Any]) -> None:
    """Words, layers, states and mixes of three texts, and of the sentences that go on from their states."""
    module, params, library, evidence = libraries.load(folder)
    assert (library, evidence) == ("allenai/bilm-tf", "options.json and lm_weights.hdf5")
    size, mix = module.config.projection_dim, json.loads(str(released["config"]))["mix"]

    characters, mask = padded([released[f"in/doc{document}_sent0_char_ids"] for document in range(3)])
    np.testing.assert_array_equal(characters[:, 0], np.tile(sentence_marks(50)[0], (3, 1)))
    whole = jax.jit(functools.partial(module.apply, output_hidden_states=True))
    first = whole({"params": params}, characters, mask)
    mixes = mix_layers(first.hidden_states, np.array(mix["w"], np.float32), mix["gamma"])
    for document, length in enumerate(mask.sum(axis=1)):
        hidden, name = np.asarray(first.hidden_states[:, document, :length]), f"out/doc{document}_sent0"
        np.testing.assert_allclose(hidden[0], np.tile(released[f"{name}_token_rep"], 2), **CLOSE)
        for layer, (place, way) in itertools.product((1, 2), enumerate(WAYS.values())):
            half = hidden[layer, :, place * size : (place + 1) * size]
            np.testing.assert_allclose(half, released[f"{name}_{way}_layer{layer}"], **CLOSE)
        np.testing.assert_allclose(mixes[document, 1 : length - 1], released[f"{name}_mix"], **CLOSE)
    assert_states(first.states, released, "sent0")

    words, mask = padded([released[f"in/doc{document}_sent1_token_rep"] for document in range(3)])
    second = jax.jit(goes_on, static_argnums=0)(module, params, words, mask=mask, states=first.states)
    assert_states({way: states for way, (_, states) in second.items()}, released, "sent1")
    for document, length in enumerate(mask.sum(axis=1)):
        for way, name in WAYS.items():
            expected = released[f"out/doc{document}_sent1_tf_expected_{name}_top"]
            np.testing.assert_allclose(second[way][0][document, 1 : length - 1], expected, **CLOSE)


def padded(rows: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """[B T ...] of rows of different lengths, and their mask."""
    lengths = np.array([len(row) for row in rows])
    filled = [np.pad(row, [(0, lengths.max() - len(row)), (0, 0)]) for row in rows]
    return np.stack(filled), np.arange(lengths.max()) < lengths[:, None]


def goes_on(module: elmo.ElmoModel, params: Any, words: jax.Array, *, mask: jax.Array, states: Any) -> dict[str, Any]:
    """Direction -> the outputs of the last layer, in the order of the text, and the states after it."""
    found = {}
    for way in WAYS:
        step = 1 if way == "forward" else -1
        method = lambda module, *inputs, way=way, **masks: getattr(module, way)(*inputs, **masks)  # noqa: E731
        inputs = {"params": params}, words[:, ::step], states[way]
        outputs, after = module.apply(*inputs, visible=mask[:, ::step], method=method)
        found[way] = outputs[-1][:, ::step], after
    return found


def assert_states(states: Any, released: dict[str, Any], sentence: str) -> None:
    for (way, name), document in itertools.product(WAYS.items(), range(3)):
        for layer, state in enumerate(states[way]):
            expected = f"out/doc{document}_{sentence}_{name}"
            np.testing.assert_allclose(state.cell[document], released[f"{expected}_c_{layer}"], **CLOSE)
            np.testing.assert_allclose(state.output[document], released[f"{expected}_m_{layer}"], **CLOSE)


@pytest.mark.parametrize("config", [ELMO, PLAIN], ids=["skip connections", "without"])
def test_what_is_written_is_read_again_bit_for_bit(config: Any, tmp_path: Path) -> None:
    """Under the names and in the layouts of the tensors that tests/families computes outputs and gradients from."""
    module = elmo.ElmoModel(config)
    params = random_params(module, deviation=0.5)
    elmo.save(module, params, tmp_path / "written")
    found, again = elmo.load(tmp_path / "written")
    assert found == module
    chex.assert_trees_all_equal(again, params)
    found = write_tensors(module, elmo.example(config), elmo.conversions(config), params)
    named = {path: torch.tensor(one) for path, one in flax.traverse_util.flatten_dict(params, sep="/").items()}
    chex.assert_trees_all_equal(found, {name: one.numpy() for name, one in released_tensors(config, named).items()})


@pytest.mark.nightly
def test_an_imported_model_embeds_words_that_no_vocabulary_has_and_is_exported(tmp_path: Path) -> None:
    """Layers and mixes of a line are those of its spelled words, whatever line stands beside it."""
    module = elmo.ElmoModel(ELMO)
    elmo.save(module, params := random_params(module, deviation=0.5), tmp_path / "source")
    tokenizers.train("word", 10, ["a b c d e a b"], tmp_path / "tokenizer", lowercase=False)
    said = import_checkpoint(tmp_path / "source", tmp_path / "run", tokenizer=tmp_path / "tokenizer")
    assert "(allenai/bilm-tf, by options.json and weights.hdf5)" in said
    (tmp_path / "lines").write_text("a Zoë\n\nb, c extraordinarily d\n", encoding="utf-8")
    begin, end = sentence_marks(ELMO.max_characters_per_token)
    lines = [["a", "Zoë"], [], ["b", ",", "c", "extraordinarily", "d"]]
    rows = [np.stack([begin, *spell(words, ELMO.max_characters_per_token), end]) for words in lines]
    whole = functools.partial(jax.jit(functools.partial(module.apply, output_hidden_states=True)), {"params": params})
    hidden, mix = whole(*padded(rows)).hidden_states, ("0.5", "-1.0", "2.0", "0.0")
    mixed = mix_layers(hidden, np.array(mix, np.float32))
    for settings, states in (({"layer": 0}, hidden[0]), ({}, hidden[-1]), ({"mix": [*mix]}, mixed)):
        settings |= {"pooling": "none", "batch_size": 2}
        embed_file(tmp_path / "run", tmp_path / "lines", tmp_path / "vectors.npz", **settings)
        with np.load(tmp_path / "vectors.npz") as found:
            assert found["lengths"].tolist() == [4, 2, 7] and not found["cut"].any()
            expected = np.concatenate([states[row, :length] for row, length in enumerate((4, 2, 7))])
            np.testing.assert_allclose(found["embeddings"], expected, rtol=0, atol=1e-6)
    assert "ElmoModel of step 0" in export_checkpoint(tmp_path / "run", tmp_path / "exported")
    chex.assert_trees_all_equal(elmo.load(tmp_path / "exported")[1], params)
    with pytest.raises(UserError, match="Expected --architecture ElmoModel for its own files, found 'BertModel'"):
        export_checkpoint(tmp_path / "run", tmp_path / "other", "BertModel")


def test_options_that_a_file_leaves_out_are_those_of_the_released_code(tmp_path: Path) -> None:
    """Its softmax has the published words, its dropout is a tenth, and it has no highways."""
    sizes = {"projection_dim": 5, "dim": 7, "n_layers": 3, "cell_clip": 4, "proj_clip": 2.5,
             "use_skip_connections": False}  # fmt: skip
    characters = {"activation": "relu", "filters": [[1, 4], [2, 3]], "embedding": {"dim": 6}, "n_characters": 261,
                  "max_characters_per_token": 11}  # fmt: skip
    given, file = {"lstm": sizes, "char_cnn": characters}, tmp_path / "options.json"
    sizes = sizes | {"max_characters_per_token": 11, "character_dim": 6, "filter_widths": (1, 2)}
    file.write_text(json.dumps(given))
    assert elmo.read_config(file) == elmo.ElmoConfig(793_471, **sizes, filter_counts=(4, 3), n_highway=0, dropout=0.1)
    characters |= {"n_highway": 1, "n_characters": 262}
    file.write_text(json.dumps(given | {"dropout": 0, "n_tokens_vocab": 12, "bidirectional": True}))
    assert elmo.read_config(file) == elmo.ElmoConfig(12, **sizes, filter_counts=(4, 3), n_highway=1, dropout=0.0)
    file.write_text(json.dumps(given | {"bidirectional": False}))
    with pytest.raises(UserError, match="found another bidirectional"):
        elmo.read_config(file)


OPTIONS = [
    ("lstm.n_layers", 2**31 - 1, r"Expected n_layers of at most \d+ in .*options\.json, .*found 2,147,483,647"),
    ("char_cnn.max_characters_per_token", 10**9, r"Expected max_characters_per_token of at most 4,096 in .*options"),
    ("lstm.proj_clip", "3", r"Expected the options of an ELMo in .*options\.json, .*'3', which is no finite number"),
    ("char_cnn.filters", [[1, 3], [2, 10**15]], r"as the config's filter_counts, .*found 1000000000000000; take"),
    ("n_tokens_vocab", 9.5, r"Expected the options of an ELMo in .*options\.json, .*9\.5, which is no whole number"),
    ("lstm.dim", 8, r"B \[28\] instead of \[32\]"),
    ("lstm.n_layers", 1, "that the model has no parameter for"),
    ("char_cnn.n_characters", 40, r"Expected 261 characters \(or 262 with that of padding\).* found another n_charact"),
]
"""Place of an option, a value that does not fit or asks for too much, and the sentence on it."""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a small ELMo."""
    folder = tmp_path_factory.mktemp("small")
    elmo.save(elmo.ElmoModel(ELMO), random_params(elmo.ElmoModel(ELMO), deviation=0.5), folder)
    return folder


def test_options_that_the_weights_do_not_hold_are_one_sentence(small: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(small, tmp_path / "elmo")
    for place, value, sentence in OPTIONS:
        options = group = json.loads((small / "options.json").read_text())
        *groups, name = place.split(".")
        for one in groups:
            group = group[one]
        group[name] = value
        (folder / "options.json").write_text(json.dumps(options))
        with pytest.raises(UserError, match=sentence):
            elmo.load(folder)


def test_mistakes_in_the_weights_are_named(small: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(small, tmp_path / "elmo")
    for tensor, changed, sentence in (
        ("char_embed", np.zeros((40, 3), np.float32), "Expected vectors of 261 characters, .* found 40"),
        ("CNN_proj/b_proj", None, "CNN_proj/b_proj missing"),
    ):
        shutil.copy(small / "weights.hdf5", folder)
        with h5py.File(folder / "weights.hdf5", "a") as file:
            del file[tensor]
            if changed is not None:
                file[tensor] = changed
        with pytest.raises(UserError, match=sentence):
            elmo.load(folder)
    (folder / "a.hdf5").write_bytes(b"")
    with pytest.raises(UserError, match=r"Expected one \.hdf5 file in .*a\.hdf5, weights"):
        elmo.load(folder)
