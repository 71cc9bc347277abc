"""The decoding loop: what it writes, what it compiles, where it and its parameters are, and prompts as a prefix."""

import re
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.parameters import abstract_parameters
from plmjax.contracts.system import Purpose
from plmjax.errors import UserError
from plmjax.experiment import Mesh
from plmjax.generation import loop, weights
from plmjax.generation.batch_generator import BatchGenerator, Settings
from plmjax.generation.beam_search import BeamSearch
from plmjax.generation.decoder import decoder_of
from plmjax.generation.generate import Generator
from plmjax.generation.sampling import Greedy, Sampling
from plmjax.generation.search import Lengths
from plmjax.interop.run_directories import export_checkpoint
from plmjax.parallel import mesh as meshes
from tests.generation.model import CONFIG, END, PROMPTS, VOCABULARY, parameters, uncached, writer

NEW = 12


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


def test_the_end_comes_token_by_token() -> None:
    settings = Settings(max_new_tokens=NEW)
    (whole,), *_ = writer()(PROMPTS[:1], settings)
    seen = list(writer().stream(PROMPTS[0], settings))
    assert [len(text.tokens) for text, _ in seen] == list(range(1, len(whole.tokens) + 1))
    assert seen[-1] == (whole, True) and not any(ended for _, ended in seen[:-1])


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


def test_a_length_that_counts_the_prompt_leaves_each_prompt_a_rest_of_its_own() -> None:
    """The prompts have 5, 1 and 11 of 24 tokens. A text of fewer tokens is the beginning of a longer one."""
    found = writer()(PROMPTS, Settings(max_length=24, min_length=24))
    whole, counts = writer()(PROMPTS, Settings(max_new_tokens=23, min_new_tokens=23)), (19, 23, 13)
    assert [text.tokens for (text,) in found] == [
        text.tokens[:count] for (text,), count in zip(whole, counts, strict=True)
    ]
    assert [len(text.tokens) for (text,) in found] == [*counts]
    assert found[2][0].log_probability > whole[2][0].log_probability  # of 13 tokens and of 23


def test_a_prompt_and_its_text_may_take_all_48_positions() -> None:
    ((text,),) = writer()([[5] * 36], Settings(max_new_tokens=12, min_new_tokens=12))
    assert len(text.tokens) == 12 and not text.stopped
    with pytest.raises(UserError, match=r"at most the .* 48 positions.* found 37 "):
        writer().check([[1] * 37], Settings(max_new_tokens=12))


def prefilled(strategy: Any, execution: Execution, mesh: Mesh, rows: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a decoding of as many equal prompts: those by position, and those by name."""
    prompt, module = np.tile(np.array([PROMPTS[0]], np.int32), (rows, 1)), CONFIG.module(Purpose.CAUSAL_LM, execution)
    devices = meshes.make(mesh, jax.devices()[: mesh.data * mesh.fsdp * mesh.tensor])
    boxed = abstract_parameters(module, {"input_ids": prompt})
    how = (
        decoder_of(CONFIG, execution), strategy, Settings().constraints(VOCABULARY, CONFIG.vocab_size), devices
    )  # fmt: skip
    params = weights.place_parameters(parameters(), boxed, execution, devices)
    lengths, keys = Lengths.alike(rows, 0, 16), jax.random.split(jax.random.key(0), rows)
    read = {"prompt": prompt, "prompt_mask": np.ones_like(prompt), "source": None, "keys": keys}
    progress = loop.prefill(*how, params=params, **read, lengths=lengths, capacity=32)
    return how, {"params": params, "progress": progress, "lengths": lengths, "until": jnp.int32(9)}


@pytest.mark.parametrize("unroll", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_the_cache_is_changed_in_place(unroll: int) -> None:
    how, given = prefilled(Greedy(), Execution(unroll=unroll), Mesh(data=1, fsdp=1, tensor=1), 1)
    compiled = loop.decode.lower(*how, **given).compile()
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
    """On all devices: 0 takes those that the other axes leave. A text that is shown stands in a row of each."""
    settings = Settings(strategy, max_new_tokens=NEW)
    sharded = BatchGenerator(CONFIG, parameters(), VOCABULARY, mesh=Mesh(data=0, fsdp=2, tensor=2))
    found, expected = sharded(PROMPTS, settings), writer()(PROMPTS, settings)
    for texts, others in zip(found, expected, strict=True):
        assert [text.tokens for text in texts] == [text.tokens for text in others]
        np.testing.assert_allclose([text.score for text in texts], [text.score for text in others], rtol=1e-5)
    if strategy.rows == 1:
        assert [*sharded.stream(PROMPTS[0], settings)][-1] == (found[0][0], True)
    state = prefilled(strategy, Execution(), Mesh(data=2, fsdp=2, tensor=2), 4)[1]["progress"].state
    assert state.keys.sharding.shard_shape(state.keys.shape)[:3] == (2, strategy.rows, 2)


def test_texts_within_another_program_are_the_likeliest_and_pass_no_gradient() -> None:
    """Prompts have one length, texts different ones; the last text must not end before four tokens."""
    prompts, decoder = np.array([[5, 9], [11, 3], [2, 7]], np.int32), decoder_of(CONFIG, Execution())
    least, most = np.array([0, 0, 4], np.int32), np.array([6, 2, 5], np.int32)
    constraints = Settings().constraints(VOCABULARY, CONFIG.vocab_size)
    module = CONFIG.module(Purpose.CAUSAL_LM, Execution())

    @jax.jit
    def written(params: Any) -> Any:
        def loss(params: Any) -> Any:
            read = {"prompt": prompts, "source": None, "keys": jax.random.split(jax.random.key(0), 3)}
            read |= {"variables": {"params": params}, "lengths": Lengths(least, most), "capacity": 2 + 6}
            found = loop.generate_within(decoder, Greedy(), constraints, **read)
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


AXES = {
    "table": ("vocab", "embed"), "scale": ("embed",), "kernel": ("layers", "embed", "mlp"), "bias": ("layers", "mlp"),
    "count": None,
}  # fmt: skip
SHAPES = {"table": (8, 4), "scale": (4,), "kernel": (2, 4, 6), "bias": (2, 6), "count": ()}


@pytest.mark.parametrize("unroll", [1, 2])
def test_products_are_cast_and_layers_apart_where_code_is_straight(unroll: int) -> None:
    """Biases and the scales of norms stay in float32, in every layer."""
    random = np.random.default_rng(0)
    params = {name: np.asarray(random.normal(size=shape), np.float32) for name, shape in SHAPES.items()}
    boxed = {name: params[name] if axes is None else nn.LogicallyPartitioned(params[name], axes)
             for name, axes in AXES.items()}  # fmt: skip
    mesh = meshes.make(Mesh(data=1, fsdp=1, tensor=2), jax.devices()[:2])
    placed = weights.place_parameters(params, boxed, Execution(dtype=jnp.bfloat16, unroll=unroll), mesh)
    apart = [name for name, leaf in placed.items() if isinstance(leaf, weights.UnstackedLayers)]
    assert apart == (["bias", "kernel"] if unroll >= 2 else [])
    found = weights.stack_layers(placed)
    for name, array in params.items():
        dtype = jnp.bfloat16 if name in ("table", "kernel") else jnp.float32
        assert found[name].dtype == dtype
        np.testing.assert_array_equal(found[name], array.astype(dtype))
    kernels = placed["kernel"].layers if unroll >= 2 else (placed["kernel"],)
    assert {one.sharding.shard_shape(one.shape)[-2:] for one in kernels} == {(4, 3)}  # half of the feed-forward


def test_cached_equals_the_whole_text_read_with_the_prompt_as_prefix() -> None:
    texts = BatchGenerator(CONFIG, parameters(), VOCABULARY, reads_prefix=True)(PROMPTS, Settings(max_new_tokens=NEW))
    for prompt, (text,) in zip(PROMPTS, texts, strict=True):
        tokens, nats = uncached(prompt, NEW, prefix_lengths=np.array([len(prompt)], np.int32))
        assert text.tokens == tokens
        np.testing.assert_allclose(text.log_probability, nats, rtol=1e-5)
    causal = writer()(PROMPTS, Settings(max_new_tokens=NEW))
    assert [text.tokens for (text,) in texts] != [text.tokens for (text,) in causal]


def test_a_run_of_a_prefix_reads_its_prompts_so_and_its_export_says_what_is_lost(
    decoder_run: Path, prefix_run: Path, tmp_path: Path
) -> None:
    prompt, settings = "Returns the name of a", Settings(max_new_tokens=8)
    (((written,),), ((causal,),)) = (Generator.load(run)([prompt], settings) for run in (prefix_run, decoder_run))
    assert written.log_probability != causal.log_probability
    assert "lost: this run is a prefix" in export_checkpoint(prefix_run, tmp_path / "prefix")
    assert "prefix" not in export_checkpoint(decoder_run, tmp_path / "causal").replace(str(tmp_path), "")
