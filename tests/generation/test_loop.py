"""The decoding loop: what it writes, what it compiles, where it runs."""

import re
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.errors import UserError
from plmjax.experiment import Mesh
from plmjax.generation import loop
from plmjax.generation.beam_search import BeamSearch
from plmjax.generation.decoder import decoder_of
from plmjax.generation.sampling import Greedy, Sampling
from plmjax.generation.search import Lengths
from plmjax.generation.writer import Settings, Writer
from plmjax.models.bert import BertConfig
from tests.generation.model import (
    CONFIG,
    END,
    PROMPTS,
    TRANSLATOR,
    VOCABULARY,
    parameters,
    translator,
    translator_parameters,
    writer,
)

NEW = 12


def test_cached_equals_uncached() -> None:
    module, params = CONFIG.module(Purpose.WRITING, Execution()), parameters()

    @jax.jit
    def next_token(row: jax.Array, length: jax.Array) -> jax.Array:
        logits = module.apply({"params": params}, row).logits[0, length - 1]
        return jnp.argmax(logits), jax.nn.log_softmax(logits).max()

    texts = writer()(PROMPTS, Settings(max_new_tokens=NEW))
    for prompt, (text,) in zip(PROMPTS, texts, strict=True):
        row, total = list(prompt), 0.0
        while len(row) < len(prompt) + NEW and (row == prompt or row[-1] != END):
            padded = np.zeros((1, 32), np.int32)
            padded[0, : len(row)] = row
            token, nats = next_token(padded, len(row))
            row, total = [*row, int(token)], total + float(nats)
        assert text.tokens == row[len(prompt) :] and text.stopped == (row[-1] == END)
        np.testing.assert_allclose(text.log_probability, total, rtol=1e-5)
    assert {text.stopped for (text,) in texts} == {True, False}


def test_a_text_is_that_of_its_seed_its_prompt_and_its_place_alone() -> None:
    settings = Settings(Sampling(temperature=2.0, sequences=2), max_new_tokens=NEW, seed=5, batch_size=3)
    texts = writer()(PROMPTS, settings)
    assert len({tuple(text.tokens) for of_prompt in texts for text in of_prompt}) == 6
    assert writer()([PROMPTS[0], [8] * 4, [1, 2]], settings)[0] == texts[0]
    other = Settings(settings.strategy, max_new_tokens=NEW, seed=6, batch_size=3)
    assert writer()(PROMPTS, other)[0] != texts[0]
    alike = writer()([PROMPTS[0]] * 3, settings)
    assert alike[0] == texts[0] and len({tuple(text.tokens) for of_prompt in alike for text in of_prompt}) == 6


def test_every_place_of_a_text_is_drawn_anew() -> None:
    scores, keys = jnp.zeros((2, 50)), jax.random.split(jax.random.key(0), 2)
    drawn = np.stack([Sampling().choose(scores, keys, jnp.int32(place)) for place in range(20)])
    assert min(len({*row}) for row in drawn.T.tolist()) > 10


@pytest.mark.nightly
def test_prompts_of_about_the_same_length_are_read_together(monkeypatch) -> None:
    """The widths of the batches, of which each is compiled, ascend; texts come in the order of the prompts."""
    prompts = [[3] * length for length in (30, 1, 29, 2)]
    read = Writer._prefill
    widths = []

    def noted(self, prompts, chosen, width, settings):
        widths.append((sorted(chosen), width))
        return read(self, prompts, chosen, width, settings)

    monkeypatch.setattr(Writer, "_prefill", noted)
    texts = writer()(prompts, Settings(max_new_tokens=2, batch_size=2))
    assert [chosen for chosen, _ in widths] == [[1, 3], [0, 2]] and widths[0][1] < widths[1][1]
    alone = [writer()([prompt], Settings(max_new_tokens=2, batch_size=2))[0][0].tokens for prompt in prompts]
    assert [text.tokens for (text,) in texts] == alone


def test_the_end_comes_token_by_token() -> None:
    settings = Settings(max_new_tokens=NEW)
    (whole,), *_ = writer()(PROMPTS[:1], settings)
    seen = list(writer().stream(PROMPTS[0], settings))
    assert [len(text.tokens) for text, _ in seen] == list(range(1, len(whole.tokens) + 1))
    assert seen[-1] == (whole, True) and not any(ended for _, ended in seen[:-1])
    with pytest.raises(UserError, match="strategy of one text"):
        next(writer().stream(PROMPTS[0], Settings(BeamSearch())))


def test_a_text_that_is_shown_is_written_on_every_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompt stands in a row of each of four devices that divide the rows, at its own width."""

    class Asked(Exception):
        """Ends the writer before anything is compiled."""

    def prefill(self: Writer, *arguments: Any) -> None:
        raise Asked(*arguments)

    sharded = Writer(CONFIG, parameters(), VOCABULARY, mesh=Mesh(data=2, fsdp=2))
    monkeypatch.setattr(Writer, "_prefill", prefill)
    for prompt, width in (([3] * 17, 24), ([3], 16)):
        with pytest.raises(Asked) as found:
            next(sharded.stream(prompt, Settings(max_new_tokens=2)))
        assert found.value.args == ([prompt], [0] * 4, width, Settings(max_new_tokens=2))


@pytest.mark.nightly
def test_nothing_is_compiled_for_another_length() -> None:
    writer()([[1, 2, 3]], Settings(max_new_tokens=3))
    before = loop.prefill._cache_size(), loop.decode._cache_size()
    for prompt, new in (([4], 16), ([5] * 16, 9)):
        writer()([prompt], Settings(max_new_tokens=new, min_new_tokens=2, seed=3))
    assert (loop.prefill._cache_size(), loop.decode._cache_size()) == before
    short, long = [4], [1] * 17
    alone = [writer()([prompt], Settings(max_new_tokens=3)) for prompt in (long, short)]
    assert loop.prefill._cache_size() == before[0] + 1
    together = writer()([long, short, long], Settings(max_new_tokens=3))  # of the width of the longest
    assert loop.prefill._cache_size() == before[0] + 2
    for (text,), ((other,),) in zip(together, [*alone, alone[0]], strict=True):
        assert text.tokens == other.tokens


@pytest.mark.parametrize("strategy", [Greedy(), BeamSearch(2)], ids=["greedy", "beams"])
def test_a_length_that_counts_the_prompt_leaves_each_prompt_a_rest_of_its_own(strategy: Any) -> None:
    """The prompts have 5, 1 and 11 of 24 tokens. A text of fewer tokens is the beginning of a longer one."""
    found = writer()(PROMPTS, Settings(strategy, max_length=24, min_length=24))
    whole = writer()(PROMPTS, Settings(strategy, max_new_tokens=23, min_new_tokens=23))
    assert [len(text.tokens) for (text,) in found] == [19, 23, 13] and found[1] == whole[1]
    if strategy.rows == 1:
        assert [text.tokens for (text,) in found] == [
            text.tokens[:count] for (text,), count in zip(whole, (19, 23, 13), strict=True)
        ]
        assert found[2][0].log_probability > whole[2][0].log_probability  # of 13 tokens and of 23


def test_batches_are_of_prompts_of_about_one_length_and_full_on_every_device() -> None:
    """The shortest come first; what fills the last batch is a prompt of it."""

    def batches(own: Writer, lengths: list[int], size: int) -> list[tuple[list[int], int]]:
        return list(own._batches([[3] * length for length in lengths], size))

    assert batches(writer(), [30, 1, 29, 2], 2) == [([1, 3], 16), ([2, 0], 32)]
    assert batches(writer(), [5, 1, 47], 2) == [([1, 0], 16), ([2, 2], 48)]
    assert batches(writer(), [5, 1, 2], 8) == [([1, 2, 0], 16)]
    sharded = Writer(CONFIG, parameters(), VOCABULARY, mesh=Mesh(data=2, fsdp=2))
    assert batches(sharded, [5, 1, 2], 2) == [([1, 2, 0, 0], 16)]
    assert batches(sharded, [1] * 6, 6) == [([0, 1, 2, 3, 4, 5, 5, 5], 16)]


def test_a_mesh_of_0_is_one_of_all_devices() -> None:
    assert Writer(CONFIG, parameters(), VOCABULARY, mesh=Mesh(data=0))._mesh.shape["data"] == 8


@pytest.mark.parametrize("unroll", [1, 2])
def test_the_cache_is_changed_in_place(unroll: int) -> None:
    own = Writer(CONFIG, parameters(), VOCABULARY, Execution(unroll=unroll))
    progress, lengths = own._prefill(PROMPTS[:1], [0], 16, Settings(max_new_tokens=16))
    arguments = (*own._compiled(Settings()), own._params, progress, lengths, jnp.int32(9))
    compiled = loop.decode.lower(*arguments).compile()
    cache = re.escape("f32[2,1,4,6,32]")
    text = compiled.as_text()
    assert re.search(rf"= {cache}\S* dynamic-update-slice\(", text)
    assert not re.search(rf"= {cache}\S* (copy|transpose|concatenate)\(", text)
    assert compiled.memory_analysis().alias_size_in_bytes >= 2 * 4 * 2 * 4 * 6 * 32


@pytest.mark.parametrize(
    "strategy",
    [pytest.param(Greedy(), id="greedy"), pytest.param(BeamSearch(2), id="beams", marks=pytest.mark.nightly)],
)
def test_sharded_equals_unsharded(strategy: Any) -> None:
    settings = Settings(strategy, max_new_tokens=NEW)
    sharded = Writer(CONFIG, parameters(), VOCABULARY, mesh=Mesh(data=2, fsdp=2, tensor=2))
    for texts, others in zip(sharded(PROMPTS, settings), writer()(PROMPTS, settings), strict=True):
        assert [text.tokens for text in texts] == [text.tokens for text in others]
        np.testing.assert_allclose([text.score for text in texts], [text.score for text in others], rtol=1e-5)
    progress, _ = sharded._prefill(PROMPTS, [0, 1, 2, 2], 16, settings)
    rows = 4 * strategy.rows
    assert progress.state.keys.sharding.shard_shape(progress.state.keys.shape) == (2, rows // 4, 2, 6, 32)


@pytest.mark.nightly
def test_sources_are_padded_on_the_right_and_shared_by_the_beams() -> None:
    settings = Settings(BeamSearch(3, 0.6, length_normalization="gnmt"), max_new_tokens=8, no_repeat_ngram_size=1)
    sharded = Writer(TRANSLATOR, translator_parameters(), VOCABULARY, mesh=Mesh(data=2, fsdp=2, tensor=2))
    alone = [translator()([prompt], settings)[0] for prompt in PROMPTS]
    for (text,), (other,) in zip(sharded(PROMPTS, settings), alone, strict=True):
        assert text.tokens == other.tokens
        np.testing.assert_allclose(text.score, text.log_probability / ((5 + len(text.tokens)) / 6) ** 0.6, rtol=1e-5)
        np.testing.assert_allclose(text.score, other.score, rtol=1e-5)
    assert len({tuple(text.tokens) for (text,) in alone}) > 1
    source, cache = translator()._prefill(PROMPTS, [0, 1, 2], 16, settings).progress.state
    assert source.attention_mask.tolist() == [[1] * len(row) + [0] * (16 - len(row)) for row in PROMPTS]
    assert source.key_values.keys.shape == (2, 3, 16, 4, 6)  # one source for three texts
    assert cache.keys.shape == (2, 3 * 3, 4, 6, 1 + 16)


@pytest.mark.nightly
def test_a_text_of_a_source_comes_token_by_token() -> None:
    settings = Settings(max_new_tokens=8, no_repeat_ngram_size=1)
    (whole,), *_ = translator()(PROMPTS[:1], settings)
    assert list(translator().stream(PROMPTS[0], settings))[-1] == (whole, True)


def test_sources_that_do_not_fit() -> None:
    with pytest.raises(UserError, match="at most the encoder's 48 positions, found 49 tokens"):
        translator()([[1] * 49], Settings(max_new_tokens=4))
    with pytest.raises(UserError, match="--max_new_tokens of at most 47, since the decoder has 48 positions, found 48"):
        translator()([[1]], Settings(max_new_tokens=48))


def test_prompts_and_texts_that_just_fit() -> None:
    """There are 48 positions: a prompt and its text take all; so does a source, and a text with the token before it."""
    for own, prompt, new in ((writer(), 36, 12), (translator(), 48, 47)):
        own.check([[1] * prompt], Settings(max_new_tokens=new))
        with pytest.raises(UserError, match=f"at most the .* 48 positions.* found {prompt + 1} "):
            own.check([[1] * (prompt + 1)], Settings(max_new_tokens=new))
    ((text,),) = writer()([[5] * 36], Settings(max_new_tokens=12, min_new_tokens=12))
    assert len(text.tokens) == 12 and not text.stopped


def test_an_encoder_asked_to_write() -> None:
    with pytest.raises(UserError, match="a model that writes text, found BertConfig"):
        Writer(BertConfig.tiny(), {}, VOCABULARY)


def test_texts_within_another_program_are_the_likeliest_and_pass_no_gradient() -> None:
    """Prompts have one length, texts different ones; the last text must not end before four tokens."""
    prompts, decoder = np.array([[5, 9], [11, 3], [2, 7]], np.int32), decoder_of(CONFIG, Execution())
    least, most = np.array([0, 0, 4], np.int32), np.array([6, 2, 5], np.int32)
    constraints = Settings().constraints(VOCABULARY, CONFIG.vocab_size)
    module = CONFIG.module(Purpose.WRITING, Execution())

    @jax.jit
    def written(params: Any) -> Any:
        def loss(params: Any) -> Any:
            keys, how = jax.random.split(jax.random.key(0), 3), (decoder, Greedy(), constraints, {"params": params})
            found = loop.written_within(*how, prompts, None, keys, Lengths(least, most), 2 + 6)
            return jnp.sum(found.log_probabilities), found

        gradient, found = jax.grad(loss, has_aux=True)(params)
        return gradient, found, jax.nn.log_softmax(module.apply({"params": params}, found.tokens[:, 0]).logits)

    gradient, found, nats = jax.device_get(written(parameters()))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradient))
    for row, count in enumerate(found.counts[:, 0].tolist()):
        tokens, scores = found.tokens[row, 0, 2 : 2 + count], np.array(nats[row, 1 : 1 + count])
        np.testing.assert_allclose(found.log_probabilities[row, 0], scores[range(count), tokens].sum(), rtol=1e-5)
        scores[: least[row], END] = -np.inf
        assert tokens.tolist() == scores.argmax(axis=-1).tolist()
        assert count == most[row] or tokens[-1] == END


def test_a_prompt_without_a_token_is_named_by_its_place() -> None:
    writer = Writer.__new__(Writer)
    writer._vocabulary, writer.longest = VOCABULARY, None
    writer._config = SimpleNamespace(vocab_size=VOCABULARY.size, system=SimpleNamespace(kind=None))
    writer.check([[5]], Settings())
    with pytest.raises(UserError, match=r"a prompt of at least one token in line 2, found an empty one; give"):
        writer.check([[5], []], Settings(), ["line 1", "line 2"])
