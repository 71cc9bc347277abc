"""Vectors of lines, on a model that has hardly learned: layers, mixes, pooling, both formats, a stop on the way."""

import dataclasses
import gzip
import json
import lzma
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.template import Template
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError
from plmjax.experiment import Checkpoint, Experiment, Finetuning, Training
from plmjax.finetuning.tasks.tagging import Tagging, TokenTagging
from plmjax.inference import embed as embedding
from plmjax.inference.embed import embed
from plmjax.inference.readings import Reading
from plmjax.interop import huggingface
from plmjax.layers.text_vectors import TextVectors
from plmjax.runs.finetuning import finetune
from plmjax.training.checkpoints import checkpoints
from plmjax.training.optimizers import BertAdamW

TEXTS = ["the film was good", "a", "", "bad plot", "the actor was great the scene was awful a plot a film", "poor"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(("layer", "pooling"), [(-1, "mean"), (0, "cls"), (-1, "none")])
def test_embeds_every_line_as_transformers_does(small_run, texts, reference, tmp_path, layer, pooling):
    output = tmp_path / "out.npz"
    assert embed(small_run, texts, output, layer=layer, pooling=pooling, batch_size=4) == len(TEXTS)
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


def test_a_line_has_the_same_vector_in_any_company(small_run, texts, tmp_path):
    embed(small_run, texts, tmp_path / "all.npz", batch_size=4)
    together = np.load(tmp_path / "all.npz")["embeddings"]
    for row, text in enumerate(TEXTS):
        (tmp_path / "one.txt").write_text(text + "\n", encoding="utf-8")
        embed(small_run, tmp_path / "one.txt", tmp_path / "one.npz", batch_size=4)
        np.testing.assert_array_equal(np.load(tmp_path / "one.npz")["embeddings"][0], together[row])


def test_a_line_longer_than_the_positions_is_cut_and_says_so(small_run, tmp_path):
    (tmp_path / "long.txt").write_text("film " * 200, encoding="utf-8")
    embed(small_run, tmp_path / "long.txt", tmp_path / "long.npz")
    saved = np.load(tmp_path / "long.npz")
    assert saved["cut"].tolist() == [True] and saved["lengths"].tolist() == [128]


@pytest.mark.parametrize("suffix", ["npz", "jsonl"])
def test_compressed_text_is_read_and_the_number_of_cut_texts_told(small_run, tmp_path, suffix, monkeypatch):
    monkeypatch.setattr(embedding, "BLOCK", 2)
    lines = ["film " * 200, "a film", "plot " * 200, 'a "cut": true}']
    said = []
    for name, compress in (("a.txt", bytes), ("a.gz", gzip.compress), ("a.xz", lzma.compress)):
        (tmp_path / name).write_bytes(compress("\n".join(lines).encode()))
        embed(small_run, tmp_path / name, tmp_path / f"{name}.{suffix}", report=said.append)
    assert said == ["cut        2 of 4 texts, at the 128 tokens of the model's longest row"] * 3
    outputs = {(tmp_path / f"{name}.{suffix}").read_bytes() for name in ("a.txt", "a.gz", "a.xz")}
    assert len(outputs) == 1 or suffix == "npz"  # whose archive keeps the time
    embed(small_run, _text(tmp_path / "short.txt", "a film"), tmp_path / f"short.{suffix}", report=said.append)
    assert len(said) == 3


def _text(path, text):
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("pooling", ["mean", "none"])
def test_a_mix_of_layers_is_weighted_by_the_softmax(small_run, texts, reference, tmp_path, pooling):
    embed(small_run, texts, tmp_path / "out.npz", mix=("0.5", "-1"), pooling=pooling)
    shares = np.exp([0.5, -1.0]) / np.exp([0.5, -1.0]).sum()
    tokens = np.concatenate([np.tensordot(shares, reference(text)[0], axes=1) for text in TEXTS])
    means = np.stack([np.tensordot(shares, reference(text)[0], axes=1).mean(axis=0) for text in TEXTS])
    np.testing.assert_allclose(np.load(tmp_path / "out.npz")["embeddings"], tokens if pooling == "none" else means,
                               atol=1e-5)  # fmt: skip


@pytest.mark.nightly
def test_a_mix_learned_on_a_task_is_taken_from_its_checkpoint(small_run, texts, tmp_path):
    (tmp_path / "train.conll").write_text("the\tD\nfilm\tN\n\na\tD\nplot\tN\n" * 8, encoding="utf-8")
    run = Experiment(
        model=None,
        objective=TokenTagging(mix=True),
        data=Tagging(*[str(tmp_path / "train.conll")] * 2, sequence_length=24, pack=4),
        optimizer=BertAdamW(learning_rate=1e-2, frozen=("encoder",)),
        training=Training(steps=5, batch_size=8, unroll=1),
        finetuning=Finetuning(),
        checkpoint=Checkpoint(every=0),
    )
    finetune(run, small_run, tmp_path / "run")
    params, description = checkpoints.load_parameters(tmp_path / "run")
    assert np.abs(params["scalar_mix"]["weights"]).min() > 0 and params["scalar_mix"]["scale"] != 1
    embed(tmp_path / "run", texts, tmp_path / "learned.npz", mix=("learned",))
    embed(small_run, texts, tmp_path / "given.npz", mix=tuple(map(str, params["scalar_mix"]["weights"])))
    scale = params["scalar_mix"]["scale"]
    learned, given = (np.load(tmp_path / f"{name}.npz")["embeddings"] for name in ("learned", "given"))
    np.testing.assert_allclose(learned, scale * given, rtol=1e-5, atol=1e-5)
    module = description.experiment.objective.module(description.experiment.model, Execution())
    with pytest.raises(UserError, match="without a mix of layers, found TokenClassification of a"):
        huggingface.adapter_of(module)


@pytest.mark.parametrize("pooling", ["cls", "none"])
def test_json_lines_hold_the_same_numbers(small_run, texts, tmp_path, pooling):
    embed(small_run, texts, tmp_path / "out.npz", pooling=pooling)
    assert embed(small_run, texts, tmp_path / "out.jsonl", pooling=pooling) == len(TEXTS)
    saved = np.load(tmp_path / "out.npz")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["length"] for row in rows] == saved["lengths"].tolist() and not any(row["cut"] for row in rows)
    found = [vector for row in rows for vector in row.get("embeddings", [row.get("embedding")])]
    np.testing.assert_array_equal(np.array(found, np.float32), saved["embeddings"])
    if pooling == "none":
        assert [len(row["tokens"]) for row in rows] == saved["lengths"].tolist() and rows[1]["tokens"][1] == "a"


@pytest.mark.parametrize(
    ("suffix", "pooling"), [("npz", "none"), ("npz", "mean"), pytest.param("jsonl", "mean", marks=pytest.mark.nightly)]
)
def test_stopped_on_the_way_it_goes_on_and_ends_in_the_same_file(
    small_run, texts, tmp_path, monkeypatch, suffix, pooling
):
    monkeypatch.setattr(embedding, "BLOCK", 4)
    whole, halved = tmp_path / f"whole.{suffix}", tmp_path / f"halved.{suffix}"
    embed(small_run, texts, whole, pooling=pooling)
    vectors, calls = embedding._vectors, []

    def stopping(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return vectors(*arguments)

    monkeypatch.setattr(embedding, "_vectors", stopping)
    with pytest.raises(KeyboardInterrupt):
        embed(small_run, texts, halved, pooling=pooling)
    assert not halved.exists()
    with pytest.raises(UserError, match="found parts made with another layer"):
        embed(small_run, texts, halved, pooling=pooling, layer=0)
    with pytest.raises(UserError, match="found parts made with another input"):
        embed(small_run, _text(tmp_path / "other.txt", "\n".join(TEXTS[::-1])), halved, pooling=pooling)
    embed(small_run, texts, halved, pooling=pooling)
    assert len(calls) == 3 and not (tmp_path / f"halved.{suffix}.parts").exists()
    if suffix == "jsonl":
        assert halved.read_bytes() == whole.read_bytes()
        return
    first, second = np.load(whole), np.load(halved)
    assert first.files == second.files and ("offsets" in first.files) == (pooling == "none")
    for name in first.files:
        np.testing.assert_array_equal(first[name], second[name])


def test_vectors_of_tokens_are_found_whatever_the_first_lines_hold(classifiers, tmp_path, monkeypatch):
    """Lines of one token each, without special tokens, have as many vectors as lines."""
    monkeypatch.setattr(embedding, "BLOCK", 2)
    lines = _text(tmp_path / "lines.txt", "the\na\nthe plot\nthe")
    embed(classifiers / "one", lines, tmp_path / "lines.npz", pooling="none")
    saved = np.load(tmp_path / "lines.npz")
    assert saved["offsets"].tolist() == np.cumsum([0, *saved["lengths"]]).tolist() and saved["lengths"][2] > 1
    first, second, third, last = np.split(saved["embeddings"], saved["offsets"][1:-1])
    np.testing.assert_array_equal(first, last)
    np.testing.assert_array_equal(first[0], third[0])
    assert (first != second).any()


def test_the_layers_and_their_mix_are_those_asked_for():
    """The encoder has two layers, and a task has learned a mix of them."""
    learned = {"scalar_mix": {"weights": np.array([0.5, -1.0, 2.0]), "scale": np.float32(3.0)}}
    layers = {layer: embedding._wanted(layer, (), 2, learned).layer for layer in range(-3, 3)}
    assert layers == {-3: 0, -2: 1, -1: 2, 0: 0, 1: 1, 2: 2}
    for mix, scale in ((("learned",), 3.0), (("0.5", "-1", "2"), 1.0)):
        wanted = embedding._wanted(-1, mix, 2, learned)
        assert (wanted.mix, wanted.scale) == ((0.5, -1.0, 2.0), scale)


def test_a_line_without_tokens_has_no_vector_to_pool(classifiers, tmp_path, monkeypatch):
    """The model has no special tokens: [CLS] and [SEP] stand for an empty line."""
    monkeypatch.setattr(embedding, "BLOCK", 3)
    lines = _text(tmp_path / "lines.txt", "the\n\nthe plot\n")
    for pooling in ("mean", "cls"):
        with pytest.raises(UserError, match=r"one token to pool, found none in line 2 of .*lines\.txt; remove"):
            embed(classifiers / "one", lines, tmp_path / "lines.npz", pooling=pooling)
    later = _text(tmp_path / "later.txt", "the\n" * 4 + "\nthe plot\n")
    with pytest.raises(UserError, match=r"found none in line 5 of .*later\.txt"):
        embed(classifiers / "one", later, tmp_path / "lines.npz")
    embed(classifiers / "one", lines, tmp_path / "lines.npz", pooling="none")
    assert np.load(tmp_path / "lines.npz")["lengths"].tolist()[:2] == [1, 0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda run, path: embed(run, path / "none.txt", path / "o.npz"), "found no file"),
        (lambda run, path: embed(run, path / "binary", path / "o.npz"), "Expected UTF-8 text"),
        (lambda run, path: embed(run, path / "empty", path / "o.npz"), "empty"),
        (lambda run, path: embed(run, path / "binary", path / "o.txt"), "Expected an .npz or .jsonl file"),
        (lambda run, path: embed(run, path / "text", path / "no" / "o.npz"), "in a folder that exists"),
        (lambda run, path: embed(run, path / "text", path / "o.npz", batch_size=0), "--batch_size of at least 1"),
        (lambda run, path: embed(run, path / "text", path / "o.npz", layer=3), "--layer from 0 to 1"),
        (
            lambda run, path: embed(run, path / "text", path / "o.npz", pooling="max"),
            "Expected a known --pooling, found 'max'",
        ),
        (
            lambda run, path: embed(run, path / "text", path / "o.npz", mix=("1",)),
            "2 numbers, for the embeddings and 1",
        ),
        (lambda run, path: embed(run, path / "text", path / "o.npz", mix=("a", "b")), "2 numbers, .*found a b"),
        (lambda run, path: embed(run, path / "text", path / "o.npz", mix=("1", "2"), layer=1), "--layer or --mix"),
        (lambda run, path: embed(run, path / "text", path / "o.npz", mix=("learned",)), "fine-tuned with"),
    ],
)
def test_a_mistake_is_one_sentence(small_run, tmp_path, call, message):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "text").write_text("a film\n")
    with pytest.raises(UserError, match=message) as error:
        call(small_run, tmp_path)
    assert "\n" not in str(error.value)


class Counting:
    """A module whose states, in bfloat16, are 256 and 768 times the place of a token in its row."""

    def __init__(self) -> None:
        self.shapes = []

    def apply(self, variables, *, input_ids, attention_mask, output_hidden_states):
        self.shapes.append(input_ids.shape)
        places = jnp.broadcast_to(jnp.arange(input_ids.shape[1]) + 1.0, input_ids.shape)[..., None]
        return SimpleNamespace(hidden_states=(256 * jnp.stack([places, 3 * places])).astype(jnp.bfloat16))


@pytest.mark.parametrize(("summary", "longest"), [("first", None), ("last", None), ("last", 4)])
def test_a_vector_is_read_where_the_template_has_it_from_rows_as_long_as_the_model_takes(summary, longest):
    """Batches have the size that was asked for, and the vectors float32; the middle line has four tokens."""
    template = Template(single="A sep cls", summary=summary)
    config = SimpleNamespace(template=template, longest=longest)
    reading = Reading([[7], [7, 8, 9, 10], []], Vocabulary.placeholder(20), names=lambda ids: ids)
    module = Counting()
    run = SimpleNamespace(text_vectors=None, model=config)
    recipe = embedding._recipe(run, "cls", None, own=True)
    wanted = embedding.Vectors(layer=1, mix=(), scale=1.0, **recipe)
    arrays, rows = embedding._vectors(module, {}, reading, config, wanted, 0, batch_size=5)
    lengths = [3, longest or 6, 2]
    assert [len(row) for row in rows] == arrays["lengths"].tolist() == lengths
    assert arrays["cut"].tolist() == [False, longest == 4, False] and {rows for rows, _ in module.shapes} == {5}
    places = [1, 1, 1] if summary == "first" else lengths
    assert arrays["embeddings"].dtype == np.float32
    np.testing.assert_array_equal(arrays["embeddings"][:, 0], 256 * 3 * np.array(places))


@pytest.mark.parametrize("suffix", ["npz", "jsonl"])
def test_damaged_and_changed_parts_are_made_again(small_run, texts, tmp_path, monkeypatch, suffix):
    """Whole or not, a part that is not the one that was written is never joined."""
    monkeypatch.setattr(embedding, "BLOCK", 1)
    whole, other = tmp_path / f"whole.{suffix}", tmp_path / f"out.{suffix}"
    embed(small_run, texts, whole)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(embedding, "_join", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
        embed(small_run, texts, other)
    parts = other.with_name(f"{other.name}.parts")
    names = sorted(path.name for path in parts.glob(f"*.{suffix}"))
    assert len(names) > 3
    (parts / names[0]).write_bytes((parts / names[1]).read_bytes())  # sound, and of other lines
    (parts / names[1]).write_bytes((parts / names[1]).read_bytes()[:-5])
    (parts / f"{names[2]}.json").write_text("{")
    (parts / names[3]).unlink()
    embed(small_run, texts, other)
    assert other.read_bytes() == whole.read_bytes() and not parts.exists()


def test_parts_are_of_the_bytes_of_the_text_and_of_the_settings(small_run, tmp_path):
    """A file that has changed under its name is another text."""
    text, parts = _text(tmp_path / "text.txt", "a film"), tmp_path / "out.npz.parts"
    directory = checkpoints.find(small_run)
    given = embedding.Vectors(layer=1, mix=(), scale=1.0, recipe=TextVectors(), prompt="")
    for _ in range(2):
        embedding._claim(parts, directory, text, given)
    with pytest.raises(UserError, match="found parts made with another recipe"):
        embedding._claim(parts, directory, text, dataclasses.replace(given, recipe=TextVectors(("cls",))))
    with pytest.raises(UserError, match="found parts made with another input"):
        embedding._claim(parts, directory, _text(text, "a plot"), given)


def test_the_size_of_a_batch_and_a_folder_of_a_bucket_reach_the_work(small_run, texts, tmp_path, monkeypatch):
    """In a bucket there are no folders to look for."""

    def asked(*arguments):
        raise InterruptedError(arguments[-1])

    output = tmp_path / "no" / "o.npz"
    monkeypatch.setattr(embedding, "_vectors", asked)
    monkeypatch.setattr(embedding.storage, "in_bucket", lambda path: path == output)
    with pytest.raises(InterruptedError, match="7"):
        embed(small_run, texts, output, batch_size=7)
