"""Vectors of lines, on a model that has hardly learned: layers, mixes, pooling, both formats, a stop on the way."""

import json
import lzma

import numpy as np
import pytest

from plmjax.errors import UserError
from plmjax.files import storage
from plmjax.inference import embed as embedding
from plmjax.inference.embed import embed_file
from plmjax.training.checkpoints import checkpoints

TEXTS = ["the film was good", "a", "", "bad plot", "the actor was great the scene was awful a plot a film", "poor"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("layer", "pooling"), [(-1, "mean"), pytest.param(0, "cls", marks=pytest.mark.nightly), (-2, "cls"), (-1, "none")]
)
def test_embeds_every_line_as_transformers_does(small_run, texts, reference, tmp_path, layer, pooling):
    output = tmp_path / "out.npz"
    assert embed_file(small_run, texts, output, layer=layer, pooling=pooling, batch_size=4) == len(TEXTS)
    saved = np.load(output)
    for row, text in enumerate(TEXTS):
        expected = reference(text)[0][layer]
        if pooling == "none":
            found = saved["embeddings"][saved["offsets"][row] : saved["offsets"][row + 1]]
        else:
            found = saved["embeddings"][row]
            expected = expected[0] if pooling == "cls" else expected.mean(axis=0)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert saved["lengths"][row] == len(reference(text)[0][0]) and not saved["cut"][row]


def test_compressed_text_is_read_and_the_number_of_cut_texts_told(small_run, tmp_path, monkeypatch):
    monkeypatch.setattr(embedding, "BLOCK", 2)
    lines, said = ["film " * 200, "a film", "plot " * 200, 'a "cut": true}'], []
    (tmp_path / "a.xz").write_bytes(lzma.compress("\n".join(lines).encode()))
    embed_file(small_run, tmp_path / "a.xz", tmp_path / "a.npz", report=said.append)
    assert said == ["cut        2 of 4 texts, at the 128 tokens of the model's longest row"]
    saved = np.load(tmp_path / "a.npz")
    assert saved["cut"].tolist() == [True, False, True, False] and saved["lengths"].max() == 128
    embed_file(small_run, _text(tmp_path / "short.txt", "a film"), tmp_path / "short.npz", report=said.append)
    assert len(said) == 1


def _text(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_a_mix_of_layers_is_weighted_by_the_softmax_or_learned_on_a_task(small_run, texts, reference, tmp_path):
    embed_file(small_run, texts, tmp_path / "given.npz", mix=("0.5", "-1"))
    shares = np.exp([0.5, -1.0]) / np.exp([0.5, -1.0]).sum()
    means = np.stack([np.tensordot(shares, reference(text)[0], axes=1).mean(axis=0) for text in TEXTS])
    np.testing.assert_allclose(np.load(tmp_path / "given.npz")["embeddings"], means, atol=1e-5)
    params, description = checkpoints.load_parameters(small_run)
    learned = {"weights": np.float32([0.5, -1.0]), "scale": np.float32(3.0)}
    checkpoints.save_parameters(
        tmp_path / "run", params | {"scalar_mix": learned}, description.experiment, tokenizer=description.tokenizer
    )
    embed_file(tmp_path / "run", texts, tmp_path / "learned.npz", mix=("learned",))
    np.testing.assert_allclose(np.load(tmp_path / "learned.npz")["embeddings"], 3 * means, rtol=1e-5, atol=1e-5)


def test_json_lines_hold_the_same_numbers(small_run, texts, tmp_path):
    for pooling in ("cls", "none"):
        embed_file(small_run, texts, tmp_path / "out.npz", pooling=pooling)
        assert embed_file(small_run, texts, tmp_path / f"{pooling}.jsonl", pooling=pooling) == len(TEXTS)
        saved = np.load(tmp_path / "out.npz")
        rows = [json.loads(line) for line in (tmp_path / f"{pooling}.jsonl").read_text().splitlines()]
        assert [row["length"] for row in rows] == saved["lengths"].tolist() and not any(row["cut"] for row in rows)
        found = [vector for row in rows for vector in row.get("embeddings", [row.get("embedding")])]
        np.testing.assert_array_equal(np.array(found, np.float32), saved["embeddings"])
    assert [len(row["tokens"]) for row in rows] == saved["lengths"].tolist() and rows[1]["tokens"][1] == "a"


def stopping(monkeypatch, name, path):
    """Has the process stop where it comes to write this file."""
    write = getattr(storage, name)

    def stop(written, *contents):
        if written == path:
            raise KeyboardInterrupt
        return write(written, *contents)

    monkeypatch.setattr(storage, name, stop)


@pytest.mark.parametrize(
    ("suffix", "pooling"), [("npz", "none"), pytest.param("jsonl", "mean", marks=pytest.mark.nightly)]
)
def test_stopped_on_the_way_it_goes_on_and_ends_in_the_same_file(
    small_run, texts, tmp_path, monkeypatch, suffix, pooling
):
    """And with no other settings or text, even if the file has the same name."""
    monkeypatch.setattr(embedding, "BLOCK", 2)
    whole, halved, changed = tmp_path / f"whole.{suffix}", tmp_path / f"halved.{suffix}", tmp_path / "texts.txt"
    _text(changed, texts.read_text(encoding="utf-8"))
    embed_file(small_run, texts, whole, pooling=pooling)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stopping(patch, "write", tmp_path / f"halved.{suffix}.parts" / f"000001.{suffix}")
        embed_file(small_run, changed, halved, pooling=pooling)
    assert not halved.exists() and list((tmp_path / f"halved.{suffix}.parts").glob(f"*.{suffix}"))
    for other, name in (({"layer": 0}, "layer"), ({"pooling": "cls"}, "recipe")):
        with pytest.raises(UserError, match=f"another {name}"):
            embed_file(small_run, changed, halved, **{"pooling": pooling} | other)
    _text(changed, "a plot")
    with pytest.raises(UserError, match="another input"):
        embed_file(small_run, changed, halved, pooling=pooling)
    embed_file(small_run, texts, halved, pooling=pooling)
    assert not (tmp_path / f"halved.{suffix}.parts").exists()
    if suffix == "jsonl":
        assert halved.read_bytes() == whole.read_bytes()
        return
    first, second = np.load(whole), np.load(halved)
    assert first.files == second.files and ("offsets" in first.files) == (pooling == "none")
    for name in first.files:
        np.testing.assert_array_equal(first[name], second[name])


def test_a_line_without_tokens_has_no_vector_to_pool(classifiers, tmp_path, monkeypatch):
    """The model has no special tokens: [CLS] and [SEP] stand for an empty line."""
    monkeypatch.setattr(embedding, "BLOCK", 3)
    lines = _text(tmp_path / "lines.txt", "the\n\nthe plot\n")
    for pooling in ("mean", "cls"):
        with pytest.raises(UserError, match=r"one token to pool, found none in line 2 of .*lines\.txt; remove"):
            embed_file(classifiers / "one", lines, tmp_path / "lines.npz", pooling=pooling)
    embed_file(classifiers / "one", lines, tmp_path / "lines.npz", pooling="none")
    assert np.load(tmp_path / "lines.npz")["lengths"].tolist()[:2] == [1, 0]


def test_damaged_and_changed_parts_are_made_again(small_run, tmp_path, monkeypatch):
    """Whole or not, a part that is not the one that was written is never joined."""
    monkeypatch.setattr(embedding, "BLOCK", 1)
    whole, other = tmp_path / "whole.npz", tmp_path / "out.npz"
    texts = _text(tmp_path / "texts.txt", "a film\na plot\nfilm a\nplot a")  # of one length
    embed_file(small_run, texts, whole)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stopping(patch, "replace_file", other)
        embed_file(small_run, texts, other)
    parts = other.with_name(f"{other.name}.parts")
    names = sorted(path.name for path in parts.glob("*.npz"))
    assert len(names) > 3
    (parts / names[0]).write_bytes((parts / names[1]).read_bytes())  # sound, and of other lines
    (parts / names[1]).write_bytes((parts / names[1]).read_bytes()[:-5])
    (parts / f"{names[2]}.json").write_text("{")
    (parts / names[3]).unlink()
    embed_file(small_run, texts, other)
    assert other.read_bytes() == whole.read_bytes() and not parts.exists()
