"""Cross-view training: what each view sees, what the modules learn from sentences without labels, and turns of both."""

import dataclasses
import itertools
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax import cli
from plmjax.errors import UserError
from plmjax.finetuning.cross_view import CrossViewTagging, TaggingWithText
from plmjax.finetuning.source import Rows, TaskSource
from plmjax.finetuning.task import Encoded
from plmjax.interop import word2vec
from plmjax.interop.conversion import parameter_shapes
from plmjax.layers.execution import Execution
from plmjax.models.cvt import VIEWS, CvtConfig, CvtForTagging
from plmjax.objectives.objective import Given, Sums
from plmjax.training import loop, metrics
from plmjax.training.rows import nested
from plmjax.vocabulary import Vocabulary

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "contextual_vectors.md").read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(line)[1:]
    for block in re.findall(r"```bash\n(.*?)```", PAGE[PAGE.index("## Sentences") : PAGE.index("## CoVe")], re.DOTALL)
    for line in block.strip().splitlines()
]
SIZES = {
    "vocab_size": 20,
    "word_dim": 4,
    "max_characters_per_token": 7,
    "character_dim": 3,
    "filter_widths": (2, 3),
    "filter_count": 4,
    "first_size": 6,
    "second_size": 5,
    "projection_size": 4,
}
MODULE = CvtForTagging(CvtConfig(**SIZES), Execution(), 3)
OBJECTIVE = CrossViewTagging(labels=("a", "b", "c"))


def inputs(sentences: list[list[int]], length: int) -> dict[str, np.ndarray]:
    """Rows of packed sentences of so many words each, different ones at every place."""
    random, shape = np.random.default_rng(0), (len(sentences), length)
    segments = np.zeros(shape, np.int32)
    for row, lengths in zip(segments, sentences, strict=True):
        row[: sum(lengths)] = np.repeat(np.arange(len(lengths)) + 1, lengths)
    ids, characters = random.integers(1, 20, shape), random.integers(1, 262, (*shape, 7))
    return {"input_ids": ids.astype(np.int32), "characters": characters, "segment_ids": segments}


def drawn() -> dict:
    """Parameters, far from their initial values."""
    example, random = inputs([[3]], 3), np.random.default_rng(1)
    shapes = parameter_shapes(MODULE, example)
    return nested({name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()})


PARAMS = drawn()
read = jax.jit(lambda inputs: MODULE.apply({"params": PARAMS}, **inputs))


def test_the_published_sizes():
    config, example = CvtConfig(), {"input_ids": np.zeros((1, 1), np.int32), "characters": np.zeros((1, 1, 22))}
    shapes = parameter_shapes(config.encoder(Execution()), example)
    count = sum(int(np.prod(shape)) for name, shape in shapes.items() if not name.startswith(("words", "characters")))
    filters = sum(width * 50 * 100 + 100 for width in (2, 3, 4))
    first = 2 * ((600 + 512 + 1) * 4 * 1024 + 1024 * 512)
    second = 2 * ((1024 + 512 + 1) * 4 * 512 + 512 * 512)
    assert count == filters + first + second + 1
    assert config.width == 2048


def test_each_view_sees_what_it_may():
    """The gradient of what a module says of a word with respect to every other word, of two sentences in a row."""
    given = inputs([[5, 4]], 9)
    sentence, place = given["segment_ids"][0], np.arange(9)
    same = sentence[:, None] == sentence
    expected = {
        "primary": same,
        "full": same,
        "forwards": same & (place <= place[:, None]),
        "backwards": same & (place >= place[:, None]),
        "future": same & (place < place[:, None]),
        "past": same & (place > place[:, None]),
    }

    own = given | {"input_ids": np.arange(9, dtype=np.int32)[None]}  # a row of the table for every place

    def said(table):
        words = PARAMS["cvt"] | {"words": {"embedding": table}}
        output = MODULE.apply({"params": PARAMS | {"cvt": words}}, **own)
        return {name: jnp.sum(logits**2, -1)[0] for name, logits in {"primary": output.logits, **output.views}.items()}

    gradients = jax.jit(jax.jacrev(said))(PARAMS["cvt"]["words"]["embedding"])
    for name, seen in expected.items():
        found = np.abs(gradients[name][:, :9]).max(axis=-1) > 0
        if name in ("future", "past"):  # what they say of a first or a last word means nothing
            found &= seen.any(axis=1)[:, None]
        np.testing.assert_array_equal(found, seen, err_msg=name)


def test_packed_sentences_are_read_as_alone():
    packed = inputs([[3, 2, 4]], 11)
    whole = read(packed)
    alone = {name: np.zeros((3, *array.shape[1:]), array.dtype) for name, array in packed.items()}
    places = ((0, 3), (3, 5), (5, 9))
    for row, (begin, end) in enumerate(places):
        for name, array in packed.items():
            alone[name][row, : end - begin] = array[0, begin:end]
    found = read(alone)
    for row, (begin, end) in enumerate(places):
        np.testing.assert_allclose(found.logits[row, : end - begin], whole.logits[0, begin:end], atol=2e-6)


def batch(labelled: bool) -> dict[str, jax.Array]:
    """Two rows, with labels or without."""
    found = inputs([[3, 2], [4]], 6)
    words = (found["segment_ids"] > 0).astype(np.float32)
    weights = {"label_weights": words * labelled, "view_weights": words * (not labelled)}
    found |= {"labels": np.random.default_rng(2).integers(0, 3, (2, 6)).astype(np.int32), **weights}
    return {name: jnp.asarray(array) for name, array in found.items()}


def sums(given: dict[str, jax.Array], **rates: float) -> Sums:
    """The sums of a batch in training, with other rates of dropout."""
    module = CvtForTagging(dataclasses.replace(MODULE.config, **rates), Execution(), 3)
    return jax.jit(lambda batch: OBJECTIVE.sums(module, Given(PARAMS), batch, jax.random.key(0), training=True))(given)


def test_labels_teach_the_primary_module_and_it_teaches_the_others():
    @jax.jit
    @jax.grad
    def gradient(head, given):
        params = PARAMS | {"classifier": head}
        return OBJECTIVE.sums(MODULE, Given(params), given, jax.random.key(0), training=True).losses["task"]

    for labelled, expected in ((True, {"primary"}), (False, set(VIEWS))):
        found = gradient(PARAMS["classifier"], batch(labelled))
        assert {name for name, tree in found.items() if any(map(np.any, jax.tree.leaves(tree)))} == expected


def test_what_the_views_lose_is_their_cross_entropy_to_the_primary_module():
    """Added up in numpy, word by word, without dropout."""
    found = sums(given := batch(False), dropout=0.9, unlabelled_dropout=0.0)
    output = read({name: given[name] for name in ("input_ids", "characters", "segment_ids")})
    primary, views = jax.nn.softmax(output.logits), {name: jax.nn.softmax(x) for name, x in output.views.items()}
    expected = 0.0
    for row, first, last in ((0, 0, 2), (0, 3, 4), (1, 0, 3)):
        for place in range(first, last + 1):
            blind = {name for name, end in (("future", first), ("past", last)) if place == end}
            for name in set(VIEWS) - blind:
                expected -= float(np.sum(primary[row, place] * np.log(views[name][row, place])))
    assert found.losses["task"] == pytest.approx(expected, rel=1e-5)
    assert found.metrics["view_nats"] == (pytest.approx(expected, rel=1e-5), 9)
    assert found.metrics["accuracy"][1] == 0


def test_smoothed_labels_are_those_of_torch():
    import torch

    found = sums(given := batch(True), dropout=0.0, unlabelled_dropout=0.9)
    logits = read({name: given[name] for name in ("input_ids", "characters", "segment_ids")}).logits
    words = np.asarray(given["label_weights"]) > 0
    chosen, labels = torch.tensor(np.asarray(logits)[words]), torch.tensor(np.asarray(given["labels"])[words]).long()
    loss = torch.nn.functional.cross_entropy(chosen, labels, label_smoothing=0.1, reduction="sum")
    assert found.losses["task"] == pytest.approx(float(loss), rel=1e-5)


def test_the_commands_of_the_page_learn_from_both_in_turn(tmp_path, monkeypatch, capsys, fails):
    """Of sentences whose words say their labels."""
    monkeypatch.setattr(loop, "devices", lambda platform: jax.devices()[:1])
    monkeypatch.chdir(tmp_path)
    Path("experiments").symlink_to(ROOT / "experiments")
    kinds, random = {"O": ("the", "a", "one"), "B-N": ("cat", "dog", "cow"), "B-V": ("runs", "eats", "sees")}, np.random

    def sentences(count: int, seed: int) -> list[list[tuple[str, str]]]:
        draws = random.default_rng(seed)
        return [[(draws.choice(kinds[kind]), kind) for kind in ("O", "B-N", "B-V", "O", "B-N")] for _ in range(count)]

    for seed, (name, count) in enumerate((("train", 24), ("dev", 8))):
        found = ["\n".join("\t".join(pair) for pair in sentence) for sentence in sentences(count, seed)]
        Path(f"{name}.conll").write_text("\n\n".join(found) + "\n")
    Path("new.txt").write_text("".join(" ".join(word for word, _ in one) + "\n" for one in sentences(60, 2)))
    words = [word for each in kinds.values() for word in each]
    word2vec.write(Path("vectors.txt"), words, random.default_rng(0).normal(size=(9, 4)).astype(np.float32))
    cli.run(["import", "vectors.txt", "runs/vectors"])
    taken = [name for name in SIZES if name not in ("vocab_size", "word_dim", "filter_widths")]
    sizes = [option for name in taken for option in (f"--start.tagger.{name}", str(2 * SIZES[name]))]
    numbers = (
        "--data.sequence_length 12 --data.pack 2 --training.batch_size 4 --finetuning.epochs 30 "
        "--finetuning.evaluations 0.1 --training.log_every 10 --optimizer.schedule.warmup_steps 10 "
        "--optimizer.averaging none --start.tagger.dropout 0.1"
    )
    learn, predict = COMMANDS
    cli.run([*learn, *sizes, *numbers.split()])
    assert "f1 1.0000" in capsys.readouterr().out
    lines = metrics.read(Path("runs/cvt/metrics.jsonl"))
    assert lines[-1]["step"] == 180  # 3 batches of labelled sentences an epoch, and as many of others
    logged = [line for line in lines if "train/view_nats" in line]
    assert logged[-1]["train/view_nats"] < logged[0]["train/view_nats"] / 2
    assert logged[-1]["train/accuracy"] > 0.9  # of the steps with labels alone
    cli.run(predict)
    assert capsys.readouterr().out.count('"B-V"') == 60
    said = fails(*learn[:-2])
    assert "Expected a file of sentences without labels in --data.unlabelled, found nothing; name one, or none." in said
    assert TaggingWithText(unlabelled="none").without_labels() is None


@pytest.mark.parametrize("settings", [{"mix": True}, {"mix_penalty": 0.1}])
def test_mixes_of_layers_are_refused(settings):
    with pytest.raises(UserError, match="Expected no learned mix of layers in cross-view training"):
        CrossViewTagging(**settings)


def test_turns_are_a_function_of_the_step():
    """From any step on the batches are those of the whole run, those with labels at even steps."""

    def made(first: int) -> Rows:
        words, nothing = np.arange(first, first + 30, dtype=np.int32), np.zeros(10, np.int32)
        return Rows(Encoded(words, None, np.arange(0, 31, 3), nothing, {}), 6, 2, 0)

    labelled, others = made(100), made(200)
    source = TaskSource(labelled, labelled, Vocabulary.placeholder(300), 0, others)
    phase = SimpleNamespace(first_step=0, batch_size=2)
    found = [one["input_ids"] for one in itertools.islice(source.train(phase, 0), 9)]
    assert [one.min() < 200 for one in found] == [True, False] * 4 + [True]
    for later, expected in zip(source.train(phase, 5), found[5:], strict=False):
        np.testing.assert_array_equal(later["input_ids"], expected)
    once = np.concatenate([found[step].ravel() for step in (0, 2)] + [found[4][0]])
    assert source.per_epoch == 10 and sorted(once[once > 0]) == list(range(100, 130))
