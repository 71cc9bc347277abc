"""A compression refuses a mistake in one sentence, before it writes anything."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.compression.distillation import stored
from plmjax.compression.distillation.distilbert import DistilBertDistillation
from plmjax.compression.distillation.distributions import distributions_of
from plmjax.compression.distillation.mobilebert import MobileBertDistillation
from plmjax.compression.distillation.patient import PatientDistillation
from plmjax.compression.distillation.soft_targets import SoftTargetDistillation
from plmjax.compression.distillation.students import TakenLayers
from plmjax.compression.distillation.tinybert import TinyBertDistillation
from plmjax.compression.factorization import projections
from plmjax.compression.pruning.one_shot import by_pattern, ticket
from plmjax.compression.pruning.schedule import Cubic
from plmjax.compression.quantization.aware import QuantizationAware
from plmjax.compression.sharing import with_groups
from plmjax.contracts.execution import Execution
from plmjax.errors import UserError
from plmjax.finetuning.tasks.crf_tagging import CrfTagging
from plmjax.finetuning.tasks.sentences import SequenceClassification
from plmjax.interop import huggingface
from plmjax.models.albert import AlbertConfig
from plmjax.models.bert import BertConfig, BertForMaskedLM
from plmjax.models.compressed.configs import check_prunable, with_compression
from plmjax.models.compressed.removal import remove_zeros
from plmjax.models.mobilebert import MobileBertConfig
from plmjax.training.checkpoints import checkpoints
from tests.families import STEPS
from tests.systems.modules import boxed_shapes

COMMANDS = [
    ("prune method", "prune nowhere --method magnitud", "'magnitud'; did you mean 'magnitude'?"),
    ("sparsity", "prune nowhere --sparsity 1.5", "--sparsity above 0 and below 1", "1.5"),
    ("options", "prune nowhere --method two_of_four --training.steps 3", "does not train", "'--training.steps"),
    ("field", "prune {bert} --method lottery --compression.begin 0.2", "'--compression.begin'"),
    ("rows", "prune {bert} --method heads --rows 0", "--rows and --rounds of at least 1", "0 and 1"),
    ("settings", "prune {gpt2} --method gradual", "the settings of a training, or --experiment", "imported"),
    ("pruned more", "prune {half} --sparsity 0.2", "that of the checkpoint, 0.500", "0.2"),
    ("prune int8", "prune {int8}", "arrays in int8; compress the checkpoint"),
    ("no checkpoint", "prune {empty}", "found no finished checkpoint"),
    ("both", "distil nowhere --layers 0 --student random", "either --layers or --student"),
    ("layers", "distil {bert} --layers 0 3", "--layers from 0 to 0, the layers of the teacher", "found 3"),
    ("student", "distil {bert} --student {gpt2}", "another one in", "{gpt2}"),
    ("vocabulary", "distil {bert} --student random --model.vocab_size 900", "vocabulary of 800 tokens", "900"),
    ("depth", "distil {bert} --model.num_hidden_layers 2", "one for each layer that it takes"),
    ("no task", "distil {bert} --experiment finetune_sentences {data}", "has learned BertPretraining"),
    ("no heads", "distil {task} --experiment bert_tiny", "no module for BertPretraining"),
    ("labels", "distil {task} --objective.labels a b", "with the labels a, b, found", "negative, positive"),
    ("stored", "distil {bert} --compression.top_k 2", "for --compression.top_k", "BertPretraining"),
    ("taken", "distil {bert} --method mobilebert --layers 0", "--method mobilebert", "--layers 0;"),
    ("quantize method", "quantize nowhere --method integer", "'integer'", "aware, dynamic, static, weight_only"),
    ("batches", "quantize nowhere --method static --batches 0", "--batches of at least 1", "0"),
    ("for static", "quantize nowhere --method dynamic --batches 2", "--batches only with --method static", "dynamic"),
    ("weights", "quantize nowhere --training.steps 3", "--method weight_only, which reads no data", "--training.steps"),
    ("files", "quantize {task} --method dynamic --data.train {empty}/none", "{empty}/none"),
    ("tokenizer", "quantize {gpt2} --method dynamic --data.path {bert}/dataset", "at most 300 tokens", "800"),
    ("dataset", "quantize {gpt2} --method dynamic", "dataset at {gpt2}/dataset", "--data.path"),
    ("unknown", "quantize {bert} --bits 4", "--bits"),
    ("aware", "quantize {bert} --method aware", "a run on a task for quantization-aware", "BertPretraining"),
    ("neither", "factorize nowhere", "either --rank or --energy", "neither"),
    ("rank", "factorize nowhere --rank 0", "--rank of at least 1", "0"),
    ("large", "factorize {bert} --rank 30", "--rank of at most 21, with which a product has fewer weights", "30"),
    ("much", "factorize {bert} --energy 0.99999", "a lower --energy", "0.99999"),
    ("groups", "share {bert} --groups 2", "--groups from 1 to the 1 layers", "2"),
]  # fmt: skip


@pytest.fixture(scope="module")
def runs(small_run: Path, decoder_run: Path, task_run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """Name -> a checkpoint; the options of the task's files."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "empty").mkdir()
    cli.run(["compress", "quantize", str(decoder_run), "--output", str(folder / "int8")])
    cli.run(["compress", "prune", str(small_run), "--output", str(folder / "half")])
    task = checkpoints.describe(checkpoints.find(task_run)).experiment.data
    data = f"--data.train {task.train} --data.validation {task.validation} --data.text sentence"
    made = {path.name: path for path in folder.iterdir()}
    return made | {"bert": small_run, "gpt2": decoder_run, "task": task_run, "data": data}


@pytest.mark.parametrize(("words", "said"), [pytest.param(words, said, id=name) for name, words, *said in COMMANDS])
def test_commands(words: str, said: list[str], runs: dict, fails, tmp_path: Path) -> None:
    sentence = fails("compress", *words.format(**runs).split(), "--output", tmp_path / "out")
    assert all(part.format(**runs) in sentence for part in said), sentence
    assert not list(tmp_path.glob("out/checkpoints"))


def test_a_folder_with_another_run_is_not_written(runs: dict, fails) -> None:
    said = fails("compress", "prune", runs["bert"], "--output", runs["int8"])
    assert str(runs["int8"]) in said and "name another folder" in said


@pytest.mark.parametrize(
    ("method", "read"), [("heads", {"sparsity", "rows", "rounds"}), ("lottery", {"sparsity", "rewind"})]
)
def test_a_method_reads_its_own_options_alone(method: str, read: set[str], tmp_path: Path, fails) -> None:
    command = ["compress", "prune", tmp_path, "--output", tmp_path / "out", "--method", method]
    for name, value in {"sparsity": 0.3, "rows": 3, "rounds": 2, "rewind": "run"}.items():
        said = "no finished checkpoint" if name in read else f"--{name} only with --method"
        assert said in fails(*command, f"--{name}", value)


AUGMENT = [
    ("column", "{bert}", "more.tsv", "a column 'text' in the header of"),
    ("model", "{gpt2} --text sentence", "more.tsv", "a model that restores masked tokens"),
    ("kind of file", "{bert} --text sentence", "more.jsonl", ".tsv, found"),
    ("copies", "{bert} --copies 0", "more.tsv", "--copies of at least 1, found 0"),
]


@pytest.mark.parametrize(("words", "file", "said"), [pytest.param(*row, id=name) for name, *row in AUGMENT])
def test_further_examples(words: str, file: str, said: str, runs: dict, fails, tmp_path: Path) -> None:
    source = tmp_path / "train.tsv"
    source.write_text("label\tsentence\n1\tthe class\n", encoding="utf-8")
    options = ("--input", source, "--output", tmp_path / file)
    assert said.format(**runs) in fails("augment", *words.format(**runs).split(), *options)
    assert not (tmp_path / file).exists()


LAYERS = "bert/encoder/layers"
QUERY = f"{LAYERS}/attention/query/kernel"
BERT = BertConfig(60, 16, 4, 2, 24, max_position_embeddings=16)
KERNELS = {QUERY: np.arange(1.0, 97).reshape(1, 8, 2, 6)}
TASK = SequenceClassification(labels=("a", "b"))


def teaches(distillation: Any, name: str, depth: int = 0, **sizes: Any) -> None:
    """The run `name` of tests/families as the student of itself, or of a deeper model."""
    run = STEPS[name][0]()
    teacher = run.model.with_depth(depth) if depth else run.model
    model = dataclasses.replace(run.model, **sizes)
    dataclasses.replace(distillation, teacher=teacher).check(model, run.objective)


def mobilebert(teacher: Any = None, student: Any = None) -> None:
    method = MobileBertDistillation(teacher=teacher or MobileBertConfig.ib_bert_mini(num_hidden_layers=3))
    method.check(student or MobileBertConfig.mini(num_hidden_layers=3), STEPS["bert"][0]().objective)


def shared_layers_in_int8() -> None:
    model, outer = AlbertConfig(40, 8, 2, 2, 16, embedding_size=4), QuantizationAware().training_objective(TASK, 1)
    fields, ids = ("input_ids", "segment_ids", "positions", "token_type_ids"), np.ones((4, 6), np.int32)
    batch = dict.fromkeys(fields, ids) | dict.fromkeys(("labels", "example_ids", "cls_positions"), ids[:, :1])
    module = outer.module(model, Execution())
    jax.eval_shape(lambda key: outer.init(module, key, batch, constants=(), carry=()), jax.random.key(0))


def exported(folder: Path) -> None:
    model = with_compression(BERT, layer_heads=(2, 1, 2, 2), layer_widths=(3, 24, 1, 24))
    module = BertForMaskedLM(model, Execution())
    huggingface.save(module, jax.tree.map(lambda one: np.zeros(one.shape), nn.meta.unbox(boxed_shapes(module))), folder)


SETTINGS: list[tuple[str, Callable[[], Any], str]] = [
    ("places", lambda: Cubic(1.0, 0.5, 0.9, 0.8), "from 0 to 1, found 0.9 and 0.8"),
    ("groups of four", lambda: by_pattern({QUERY: np.ones((1, 6, 2, 3))}, BERT), "4, found 6. (bert/encoder/layers"),
    ("other shape", lambda: ticket(KERNELS, {QUERY: KERNELS[QUERY][..., :2]}, BERT, 0.25),
     "query/kernel of shape (1, 8, 2, 6) in --rewind"),
    ("removed", lambda: check_prunable(AlbertConfig()), "found AlbertConfig"),
    ("aware albert", shared_layers_in_int8, "layers with parameters of their own for quantization-aware training"),
    ("factors", lambda: projections(KERNELS, with_compression(BERT, ranks=(4,) * 6)), "ranks of 4 4 4 4 4 4"),
    ("narrow", lambda: remove_zeros(KERNELS, with_compression(BERT, ranks=(4,) * 6)),
     "4 4 4 4 4 4; remove heads and features first"),
    ("shared ranks", lambda: with_groups(with_compression(BERT, ranks=(2,) * 6), 1), "matrices of a lower rank"),
    ("shared layers", lambda: TakenLayers().model(AlbertConfig()), "whose 12 layers have parameters of their own"),
    ("layers", lambda: TakenLayers((0, 3), BertConfig.base(num_hidden_layers=6)).model(BertConfig.base()),
     "a student of 2 layers"),
    ("distributions", lambda: distributions_of(CrfTagging()), "choices or tokens, found CrfTagging"),
    ("all tokens", lambda: teaches(DistilBertDistillation(), "classification", 4), "SequenceClassification"),
    ("cosine", lambda: teaches(DistilBertDistillation(), "bert", 4, hidden_size=8), "--model.hidden_size 16"),
    ("texts", lambda: teaches(PatientDistillation(), "bert", 4), "output for each text"),
    ("patience", lambda: teaches(PatientDistillation(), "classification", 4, num_hidden_layers=1), "2 to 4 layers"),
    ("scores", lambda: teaches(TinyBertDistillation(), "bert", 4, num_attention_heads=4), "2 heads"),
    ("tinybert", lambda: TinyBertDistillation(teacher=STEPS["bert"][0]().model).check(
        STEPS["gpt2"][0]().model, STEPS["bert"][0]().objective), "such as BERT as the student"),
    ("no term", lambda: teaches(SoftTargetDistillation(soft=0.0), "bert", 4), "factors of 0 only"),
    ("windows", lambda: teaches(TinyBertDistillation(), "longformer"), "attend to their own input"),
    ("ib-bert", lambda: mobilebert(teacher=BertConfig.tiny()), "a MobileBERT and its teacher IB-BERT"),
    ("depth", lambda: mobilebert(student=MobileBertConfig.mini(num_hidden_layers=2)), "3 layers and 4 heads, found 2"),
]  # fmt: skip


@pytest.mark.parametrize(("refused", "said"), [pytest.param(*row, id=name) for name, *row in SETTINGS])
def test_settings(refused: Callable[[], Any], said: str) -> None:
    with pytest.raises(UserError) as raised:
        refused()
    assert said in str(raised.value)


def test_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="found BertForMaskedLM of a CompressedBertConfig"):
        exported(tmp_path / "files")
    scores = tmp_path / "scores.npz"
    for content, found in ((None, "FileNotFoundError"), (b"no archive", "ValueError"), (b"PK" + bytes(40), "")):
        if content is not None:
            scores.write_bytes(content)
        with pytest.raises(UserError, match=rf"scores of a teacher in .*{found}"):
            stored.read(scores)
