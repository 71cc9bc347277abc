"""Folders of sentence-transformers, whose vectors are those of `plmjax embed`."""

import importlib.util
import types

import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.data.layouts import SentencePairs
from plmjax.exchange.run_directories import import_checkpoint
from plmjax.exchange.sentence_transformers import _mode, _vectors, export_sentence_transformer
from plmjax.experiment import Data, Experiment
from plmjax.inference.embed import embed
from plmjax.interop import huggingface
from plmjax.models.bert import BertConfig
from plmjax.models.t5 import T5Config
from plmjax.models.xlnet.xlnet import XlnetConfig
from plmjax.objectives.objective import Objective
from plmjax.training.checkpoints import checkpoints
from plmjax.vocabulary import Vocabulary
from tests.exchange.test_import_export import VOCABULARY
from tests.interop.odd_bert import SIZES, random_params
from tests.optional import needs_sentence_transformers

TEXTS = ["a b cd", "efg hij a", "j"]


@pytest.fixture
def run(tmp_path):
    """A run directory of a BERT with random parameters and a tokenizer of letters."""
    folder = tmp_path / "there"
    model = BertConfig(**SIZES).module(Purpose.ENCODING, Execution())
    huggingface.save(model, random_params(model), folder)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    import_checkpoint(folder, tmp_path / "run")
    return tmp_path / "run"


@needs_sentence_transformers
@pytest.mark.parametrize(("pooling", "normalize"), [("mean", False), ("cls", True)])
def test_its_vectors_are_those_of_embed(run, tmp_path, pooling, normalize) -> None:
    import sentence_transformers

    line = export_sentence_transformer(run, tmp_path / "out", pooling, normalize=normalize)
    assert "BertModel of step 0" in line and f"{pooling} pooling" in line and ("length 1" in line) == normalize
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    embed(run, tmp_path / "texts.txt", tmp_path / "vectors.npz", pooling=pooling, max_unknown=1.0)
    with np.load(tmp_path / "vectors.npz") as found:
        expected = found["embeddings"]
    if normalize:
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    model = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), device="cpu", local_files_only=True)
    assert model.max_seq_length == SIZES["max_position_embeddings"]
    np.testing.assert_allclose(model.encode(TEXTS, show_progress_bar=False), expected, rtol=0, atol=1e-5)


def test_the_token_that_represents_a_row_is_the_first_or_the_last() -> None:
    """As in a BERT and in an XLNet; the mean is over all tokens of either."""
    bert, xlnet = BertConfig().template, XlnetConfig().template
    assert [_mode(template, "cls") for template in (bert, xlnet)] == ["cls", "lasttoken"]
    assert [_mode(template, "mean") for template in (bert, xlnet)] == ["mean", "mean"]


@pytest.mark.parametrize(
    ("config", "pooling", "expected"),
    [
        (BertConfig(max_position_embeddings=5), "cls", [2, 2]),
        (BertConfig(max_position_embeddings=5), "mean", [(2 + 10 + 11 + 3) / 4, (2 + 10 + 11 + 12 + 3) / 5]),
        (XlnetConfig(), "cls", [2, 2]),
    ],
    ids=["first", "mean", "last"],
)
def test_a_vector_is_that_of_the_whole_row(config, pooling: str, expected: list[float], monkeypatch) -> None:
    """A token has its number and 1. Texts are cut where the positions end; XLNet's [CLS] comes last."""

    def outputs(module, params, row: dict[str, np.ndarray], names: tuple[str, ...]) -> dict[str, np.ndarray]:
        assert row["attention_mask"].all()
        ids = row["input_ids"][..., None]
        return {name: np.concatenate([ids, np.ones_like(ids)], axis=-1).astype(np.float32) for name in names}

    monkeypatch.setattr(huggingface, "outputs", outputs)
    texts = [[10, 11], [10, 11, 12, 13, 14, 15]]
    tokenizer = types.SimpleNamespace(encode_batch=lambda samples: texts, vocabulary=Vocabulary.placeholder(20))
    found = _vectors(None, {}, tokenizer, config, pooling, normalize=False)
    np.testing.assert_allclose(found, [[one, 1] for one in expected], rtol=1e-6)
    same = _vectors(None, {}, tokenizer, config, pooling, normalize=True)
    np.testing.assert_allclose(same, [np.float32([one, 1]) / np.hypot(one, 1) for one in expected], rtol=1e-6)


@needs_sentence_transformers
def test_a_later_export_replaces_it_and_other_files_stay(run, tmp_path, fails) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    assert "found other files" in fails("export", run, tmp_path / "mine", "--to", "sentence-transformers")
    for _ in range(2):
        export_sentence_transformer(run, tmp_path / "out")


def test_without_the_library_it_is_one_sentence(run, tmp_path, fails, monkeypatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "sentence_transformers" else found(name, *rest)
    )
    message = fails("export", run, tmp_path / "out", "--to", "sentence-transformers")
    assert "sentence_transformers to be installed" in message and "plmjax[sentences]" in message
    assert not (tmp_path / "out").exists()


@needs_sentence_transformers
def test_a_model_without_an_encoder_is_one_sentence(tmp_path, fails) -> None:
    config = T5Config(vocab_size=32, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    run = Experiment(model=config, objective=Objective(), data=Data(layout=SentencePairs()), optimizer=None)
    checkpoints.save_parameters(tmp_path / "run", {"shared": np.zeros((32, 8), np.float32)}, run, {})
    message = fails("export", tmp_path / "run", tmp_path / "out", "--to", "sentence-transformers")
    assert "Expected a model that embeds a text alone" in message


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--pooling", "mean"], "Expected --pooling with --to sentence-transformers"),
        (["--to", "jax", "--normalize"], "Expected --normalize with --to sentence-transformers"),
        (["--to", "sentence-transformers", "--rows", "2"], "Expected --rows with --to jax"),
        (["--to", "jax", "--vectors", "text"], "Expected no --vectors with --to jax"),
        (["--to", "sentence-transformers", "--architecture", "BertModel"], "Expected no --architecture with --to"),
        (["--to", "sentence-transformers", "--pooling", "max"], "max"),
    ],
)
def test_an_option_of_another_library_is_one_sentence(options, sentence, run, tmp_path, fails) -> None:
    assert sentence in fails("export", run, tmp_path / "out", *options)
    assert not (tmp_path / "out").exists()
