"""`plmjax import` and `plmjax export`: run directories from other libraries' folders and back."""

import dataclasses
import json
import os
import shutil

import flax.traverse_util
import numpy as np
import pytest
from scipy.special import log_softmax

from plmjax.commands import cli
from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.contracts.template import TEXT_ALONE
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import tokenizers
from plmjax.data.layouts import Chunks, SentencePairs
from plmjax.errors import UserError
from plmjax.experiment import Data, Experiment, Finetuning, Training
from plmjax.finetuning.tasks.choices import Choices, MultipleChoice
from plmjax.finetuning.tasks.label_sets import MultiLabelClassification
from plmjax.finetuning.tasks.sentences import Regression, Sentences, SequenceClassification
from plmjax.inference.embed import embed_file
from plmjax.inference.evaluate import evaluate
from plmjax.inference.predict import predict
from plmjax.interop import huggingface
from plmjax.interop.problem_types import with_problem_type
from plmjax.interop.run_directories import (
    MARK,
    _generation,
    _languages,
    _rows,
    _same_bits,
    can_export,
    claim,
    export_checkpoint,
    import_checkpoint,
)
from plmjax.layers import feed_forward, int8
from plmjax.models.bert import (
    BertConfig,
    BertForPreTraining,
    BertForSequenceClassification,
    BertModel,
)
from plmjax.models.gpt import GptConfig, GptModel
from plmjax.models.gpt2 import Gpt2Config
from plmjax.models.roberta import RobertaConfig, RobertaModel
from plmjax.models.transformer import TransformerConfig, TransformerForConditionalGeneration
from plmjax.objectives.bert import BertPretraining
from plmjax.objectives.next_token import NextToken
from plmjax.runs.finetuning import finetune
from plmjax.training.checkpoints import checkpoints
from plmjax.training.optimizers import BertAdamW
from tests.interop.odd_bert import SIZES, published, random_params, set_config
from tests.optional import needs_torch, transformers
from tests.systems.modules import outputs

CONFIG = BertConfig(**SIZES)
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij", *(f"##{letter}" for letter in "abcdefghij")]
ROBERTA = RobertaConfig(**SIZES, pad_token_id=0, bos_token_id=2, eos_token_id=3)
MODULES = {
    "BertModel without pooler": BertModel(CONFIG, pooling=False),
    "RobertaModel with one": RobertaModel(
        RobertaConfig(**SIZES, pad_token_id=0, bos_token_id=2, eos_token_id=3), pooling=True
    ),
    "BertForPreTraining": BertForPreTraining(CONFIG),
    "BertForSequenceClassification": BertForSequenceClassification(CONFIG, num_labels=3),
}
"""Those of other classes: test_every_architecture.py."""
BY_DAY = {"BertModel without pooler", "BertForSequenceClassification"}


@pytest.fixture
def tokenizer(tmp_path):
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    return folder


@needs_torch
@pytest.mark.parametrize(
    "architecture",
    [pytest.param(name, marks=() if name in BY_DAY else pytest.mark.nightly) for name in MODULES],
)
def test_import_and_export_give_every_bit_back(tmp_path, tokenizer, architecture):
    source, workdir, out = tmp_path / "source", tmp_path / "run", tmp_path / "out"
    module = MODULES[architecture]
    architecture = type(module).__name__
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


@pytest.mark.nightly
def test_a_model_without_pooler_embeds_and_is_fine_tuned(tmp_path, tokenizer, capsys):
    """The pooler that a classifier needs is drawn with the head, and exported with it."""
    module = MODULES["BertModel without pooler"]
    huggingface.save(module, random_params(module), tmp_path / "source", tokenizer=tokenizer)
    import_checkpoint(tmp_path / "source", tmp_path / "run")
    (tmp_path / "lines").write_text("a b\nc\n")
    assert embed_file(tmp_path / "run", tmp_path / "lines", tmp_path / "vectors.npz") == 2

    (tmp_path / "rows.tsv").write_text("text\tlabel\n" + "a b c\tgood\nd e f\tbad\n" * 8)
    run = Experiment(
        model=None,
        objective=SequenceClassification(),
        data=Sentences(train=str(tmp_path / "rows.tsv"), validation=str(tmp_path / "rows.tsv"), sequence_length=8),
        optimizer=BertAdamW(),
        training=Training(steps=1, batch_size=8, unroll=1),
        finetuning=Finetuning(),
    )
    finetune(run, tmp_path / "run", tmp_path / "tuned")
    assert (
        f"start      initialized at random, as {tmp_path / 'run'} has none: bert/pooler/bias" in capsys.readouterr().out
    )
    assert "BertForSequenceClassification of step 1" in export_checkpoint(tmp_path / "tuned", tmp_path / "out")
    again, _ = huggingface.load(tmp_path / "out")
    assert type(again) is BertForSequenceClassification


@pytest.mark.nightly
def test_a_fine_tuned_multiple_choice_is_exported_and_an_imported_one_evaluates(tmp_path, tokenizer):
    config = BertConfig(**SIZES, classifier_dropout=0.2)
    module = config.module(Purpose.ENCODING, Execution())
    params = {module.name: random_params(module)}
    run = Experiment(model=config, objective=BertPretraining(), data=Data(SentencePairs()))
    checkpoints.save_parameters(tmp_path / "run", params, run, tokenizer=checkpoints.tokenizer_files(tokenizer))
    rows = [{"context": "a b", "choices": ["c", f"d {end}", "e f"], "label": n % 3} for n, end in enumerate("abcdefgh")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = str(tmp_path / "rows.jsonl")
    run = Experiment(
        model=None,
        objective=MultipleChoice(),
        data=Choices(train=path, validation=path, sequence_length=12),
        optimizer=BertAdamW(),
        training=Training(steps=1, batch_size=8, unroll=1),
        finetuning=Finetuning(),
    )
    metrics = finetune(run, tmp_path / "run", tmp_path / "tuned")
    assert "BertForMultipleChoice of step 1" in export_checkpoint(tmp_path / "tuned", tmp_path / "out")
    import_checkpoint(tmp_path / "out", tmp_path / "imported")
    found = evaluate(tmp_path / "imported", tmp_path / "rows.jsonl")
    assert found["eval/accuracy"] == metrics["eval/accuracy"]
    assert found["eval/loss"] == pytest.approx(metrics["eval/loss"], rel=1e-5)


@pytest.mark.nightly
def test_google_import_equals_transformers_import(tmp_path, tokenizer):
    pytest.importorskip("tensorflow")
    source = tmp_path / "google"
    source.mkdir()
    published(source)
    (source / "vocab.txt").write_bytes((tokenizer / "vocab.txt").read_bytes())
    said = import_checkpoint(source, tmp_path / "run")
    assert "gives every bit back" in said
    export_checkpoint(tmp_path / "run", tmp_path / "out")
    import_checkpoint(tmp_path / "out", tmp_path / "again")
    first, second = (
        flax.traverse_util.flatten_dict(checkpoints.load_parameters(tmp_path / name)[0], sep="/")
        for name in ("run", "again")
    )
    assert first.keys() == second.keys()
    for path in first:
        np.testing.assert_array_equal(first[path], second[path])
    assert json.loads((tmp_path / "out" / "config.json").read_text())["hidden_act"] == "gelu_new"


@needs_torch
def test_an_activation_that_transformers_lacks_is_named(tmp_path):
    feed_forward.declare_activation("cube", lambda x: x**3)
    module = BertForPreTraining(dataclasses.replace(CONFIG, hidden_act="cube"))
    params = random_params(module)
    huggingface.save(module, params, tmp_path / "out")
    with pytest.raises(
        UserError, match=r"names in .*out/config\.json that transformers knows, found 'cube'; plmjax can"
    ):
        huggingface.compare(module, params, tmp_path / "out")


def test_without_transformers_a_round_trip_is_checked(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(huggingface, "transformers_installed", lambda: False)
    module = MODULES["BertForPreTraining"]
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
    module = MODULES["BertForPreTraining"]
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
        ("multi_label_classification", ("spam",), MultiLabelClassification(("spam",))),
        ("regression", ("LABEL_0",), Regression()),
        ("single_label_classification", ("no", "yes"), SequenceClassification(("no", "yes"))),
        (None, ("no", "yes"), SequenceClassification(("no", "yes"))),
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


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"problem_type": "regression"}, "found the problem_type 'regression' with 3"),
        ({"problem_type": "multi_label"}, "found 'multi_label'; known: multi_label_classification"),
        ({"problem_type": ["regression"]}, "problem_type"),
        ({"id2label": {"0": "a", "1": "a", "2": "b"}}, "different names"),
        ({"id2label": {"1": "a", "2": "b", "3": "c"}}, "different names"),
        ({"id2label": {"0": 0, "1": 1, "2": 2}}, "different names"),
        ({"id2label": ["a", "b", "c"]}, "different names"),
        ({"id2label": None, "num_labels": "3"}, "Expected a number of labels .*, found '3'"),
        ({"bos_token_id": "2"}, "int as the config's bos_token_id, found '2'"),
        ({"eos_token_id": [2, 3]}, r"int as the config's eos_token_id, found \[2, 3\]"),
    ],
)
def test_a_classifier_that_cannot_be_expressed_is_one_sentence(settings, sentence, tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(huggingface, "transformers_installed", lambda: False)
    module = MODULES["BertForSequenceClassification"]
    huggingface.save(module, random_params(module), tmp_path, tokenizer=tokenizer)
    set_config(tmp_path, **settings)
    with pytest.raises(UserError, match=sentence):
        import_checkpoint(tmp_path, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_kind_of_problem_needs_several_labels():
    with pytest.raises(UserError, match="problem_type 'single_label_classification' with 1"):
        with_problem_type(Regression(), Sentences(), ("a",), "single_label_classification")


def test_every_file_follows_the_umask(tmp_path, tokenizer):
    """Also the safetensors library's, which writes by way of a file that is private to its owner."""
    module = MODULES["BertModel without pooler"]
    before = os.umask(0o027)
    try:
        huggingface.save(module, random_params(module), tmp_path / "source", tokenizer=tokenizer)
        import_checkpoint(tmp_path / "source", tmp_path / "run")
        export_checkpoint(tmp_path / "run", tmp_path / "out")
    finally:
        os.umask(before)
    written = [path for name in ("source", "run", "out") for path in (tmp_path / name).rglob("*")]
    modes = {str(path): oct(path.stat().st_mode & 0o777) for path in written}
    assert {"model.safetensors", "config.json", "experiment.json"} <= {path.name for path in written}
    assert modes == {str(path): "0o750" if path.is_dir() else "0o640" for path in written}


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
    assert _rows(run, trained, trained, "OpenAIGPTForSequenceClassification") == own
    assert _rows(run, trained, body, "OpenAIGPTModel") == own
    assert _rows(run, trained, writer, "OpenAIGPTLMHeadModel") == TEXT_ALONE
    assert _rows(plain, writer, body, "OpenAIGPTModel") == TEXT_ALONE


@pytest.mark.parametrize(("whole", "expected"), [(True, {"max_length": 19}), (False, {"max_new_tokens": 18})])
def test_a_length_of_generation_counts_the_prompt_of_a_decoder(whole, expected, tmp_path):
    """In an encoder-decoder it counts the token before the text. The tokenizer's own end is no setting."""
    config = Gpt2Config.tiny(vocab_size=9) if whole else TransformerConfig.tiny(vocab_size=9)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "generation_config.json").write_text('{"max_length": 19, "eos_token_id": 4}')
    module = config.module(Purpose.CAUSAL_LM, Execution())
    assert _generation(tmp_path, module, Vocabulary(9, end=4)).explicit() == expected
    assert _generation(tmp_path, module, Vocabulary(9, end=3)).explicit() == expected | {"eos_token_id": (4,)}
    assert _generation(tmp_path, BertModel(CONFIG), Vocabulary(9, end=4)) is None


def test_a_folder_is_replaced_if_it_is_an_earlier_export(tmp_path):
    claim(tmp_path / "out", "BertModel", 3)
    (tmp_path / "out" / "notes").write_text("mine")
    claim(tmp_path / "out", "GPT2Model", 4)
    assert json.loads((tmp_path / "out" / MARK).read_text()) == {"architecture": "GPT2Model", "step": 4}
    (tmp_path / "out" / MARK).unlink()
    with pytest.raises(UserError, match="found other files in"):
        claim(tmp_path / "out", "BertModel", 5)
    with pytest.raises(UserError, match="found the file"):
        claim(tmp_path / "out" / "notes", "BertModel", 5)
    with pytest.raises(UserError, match="found no finished checkpoint"):
        export_checkpoint(tmp_path, tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("options", "columns"),
    [
        ({"source_lang": "en", "target_lang": "de"}, {"source": "en", "target": "de"}),
        ({"source_lang": "en", "target_lang": ""}, {}),
        ({"target_lang": "de"}, {}),
    ],
)
def test_columns_of_a_translation_are_named_as_both_languages(options, columns, tmp_path):
    assert _languages(tmp_path) == {}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(options))
    assert _languages(tmp_path) == columns


def test_a_parameter_that_one_side_lacks_is_a_difference():
    ours, theirs = {"a": np.ones(2)}, {"a": np.ones(2), "b": np.ones(1)}
    _same_bits(ours, {"a": np.ones(2)}, "the files")
    for found, expected in ((ours, theirs), (theirs, ours)):
        with pytest.raises(UserError, match="Expected to read b back from the files"):
            _same_bits(found, expected, "the files")
    with pytest.raises(UserError, match="Expected to read a back from the files"):
        _same_bits(ours, {"a": np.nextafter(np.ones(2), 2)}, "the files")


def test_word_vectors_are_exported_alone(fails, tmp_path):
    (tmp_path / "vectors.txt").write_text("3 2\na 1 2\nb 3 4\nc 5 6\n")
    cli.run(["import", str(tmp_path / "vectors.txt"), str(tmp_path / "run")])
    assert not can_export(tmp_path / "run")
    said = fails("export", tmp_path / "run", tmp_path / "out")
    assert "found StaticVectorsConfig" in said and "or write the vectors of its words with --vectors text" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.nightly
def test_a_translation_model_is_scored_on_parallel_files_and_translates(tmp_path):
    text = ["a film of snow", "the snow is white", "ein Film aus Schnee", "der Schnee ist weiss"]
    vocabulary = tokenizers.train("byte-bpe", 280, text * 3, tmp_path / "tokenizer", lowercase=False).vocabulary
    special = {"pad_token_id": vocabulary.pad, "decoder_start_token_id": vocabulary.pad}
    model = TransformerForConditionalGeneration(
        TransformerConfig.tiny(
            vocab_size=vocabulary.size, d_model=16, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=24,
            decoder_ffn_dim=24, max_position_embeddings=24, eos_token_id=vocabulary.document_end, dropout=0.0,
            **special,
        )
    )  # fmt: skip
    params = random_params(model)
    first = {"decoder_start_token_id": vocabulary.pad}
    generation = {"max_length": 19, "eos_token_id": vocabulary.document_end, **first}
    huggingface.save(model, params, tmp_path / "marian", generation=generation)
    options = json.loads((tmp_path / "tokenizer" / "tokenizer_config.json").read_text())
    options |= {"source_lang": "en", "target_lang": "de"}
    (tmp_path / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(options))
    said = import_checkpoint(tmp_path / "marian", tmp_path / "run", tokenizer=tmp_path / "tokenizer")
    assert said.startswith("imported   MarianMTModel")
    # The first of 19 tokens is there before a text is, and the end is the tokenizer's own.
    settings = checkpoints.describe(checkpoints.find(tmp_path / "run")).experiment.generation
    assert settings.explicit() == {"max_new_tokens": 18}
    (tmp_path / "dev.en").write_text("\n".join(text[:2]))
    (tmp_path / "dev.de").write_text("\n".join(text[2:]))
    found = evaluate(tmp_path / "run", tmp_path / "dev.en")
    tokenizer, nats, count = tokenizers.load(tmp_path / "tokenizer"), 0.0, 0
    for source, target in zip(text[:2], text[2:], strict=True):
        read, asked = ([*tokenizer.encode(one), vocabulary.document_end] for one in (source, target))
        given = {"input_ids": np.array([read]), "decoder_input_ids": np.array([[vocabulary.pad, *asked[:-1]]])}
        logits = outputs(model, params, given).logits[0]
        nats -= log_softmax(np.asarray(logits), axis=-1)[np.arange(len(asked)), asked].sum()
        count += len(asked)
    assert found["eval/loss"] == pytest.approx(nats / count, rel=1e-5) and 0 <= found["eval/bleu"] <= 100
    written = [
        json.loads(line)["prediction"]
        for line in (tmp_path / "run" / "evaluations" / "dev" / "predictions.jsonl").read_text().splitlines()
    ]
    shutil.copy(tmp_path / "dev.en", tmp_path / "new.txt")
    assert [record["prediction"] for record in predict(tmp_path / "run", tmp_path / "new.txt")] == written
