"""Functions of jax.export, called without the project's own code, and the programs of docs/exports.md."""

import dataclasses
import datetime
import json
import re
import shlex
from pathlib import Path

import flax.traverse_util
import jax
import numpy as np
import pytest
import safetensors.numpy

from plmjax import experiment
from plmjax.commands import cli
from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.data.layouts import Chunks
from plmjax.experiment import Data, Experiment
from plmjax.finetuning.tasks.sentences import Sentences, SequenceClassification
from plmjax.interop import huggingface, word2vec
from plmjax.interop.exported_function import export_function
from plmjax.interop.run_directories import import_checkpoint
from plmjax.interop.word_vector_runs import import_vectors
from plmjax.interop.word_vectors import WordVectors
from plmjax.layers import int8
from plmjax.models.bart.bart import BartConfig
from plmjax.models.bert import BertConfig
from plmjax.models.elmo import ElmoConfig
from plmjax.objectives.next_token import NextToken
from plmjax.training import metrics
from plmjax.training.checkpoints import checkpoints
from plmjax.training.optimizers import BertAdamW
from tests.interop.odd_bert import SIZES, random_params
from tests.interop.test_import_export import VOCABULARY
from tests.optional import needs_sentence_transformers
from tests.report.test_page import records
from tests.systems.modules import outputs

ROWS, LENGTH = 3, 7
BERT = BertConfig(**SIZES)


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """The run of an encoder with a tokenizer of letters."""
    folder = tmp_path_factory.mktemp("imported")
    model = BERT.module(Purpose.ENCODING, Execution())
    huggingface.save(model, random_params(model), folder / "there")
    (folder / "there" / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    import_checkpoint(folder / "there", folder / "run")
    return folder / "run"


def test_it_gives_the_outputs_of_the_module(imported, tmp_path) -> None:
    """The module is a classifier whose rows take all positions; docs/exports.md exports encoders."""
    config = dataclasses.replace(BERT, max_position_embeddings=LENGTH)
    objective = SequenceClassification(labels=("no", "yes"))
    module = objective.module(config, Execution())
    params = random_params(module)
    flat = flax.traverse_util.flatten_dict(params, sep="/")  # in int8 it has scales, which float32 does not take
    layer = next(path for path in flat if path.endswith("/kernel")).rpartition("/")[0]
    scales = {f"{layer}/{scale}": np.ones(2, np.float32) for scale in int8.ADDED}
    tree = flax.traverse_util.unflatten_dict(flat | scales, sep="/")
    run = Experiment(config, objective, Sentences(train="t.tsv", sequence_length=LENGTH), optimizer=None)
    tokenizer = checkpoints.describe(checkpoints.find(imported)).tokenizer
    checkpoints.save_parameters(tmp_path / "run", tree, run, tokenizer)
    line = export_function(tmp_path / "run", tmp_path / "out", platforms=("cpu", "tpu"), rows=ROWS)
    assert "3 rows of 7 tokens for cpu, tpu" in line and "read back" in line

    described = json.loads((tmp_path / "out" / "signature.json").read_text())
    written = datetime.date.fromisoformat(described["date"])
    assert described["jax"] == jax.__version__ and (datetime.datetime.now(datetime.UTC).date() - written).days in (0, 1)
    assert f"until {written + datetime.timedelta(days=180)} at least" in line
    assert described["platforms"] == ["cpu", "tpu"] and described["outputs"]["logits"]["dtype"] == "float32"
    function = jax.export.deserialize(bytearray((tmp_path / "out" / "function.bin").read_bytes()))
    mask = np.arange(LENGTH) < np.array([[7], [4], [2]])
    rows = {"input_ids": np.random.default_rng(1).integers(0, 37, (ROWS, LENGTH), np.int32), "attention_mask": mask}
    rows["token_type_ids"] = np.eye(ROWS, LENGTH, dtype=np.int32)
    shapes = {name: one["shape"] for name, one in described["inputs"].items()}
    assert shapes == {name: [ROWS, LENGTH] for name in rows}
    found = function.call(safetensors.numpy.load_file(tmp_path / "out" / "parameters.safetensors"), rows)["logits"]
    expected = outputs(module, params, rows).logits
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_what_no_function_has_is_one_sentence(imported, tmp_path, fails) -> None:
    export = ("export", imported, tmp_path / "out", "--to", "jax")
    assert "npu" in fails(*export, "--platforms", "cpu", "npu")
    assert "positive numbers for --rows and --length, found 0 and 7" in fails(*export, "--rows", "0", "--length", "7")
    assert "a --length of at most the model's 19 positions, found 20" in fails(*export, "--length", "20")
    for config in (BartConfig.base(), ElmoConfig()):  # two texts, characters
        run = Experiment(model=config, objective=NextToken(), data=Data(layout=Chunks()), optimizer=None)
        folder = tmp_path / type(config).__name__
        checkpoints.save_parameters(folder, {"x": np.zeros(1, np.float32)}, run, tokenizer={})
        message = fails("export", folder, tmp_path / "out", "--to", "jax")
        assert "Expected a model of one row of token ids for --to jax" in message and folder.name in message
    assert not (tmp_path / "out").exists()


PAGE = (Path(__file__).resolve().parents[2] / "docs" / "exports.md").read_text(encoding="utf-8")
SECTIONS = dict(part.split("\n", 1) for part in PAGE.split("\n## ")[1:])
SPEED = {"tokens_per_second": 4000.0, "model_flops_per_second": 3e9}


def executed(text: str, monkeypatch: pytest.MonkeyPatch) -> dict:
    """Runs the commands and programs of a part of the page, but no installation; the names that the programs define."""
    names: dict = {}
    for kind, block in re.findall(r"```(bash|python)\n(.*?)```", text, re.DOTALL):
        if kind == "python":
            exec(compile(block, "docs/exports.md", "exec"), names)
            continue
        for line in block.splitlines():
            program, *arguments = shlex.split(line)
            if program == "plmjax":
                monkeypatch.setattr("sys.argv", ["plmjax", *arguments])
                cli.main()
            else:
                assert line.startswith("pip install '.[sentences]'")
    return names


def test_every_section_with_commands_is_known() -> None:
    """All are run here but spaCy's, whose files test_word2vec.py has it read."""
    found = [name for name, text in SECTIONS.items() if "```bash" in text or "```python" in text]
    assert found == ["sentence-transformers", "A function of jax.export", "gensim", "spaCy", "Model cards"]


@pytest.fixture
def vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WordVectors:
    """Vectors of a few words, which are those of a run that the page names."""
    words = "array hstack doubles an of integers a list numbers".split()
    made = WordVectors("made", words, np.random.default_rng(0).normal(size=(len(words), 6)).astype(np.float32))
    word2vec.write(tmp_path / "given.txt", made.words, made.vectors)
    monkeypatch.chdir(tmp_path)
    import_vectors("given.txt", "runs/word2vec_tiny")
    return made


def test_gensim_finds_the_neighbors_of_the_run(vectors: WordVectors, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gensim", reason="needs gensim, which the extra `test` installs")
    found = executed(SECTIONS["gensim"], monkeypatch)["neighbors"]
    expected = vectors.nearest(["array"], top=3)
    assert [word for word, _ in found] == [word for word, _ in expected]
    np.testing.assert_allclose([cosine for _, cosine in found], [cosine for _, cosine in expected], atol=1e-6)


@pytest.mark.nightly
@needs_sentence_transformers
def test_folders_and_cards_are_written_and_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = BertConfig(**(SIZES | {"max_position_embeddings": 32})).module(Purpose.ENCODING, Execution())
    huggingface.save(model, random_params(model), tmp_path / "there")
    (tmp_path / "there" / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    monkeypatch.chdir(tmp_path)
    import_checkpoint("there", "runs/bert_tiny")
    run = experiment.read(Path("runs/bert_tiny/experiment.json"))
    experiment.write(dataclasses.replace(run, optimizer=BertAdamW()), Path("runs/bert_tiny/experiment.json"))
    Path("runs/bert_tiny/metrics.jsonl").write_text("".join(map(metrics.to_line, records(**SPEED))), encoding="utf-8")
    Path("exported").mkdir()
    text = "\n".join(SECTIONS[name] for name in ("sentence-transformers", "A function of jax.export", "Model cards"))
    names = executed(text, monkeypatch)
    assert names["vectors"].shape == (2, SIZES["hidden_size"])
    assert names["outputs"]["last_hidden_state"].shape == (8, 32, SIZES["hidden_size"])
    assert Path("exported/README.md").read_text(encoding="utf-8").startswith("---\n")
