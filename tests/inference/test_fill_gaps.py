"""Gaps that BART and T5 fill, with the probability that their scores give it, and masked tokens of a BERT."""

import collections
import dataclasses
import functools
import itertools
import math
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.data import tokenizers
from plmjax.data.layouts import Chunks
from plmjax.errors import UserError
from plmjax.experiment import Data, Experiment
from plmjax.generation.generate import Generator
from plmjax.inference import fill_mask as filling
from plmjax.inference.fill_gaps import fill_gaps
from plmjax.inference.fill_mask import MASK, fill_mask
from plmjax.models.bart.bart import BartConfig
from plmjax.models.t5 import T5Config
from plmjax.objectives.denoising import Denoising
from plmjax.objectives.sequence_to_sequence import SequenceToSequence
from plmjax.objectives.text_to_text.span_corruption import SpanCorruption
from plmjax.training.checkpoints import checkpoints
from tests.systems.modules import random_params
from tests.third_party import experiments

SIZES = {
    "bart": {"d_model": 24, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "max_position_embeddings": 48},
    "t5": {"d_model": 24, "d_kv": 8, "num_heads": 3, "d_ff": 40},
}
KINDS = {"bart": ("byte-bpe", BartConfig, Denoising()), "t5": ("t5-unigram", T5Config, SpanCorruption())}


@pytest.fixture(scope="module")
def run(prose: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """System -> the run directory of a small one, of random parameters so large that its scores differ."""

    @functools.cache
    def save(system: str) -> Path:
        kind, config, objective = KINDS[system]
        folder = tmp_path_factory.mktemp(system)
        text = prose.read_text(encoding="utf-8")[:20_000]
        vocabulary = tokenizers.train(kind, 400, [text], folder / "tokenizer").vocabulary
        special = {"pad_token_id": vocabulary.pad, "eos_token_id": vocabulary.document_end}
        beginning = vocabulary.pad if system == "t5" else vocabulary.document_end
        model = config.tiny(vocab_size=vocabulary.size, decoder_start_token_id=beginning, **special, **SIZES[system])
        token = jnp.zeros((1, 1), jnp.int32)
        params = jax.jit(model.module(Purpose.CAUSAL_LM, Execution()).init)(
            jax.random.key(0), token, decoder_input_ids=token
        )
        flat = flax.traverse_util.flatten_dict(nn.meta.unbox(params)["params"], sep="/")
        flat = {name: 3 * array if name.endswith(("kernel", "embedding")) else array for name, array in flat.items()}
        files = checkpoints.tokenizer_files(folder / "tokenizer")
        experiment = Experiment(model, objective, Data(layout=Chunks()))
        params = flax.traverse_util.unflatten_dict(flat, sep="/")
        checkpoints.save_parameters(folder / "run", params, experiment, tokenizer=files)
        return folder / "run"

    return save


@functools.cache
def reader(checkpoint: Path) -> tuple[Any, Callable[..., Any]]:
    """The model, and what reads a text and the other one."""
    params, description = checkpoints.load_parameters(checkpoint)
    model = description.experiment.model
    return model, functools.partial(jax.jit(model.module(Purpose.CAUSAL_LM, Execution()).apply), {"params": params})


def log_probability(checkpoint: Path, source: list[int], written: list[int], given: int) -> float:
    """Return that of a text's tokens after the first `given` ones, read at once behind the decoder's start token."""
    model, read = reader(checkpoint)
    decoder = jnp.array([[model.decoder_start_token_id, *written[:-1]]])
    decoder = jnp.pad(decoder, ((0, 0), (0, 48 - decoder.shape[1])))
    logits = read(jnp.array([source]), decoder_input_ids=decoder).logits[0, : len(written)]
    scores = np.asarray(jax.nn.log_softmax(logits))[np.arange(len(written)), written]
    return float(scores[given:].sum())


@pytest.mark.parametrize(
    ("system", "gaps"),
    [("t5", ("[MASK]", "<extra_id_5>")), pytest.param("bart", ("<mask>",), marks=pytest.mark.nightly)],
)
def test_what_is_written_has_the_probability_of_its_scores(run, system, gaps) -> None:
    checkpoint, text = run(system), "The class" + "".join(f" {gap} of the object" for gap in gaps) + "."
    tokenizer = checkpoints.describe(checkpoints.find(checkpoint)).load_tokenizer()
    vocabulary = tokenizer.vocabulary
    filled = fill_gaps(checkpoint, text, 3)
    assert len({one.tokens for one in filled}) == 3
    assert [one.probability for one in filled] == sorted((one.probability for one in filled), reverse=True)
    marks = vocabulary.sentinels[: len(gaps)] if system == "t5" else [vocabulary.mask]
    spoilt = text
    for gap, name in zip(gaps, tokenizer.tokens(list(marks)), strict=True):
        spoilt = spoilt.replace(gap, name)
    template = checkpoints.describe(checkpoints.find(checkpoint)).experiment.model.template
    source = template.lay_out([tokenizer.with_parsed_special().encode(spoilt)], vocabulary).tokens
    assert [token for token in source if token in marks] == list(marks)
    most = len(gaps) * 17 + (1 if system == "t5" else len(source))
    for one in filled:
        expected = log_probability(checkpoint, source, list(one.tokens), given=int(system == "t5"))
        assert math.log(one.probability) == pytest.approx(expected, rel=1e-5, abs=1e-5)
        assert one.tokens[-1] in (vocabulary.document_end, *vocabulary.sentinels) or len(one.tokens) == most
        assert len(one.tokens) <= most
        if system == "t5":
            assert one.tokens[0] == vocabulary.sentinels[0] and len(one.spans) == len(gaps)
            assert one.text == text.replace(gaps[0], one.spans[0], 1).replace(gaps[-1], one.spans[-1], 1)
        else:
            assert one.spans == ()
            assert one.text == tokenizer.decode(list(one.tokens))
    if system == "bart":  # no text is first because it is long: the one that ends at once is not likelier
        ended = log_probability(checkpoint, source, [vocabulary.document_end], given=0)
        assert math.log(filled[0].probability) >= ended - 1e-5


def test_a_span_is_what_stands_behind_its_sentinel(run, tmp_path) -> None:
    """The second sentinel is as likely as the token that is written most, so that some texts have it."""
    params, description = checkpoints.load_parameters(run("t5"))
    sentinels, text = description.load_tokenizer().vocabulary.sentinels, "The class[MASK] of the object[MASK]."
    often = collections.Counter(fill_gaps(run("t5"), text, 3)[0].tokens).most_common(1)[0][0]
    params["t5"]["shared"]["embedding"] = np.array(params["t5"]["shared"]["embedding"])
    params["t5"]["shared"]["embedding"][sentinels[1]] = params["t5"]["shared"]["embedding"][often]
    checkpoints.save_parameters(tmp_path / "run", params, description.experiment, tokenizer=description.tokenizer)
    tokenizer, filled = description.load_tokenizer(), fill_gaps(tmp_path / "run", text, 3)
    for one in filled:
        places = [place for place, token in enumerate(one.tokens) if token in sentinels]
        groups = [one.tokens[a + 1 : b] for a, b in itertools.pairwise([*places, len(one.tokens)])]
        spans = [tokenizer.decode(list(group)).strip() for group in groups[:2]]
        assert [*one.spans] == spans + [""] * (2 - len(spans))
    assert any(one.spans[1] for one in filled)


@pytest.mark.parametrize(
    ("system", "text", "top", "names"),
    [
        ("t5", "The class", 5, r"\[MASK\].*'The class'"),
        ("t5", "[MASK]" * 100, 5, "100, found 100"),
        ("t5", "[MASK]", 10_000, "--top.*found 10000"),
        ("translator", "[MASK]", 5, "SequenceToSequence"),
    ],
    ids=["no gap", "too many gaps", "too many ways", "no denoising"],
)
def test_a_mistake_is_one_sentence(run, tmp_path, system, text, top, names) -> None:
    if system == "translator":
        params, description = checkpoints.load_parameters(run("t5"))
        other = dataclasses.replace(description.experiment, objective=SequenceToSequence())
        checkpoints.save_parameters(tmp_path / "run", params, other, tokenizer=description.tokenizer)
    with pytest.raises(UserError, match=names):
        fill_gaps(tmp_path / "run" if system == "translator" else run(system), text, top)


def test_a_prompt_of_generate_may_have_gaps(run) -> None:
    """And no other special token: </s> is plain text."""
    prompt, generator = "a <extra_id_0> of </s>", Generator.load(run("t5"))
    tokenizer = checkpoints.describe(checkpoints.find(run("t5"))).load_tokenizer()
    gap = tokenizer.vocabulary.gaps[0]
    ids = tokenizer.with_parsed_special([gap]).encode(prompt)
    assert [token for token in ids if token in tokenizer.vocabulary.special] == [gap]
    assert generator.count_unknown([prompt]).total == len(ids) - 1
    assert generator([prompt], dataclasses.replace(generator.settings, max_new_tokens=3))


def test_fills_every_mask_with_the_likeliest_tokens(small_run, reference) -> None:
    text = "the [MASK] was [MASK]"
    _, logits = reference(text)
    filled = fill_mask(small_run, text, 3)
    tokenizer = tokenizers.load(small_run / "tokenizer")
    assert len(filled) == 2
    for place, candidates in zip((2, 4), filled, strict=True):
        probabilities = np.exp(logits[place]) / np.exp(logits[place]).sum()
        best = np.argsort(-probabilities)[:3]
        assert [token for token, _ in candidates] == tokenizer.tokens(best)
        np.testing.assert_allclose([share for _, share in candidates], probabilities[best], atol=1e-6)


def test_a_row_of_the_table_without_a_token_is_never_likely(small_run: Path, tmp_path: Path) -> None:
    """Probabilities are of the tokens that there are, and equal ones come in their order."""
    description = checkpoints.describe(checkpoints.find(small_run))
    size = tokenizers.load(small_run / "tokenizer").vocabulary.size
    run = experiments.changed(description.experiment, model={"vocab_size": size + 8})
    params = jax.tree.map(np.zeros_like, random_params(run.objective.module(run.model, Execution())))
    bias = np.zeros(size + 8, np.float32)
    bias[[7, 9]], bias[size:] = np.log([5.0, 3.0]), 99.0
    (path,) = [path for path, leaf in jax.tree.leaves_with_path(params) if leaf.shape == bias.shape]
    flat = dict(jax.tree.leaves_with_path(params)) | {path: bias}
    params = jax.tree.unflatten(jax.tree.structure(params), flat.values())
    checkpoints.save_parameters(tmp_path / "run", params, run, tokenizer=description.tokenizer)
    (found,) = fill_mask(tmp_path / "run", f"the {MASK}", top=size)
    assert len(found) == size and sum(share for _, share in found) == pytest.approx(1)
    assert [share for _, share in found[:3]] == pytest.approx([5 / (size + 6), 3 / (size + 6), 1 / (size + 6)])


def test_a_gap_has_the_names_of_every_tokenizer(small_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The help of the command says so. Other special tokens in the text are plain text."""
    expected = fill_mask(small_run, "the [MASK] of [MASK]")
    for text in ("the <mask> of <extra_id_0>", "the [MASK] of <mask>"):
        assert fill_mask(small_run, text) == expected
        cli.run(["fill-mask", str(small_run), text])
        assert capsys.readouterr().out.count("[MASK]") == 2
    assert len(fill_mask(small_run, "[SEP] the [MASK] [PAD]")) == 1


@pytest.mark.parametrize("kind", ["wordpiece", "sentencepiece-unigram"])
def test_only_gaps_are_special_in_the_text(kind: str, tmp_path: Path) -> None:
    tokenizer = tokenizers.train(kind, 300, [f"the fox of {string.printable}"] * 9, tmp_path)
    ids = filling.masked_ids(tokenizer, "the [MASK] of <mask> <extra_id_3> </s><s>[SEP][PAD]<pad><sep>")
    special = [token for token in ids if token in tokenizer.vocabulary.special]
    assert [token for token in special if token != tokenizer.vocabulary.unknown] == [tokenizer.vocabulary.mask] * 3
