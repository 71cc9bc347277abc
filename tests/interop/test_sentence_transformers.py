"""Folders of sentence-transformers, whose vectors are those of `plmjax embed`."""

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.data.layouts import SentencePairs
from plmjax.experiment import Data, Experiment
from plmjax.inference.embed import embed_file
from plmjax.interop import huggingface, notices, run_directories
from plmjax.interop.run_directories import import_checkpoint
from plmjax.interop.sentence_transformers import export_sentence_transformer
from plmjax.layers.text_vectors import ACTIVATIONS
from plmjax.models.bert import BertConfig
from plmjax.models.t5 import T5Config
from plmjax.objectives.objective import Objective
from plmjax.training.checkpoints import checkpoints
from tests.interop.odd_bert import SIZES, random_params
from tests.interop.test_import_export import VOCABULARY
from tests.optional import Library, needs_sentence_transformers, torch

sentences, parts = Library("sentence_transformers"), Library("sentence_transformers.base.modules")
modules = Library("sentence_transformers.sentence_transformer.modules")
TEXTS = ["a b cd", "efg HIJ a a B b", "j"]
CASED = [*VOCABULARY, *"ABHIJ", *(f"##{letter}" for letter in "ABHIJ")]


def embedded(run: Path, tmp_path: Path, **options: Any) -> np.ndarray:
    """The vectors of the texts by plmjax embed."""
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    output = tmp_path / f"{len(list(tmp_path.iterdir()))}.npz"
    embed_file(run, tmp_path / "texts.txt", output, max_unknown=1.0, **options)
    with np.load(output) as found:
        return found["embeddings"]


def there(folder: Path, **options: Any) -> np.ndarray:
    """The vectors of the texts by sentence-transformers."""
    model = sentences.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    return model.encode(TEXTS, show_progress_bar=False, **options)


def dense(size: int, out: int, name: str = "Tanh", **options: Any) -> Any:
    """A layer of sentence-transformers with random numbers."""
    torch.manual_seed(out)
    return parts.Dense(size, out, activation_function=getattr(torch.nn, name)(), **options)


def layer_norm(size: int) -> Any:
    found = modules.LayerNorm(size)
    found.norm.weight.data += 0.3
    return found


def normalize(size: int) -> Any:
    return parts.Normalize()


def after(mode: Any, *layers: Callable[[int], Any], **options: Any) -> Callable[[int], list[Any]]:
    """Size of the hidden states -> a pooling and the layers after it, each made from the size before it."""

    def made(size: int) -> list[Any]:
        found = [modules.Pooling(size, mode, **options)]
        size = found[0].get_embedding_dimension()
        for layer in layers:
            found.append(layer(size))
            size = getattr(found[-1], "out_features", size)
        return found

    return made


PROMPTS = {"prompts": {"query": "ab cd ", "passage": ""}, "default_prompt_name": "query"}
FOLDERS: dict[str, tuple[Callable[[int], list[Any]], dict[str, Any], int | None]] = {
    "cls": (after("cls"), {}, None),
    "lasttoken": (after("lasttoken", normalize), {}, 6),
    "max": (after("max"), {}, None),
    "mean_sqrt_len_tokens": (after("mean_sqrt_len_tokens"), {}, 6),
    "weightedmean": (after("weightedmean"), {"similarity_fn_name": "dot"}, 6),
    "several": (after(("cls", "mean"), lambda size: dense(size, 7), normalize), {}, 6),
    "layers": (
        after("mean", lambda size: dense(size, 9, "GELU", use_residual=True),
              lambda size: dense(size, 9, "Identity", bias=False, use_residual=True), layer_norm),
        {"truncate_dim": 4}, None,
    ),
    "prompt": (after("mean"), PROMPTS, None),
    "without its prompt": (after(("weightedmean", "cls"), include_prompt=False), PROMPTS, None),
    **{name: (after("mean", lambda size, name=name: dense(size, 5, name)), {}, None) for name in sorted(ACTIVATIONS)},
}  # fmt: skip
"""Name -> the modules after the encoder, settings of the whole, and the number of tokens at which texts are cut."""
DAY = "without its prompt"


@pytest.fixture
def encoder(tmp_path) -> Path:
    """A BERT and its tokenizer of letters, which knows capital ones."""
    folder = tmp_path / "encoder"
    config = BertConfig(**SIZES | {"vocab_size": len(CASED)})
    model = config.module(Purpose.ENCODING, Execution())
    huggingface.save(model, random_params(model), folder)
    (folder / "vocab.txt").write_text("\n".join(CASED) + "\n")
    options = {"tokenizer_class": "BertTokenizer", "do_lower_case": False, "model_max_length": 20}
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    return folder


def made(encoder: Path, folder: Path, name: str) -> Path:
    import transformers

    further, settings, longest = FOLDERS[name]
    options = {} if longest is None else {"processor_kwargs": {"model_max_length": longest}}
    with notices.none_from(transformers):
        first = parts.Transformer(str(encoder), **options)
        chain = [first, *further(first.get_embedding_dimension())]
        sentences.SentenceTransformer(modules=chain, device="cpu", **settings).save(
            str(folder), create_model_card=False
        )
    return folder


# Each takes a second: pytest -m nightly tests/interop/test_sentence_transformers.py
@needs_sentence_transformers
@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=() if one == DAY else pytest.mark.nightly) for one in FOLDERS]
)
def test_a_folder_is_imported_with_all_that_makes_its_vectors(name, encoder, tmp_path) -> None:
    """They are the defaults of embed, and of the export, whose folder gives the same."""
    folder = made(encoder, tmp_path / "folder", name)
    said = import_checkpoint(folder, tmp_path / "run")
    assert "its vectors: " in said and "they equal those of sentence-transformers" in said
    expected = there(folder)
    np.testing.assert_allclose(embedded(tmp_path / "run", tmp_path), expected, rtol=0, atol=1e-5)
    export_sentence_transformer(tmp_path / "run", tmp_path / "out")
    np.testing.assert_allclose(there(tmp_path / "out"), expected, rtol=0, atol=1e-6)
    whole, again = ((one / "config_sentence_transformers.json").read_text() for one in (folder, tmp_path / "out"))
    assert json.loads(whole) == json.loads(again)


@pytest.mark.nightly
@needs_sentence_transformers
def test_a_folder_of_an_older_version_is_read(encoder, tmp_path) -> None:
    """With its encoder and its tensors in folders of their own, flags for the poolings, and its own lower case."""
    folder = made(encoder, tmp_path / "new", "several")
    old = tmp_path / "old"
    shutil.copytree(folder, old / "0_BERT", ignore=shutil.ignore_patterns("[0-9]_*", "modules.json", "config_sent*"))
    for place in folder.glob("[0-9]_*"):
        shutil.copytree(place, old / place.name)
    kinds = {"0_BERT": "Transformer", **{place.name: place.name[2:] for place in sorted(folder.glob("[0-9]_*"))}}
    listed = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(kinds.items())
    ]
    (old / "modules.json").write_text(json.dumps(listed))
    flags = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}
    (old / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 24, **flags}))
    settings = {"max_seq_length": 5, "do_lower_case": True}
    (old / "0_BERT" / "sentence_bert_config.json").write_text(json.dumps(settings))
    said = import_checkpoint(old, tmp_path / "run")
    assert "cls and mean pooling, Dense with Tanh, length 1, texts of at most 5 tokens" in said
    expected = there(old)
    assert np.abs(expected - there(folder)).max() > 0.01
    np.testing.assert_allclose(embedded(tmp_path / "run", tmp_path), expected, rtol=0, atol=1e-5)
    export_sentence_transformer(tmp_path / "run", tmp_path / "out")
    np.testing.assert_allclose(there(tmp_path / "out"), expected, rtol=0, atol=1e-6)


@needs_sentence_transformers
def test_options_take_the_place_of_the_recipe(encoder, tmp_path, fails) -> None:
    import_checkpoint(made(encoder, tmp_path / "folder", "prompt"), tmp_path / "run")
    found = {name: embedded(tmp_path / "run", tmp_path, prompt=name) for name in (None, "query", "passage")}
    np.testing.assert_array_equal(found[None], found["query"])
    np.testing.assert_allclose(found["passage"], there(tmp_path / "folder", prompt=""), rtol=0, atol=1e-5)
    np.testing.assert_array_equal(found["passage"], embedded(tmp_path / "run", tmp_path, pooling="mean"))
    asked = ("embed", tmp_path / "run", "--input", tmp_path / "texts.txt", "--output", tmp_path / "o.npz", "--prompt")
    assert "found 'other'; known: document, passage, query" in fails(*asked, "other")
    assert "Expected --prompt or --pooling, found both" in fails(*asked, "query", "--pooling", "cls")
    said = export_sentence_transformer(tmp_path / "run", tmp_path / "out", "cls", normalize=True)
    assert "cls pooling, length 1" in said and "prompt 'ab cd '" in said
    assert "lost: mean pooling" in run_directories.export_checkpoint(tmp_path / "run", tmp_path / "plain")
    import_checkpoint(made(encoder, tmp_path / "short", "layers"), tmp_path / "four")
    assert "the first 4 features" not in export_sentence_transformer(tmp_path / "four", tmp_path / "whole", "cls")
    sentence = fails("export", tmp_path / "four", tmp_path / "o", "--to", "sentence-transformers", "--normalize")
    assert "Expected no --normalize" in sentence


MODULES, POOLING, DENSE = "modules.json", "1_Pooling/config.json", "2_Dense/config.json"
WHOLE = "config_sentence_transformers.json"
REFUSED: list[tuple[str, Callable[[Any], Any], str]] = [
    (MODULES, lambda found: [*found, {"type": "mine.Router", "path": ""}], "found 'mine.Router'"),
    (MODULES, lambda found: [*found[:1], {**found[1], "path": "../x"}, *found[2:]], "plain file names"),
    (DENSE, lambda found: {**found, "activation_function": "torch.nn.modules.activation.PReLU"},
     "found activation_function = 'torch.nn.modules.activation.PReLU'"),
    (DENSE, lambda found: {**found, "use_residual": True}, "that fit hidden states of"),
    (POOLING, lambda found: {"pooling_mode": "attention"}, "a pooling of cls, last"),
    (WHOLE, lambda found: {**found, "truncate_dim": "4"}, "truncate_dim is '4'; correct it."),
    (WHOLE, lambda found: {**found, "default_prompt_name": "query", "prompts": {}}, "found 'query'"),
    (WHOLE, lambda found: {**found, "model_type": "SparseEncoder"}, "found 'SparseEncoder'"),
]  # fmt: skip
"""A file of a folder, a change of it, and the sentence."""


@needs_sentence_transformers
def test_what_cannot_be_kept_is_one_sentence(encoder, tmp_path, fails) -> None:
    folder = made(encoder, tmp_path / "folder", "several")
    for file, change, sentence in REFUSED:
        whole = (folder / file).read_text()
        (folder / file).write_text(json.dumps(change(json.loads(whole))))
        assert sentence in fails("import", folder, tmp_path / "run")
        assert not (tmp_path / "run").exists()
        (folder / file).write_text(whole)


@needs_sentence_transformers
def test_what_is_no_export_is_one_sentence(encoder, tmp_path, fails, monkeypatch) -> None:
    import_checkpoint(encoder, tmp_path / "run")
    export, to = ("export", tmp_path / "run", tmp_path / "out"), ("--to", "sentence-transformers")
    for options, sentence in (
        (["--pooling", "mean"], "Expected --pooling with --to sentence-transformers"),
        (["--to", "jax", "--normalize"], "Expected --normalize with --to sentence-transformers"),
        ([*to, "--rows", "2"], "Expected --rows with --to jax"),
        (["--to", "jax", "--vectors", "text"], "Expected no --vectors with --to jax"),
        ([*to, "--architecture", "BertModel"], "Expected no --architecture with --to"),
        ([*to, "--pooling", "max"], "max"),
    ):
        assert sentence in fails(*export, *options)
    config = T5Config(vocab_size=32, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    run = Experiment(model=config, objective=Objective(), data=Data(layout=SentencePairs()), optimizer=None)
    checkpoints.save_parameters(tmp_path / "t5", {"shared": np.zeros((32, 8), np.float32)}, run, tokenizer={})
    assert "Expected a model that embeds a text alone" in fails("export", tmp_path / "t5", tmp_path / "out", *to)
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "sentence_transformers" else found(name, *rest)
    )
    message = fails(*export, *to)
    assert "sentence_transformers to be installed" in message and "plmjax[sentences]" in message
    assert not (tmp_path / "out").exists()
