"""`plmjax import` and `plmjax export`: run directories from other libraries' folders and back."""

import json
import os

import flax.traverse_util
import numpy as np
import pytest

from plmjax.data import tokenizers
from plmjax.data.layouts import SentencePairs
from plmjax.errors import UserError
from plmjax.experiment import Data, Experiment
from plmjax.interop import checkpoints as interop
from plmjax.interop import huggingface
from plmjax.layers.execution import Execution
from plmjax.models.bert import BertConfig, BertForMaskedLM, BertForPreTraining, BertForSequenceClassification, BertModel
from plmjax.objectives.bert import BertPretraining
from plmjax.training import checkpoints
from tests.interop.odd_bert import SIZES, published, random_params

CONFIG = BertConfig(**SIZES)
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij", *(f"##{letter}" for letter in "abcdefghij")]
MODULES = {
    "BertModel": BertModel(CONFIG),
    "BertForPreTraining": BertForPreTraining(CONFIG),
    "BertForMaskedLM": BertForMaskedLM(CONFIG),
    "BertForSequenceClassification": BertForSequenceClassification(CONFIG, num_labels=3),
}


@pytest.fixture
def tokenizer(tmp_path):
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    return folder


@pytest.mark.parametrize("architecture", MODULES)
def test_import_and_export_give_every_bit_back(tmp_path, tokenizer, architecture):
    pytest.importorskip("transformers")
    source, workdir, out = tmp_path / "source", tmp_path / "run", tmp_path / "out"
    module = MODULES[architecture]
    labels = ("no", "maybe", "yes") if architecture == "BertForSequenceClassification" else ()
    huggingface.save(module, random_params(module), source, tokenizer=tokenizer, labels=labels)

    said = interop.import_checkpoint(source, workdir)
    assert f"{architecture} of " in said and "outputs equal those of transformers" in said
    assert interop.can_export(workdir)
    said = interop.export_checkpoint(workdir, out)
    assert f"{architecture} of step 0" in said and "bit for bit" in said
    assert (out / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()
    assert (out / "config.json").read_bytes() == (source / "config.json").read_bytes()

    before, after = tokenizers.load(tokenizer), tokenizers.load(out)
    assert before.fingerprint == after.fingerprint
    description = checkpoints.describe(checkpoints.find(workdir))
    assert description.step == 0 and description.experiment.model == CONFIG
    if architecture != "BertModel":
        objective = description.experiment.objective
        assert type(objective.module(CONFIG, Execution())) is type(module)
    if labels:
        assert objective.labels == labels


def test_transformers_reads_the_exported_tokenizer(tmp_path, tokenizer):
    transformers = pytest.importorskip("transformers")
    module = MODULES["BertForPreTraining"]
    huggingface.save(module, random_params(module), tmp_path / "source", tokenizer=tokenizer)
    interop.import_checkpoint(tmp_path / "source", tmp_path / "run")
    interop.export_checkpoint(tmp_path / "run", tmp_path / "out")
    theirs, ours = transformers.AutoTokenizer.from_pretrained(tmp_path / "out"), tokenizers.load(tmp_path / "out")
    text = "Bad cab, jig A"
    assert theirs(text)["input_ids"] == [2, *ours.encode(text), 3]


def test_google_import_equals_transformers_import(tmp_path, tokenizer):
    pytest.importorskip("tensorflow")
    source = tmp_path / "google"
    source.mkdir()
    published(source)
    (source / "vocab.txt").write_bytes((tokenizer / "vocab.txt").read_bytes())
    said = interop.import_checkpoint(source, tmp_path / "run")
    assert "gives every bit back" in said
    interop.export_checkpoint(tmp_path / "run", tmp_path / "out")
    interop.import_checkpoint(tmp_path / "out", tmp_path / "again")
    first, second = (
        flax.traverse_util.flatten_dict(checkpoints.load_parameters(tmp_path / name)[0], sep="/")
        for name in ("run", "again")
    )
    assert first.keys() == second.keys()
    for path in first:
        np.testing.assert_array_equal(first[path], second[path])
    assert json.loads((tmp_path / "out" / "config.json").read_text())["hidden_act"] == "gelu_new"


def test_without_transformers_a_round_trip_is_checked(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(huggingface, "transformers_installed", lambda: False)
    module = MODULES["BertForMaskedLM"]
    huggingface.save(module, random_params(module), tmp_path / "source", tokenizer=tokenizer)
    assert "gives every bit back" in interop.import_checkpoint(tmp_path / "source", tmp_path / "run")
    assert "outputs were not compared" in interop.export_checkpoint(tmp_path / "run", tmp_path / "out")


def test_a_run_is_exported_as_a_smaller_architecture(tmp_path):
    pytest.importorskip("transformers")
    run = Experiment(model=CONFIG, objective=BertPretraining(), data=Data(SentencePairs()))
    params = random_params(BertForPreTraining(CONFIG))
    checkpoints.save_parameters(tmp_path / "run", params, run, {})
    assert "BertModel of step 0" in interop.export_checkpoint(tmp_path / "run", tmp_path / "out", "BertModel")
    assert type(huggingface.load(tmp_path / "out")[0]) is BertModel
    with pytest.raises(UserError, match="needs classifier/bias"):
        interop.export_checkpoint(tmp_path / "run", tmp_path / "other", "BertForSequenceClassification")


def test_import_needs_a_tokenizer_that_fits(tmp_path, tokenizer):
    module = MODULES["BertForMaskedLM"]
    huggingface.save(module, random_params(module), tmp_path / "source")
    with pytest.raises(UserError, match=r"tokenizer\.json, vocab\.txt"):
        interop.import_checkpoint(tmp_path / "source", tmp_path / "run")
    (tokenizer / "vocab.txt").write_text("\n".join([*VOCABULARY, *(f"w{i}" for i in range(20))]) + "\n")
    with pytest.raises(UserError, match="at most the model's 37 tokens, but has 45"):
        interop.import_checkpoint(tmp_path / "source", tmp_path / "run", tokenizer=tokenizer)
    assert not (tmp_path / "run").exists()


def test_every_file_follows_the_umask(tmp_path, tokenizer):
    """Also the safetensors library's, which writes by way of a file that is private to its owner."""
    module = MODULES["BertModel"]
    before = os.umask(0o027)
    try:
        huggingface.save(module, random_params(module), tmp_path / "source", tokenizer=tokenizer)
        interop.import_checkpoint(tmp_path / "source", tmp_path / "run")
        interop.export_checkpoint(tmp_path / "run", tmp_path / "out")
    finally:
        os.umask(before)
    written = [path for name in ("source", "run", "out") for path in (tmp_path / name).rglob("*")]
    modes = {str(path): oct(path.stat().st_mode & 0o777) for path in written}
    assert {"model.safetensors", "config.json", "experiment.json"} <= {path.name for path in written}
    assert modes == {str(path): "0o750" if path.is_dir() else "0o640" for path in written}


def test_nothing_to_export_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="found no finished checkpoint"):
        interop.export_checkpoint(tmp_path, tmp_path / "out")
