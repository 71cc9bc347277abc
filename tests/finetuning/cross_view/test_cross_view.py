"""Cross-view training: what the modules learn from sentences with labels and without, and several tasks at once."""

import dataclasses
import functools
import gzip
import re
import shlex
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.contracts.execution import Execution
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.finetuning.cross_view.cross_view import (
    CrossViewLearning,
    ParsingTask,
    TaggingTask,
    TasksWithText,
    TranslationTask,
)
from plmjax.finetuning.cross_view.tasks import CrossViewParsing, CrossViewTagging
from plmjax.finetuning.cross_view.translation import END, CrossViewTranslation
from plmjax.finetuning.tasks.joint import join_examples
from plmjax.finetuning.tasks.parsing import ParsedExamples
from plmjax.finetuning.tasks.tagging import TaggedExamples
from plmjax.finetuning.tasks.text_pairs import TextPairExamples, TextPairs
from plmjax.interop import word2vec
from plmjax.models.cvt.cvt import TAGGING_VIEWS
from plmjax.models.cvt.parsing import PARSING_VIEWS
from plmjax.models.cvt.translation import TRANSLATION_VIEWS
from plmjax.objectives.objective import LossInputs
from plmjax.training import metrics
from tests.models.cvt import small as cvt
from tests.optional import torch
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "contextual_vectors.md").read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(line)[1:]
    for block in re.findall(r"```bash\n(.*?)```", PAGE[PAGE.index("## Sentences") : PAGE.index("## CoVe")], re.DOTALL)
    for line in block.strip().splitlines()
]
KINDS = ("tags", "trees", "texts", "none")
SENTENCES = ((0, 0, 3), (0, 3, 5), (1, 0, 4))
"""Row, first word, end."""
HEADS = np.array([[2, 0, 2, 0, 1, 0], [0, 1, 1, 3, 0, 0]], np.int32)


def batch(kind: str) -> dict[str, jax.Array]:
    """Two rows with the labels of one task, or of none."""
    found, random = cvt.inputs([[3, 2], [4]], 6), np.random.default_rng(2)
    words = (found["segment_ids"] > 0).astype(np.float32)
    labels, relations = random.integers(0, 3, (2, 6)), random.integers(0, 2, (2, 6))
    weights = {"tags": "tags/label_weights", "trees": "trees/label_weights", "none": "view_weights"}
    weights |= {"texts": "texts/next_weights"}  # a translation has as many words as its source
    found |= {"tags/labels": labels, "trees/heads": HEADS, "trees/relations": relations}
    found |= {"texts/next_ids": random.integers(0, 5, (2, 6)), "example_ids": np.array([[0, 1, -1], [2, -1, -1]])}
    found |= {"positions": np.array([[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 0, 0]])}
    found |= {field: words * (name == kind) for name, field in weights.items()}
    return {name: jnp.asarray(array) for name, array in found.items()}


@jax.jit
def learned(given: dict[str, jax.Array]) -> tuple:
    """(the sums of a batch in training, the modules' gradients, what all modules say) without dropout."""

    def loss(modules):
        params = cvt.parameters() | {"classifier": modules}
        sums = cvt.OBJECTIVE.sums(cvt.MODULE, LossInputs(params), given, jax.random.key(0), training=True)
        return sum(sums.losses.values()), sums

    gradients, sums = jax.grad(loss, has_aux=True)(cvt.parameters()["classifier"])
    said = cvt.MODULE.apply({"params": cvt.parameters()}, **{name: given[name] for name in cvt.inputs([[1]], 1)})
    texts = {name: scores.logits() for name, scores in said["texts"].items()}
    return sums, gradients, said | {"texts": texts}


@pytest.mark.parametrize("kind", KINDS)
def test_labels_teach_the_primary_module_and_it_teaches_the_others(kind):
    _, gradients, _ = learned(batch(kind))
    views = {"tags": TAGGING_VIEWS, "trees": PARSING_VIEWS, "texts": TRANSLATION_VIEWS}
    for task, modules in gradients.items():
        learn = {name for name, tree in modules.items() if any(map(np.any, jax.tree.leaves(tree)))}
        shared = {"target", "lstm"} if task == "texts" and kind in (task, "none") else set()
        own = {"primary"} if kind == task else set(views[task]) if kind == "none" else set()
        assert learn == own | shared


def test_the_losses_of_labels_are_those_of_torch():
    """Smoothed in tagging alone, and only in training; a class of the parser is a head and a relation."""
    sums, _, said = learned(given := batch("tags"))
    words = np.asarray(given["segment_ids"]) > 0
    scores, labels = (torch.tensor(np.asarray(x)[words]) for x in (said["tags"]["primary"], given["tags/labels"]))
    loss = torch.nn.functional.cross_entropy(scores, labels.long(), label_smoothing=0.1, reduction="sum")
    assert sums.losses == {"tags": pytest.approx(float(loss), rel=1e-5), "trees": 0, "texts": 0}
    alone = dataclasses.replace(cvt.OBJECTIVE, tasks=cvt.OBJECTIVE.tasks[:1])
    evaluate = jax.jit(functools.partial(alone.sums, cvt.MODULE, training=False))
    nats = torch.nn.functional.cross_entropy(scores, labels.long(), reduction="sum")
    assert evaluate(LossInputs(cvt.parameters()), given, jax.random.key(0)).losses == {
        "tags": pytest.approx(float(nats))
    }
    right = int((scores.argmax(dim=-1) == labels).sum())
    assert sums.metrics["tags/accuracy"] == (right, 9) and sums.metrics["trees/las"] == (0, 0)

    sums, _, said = learned(given := batch("trees"))
    scores, loss, found = torch.tensor(np.asarray(said["trees"]["primary"])), 0.0, np.zeros(2)
    for row, begin, end in SENTENCES:
        for word in range(begin, end):
            chances = scores[row, word].log_softmax(0).reshape(7, 2)
            column, relation = HEADS[row, word] and begin + HEADS[row, word], int(given["trees/relations"][row, word])
            loss -= float(chances[column, relation])
            guess = divmod(int(chances.argmax()), 2)
            found += [guess == (column, relation), guess[0] == column]
    assert sums.losses == {"tags": 0, "trees": pytest.approx(loss, rel=1e-5), "texts": 0}
    assert [sums.metrics[f"trees/{name}"] for name in ("las", "uas")] == [(found[0], 9), (found[1], 9)]

    sums, _, said = learned(given := batch("texts"))
    scores, words = (torch.tensor(np.asarray(x)[words]) for x in (said["texts"]["primary"], given["texts/next_ids"]))
    loss = torch.nn.functional.cross_entropy(scores, words.long(), reduction="sum")
    assert sums.losses == {"tags": 0, "trees": 0, "texts": pytest.approx(float(loss), rel=1e-5)}
    assert sums.metrics["texts/accuracy"] == (int((scores.argmax(dim=-1) == words).sum()), 9)


def test_what_the_views_lose_is_their_cross_entropy_to_the_primary_module():
    """The losses of both tasks are added up in numpy, word by word."""
    sums, _, said = learned(batch("none"))
    for task, views in (("tags", TAGGING_VIEWS), ("trees", PARSING_VIEWS)):
        chances = {name: np.asarray(jax.nn.log_softmax(scores), np.float64) for name, scores in said[task].items()}
        expected = 0.0
        for row, begin, end in SENTENCES:
            for word in range(begin, end):
                blind = {name for name, place in (("future", begin), ("past", end - 1)) if word == place}
                for name in set(views) - blind:
                    expected -= float(np.sum(np.exp(chances["primary"][row, word]) * chances[name][row, word]))
        assert sums.losses[task] == pytest.approx(expected, rel=1e-5)
        assert sums.metrics[f"{task}/view_nats"] == (pytest.approx(expected, rel=1e-5), 9)


def test_views_learn_what_the_primary_module_says_without_dropout():
    """Views without kernels say the same whatever is dropped: their losses change with what they learn alone."""
    rates = dict.fromkeys(("dropout", "unlabelled_dropout", "attention_dropout"), 0.5)
    objective = dataclasses.replace(cvt.OBJECTIVE, tasks=cvt.OBJECTIVE.tasks[:2])
    module, heads = objective.module(dataclasses.replace(cvt.CONFIG, **rates), Execution()), {}
    for task in ("tags", "trees"):
        modules = cvt.parameters()["classifier"][task]
        views = modules.keys() - {"primary", "target", "lstm"}
        biases = {name: jax.tree.map(lambda leaf: leaf * (leaf.ndim < 2), modules[name]) for name in views}
        heads[task] = modules | biases
    sums = jax.jit(functools.partial(objective.sums, module, training=True))
    given = LossInputs(cvt.parameters() | {"classifier": heads}), batch("none")
    first, second = (sums(*given, jax.random.key(seed)).losses for seed in range(2))
    assert min(first.values()) > 0
    chex.assert_trees_all_close(first, second, rtol=1e-6)


def test_the_views_of_translation_learn_what_the_primary_decoder_writes():
    """Greedy, word by word with all words before it; then both views, added up in numpy."""
    sums, _, _ = learned(given := batch("none"))
    inputs, expected, count = {name: given[name] for name in cvt.inputs([[1]], 1)}, 0.0, 0

    @jax.jit
    def chances(read: np.ndarray, row: int, sentence: int) -> dict[str, jax.Array]:
        own = {"decoder_input_ids": read[None], "decoder_segment_ids": jnp.full((1, 3), sentence)}
        said = cvt.MODULE.apply(
            {"params": cvt.parameters()}, **{name: x[row][None] for name, x in inputs.items()} | own
        )
        return {name: jax.nn.log_softmax(scores.logits())[0] for name, scores in said["texts"].items()}

    for sentence, (row, *_) in zip((1, 2, 1), SENTENCES, strict=True):
        words: list[int] = []
        while 0 not in words and len(words) < 3:
            found = chances(np.array([0, *words, 0, 0][:3]), row, sentence)
            words.append(int(found["primary"][len(words)].argmax()))
        for place, word in enumerate(words):
            expected -= float(found["attention_dropout"][place, word])
            expected -= float(found["future"][place - 1, word]) if place else 0.0
        count += len(words)
    assert 3 < count < 9  # some end by themselves, none at once
    assert sums.losses["texts"] == pytest.approx(expected, rel=1e-5)
    assert sums.metrics["texts/view_nats"] == (pytest.approx(expected, rel=1e-5), count)


TAGGED = TaggedExamples("t.conll", [2, 4], [["a", "b"], ["c"]], [["O", "B-N"], ["O"]], [[1, 2], [4]], "IOB2")
PARSED = ParsedExamples("p.conllu", [3], [["d", "e", "f"]], [[2, 0, 2]], [["r", "s", "r"]])
DATA = TasksWithText(tasks=(TaggingTask(name="tags", scheme="IOB2"), ParsingTask(name="trees")), sequence_length=8)
EXAMPLES = join_examples("tasks", [TAGGED, PARSED], DATA.tasks)
PARTS = (CrossViewTagging(name="tags", entities=True), CrossViewParsing(name="trees"))


class Letters:
    """A tokenizer of single letters."""

    vocabulary = Vocabulary.placeholder(20)

    def encode_words(self, sentences: list[list[str]]) -> list[list[list[int]]]:
        return [[[ord(word) - ord("a") + 8] for word in words] for words in sentences]

    def tokens(self, ids: list[int]) -> list[str]:
        return [chr(number + ord("a") - 8) for number in ids]


def test_every_task_is_judged_by_its_own_predictions():
    objective = CrossViewLearning(tasks=PARTS).fit_labels(EXAMPLES)
    assert objective.tasks[0].labels == ("B-N", "O") and objective.tasks[1].relations == ("r", "s")
    encoded = objective.encode(EXAMPLES, Letters(), cvt.CONFIG, DATA)
    assert encoded.offsets.tolist() == [0, 2, 3, 6]
    fields = encoded.token_fields
    assert fields["tags/labels"].tolist() == [1, 0, 1, 0, 0, 0]
    assert fields["trees/heads"].tolist() == [0, 0, 0, 2, 0, 2]
    assert fields["tags/label_weights"].tolist() == [1, 1, 1, 0, 0, 0] and not fields["view_weights"].any()
    # Scores of B-N and of O, then head, relation and probability.
    said = np.zeros((6, 5), np.float32)
    said[:3, :2], said[3:, 2:] = [[0, 1], [2, 1], [3, 0]], [[2, 0, 0.5], [0, 0, 0.25], [1, 0, 1]]
    outputs = [said[:2], said[2:3], said[3:]]
    found, files = objective.evaluate_outputs(EXAMPLES, encoded, outputs)
    assert found == pytest.approx(
        {"tags/accuracy": 2 / 3, "tags/f1": 2 / 3, "tags/precision": 0.5, "tags/recall": 1, "trees/las": 1 / 3}
        | {"trees/uas": 2 / 3, "mean": 0.5}
    )
    assert set(found) == set(objective.evaluation_metrics(DATA))
    assert set(files) == {"predictions.tags.tsv", "predictions.trees.conllu"}
    assert files["predictions.tags.tsv"].splitlines()[1:3] == ["a\tO\tO", "b\tB-N\tB-N"]
    first, *_, last = objective.records(EXAMPLES, encoded, outputs)
    assert first["predictions"] == ["O", "B-N"] and last["heads"] == [2, 0, 1] and last["relations"] == ["r"] * 3
    assert "".join(objective.submission([last])) == files["predictions.trees.conllu"]
    assert "".join(objective.submission([first])) == "a\tO\nb\tB-N\n\n"


TRANSLATED = TextPairExamples("t.en", [5, 6], ["a b c", "d"], ["x y", "z z w"])
WITH_TEXTS = TasksWithText(
    tasks=(TaggingTask(name="tags", scheme="IOB2"), TranslationTask(name="texts")), sequence_length=8, target_length=6
)


def test_sentences_without_a_translation_have_empty_rows_of_the_decoder():
    examples = join_examples("tasks", [TAGGED, TRANSLATED], WITH_TEXTS.tasks)
    parts = CrossViewTagging(name="tags"), CrossViewTranslation(name="texts", max_new_tokens=4)
    objective = CrossViewLearning(tasks=parts).fit_labels(examples)
    assert objective.tasks[1].target_words == ("z", "w", "x", "y")  # by count, then by spelling
    encoded = objective.encode(examples, Letters(), cvt.CONFIG, WITH_TEXTS)
    decoder = encoded.decoder
    assert encoded.offsets.tolist() == [0, 2, 3, 6, 7] and decoder.offsets.tolist() == [0, 0, 0, 3, 7]
    assert encoded.token_fields["tags/label_weights"].tolist() == [1, 1, 1, 0, 0, 0, 0]
    assert decoder.token_fields.keys() == {"texts/next_ids", "texts/next_weights"}
    assert decoder.token_fields["texts/next_ids"].tolist() == [4, 5, END, 2, 2, 3, END]
    assert decoder.tokens.tolist() == [END, 4, 5, END, 2, 2, 3]
    said = np.zeros((7, 6), np.float32)  # scores of B-N and O, then the four words of a translation
    said[:3, 0], said[3:6, 2:], said[6, 2:] = 1, [5, 1, END, 3], [2, 2, 2, 2]
    outputs = [said[:2], said[2:3], said[3:6], said[6:]]
    *_, first, second = objective.records(examples, encoded, outputs)
    assert (first, second) == ({"line": 5, "prediction": "y <unk>"}, {"line": 6, "prediction": "z z z z"})
    assert "".join(objective.submission([first, second])) == "y <unk>\nz z z z\n"
    assert objective.evaluate_outputs(examples, encoded, outputs)[1].keys() == {
        "predictions.tags.tsv",
        "predictions.texts.jsonl",
    }
    alone = join_examples("texts", [TRANSLATED], WITH_TEXTS.tasks[1:])
    their_own = objective.encode(alone, Letters(), cvt.CONFIG, WITH_TEXTS)
    assert objective.records(alone, their_own, outputs[2:]) == [first, second]

    unlabelled = objective.encode_unlabelled(examples, Letters(), cvt.CONFIG, WITH_TEXTS)
    assert unlabelled.token_fields["view_weights"].tolist() == [1.0] * 7
    assert not any(unlabelled.token_fields[f"tags/{name}"].any() for name in ("labels", "label_weights"))
    assert unlabelled.token_fields["characters"].any() and unlabelled.decoder.offsets.tolist() == [0] * 5


@pytest.mark.parametrize(("kind", "expected"), [("tags", (9, 1e-9, 1e-9)), ("none", (9, 9, 9))])
def test_a_loss_is_divided_by_labels_or_by_unlabelled_words(kind, expected):
    found = cvt.OBJECTIVE.weights(batch(kind))
    assert [float(found[name]) for name in ("tags", "trees", "texts")] == pytest.approx(expected)


def test_unlabelled_sentences_are_lines_of_the_folder(tmp_path):
    (tmp_path / "new.txt").write_text("a b c\n\nd\n")
    data = dataclasses.replace(DATA, folder=f"{tmp_path}/", unlabelled="new.txt")
    examples = data.unlabelled_examples()
    assert [words for words in examples.parts[0].words if words] == [["a", "b", "c"], ["d"]]
    assert [task.name for task in examples.tasks] == ["tags"]
    assert dataclasses.replace(data, only=("trees",)).unlabelled_examples().tasks[0].name == "trees"
    assert dataclasses.replace(data, unlabelled="none").unlabelled_examples() is None
    groups = DATA.task_groups(EXAMPLES)
    assert [(group.path, len(group), [task.name for task in group.tasks]) for group in groups] == [
        ("t.conll", 2, ["tags"]),
        ("p.conllu", 1, ["trees"]),
    ]


def test_a_target_and_its_end_fit_into_a_row_and_into_a_translation():
    pairs, words = TextPairExamples("t.en", [1], ["a b"], ["x y z x y"]), ("x", "y", "z")
    for longest, target_length, kept in ((8, 4, [2, 3, 4]), (3, 8, [2, 3])):
        texts = CrossViewTranslation(name="texts", target_words=words, max_new_tokens=longest)
        task = TextPairs(sequence_length=8, target_length=target_length, cut_targets=True)
        decoder = texts.encode(pairs, Letters(), cvt.CONFIG, task).decoder
        assert decoder.tokens.tolist() == [END, *kept] and decoder.token_fields["next_ids"].tolist() == [*kept, END]


@pytest.mark.nightly
def test_the_commands_of_the_page_learn_trees(tmp_path, monkeypatch, capsys):
    """The words of these sentences determine their trees."""
    monkeypatch.chdir(tmp_path)
    Path("experiments").symlink_to(ROOT / "experiments")
    words = {"DET": ("the", "a"), "NOUN": ("cat", "dog"), "VERB": ("eats", "sees")}
    kinds, heads = ("DET", "NOUN", "VERB", "NOUN"), (2, 3, 0, 3)
    relations, draws = ("det", "nsubj", "root", "obj"), np.random.default_rng(0)

    def sentence() -> list[str]:
        return [draws.choice(words[kind]) for kind in kinds]

    Path("finetune/ud_english_ewt").mkdir(parents=True)
    for name, count in (("train", 24), ("dev", 6)):
        with gzip.open(f"finetune/ud_english_ewt/en_ewt-ud-{name}.conllu.gz", "wt") as file:
            for _ in range(count):
                rows = enumerate(zip(sentence(), kinds, heads, relations, strict=True), start=1)
                file.writelines(f"{n}\t{word}\t_\t{kind}\t_\t_\t{h}\t{r}\t_\t_\n" for n, (word, kind, h, r) in rows)
                file.write("\n")
    Path("finetune/new.txt").write_text("".join(f"{' '.join(sentence())}\n" for _ in range(24)))
    Path("new.txt").write_text("a dog sees cat\nthe cat eats dog\n")
    known = [word for each in words.values() for word in each]
    word2vec.write(Path("vectors.txt"), known, draws.normal(size=(6, 4)).astype(np.float32))
    cli.run(["import", "vectors.txt", "runs/vectors"])
    taken = [name for name in cvt.SIZES if name not in ("vocab_size", "word_dim", "filter_widths")]
    sizes = [option for name in taken for option in (f"--weight_mapping.tagger.{name}", str(2 * cvt.SIZES[name]))]
    numbers = (
        "--data.only parsing --data.sequence_length 8 --data.pack 2 --training.batch_size 4 --finetuning.epochs 20 "
        "--finetuning.evaluations 0.1 --training.log_every 6 --optimizer.schedule.warmup_steps 10 "
        "--optimizer.averaging none --weight_mapping.tagger.dropout 0.1"
    )
    learn, predict, *_ = COMMANDS
    cli.run([*learn, *sizes, *numbers.split()])
    last, lines = capsys.readouterr().out, metrics.read(Path("runs/cvt/metrics.jsonl"))
    assert "parsing/las 1.0000" in last
    assert lines[-1]["step"] == 120  # 3 batches of trees an epoch, and as many of other sentences
    logged = [line["train/parsing/view_nats"] for line in lines if "train/parsing/view_nats" in line]
    assert logged[-1] < logged[0] / 2
    cli.run(predict)
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines() if line]
    assert [row[1] for row in rows[:4]] == "a dog sees cat".split()
    assert [(row[6], row[7]) for row in rows] == [*zip("2303", relations, strict=True)] * 2


def test_the_head_of_a_parser_is_a_number_in_its_sentence_or_the_root() -> None:
    """The second sentence of a row begins at the third place; a class is a place and a relation."""
    parsing = CrossViewParsing(name="trees", relations=("a", "b"))
    positions = jnp.array([[0, 1, 0, 1, 2]])
    classes = jnp.array([[0 * 2 + 1, 1 * 2 + 0, 5 * 2 + 1, 3 * 2 + 0, 0 * 2 + 0]])
    scores = 3.0 * jax.nn.one_hot(classes, 12)
    found = parsing.predictions(None, scores, None, {"positions": positions})
    assert found[0, :, 0].tolist() == [0, 1, 3, 1, 0] and found[0, :, 1].tolist() == [1, 0, 1, 0, 0]
    np.testing.assert_allclose(found[..., 2], np.exp(3) / (np.exp(3) + 11), rtol=1e-5)
