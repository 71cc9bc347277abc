"""Functions of jax.export, read back and called without the project's own code."""

import datetime
import functools
import json

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.data.layouts import Chunks, SentencePairs
from plmjax.errors import UserError
from plmjax.experiment import Data, Experiment
from plmjax.finetuning.tasks.sentences import Sentences, SequenceClassification
from plmjax.finetuning.tasks.text_generation import DECODER_ROW, TextGeneration
from plmjax.finetuning.tasks.text_pairs import TextPairs
from plmjax.interop import exported_function, huggingface
from plmjax.interop.exported_function import export_function
from plmjax.interop.run_directories import import_checkpoint
from plmjax.layers import int8
from plmjax.models.bart.bart import BartConfig
from plmjax.models.bert import BertConfig
from plmjax.models.elmo import ElmoConfig
from plmjax.models.gpt import GptConfig
from plmjax.models.gpt2 import Gpt2Config
from plmjax.objectives.bert import BertPretraining
from plmjax.objectives.next_token import NextToken
from plmjax.training.checkpoints import checkpoints
from tests.interop.odd_bert import SIZES, random_params
from tests.interop.test_import_export import VOCABULARY
from tests.systems.modules import outputs

ROWS, LENGTH = 3, 7
BERT = BertConfig(**SIZES)
SHORT = BertConfig(**SIZES | {"max_position_embeddings": LENGTH})
GPT2 = Gpt2Config(vocab_size=37, n_embd=12, n_layer=2, n_head=3, n_positions=19)
LABELS = SequenceClassification(labels=("no", "yes"))
CASES = {
    "an encoder": (
        BERT, BertPretraining(), Data(SentencePairs(), sequence_length=LENGTH), Purpose.ENCODING, "last_hidden_state",
    ),
    "a task": (SHORT, LABELS, Sentences(train="t.tsv", sequence_length=LENGTH), None, "logits"),
    "a language model": (GPT2, NextToken(), Data(Chunks(), sequence_length=LENGTH), Purpose.PRETRAINING, "logits"),
}  # fmt: skip


@pytest.fixture
def files(tmp_path):
    """The files of a tokenizer of letters: name -> contents."""
    folder = tmp_path / "there"
    model = BERT.module(Purpose.ENCODING, Execution())
    huggingface.save(model, random_params(model), folder)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    import_checkpoint(folder, tmp_path / "imported")
    return checkpoints.describe(checkpoints.find(tmp_path / "imported")).tokenizer


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "a task" else pytest.mark.nightly) for name in CASES]
)
def test_it_gives_the_outputs_of_the_module(name, files, tmp_path) -> None:
    config, objective, data, purpose, output = CASES[name]
    module = objective.module(config, Execution()) if purpose is None else config.module(purpose, Execution())
    params = random_params(module)
    tree = {module.name: params} if purpose is Purpose.ENCODING else params
    if name == "a task":  # in int8 its layers have scales, which a function in float32 does not take
        flat = flax.traverse_util.flatten_dict(params, sep="/")
        layer = next(path for path in flat if path.endswith("/kernel")).rpartition("/")[0]
        scales = {f"{layer}/{scale}": np.ones(2, np.float32) for scale in int8.ADDED}
        tree = flax.traverse_util.unflatten_dict(flat | scales, sep="/")
    run = Experiment(model=config, objective=objective, data=data, optimizer=None)
    checkpoints.save_parameters(tmp_path / "run", tree, run, tokenizer=files)
    length = None if name == "a task" else LENGTH  # that of the run, which may be all positions of the model
    line = export_function(tmp_path / "run", tmp_path / "out", platforms=("cpu", "tpu"), rows=ROWS, length=length)
    assert "3 rows of 7 tokens for cpu, tpu" in line and "read back" in line

    described = json.loads((tmp_path / "out" / "signature.json").read_text())
    written = datetime.date.fromisoformat(described["date"])
    assert described["jax"] == jax.__version__ and (datetime.datetime.now(datetime.UTC).date() - written).days in (0, 1)
    assert f"until {written + datetime.timedelta(days=180)} at least" in line
    assert described["platforms"] == ["cpu", "tpu"] and described["outputs"][output]["dtype"] == "float32"
    function = jax.export.deserialize(bytearray((tmp_path / "out" / "function.bin").read_bytes()))
    mask = np.arange(LENGTH) < np.array([[7], [4], [2]])
    rows = {"input_ids": np.random.default_rng(1).integers(0, 37, (ROWS, LENGTH), np.int32), "attention_mask": mask}
    if "token_type_ids" in described["inputs"]:
        rows["token_type_ids"] = np.eye(ROWS, LENGTH, dtype=np.int32)
    assert {one: [*value.shape] for one, value in rows.items()} == {
        one: value["shape"] for one, value in described["inputs"].items()
    }
    found = function.call(safetensors.numpy.load_file(tmp_path / "out" / "parameters.safetensors"), rows)[output]
    expected = getattr(outputs(module, params, rows), output)
    where = mask if found.shape[:2] == mask.shape else np.ones(len(found), bool)
    np.testing.assert_allclose(found[where], expected[where], rtol=0, atol=1e-5 * np.abs(expected).max())


def test_a_task_has_its_own_rows_and_a_model_those_of_its_pretraining() -> None:
    """A text of a GPT's task begins and ends with tokens of its own."""
    config, task = GptConfig.tiny(vocab_size=40), SequenceClassification(labels=("no", "yes"))
    run = Experiment(model=Gpt2Config.tiny(vocab_size=40), objective=TextGeneration(), data=TextPairs())
    _, rows = exported_function._module(run, "here")
    assert rows == DECODER_ROW != run.model.template
    module, rows = exported_function._module(Experiment(model=config, objective=task, data=Sentences()), "here")
    assert module == task.module(config, Execution()) and rows == task.template(config)
    plain = Experiment(model=BERT, objective=BertPretraining(), data=Data(SentencePairs()))
    module, rows = exported_function._module(plain, "here")
    assert module == BERT.module(Purpose.EMBEDDING, Execution()) and rows == BERT.template


def test_a_copy_that_computes_something_else_is_found(tmp_path) -> None:
    """In any of its outputs; it is called only where it was exported for this machine."""

    def function(parameters: dict, inputs: dict, further: float = 0.0) -> dict:
        return {"sums": inputs["x"].sum(axis=1) * parameters["w"], "products": inputs["x"] * 2 + further}

    flat, inputs = {"w": np.float32([2, 3])}, {"x": jnp.ones((2, 4))}
    exported = jax.export.export(jax.jit(function))(flat, inputs)
    (tmp_path / "function.bin").write_bytes(exported.serialize())
    safetensors.numpy.save_file(flat, tmp_path / "parameters.safetensors")
    assert "read back" in exported_function._compare(tmp_path, function, flat, inputs=inputs, platforms=("cpu",))
    assert "was not called" in exported_function._compare(tmp_path, function, flat, inputs=inputs, platforms=("tpu",))
    other = functools.partial(function, further=1e-3)
    with pytest.raises(UserError, match=r"found a difference of 0\.0005"):
        exported_function._compare(tmp_path, other, flat, inputs=inputs, platforms=("cpu",))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--platforms", "cpu", "npu"], "npu"),
        (["--rows", "0", "--length", "7"], "Expected positive numbers for --rows and --length, found 0 and 7"),
        (["--length", "20"], "Expected a --length of at most the model's 19 positions, found 20"),
    ],
)
def test_what_no_function_has_is_one_sentence(options, sentence, files, tmp_path, fails) -> None:
    assert sentence in fails("export", tmp_path / "imported", tmp_path / "out", "--to", "jax", *options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("config", [BartConfig.base(), ElmoConfig()], ids=["two texts", "characters"])
def test_a_model_that_reads_no_row_of_tokens_is_one_sentence(config, tmp_path, fails) -> None:
    run = Experiment(model=config, objective=NextToken(), data=Data(layout=Chunks()), optimizer=None)
    checkpoints.save_parameters(tmp_path / "run", {"x": np.zeros(1, np.float32)}, run, tokenizer={})
    message = fails("export", tmp_path / "run", tmp_path / "out", "--to", "jax")
    assert "Expected a model of one row of token ids for --to jax" in message and type(config).__name__ in message
