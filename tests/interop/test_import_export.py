"""`plmjax import` and `plmjax export`: run directories from other libraries' folders and back."""

import json

import flax.traverse_util
import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.contracts.template import TEXT_ALONE
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import tokenizers
from plmjax.data.layouts import Chunks, SentencePairs
from plmjax.errors import UserError
from plmjax.experiment import Data, Experiment
from plmjax.finetuning.tasks.label_sets import MultiLabelClassification
from plmjax.finetuning.tasks.sentences import Regression, Sentences, SequenceClassification
from plmjax.interop import huggingface
from plmjax.interop import run_directories as directories
from plmjax.interop.run_directories import can_export, claim, export_checkpoint, import_checkpoint
from plmjax.layers import int8
from plmjax.models.bert import BertConfig, BertForPreTraining, BertForSequenceClassification, BertModel
from plmjax.models.gpt import GptConfig, GptModel
from plmjax.models.transformer import TransformerConfig
from plmjax.objectives.bert import BertPretraining
from plmjax.objectives.next_token import NextToken
from plmjax.training.checkpoints import checkpoints
from tests.interop.odd_bert import SIZES, random_params
from tests.optional import needs_torch, transformers

CONFIG = BertConfig(**SIZES)
MODULES = {
    "BertModel": BertModel(CONFIG, pooling=False),
    "BertForSequenceClassification": BertForSequenceClassification(CONFIG, num_labels=3),
}
"""Those of other classes: test_every_architecture.py."""
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij", *(f"##{letter}" for letter in "abcdefghij")]


@pytest.fixture
def tokenizer(tmp_path):
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    return folder


@needs_torch
@pytest.mark.parametrize("architecture", MODULES)
def test_import_and_export_give_every_bit_back(tmp_path, tokenizer, architecture):
    source, workdir, out = tmp_path / "source", tmp_path / "run", tmp_path / "out"
    module = MODULES[architecture]
    labels = ("no", "maybe", "yes") if architecture == "BertForSequenceClassification" else ()
    told = {"labels": labels, "problem_type": "single_label_classification" if labels else None}
    huggingface.save(module, random_params(module), source, tokenizer=tokenizer, **told)

    said = import_checkpoint(source, workdir)
    assert f"{architecture} of " in said and "outputs equal those of transformers" in said
    assert can_export(workdir)
    said = export_checkpoint(workdir, out)
    assert f"{architecture} of step 0" in said and "bit for bit" in said
    assert (out / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()
    assert (out / "config.json").read_bytes() == (source / "config.json").read_bytes()

    assert not (out / "generation_config.json").exists()  # a class that does not write text has none
    before, after = tokenizers.load(tokenizer), tokenizers.load(out)
    assert before.fingerprint == after.fingerprint
    theirs = transformers.AutoTokenizer.from_pretrained(out)
    assert theirs("Bad cab, jig A")["input_ids"] == [2, *after.encode("Bad cab, jig A"), 3]
    longest = theirs("a b " * 30, truncation=True)["input_ids"]  # no file gives it: the model's
    assert len(longest) == module.config.longest
    description = checkpoints.describe(checkpoints.find(workdir))
    assert description.step == 0 and description.experiment.model == module.config
    if "For" in architecture:
        objective = description.experiment.objective
        assert type(objective.module(CONFIG, Execution())) is type(module)
        assert not labels or objective.labels == labels


def test_without_transformers_a_round_trip_is_checked(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(huggingface, "transformers_installed", lambda: False)
    module = BertForPreTraining(CONFIG)
    huggingface.save(module, random_params(module), tmp_path / "source", tokenizer=tokenizer)
    assert "gives every bit back" in import_checkpoint(tmp_path / "source", tmp_path / "run")
    said = export_checkpoint(tmp_path / "run", tmp_path / "out")
    assert "transformers and torch are not both installed, so outputs were not compared" in said


@needs_torch
def test_a_run_is_exported_as_a_smaller_architecture(tmp_path):
    run = Experiment(model=CONFIG, objective=BertPretraining(), data=Data(SentencePairs()))
    params = random_params(BertForPreTraining(CONFIG))
    scales = {f"bert/pooler/{name}": np.ones(2, np.float32) for name in int8.ADDED}  # which int8 has and BERT has not
    flat = flax.traverse_util.flatten_dict(params, sep="/") | scales
    checkpoints.save_parameters(tmp_path / "run", flax.traverse_util.unflatten_dict(flat, sep="/"), run, tokenizer={})
    assert "BertModel of step 0" in export_checkpoint(tmp_path / "run", tmp_path / "out", "BertModel")
    assert type(huggingface.load(tmp_path / "out")[0]) is BertModel
    with pytest.raises(UserError, match="found classifier/bias"):
        export_checkpoint(tmp_path / "run", tmp_path / "other", "BertForSequenceClassification")


def test_import_needs_a_tokenizer_that_fits(tmp_path, tokenizer):
    module = BertForPreTraining(CONFIG)
    huggingface.save(module, random_params(module), tmp_path / "source")
    with pytest.raises(UserError, match=r"tokenizer\.json, vocab\.txt"):
        import_checkpoint(tmp_path / "source", tmp_path / "run")
    (tokenizer / "vocab.txt").write_text("\n".join([*VOCABULARY, *(f"w{i}" for i in range(20))]) + "\n")
    with pytest.raises(UserError, match=r"at most the model's 37 tokens in .*, found 45"):
        import_checkpoint(tmp_path / "source", tmp_path / "run", tokenizer=tokenizer)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("problem", "labels", "objective"),
    [
        ("multi_label_classification", ("sport", "art", "war"), MultiLabelClassification(("sport", "art", "war"))),
        ("single_label_classification", ("no", "yes"), SequenceClassification(("no", "yes"))),
        (None, ("LABEL_0",), Regression()),
    ],
)
def test_what_a_classifier_is_for_travels_both_ways(problem, labels, objective, tmp_path, tokenizer, monkeypatch):
    """As do the ids that begin and end a text and the length at which texts are cut."""
    monkeypatch.setattr(huggingface, "transformers_installed", lambda: False)
    source, out = tmp_path / "source", tmp_path / "out"
    config = BertConfig(**SIZES, bos_token_id=2, eos_token_id=7)
    module = BertForSequenceClassification(config, num_labels=len(labels))
    huggingface.save(module, random_params(module), source, tokenizer=tokenizer, labels=labels, problem_type=problem)
    (source / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "model_max_length": 11}')
    import_checkpoint(source, tmp_path / "run")
    run = checkpoints.describe(checkpoints.find(tmp_path / "run")).experiment
    assert run.objective == objective and isinstance(run.data, objective.task_class)
    assert run.data.sequence_length == SIZES["max_position_embeddings"]
    export_checkpoint(tmp_path / "run", out)
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (source, out))
    inferred = "regression" if len(labels) == 1 else "single_label_classification"
    assert after == before | {"problem_type": problem or inferred}
    assert (after["bos_token_id"], after["eos_token_id"]) == (2, 7)
    assert json.loads((out / "tokenizer_config.json").read_text())["model_max_length"] == 11


def test_a_head_reads_the_rows_of_its_task_and_another_one_those_of_its_class():
    """A decoder without its head too: a text of a task begins otherwise than a text alone."""
    config = GptConfig.tiny(vocab_size=40)
    task = SequenceClassification(labels=("no", "yes"))
    trained = task.module(config, Execution())
    run = Experiment(model=config, objective=task, data=Sentences())
    plain = Experiment(model=config, objective=NextToken(), data=Data(Chunks()))
    body, writer = GptModel(config), config.module(Purpose.CAUSAL_LM, Execution())
    own = task.template(config)
    assert own != TEXT_ALONE
    assert directories._rows(run, trained, trained, "OpenAIGPTForSequenceClassification") == own
    assert directories._rows(run, trained, body, "OpenAIGPTModel") == own
    assert directories._rows(run, trained, writer, "OpenAIGPTLMHeadModel") == TEXT_ALONE
    assert directories._rows(plain, writer, body, "OpenAIGPTModel") == TEXT_ALONE


def test_settings_of_generation_are_those_of_the_folder(tmp_path):
    """In an encoder-decoder a length counts the token before the text. A wrong setting names its file."""
    config, generation = tmp_path / "config.json", tmp_path / "generation_config.json"
    module = TransformerConfig.tiny(vocab_size=9).module(Purpose.CAUSAL_LM, Execution())

    def found(module, end):
        return directories._generation(tmp_path, module, Vocabulary(9, end=end))

    config.write_text("{}")
    generation.write_text('{"max_length": 19, "eos_token_id": 4}')
    assert found(module, 4).explicit() == {"max_new_tokens": 18}
    assert found(module, 3).explicit() == {"max_new_tokens": 18, "eos_token_id": (4,)}
    assert found(BertModel(CONFIG), 4) is None
    generation.write_text('{"forced_eos_token_id": 99}')
    with pytest.raises(UserError, match=rf"Expected ids of tokens below.* \(in {generation}\)\."):
        found(module, 4)
    generation.unlink()
    config.write_text('{"max_length": "x"}')
    with pytest.raises(UserError, match=rf"Expected int as max_length.* \(in {config}\)\."):
        found(module, 4)


def test_columns_of_a_translation_are_named_as_both_languages(tmp_path):
    file = tmp_path / "tokenizer_config.json"
    file.write_text('{"source_lang": "en", "target_lang": "de"}')
    assert directories._languages(tmp_path) == {"source": "en", "target": "de"}
    file.write_text('{"source_lang": "en", "target_lang": ""}')
    assert directories._languages(tmp_path) == {}


def test_a_parameter_that_differs_or_that_one_side_lacks_is_a_difference():
    ours, theirs = {"a": np.ones(2)}, {"a": np.ones(2), "b": np.ones(1)}
    directories._same_bits(ours, {"a": np.ones(2)}, "the files")
    for found, expected in ((ours, theirs), (theirs, ours), (ours, {"a": np.nextafter(np.ones(2), 2)})):
        with pytest.raises(UserError, match=r"Expected to read [ab] back from the files"):
            directories._same_bits(found, expected, "the files")


def test_a_folder_is_replaced_if_it_is_an_earlier_export(tmp_path):
    claim(tmp_path / "out", "BertModel", 3)
    (tmp_path / "out" / "notes").write_text("mine")
    claim(tmp_path / "out", "GPT2Model", 4)
    assert json.loads((tmp_path / "out" / directories.MARK).read_text()) == {"architecture": "GPT2Model", "step": 4}
    (tmp_path / "out" / directories.MARK).unlink()
    with pytest.raises(UserError, match="found other files in"):
        claim(tmp_path / "out", "BertModel", 5)
    with pytest.raises(UserError, match="found the file"):
        claim(tmp_path / "out" / "notes", "BertModel", 5)
    with pytest.raises(UserError, match="found no finished checkpoint"):
        export_checkpoint(tmp_path, tmp_path / "elsewhere")


def test_word_vectors_are_exported_alone(fails, tmp_path):
    (tmp_path / "vectors.txt").write_text("3 2\na 1 2\nb 3 4\nc 5 6\n")
    cli.run(["import", str(tmp_path / "vectors.txt"), str(tmp_path / "run")])
    assert not can_export(tmp_path / "run")
    said = fails("export", tmp_path / "run", tmp_path / "out")
    assert "found StaticVectorsConfig" in said and "or write the vectors of its words with --vectors text" in said
    assert not (tmp_path / "out").exists()
