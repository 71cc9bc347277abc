"""Taggers that begin with a checkpoint's language models or vectors, from the command to predictions."""

import json
import re
import shlex
from pathlib import Path

import chex
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.data import tokenizers
from plmjax.data.layouts import BidirectionalStreams
from plmjax.errors import UserError
from plmjax.experiment import Data, Experiment
from plmjax.finetuning.batches.source import ExampleRows
from plmjax.finetuning.tasks.tagging import TaggedExamples, Tagging, TokenTagging
from plmjax.interop.conversion import parameter_shapes
from plmjax.layers.words.characters import sentence_marks, spell
from plmjax.models.elmo import ElmoConfig
from plmjax.objectives.bidirectional_language_model import BidirectionalLanguageModel
from plmjax.training import loop
from plmjax.training.checkpoints import checkpoints
from tests.finetuning.conftest import stopping
from tests.finetuning.test_docs import Reached, saving
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "contextual_vectors.md").read_text(encoding="utf-8")
SECTION = PAGE[PAGE.index("## Taggers") : PAGE.index("## Sentences")]
COMMANDS = [
    shlex.split(line)
    for block in re.findall(r"```bash\n(.*?)```", SECTION, re.DOTALL)
    for line in block.strip().splitlines()
]

ELMO = ElmoConfig(
    vocab_size=16, max_characters_per_token=8, character_dim=3, filter_widths=(2,), filter_counts=(4,), n_highway=0,
    n_layers=1, dim=6, projection_dim=4,
)  # fmt: skip
SENTENCES = [["Paris", "was"], ["New", "York", "was", "unseen"]]
LABELS = [["B-LOC", "O"], ["B-LOC", "I-LOC", "O", "O"]]
WRITTEN = "\n".join("".join(f"{word}\t{label}\n" for word, label in zip(*one)) for one in zip(SENTENCES, LABELS))  # noqa: B905
SMALL = (
    "--data.sequence_length 8 --data.pack 2 --training.batch_size 8 --weight_mapping.tagger.hidden_size 4 "
    "--training.steps 4 --finetuning.epochs 0 --finetuning.evaluations 0"
).split()


@pytest.fixture(scope="module")
def elmo_run(tmp_path_factory) -> Path:
    """The run directory of an ELMo of random parameters, whose tokenizer knows some words of the task."""
    folder = tmp_path_factory.mktemp("elmo")
    tokenizers.train("word", ELMO.vocab_size, ["Paris New York was . " * 3], folder / "tokenizer", lowercase=False)
    random = np.random.default_rng(0)
    shapes = parameter_shapes(
        ELMO.module(Purpose.ENCODING, Execution()), {"characters": jnp.zeros((1, 1, 8), jnp.int32)}
    )
    params = {f"elmo/{path}": random.normal(size=shape).astype(np.float32) for path, shape in shapes.items()}
    params["softmax_bias"] = np.zeros(ELMO.vocab_size, np.float32)
    run = Experiment(ELMO, BidirectionalLanguageModel(negatives=4), Data(BidirectionalStreams(), sequence_length=8))
    tree = flax.traverse_util.unflatten_dict(params, sep="/")
    checkpoints.save_parameters(folder / "run", tree, run, tokenizer=checkpoints.tokenizer_files(folder / "tokenizer"))
    return folder / "run"


def parameters(run: Path) -> dict[str, np.ndarray]:
    return flax.traverse_util.flatten_dict(checkpoints.load_parameters(run)[0], sep="/")


@pytest.fixture
def folder(elmo_run, tmp_path, monkeypatch) -> Path:
    """The files that the page takes for granted: a pretrained run, and files of words."""
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "elmo_tiny").symlink_to(elmo_run)
    for name in ("train", "dev"):
        (tmp_path / f"{name}.conll").write_text(WRITTEN * 4, encoding="utf-8")
        columns = re.sub(r"(.+)\t(.+)", "1\t\\1\t_\t\\2" + 6 * "\t_", WRITTEN)
        (tmp_path / f"en_ewt-ud-{name}.conllu").write_text(columns * 4, encoding="utf-8")
    (tmp_path / "new.txt").write_text("Paris was\nNew unseen York\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.nightly
def test_a_tagger_learns_above_language_models_that_do_not(elmo_run, folder, monkeypatch, capsys):
    """By the commands of the page. The mixes and the transitions begin with 0; whatever is not 0 has been trained.

    Stopped and run again it ends in the same bits, dropout included.
    """
    taglm, elmo, predict = COMMANDS
    cli.run([*elmo[1:], *SMALL])
    before, after = parameters(elmo_run), parameters(folder / "runs" / "elmo_tagger")
    within = "elmo_tagger/language_model/"
    kept = {name: value for name, value in after.items() if name.startswith(within)}
    assert len(kept) == len([name for name in before if name.startswith("elmo/")]) > 5
    for name, value in kept.items():
        np.testing.assert_array_equal(value, before[f"elmo/{name.removeprefix(within)}"], err_msg=name)
    for name in ("elmo_tagger/scalar_mix_input/weights", "elmo_tagger/scalar_mix_output/weights", "transitions/end"):
        assert np.all(after[name]), name

    again = [argument.replace("runs/elmo_tagger", "runs/stopped") for argument in [*elmo[1:], *SMALL]]
    with stopping(after=3):
        cli.run(again)
    assert 0 < checkpoints.describe(checkpoints.find("runs/stopped")).step < 4
    cli.run(again)
    chex.assert_trees_all_equal(parameters(Path("runs/stopped")), after)

    metrics = json.loads((folder / "runs" / "elmo_tagger" / "evaluation.json").read_text())
    assert metrics["eval/joint_loss"] == pytest.approx(metrics["eval/loss"] + 1e-3 * metrics["eval/mix_loss"])
    capsys.readouterr()
    cli.run(predict[1:])
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["words"] for record in records] == [["Paris", "was"], ["New", "unseen", "York"]]
    assert all(label in ("B-LOC", "I-LOC", "O") for record in records for label in record["predictions"])

    with pytest.raises(UserError, match=r"embeds a text alone in .*ElmoTaggerConfig"):
        cli.run(["embed", "runs/elmo_tagger", "--input", "new.txt", "--output", "vectors.npz"])

    monkeypatch.setattr(loop, "train", saving)
    with pytest.raises(Reached):
        cli.run([*taglm[1:], *SMALL])
    begun = parameters(folder / "runs" / "taglm")
    name = "language_model/forward/layer_0/recurrent_kernel"
    np.testing.assert_array_equal(begun[f"taglm/{name}"], before[f"elmo/{name.partition('/')[2]}"])


def test_words_reach_a_model_by_their_spelling(elmo_run):
    """Those of no vocabulary too; a packed row has the marks of every sentence, and 0 where it is padding."""
    tokenizer = tokenizers.load(elmo_run.parent / "tokenizer")
    examples = TaggedExamples("", [1, 2], SENTENCES, LABELS, [[1] * 2, [2] * 4])
    objective = TokenTagging(("B-LOC", "I-LOC", "O"), mix=True)
    encoded = objective.encode(examples, tokenizer, ELMO, Tagging(sequence_length=6))
    rows = ExampleRows(encoded, 11, 2, pad=0)
    batch = rows.batch(rows.in_order, np.arange(1))
    begin, end = sentence_marks(8)
    first, second = (spell(words, 8) for words in SENTENCES)
    sentences = {0: [begin, *first, end], 1: [begin, *second, end]}
    expected = np.concatenate([sentences[sentence] for sentence in batch["example_ids"][0]])
    np.testing.assert_array_equal(batch["characters"][0, :10], expected)
    assert not batch["characters"][0, 10:].any() and batch["characters"].dtype == np.uint16
    assert encoded.tokens[8] == tokenizer.vocabulary.unknown  # "unseen"
    module, inputs = objective.module(ELMO, Execution()), jax.tree.map(jnp.asarray, objective.model_inputs(batch))
    shapes = jax.eval_shape(lambda: module.init_with_output(jax.random.key(0), **inputs)[0])
    assert shapes.logits.shape == (1, 11, 3) and shapes.mix_weights.shape == (1, 2)
