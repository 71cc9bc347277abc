"""Every mistake in fine-tuning is one sentence: (what was given, what the sentence names)."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import tokenizers
from plmjax.errors import UserError
from plmjax.experiment import Checkpoint, Experiment, Finetuning, Tokenizer, Training
from plmjax.finetuning.cross_view.cross_view import CrossViewLearning, ParsingTask, TaggingTask, TasksWithText
from plmjax.finetuning.cross_view.tasks import CrossViewTagging
from plmjax.finetuning.files import tables
from plmjax.finetuning.metrics.text_metrics import BleuAndChrf
from plmjax.finetuning.tasks.choices import ChoiceExamples, Choices, MultipleChoice
from plmjax.finetuning.tasks.crf_tagging import CrfTagging
from plmjax.finetuning.tasks.joint import join_examples
from plmjax.finetuning.tasks.parsing import ParsedExamples
from plmjax.finetuning.tasks.questions import QuestionExamples, Questions, SpanExtraction
from plmjax.finetuning.tasks.sentences import Regression, SentenceExamples, Sentences, SequenceClassification
from plmjax.finetuning.tasks.tagging import TaggedExamples, Tagging, TokenTagging
from plmjax.finetuning.tasks.text_generation import Translation
from plmjax.finetuning.tasks.text_pairs import TextPairExamples, TextPairs
from plmjax.models.bart.bart import BartConfig
from plmjax.models.bart.translation import BartTranslationConfig
from plmjax.models.bert import BertConfig
from plmjax.models.families.task_heads import TaggingOutput
from plmjax.models.gpt2 import Gpt2Config
from plmjax.models.t5 import T5Config
from plmjax.models.transformer import TransformerConfig
from plmjax.runs.finetuning import finetune
from plmjax.runs.weight_mappings.awd_lstm_dropouts import AwdLstmDropouts
from plmjax.runs.weight_mappings.longformer import GlobalFromLocal, LongformerFromRoberta
from plmjax.runs.weight_mappings.new_source_encoder import NewSourceEncoder
from plmjax.runs.weight_mappings.pairs_in_both_orders import PairsInBothOrders
from plmjax.runs.weight_mappings.tagger import FromLanguageModel
from plmjax.training.checkpoints import checkpoints
from plmjax.training.optimizers import BertAdamW
from tests.families.encoders import ROBERTA
from tests.finetuning.parity import Numbers, NumbersOfGpt

FEW, ENDLESS = Numbers(), Numbers()
FEW.vocabulary = Vocabulary(size=10)
ENDLESS.vocabulary = Vocabulary(97, others=NumbersOfGpt.vocabulary.others)
MODEL = TransformerConfig.tiny(
    vocab_size=97, max_position_embeddings=24, d_model=16, encoder_ffn_dim=24, decoder_ffn_dim=24
)
DECODER = Gpt2Config.tiny(vocab_size=97, n_positions=24, n_embd=16, n_layer=1)
TEXTS = TextPairExamples("dev.en", [1, 2], ["11 12 13", "14"], ["21", "22 23 24"])
ROW, TASK = TextPairs(sequence_length=12, target_length=0), TextPairs(sequence_length=12, target_length=8, pack=3)
GREEDY = Translation(beams=1, max_new_tokens=6)
TAGS = TaggedExamples("t.conll", [2], [["a", "b"]], [["O", "B-N"]], [[1, 2]], "IOB2")
TREES = ParsedExamples("p.conllu", [3], [["d", "e"]], [[2, 0]], [["r", "s"]])
VIEWS = TasksWithText(tasks=(TaggingTask(name="tags"), ParsingTask(name="trees")), sequence_length=8)
BOTH = join_examples("tasks", [TAGS, TREES], VIEWS.tasks)
TAGGING = CrossViewLearning(tasks=(CrossViewTagging(name="tags"),))
EXAMPLES: dict[str, tuple[Any, Any, Any]] = {
    "labels": (SequenceClassification(("a",)), SentenceExamples("rows.tsv", [2], [("1",)], ["a"]), Sentences),
    "choices": (MultipleChoice(), ChoiceExamples("rows.tsv", [2], ["1"], [["2", "3"]], [0]), Choices),
    "questions": (
        SpanExtraction(), QuestionExamples("x.json", [1], ["1 2"], [0], ["q"], ["1"], [[(0, "1")]]), Questions,
    ),
    "tags": (TokenTagging(("a",)), TaggedExamples("rows.tsv", [2], [["1"]], [["a"]], [[2]]), Tagging),
}  # fmt: skip


@pytest.mark.parametrize("kind", EXAMPLES)
def test_rows_need_special_tokens_and_room(kind: str) -> None:
    objective, examples, task = EXAMPLES[kind]
    with pytest.raises(UserError, match="none for cls, sep"):
        objective.encode(examples, FEW, BertConfig.tiny(), task())
    with pytest.raises(UserError, match="sequence_length of at least 5"):
        objective.encode(examples, Numbers(), BertConfig.tiny(), task(sequence_length=4))


def pairs(task: TextPairs = TASK, model: Any = MODEL, **changes: Any) -> Any:
    return GREEDY.encode(TEXTS, NumbersOfGpt(), model, dataclasses.replace(task, **changes))


CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    # settings
    "one limit": (lambda: Regression(limits=(1.0,)), r"--objective\.limits"),
    "equal limits": (lambda: Regression(limits=(1.0, 1.0)), r"--objective\.limits"),
    "a tokenizer of BLEU": (lambda: BleuAndChrf(tokenize="zn"), "'zn'.*13a, char, intl"),
    "an effect of nothing": (
        lambda: Translation(beams=2, top_k=3).check_model(MODEL), r"--objective\.top_k with --objective\.beams 2",
    ),
    "an unknown scheme": (lambda: CrfTagging(scheme="BIO").fit_labels(TAGS), "'BIO'.*IOB1, IOB2, IOBES"),
    # examples
    "columns of JSON": (lambda: list(tables.rows("rows.jsonl", ["text"])), r"--data\.columns .*rows\.jsonl"),
    "a stride beyond the row": (
        lambda: SpanExtraction().encode(
            EXAMPLES["questions"][1], Numbers(), BertConfig.tiny(), Questions(sequence_length=10, stride=7),
        ),
        "--data.stride .* row of 10, found 7",
    ),
    "a source too long": (
        lambda: pairs(sequence_length=3), r"at most 2 tokens, found 3 in line 1 of dev\.en and 1 such",
    ),
    "a target too long": (
        lambda: pairs(target_length=3), r"at most 2 tokens, found 3 in line 2 .*--data\.target_length",
    ),
    "no room for a source": (
        lambda: pairs(ROW, DECODER, sequence_length=10),
        r"at most 2 tokens, .*--data\.sequence_length",
    ),
    "no target row": (lambda: pairs(target_length=0), r"--data\.target_length above 0 .*found 0"),
    "a target row of a decoder": (lambda: pairs(model=DECODER), r"--data\.target_length 0 .*found 8"),
    "a row above the positions": (lambda: pairs(target_length=25), "24 positions, found 25"),
    "no end": (lambda: GREEDY.encode(TEXTS, ENDLESS, DECODER, ROW), "a delimiter and an end token"),
    "too many new tokens": (
        lambda: dataclasses.replace(GREEDY, max_new_tokens=24).check_model(MODEL),
        "max_new_tokens .*24 positions, found 24",
    ),
    # models without a head
    "texts of BERT": (lambda: GREEDY.module(BertConfig.tiny(), Execution()), "BertConfig"),
    "words of BART": (lambda: TokenTagging().module(BartConfig.tiny(), Execution()), "labels words, found BartConfig"),
    "choices of BART": (lambda: MultipleChoice().module(BartConfig.tiny(), Execution()), "choices .*found BartConfig"),
    "answers of a Transformer": (
        lambda: SpanExtraction().module(MODEL, Execution()), "answers .*found TransformerConfig",
    ),
    "labels of T5": (
        lambda: SequenceClassification(("a", "b")).module(T5Config.tiny(), Execution()), "labels texts, found T5",
    ),
    "next tokens of BERT": (
        lambda: SequenceClassification(language_model=0.5).check_model(BertConfig.tiny()),
        r"--objective\.language_model 0\.5, found BertConfig",
    ),
    # starts
    "both orders of BERT": (lambda: PairsInBothOrders().model(BertConfig.tiny()), "found BertConfig"),
    "an AWD-LSTM of BERT": (lambda: AwdLstmDropouts().model(BertConfig.tiny()), "AWD-LSTM, found BertConfig"),
    "two source encoders": (
        lambda: NewSourceEncoder().model(BartTranslationConfig.tiny()), "found BartTranslationConfig",
    ),
    "one direction": (lambda: FromLanguageModel().model(Gpt2Config.tiny()), "each direction.*Gpt2Config"),
    "a length between": (lambda: LongformerFromRoberta(length=50).model(ROBERTA), "17 positions .*found 50"),
    "global projections": (lambda: GlobalFromLocal().model(ROBERTA), "Longformer.*found Rob"),
    "a penalty of no mix": (
        lambda: TokenTagging(("a", "b"), mix_penalty=0.1).losses(
            TaggingOutput(jnp.zeros((1, 2, 2)), None), {"labels": jnp.zeros((1, 2), int)}
        ),
        r"--objective\.mix_penalty 0\.1",
    ),
    # cross-view training
    "a mix of views": (lambda: CrossViewTagging(name="tags", mix=True), "mix True"),
    "no parser": (lambda: TAGGING.fit_labels(BOTH), "trees, a ParsingTask, .* found tags"),
    "views of BERT": (lambda: TAGGING.module(BertConfig.tiny(), Execution()), "found BertConfig"),
    "no unlabelled file": (lambda: VIEWS.unlabelled_examples(), r"--data\.unlabelled, found nothing"),
}  # fmt: skip


@pytest.mark.parametrize("case", CALLS)
def test_calls(case: str) -> None:
    call, said = CALLS[case]
    with pytest.raises(UserError, match=said) as error:
        call()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("label", ["ORG", "B-", "b-PER"])
def test_a_label_that_marks_no_word_of_an_entity(label: str) -> None:
    train = TaggedExamples("", [1], [["a", "b", "c"]], [[label, "O", "B-A"]], [[1] * 3])
    with pytest.raises(UserError, match=f"--objective.entities True, found '{label}'"):
        TokenTagging(entities=True).fit_labels(train)
    assert TokenTagging().fit_labels(train).labels == tuple(sorted((label, "O", "B-A")))


RUNS: dict[str, tuple[Callable[[Any, Path, Path], dict[str, Any]], str]] = {
    "no checkpoint": (lambda run, small, folder: {"source": folder}, "no finished checkpoint"),
    "no model": (lambda run, small, folder: {"source": "random"}, "no model.*--like"),
    "no tokenizer": (
        lambda run, small, folder: {"source": "random", "model": other_width(small)}, "tokenizer .*Sentences",
    ),
    "another tokenizer": (
        lambda run, small, folder: {"tokenizer": Tokenizer(path=str(folder / "tokenizer"))},
        "tokenizer of the checkpoint",
    ),
    "one label": (lambda run, small, folder: {"data": {"train": str(folder / "one.tsv")}}, "found 'positive' only"),
    "a new label": (
        lambda run, small, folder: {"data": {"validation": str(folder / "new.tsv")}},
        "'neutral' in line 6 of .*negative, positive",
    ),
    "another objective": (
        lambda run, small, folder: {"objective": SpanExtraction()}, "SpanExtraction, found .*Sentences",
    ),
}  # fmt: skip


def other_width(small_run: Path) -> Any:
    return dataclasses.replace(checkpoints.describe(checkpoints.find(small_run)).experiment.model, hidden_size=64)


@pytest.mark.parametrize("case", RUNS)
def test_runs(case: str, sentiment: tuple[str, str], small_run: Path, tmp_path: Path) -> None:
    """Before anything is computed."""
    train = Path(sentiment[0]).read_text().splitlines()
    (tmp_path / "one.tsv").write_text("\n".join(train[:1] + [line for line in train if line.startswith("pos")]))
    (tmp_path / "new.tsv").write_text("\n".join([*train[:5], "neutral\ta film"]))
    if case == "another tokenizer":
        tokenizers.train("wordpiece", 60, ["some other text of other words"] * 9, tmp_path / "tokenizer")
    run = Experiment(
        model=None, objective=SequenceClassification(), data=Sentences(*sentiment, text="sentence", sequence_length=24),
        optimizer=BertAdamW(learning_rate=3e-3), training=Training(steps=0, batch_size=16),
        finetuning=Finetuning(epochs=4.0, warmup=0.1),
        checkpoint=Checkpoint(every=0),
    )  # fmt: skip
    change, said = RUNS[case]
    changes = change(run, small_run, tmp_path)
    source = changes.pop("source", small_run)
    if "data" in changes:
        changes["data"] = dataclasses.replace(run.data, **changes["data"])
    with pytest.raises(UserError, match=said):
        finetune(dataclasses.replace(run, **changes), source, tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()


COMMANDS = {
    "no files": ("t5_mixture --from random --data.folder {tmp}", "no file"),
    "a model for a checkpoint": ("finetune_sentences --from {small} --model.hidden_size 64", "'--model.hidden_size'"),
    "a twin of a checkpoint": (
        "finetune_sentences --from {small} --like {small} --data.train x.tsv --data.validation x.tsv", "--like",
    ),
    "no task": ("bert_tiny --from {small}", "found one that pretrains on text"),
}  # fmt: skip


@pytest.mark.parametrize("case", COMMANDS)
def test_commands(case: str, fails: Callable[..., str], small_run: Path, tmp_path: Path) -> None:
    command, said = COMMANDS[case]
    arguments = command.format(tmp=tmp_path, small=small_run).split()
    assert said in fails("finetune", *arguments, "--workdir", tmp_path / "run")
    assert not (tmp_path / "run").exists()
