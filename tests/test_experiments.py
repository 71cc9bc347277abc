"""Experiments of experiments/ make a step: its program is built and traced, nothing is compiled or computed."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _pytest.mark import ParameterSet

from plmjax import experiment as experiments
from plmjax.compression.distillation.students import RandomLayers, TakenLayers
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.layouts import Layout
from plmjax.experiment import Experiment, Mesh, WeightMapping
from plmjax.experiment.phases import ResolvedPhase
from plmjax.finetuning.batches.source import ExampleRows
from plmjax.finetuning.cross_view.cross_view import CrossViewLearning
from plmjax.finetuning.tasks.answer_search import AnswerSearch
from plmjax.finetuning.tasks.choices import ChoiceExamples, Choices
from plmjax.finetuning.tasks.joint import JointTask, join_examples
from plmjax.finetuning.tasks.label_sets import LabelSetExamples, LabelSets
from plmjax.finetuning.tasks.parsing import ParsedExamples, Parsing
from plmjax.finetuning.tasks.questions import QuestionExamples, Questions
from plmjax.finetuning.tasks.retrieval import PairExamples, Retrieval
from plmjax.finetuning.tasks.sentences import SentenceExamples, Sentences
from plmjax.finetuning.tasks.tagging import TaggedExamples, Tagging
from plmjax.finetuning.tasks.task import Task
from plmjax.finetuning.tasks.text_pairs import TextPairExamples, TextPairs
from plmjax.models.bart.bart import BartConfig
from plmjax.models.bert import BertConfig
from plmjax.models.cove.cove import CoveConfig
from plmjax.models.deberta.deberta import DebertaConfig
from plmjax.models.elmo import ElmoConfig
from plmjax.models.gpt import GptConfig
from plmjax.models.longformer.longformer import LongformerConfig
from plmjax.models.modernbert.decoder import ModernBertDecoderConfig
from plmjax.models.modernbert.modernbert import ModernBertConfig
from plmjax.models.ulmfit import UlmfitConfig
from plmjax.models.word2vec import Word2VecConfig
from plmjax.models.xlnet.xlnet import XlnetConfig
from plmjax.parallel import mesh as meshes
from plmjax.parallel import topologies
from plmjax.planning import plan
from plmjax.runs import epochs
from plmjax.runs.init_from import with_task
from plmjax.runs.weight_mappings.awd_lstm_dropouts import AwdLstmDropouts
from plmjax.runs.weight_mappings.biattentive_classifier import BiattentiveClassifier
from plmjax.runs.weight_mappings.deberta import BesideGenerator
from plmjax.runs.weight_mappings.ettin import DecoderFromEncoder, EncoderFromDecoder
from plmjax.runs.weight_mappings.longformer import GlobalFromLocal, LedFromBart
from plmjax.runs.weight_mappings.tagger import FromLanguageModel, FromWordVectors
from plmjax.runs.weight_mappings.token_embeddings import FromTokenEmbeddings
from plmjax.training import program as programs
from plmjax.training.checkpoints.checkpoints import Description
from plmjax.training.evaluation import means
from tests.experiment_names import EXPERIMENTS
from tests.metric_names import undocumented
from tests.paths import ROOT

ORDINARY = (WeightMapping, DecoderFromEncoder, EncoderFromDecoder, RandomLayers, TakenLayers)
"""Starts of models that begin without them, too. They have tests in tests/runs and tests/compression."""


def traced() -> list[ParameterSet]:
    """An experiment for each model that a start makes, a tiny one where there is one; the others are nightly."""
    starts = {name: type(experiments.load(str(ROOT / name)).weight_mapping) for name in EXPERIMENTS}
    first = {starts[name]: name for name in sorted(reversed(EXPERIMENTS), key=lambda name: "tiny" in name)}
    by_day = {name for begins, name in first.items() if begins not in ORDINARY}
    # One to seven seconds each, for other models, which tests/systems has by day, other objectives, which
    # tests/training/test_step.py and tests/finetuning have, and other sizes, which test_its_sizes_fit has, and
    # test_goldens.py with their parameters: pytest -m nightly tests/test_experiments.py
    return [pytest.param(name, marks=() if name in by_day else pytest.mark.nightly) for name in EXPERIMENTS]


PUBLISHED = {
    "experiments/albert_base_8x8.py": "v3:8x8",
    "experiments/albert_base_8x8.py:xxlarge": "v3:8x8",
    "experiments/awd_lstm_wikitext2.py": "v3:2x2",
    "experiments/bart_large_8x8.py": "v3:8x8",
    "experiments/bert_base_4x4.py": "v2:4x4",
    "experiments/bert_large_8x8.py": "v3:8x8",
    "experiments/bert_large_8x8.py:mlperf_256": "v5e:4x4",
    "experiments/deberta_v3_base_8x8.py": "v5e:8x8",
    "experiments/electra_base_4x4.py": "v3:4x4",
    "experiments/electra_large_8x8.py": "v3:8x8",
    "experiments/electra_small.py": "v3:2x2",
    "experiments/elmo_8x8.py": "v3:8x8",
    "experiments/glove_2x2.py": "v3:2x2",
    "experiments/gpt2_8x8.py": "v3:8x8",
    "experiments/gpt2_8x8.py:large": "v3:8x8",
    "experiments/gpt2_8x8.py:medium": "v3:8x8",
    "experiments/longformer_base_8x8.py": "v5e:8x8",
    "experiments/mobilebert_8x8.py": "v3:8x8",
    "experiments/nnlm_2x2.py": "v3:2x2",
    "experiments/reformer_2x4.py": "v5e:2x4",
    "experiments/roberta_base_8x8.py": "v3:8x8",
    "experiments/roberta_base_8x8.py:norwegian": "v3:2x2",
    "experiments/transformer_base.py:big": "v3:2x2",
    "experiments/xlnet_large_8x8.py": "v3:8x8",
    "experiments/transformer_xl_8x8.py": "v3:2x2",
    "experiments/transformer_xl_8x8.py:enwik8_large": "v5e:8x8",
    "experiments/transformer_xl_8x8.py:wikitext103": "v3:2x2",
    "experiments/transformer_xl_8x8.py:wikitext103_large": "v3:8x8",
    "experiments/xlnet_large_8x8.py:base": "v3:8x8",
    "experiments/xlnet_large_8x8.py:v5e": "v5e:8x8",
}
ELSEWHERE = {"experiments/xlnet_large_8x8.py:base": "v5e:8x8"}
"""Experiments that are planned for a second slice."""
PLANNED = [
    *(pytest.param(name, topology, id=name) for name, topology in PUBLISHED.items()),
    *(pytest.param(name, topology, id=f"{name} {topology}") for name, topology in ELSEWHERE.items()),
]


LEARNED = {"labels", "relations"}
"""Fields of objectives that the train file fills in."""


def fine_tuned(run: Experiment) -> ModelConfig:
    """A model such as the run's checkpoint may hold."""
    if isinstance(run.weight_mapping, FromTokenEmbeddings | FromWordVectors):
        return Word2VecConfig.tiny()
    if isinstance(run.weight_mapping, GlobalFromLocal):
        return LongformerConfig.tiny(max_position_embeddings=4098)
    if isinstance(run.weight_mapping, LedFromBart):
        return BartConfig.tiny(max_position_embeddings=run.data.target_length)
    if isinstance(run.weight_mapping, DecoderFromEncoder):
        return ModernBertConfig.tiny()
    if isinstance(run.weight_mapping, EncoderFromDecoder):
        return ModernBertDecoderConfig.tiny()
    if isinstance(run.weight_mapping, FromLanguageModel):
        return ElmoConfig.tiny()
    if isinstance(run.weight_mapping, BiattentiveClassifier):
        return CoveConfig.tiny()
    if isinstance(run.weight_mapping, BesideGenerator):
        return DebertaConfig.tiny()
    if isinstance(run.weight_mapping, AwdLstmDropouts):
        return UlmfitConfig.tiny(backwards=getattr(getattr(run.data, "layout", None), "backwards", False))
    if isinstance(run.objective, AnswerSearch):
        return XlnetConfig.tiny()
    if getattr(run.objective, "generates", False):
        return BartConfig.tiny()
    return GptConfig.tiny() if getattr(run.objective, "language_model", 0) else BertConfig.tiny()


def complete(run: Experiment) -> Experiment:
    """The run with what only its checkpoint, its data and its slice say: a model, a task, labels, steps and a mesh."""
    if run.objective is None:
        run = with_task(run, Description(experiments.load("bert_tiny"), 0, {}))
    if run.model is None:
        model = run.weight_mapping.model(fine_tuned(run))
        run = dataclasses.replace(run, model=model)
    if run.finetuning is not None:
        run = epochs.in_steps(run, 10 * run.training.batch_size)
    if len(jax.devices()) % max(1, run.mesh.data * run.mesh.fsdp * run.mesh.tensor):  # a slice's own
        run = dataclasses.replace(run, mesh=Mesh())
    if getattr(run.objective, "labels", True) == ():
        run = dataclasses.replace(run, objective=dataclasses.replace(run.objective, labels=("no", "yes")))
    if isinstance(run.objective, CrossViewLearning):
        tasks = tuple(
            dataclasses.replace(task, **dict.fromkeys(LEARNED & vars(task).keys(), ("no", "yes")))
            for task in run.objective.tasks
        )
        run = dataclasses.replace(run, objective=dataclasses.replace(run.objective, tasks=tasks))
    return run


def batch(run: Experiment, phase: ResolvedPhase) -> dict[str, jax.ShapeDtypeStruct]:
    """The global batch of a phase, as the run's source gives it."""
    layout = getattr(run.data, "layout", None)
    if isinstance(layout, Layout):
        return layout.batch(phase.batch_size, phase.sequence_length)
    return task_batch(run, phase.batch_size)


class Numbers:
    """A tokenizer whose texts are all one token."""

    vocabulary = dataclasses.replace(Vocabulary.placeholder(1000), others={"start": 5, "delimiter": 6, "extract": 8})

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [[7] for _ in texts]

    def encode_words(self, sentences: list[list[str]]) -> list[list[list[int]]]:
        return [[[7] for _ in words] for words in sentences]

    def tokens(self, ids: list[int]) -> list[str]:
        return ["a" for _ in ids]

    def encode_spans(self, texts: list[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        return [(np.array([7], np.int32), np.array([[0, len(text)]])) for text in texts]


PAIR = TextPairExamples("", [1], sources=["a"], targets=["b"])
TAGGED = TaggedExamples("", [1], words=[["a"]], labels=[["yes"]], word_lines=[[1]])
EXAMPLES = {
    Sentences: SentenceExamples("", [1], texts=[("a",)], labels=["1"]),
    LabelSets: LabelSetExamples("", [1], texts=[("a",)], labels=[("1", "yes")]),
    Choices: ChoiceExamples("", [1], contexts=["a"], choices=[["b", "c"]], answers=[1]),
    Tagging: TAGGED,
    Parsing: ParsedExamples("", [1], words=[["a"]], heads=[[0]], relations=[["yes"]]),
    TextPairs: PAIR,
    Retrieval: PairExamples("", [1], ["a"], ["b"], [["c"]]),
    Questions: QuestionExamples("", [1], ["a"], [0], ["0"], ["b"], answers=[[(0, "a")]]),
}


def task_batch(run: Experiment, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
    """The global batch of a task, as an example of its kind makes it."""
    objective = run.objective
    if getattr(objective, "labels", None) is not None:
        objective = dataclasses.replace(objective, labels=("1", "yes"))
    examples = EXAMPLES.get(objective.task_class)
    if isinstance(run.data, JointTask):
        parts = [EXAMPLES[type(run.data.single_task(task))] for task in run.data.tasks]
        examples = join_examples("", parts, run.data.tasks)
    encoded = objective.encode(examples, Numbers(), run.model, run.data)
    return ExampleRows(
        encoded, run.data.sequence_length, run.data.pack, pad=0, decoder_length=run.data.target_length
    ).shapes(rows)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_its_sizes_fit(name, monkeypatch):
    """The rows of every phase fit the model and the devices; nothing is traced."""
    monkeypatch.chdir(ROOT)
    run = complete(experiments.load(name))
    mesh = meshes.make(run.mesh, jax.devices())
    for phase in run.resolved_phases:
        programs.check_batches(phase, phase.evaluation, mesh)
        programs.check_model(run, phase, Vocabulary.placeholder(run.model.vocab_size))
        assert batch(run, phase)


@pytest.mark.parametrize("name", traced())
def test_its_step_can_be_traced(name, monkeypatch):
    """That of the last phase, whose rows are the longest; the programs of the others are built alone."""
    monkeypatch.chdir(ROOT)
    run = complete(experiments.load(name))
    mesh = meshes.make(run.mesh, jax.devices())
    for phase in run.resolved_phases:
        program = programs.build(
            run,
            phase,
            mesh,
            vocabulary=Vocabulary.placeholder(run.model.vocab_size),
            shapes=lambda one: batch(run, one),
        )
    state, metrics = jax.eval_shape(program.train, program.state, program.batch)
    assert jax.tree.map(jnp.shape, state) == jax.tree.map(jnp.shape, program.state)
    assert "loss" in metrics.names and metrics.array.dtype == jnp.float32
    evaluated = [] if isinstance(run.data, Task) else means(program, run.objective.coefficients())
    tasks = [task.name for task in run.data.tasks] if isinstance(run.data, JointTask) else []
    assert not undocumented([*metrics.names, *evaluated], tasks)


def test_rows_of_transformer_xl_divide_by_the_cores_of_their_slices():
    """Deviation named in the experiment: the released commands have 22 rows and 60 for the base sizes."""
    part = topologies.parse("v3:2x2")
    for function, rows in (("experiment", 24), ("text8", 24), ("wikitext103", 64)):
        run = experiments.load(str(ROOT / f"experiments/transformer_xl_8x8.py:{function}"))
        assert run.training.batch_size == rows and rows % (part.chips * part.chip.devices) == 0


def test_experiments_were_found():
    assert len(EXPERIMENTS) > len(list(Path(ROOT / "experiments").glob("*.py"))) >= 5


@pytest.mark.slow  # compiles the published runs for a TPU, both lengths, a minute or two each
@pytest.mark.parametrize(("name", "topology"), PLANNED)
def test_the_published_run_compiles_and_does_nothing_a_good_step_does_not(name, topology):
    made = plan.plan(experiments.load(name), topology)
    assert topologies.parse(topology).name == made["topology"]
    for phase in made["phases"]:
        assert phase["findings"] == []
        assert phase["memory"]["total"] < phase["memory"]["device"]
