"""Matrices of the layers as products of two of a lower rank."""

import dataclasses
import functools
import json
from pathlib import Path

import chex
import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.compression.factorization import Factors
from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.inference.fill_mask import fill_mask
from plmjax.models.albert import AlbertConfig
from plmjax.models.bert import BertConfig
from plmjax.models.compressed import low_rank
from plmjax.models.compressed.configs import with_compression
from plmjax.models.compressed.parameters import dense
from plmjax.models.gpt2 import Gpt2Config
from plmjax.training.checkpoints import checkpoints
from tests.products import flops
from tests.systems.modules import boxed_shapes

RANKS = (3, 2, 0, 4, 5, 6)
SIZES = {"max_position_embeddings": 16, "initializer_range": 0.3}
PLAIN = {
    "bert": BertConfig(60, 16, 2, 2, 24, **SIZES),
    "albert": AlbertConfig(60, 16, 3, 2, 24, embedding_size=8, inner_group_num=2, **SIZES),
    "gpt2": Gpt2Config(vocab_size=60, n_positions=16, n_embd=16, n_layer=2, n_head=2),
}
CONFIGS = {name: with_compression(config, ranks=RANKS) for name, config in PLAIN.items()}
IDS = jnp.asarray(np.random.default_rng(0).integers(0, 60, size=(2, 12)))


def loaded(run: Path) -> tuple[dict[str, np.ndarray], object]:
    params, description = checkpoints.load_parameters(run)
    return flax.traverse_util.flatten_dict(params, sep="/"), description.experiment.model


def made(config, purpose: Purpose = Purpose.ENCODING):
    module = config.module(purpose, Execution())
    return module, nn.meta.unbox(jax.jit(module.init)(jax.random.key(0), IDS))


@functools.partial(jax.jit, static_argnums=0)
def outputs(module: nn.Module, params: dict) -> jax.Array:
    return module.apply({"params": params}, IDS).last_hidden_state


@pytest.mark.parametrize(
    "system", ["bert", *(pytest.param(name, marks=pytest.mark.nightly) for name in CONFIGS if name != "bert")]
)
def test_a_product_of_two_matrices_is_its_whole_matrix(system: str) -> None:
    config = CONFIGS[system]
    purpose = Purpose.PRETRAINING if system == "gpt2" else Purpose.ENCODING
    module, variables = made(config, purpose)
    name = config.system.name
    params = variables["params"] if purpose is Purpose.PRETRAINING else {name: variables["params"]}
    whole, plain = dense(flax.traverse_util.flatten_dict(params, sep="/"), config)
    whole = flax.traverse_util.unflatten_dict(whole, sep="/")
    assert plain == PLAIN[system]
    other, expected = made(plain, purpose)
    whole = whole if purpose is Purpose.PRETRAINING else whole[name]
    chex.assert_trees_all_equal_shapes(whole, expected["params"])
    np.testing.assert_allclose(outputs(module, variables["params"]), outputs(other, whole), atol=1e-5)
    # A matrix of random products has as large values as one of the initializer alone.
    kernel = flax.traverse_util.flatten_dict(whole, sep="/")
    initial = flax.traverse_util.flatten_dict(expected["params"], sep="/")
    (path,) = [path for path in kernel if path.endswith("feed_forward/output/kernel")][:1]
    assert np.std(kernel[path]) == pytest.approx(float(jnp.std(initial[path])), rel=0.35)


def test_the_model_computes_less() -> None:
    def products(config: BertConfig) -> float:
        module = config.module(Purpose.ENCODING, Execution())
        return flops(functools.partial(outputs, module), nn.meta.unbox(boxed_shapes(module)))

    plain, config = PLAIN["bert"], CONFIGS["bert"]
    sizes = *((16, 16),) * 4, (16, 24), (24, 16)
    saved = sum(a * b - rank * (a + b) for rank, (a, b) in zip(RANKS, sizes, strict=True) if rank)
    assert products(plain) - products(config) == 2 * IDS.size * 2 * saved
    steps = [one.train_flops(*IDS.shape, 0) for one in (plain, config)]
    assert steps[0] - steps[1] == 3 * 2 * IDS.size * 2 * saved


def test_the_decomposition_is_the_nearest_of_its_rank() -> None:
    draws = np.random.default_rng(0)
    params = {"layers/attention/output/kernel": draws.normal(size=(2, 2, 3, 5)), "layers/attention/output/bias": 1}
    factors = Factors.of(params, {"layers/attention/output": True})
    assert factors.full_rank == 5 and factors.largest_useful_rank == 2
    for rank in range(1, 6):
        after = factors.apply(params, rank)
        first, second = (after[f"layers/attention/output/{part}/kernel"] for part in ("reduce", "expand"))
        assert first.shape == (2, 2, 3, rank) and second.shape == (2, rank, 5)
        assert "layers/attention/output/expand/bias" in after and len(after) == 3
        product = np.einsum("lnhr,lro->lnho", first, second)
        shares = []
        for layer in range(2):
            matrix = params["layers/attention/output/kernel"][layer].reshape(6, 5)
            values = np.linalg.svd(matrix, compute_uv=False)
            error = np.sum((matrix - product[layer].reshape(6, 5)) ** 2)
            assert error == pytest.approx(np.sum(values[rank:] ** 2), rel=1e-5, abs=1e-9)
            shares.append(1 - error / np.sum(matrix**2))
        assert factors.kept_energy(rank) == pytest.approx(min(shares), abs=1e-6)
        assert factors.rank_of(min(shares) - 1e-6) == rank


@pytest.mark.nightly
def test_commands_take_the_result(small_run: Path, tmp_path: Path, capsys) -> None:
    output = tmp_path / "out"
    cli.run(["compress", "factorize", str(small_run), "--output", str(output), "--energy", "0.5"])
    said = capsys.readouterr().out
    (params, model), (before, _) = loaded(output), loaded(small_run)
    assert len(model.ranks) == 6 and all(0 <= rank <= 21 for rank in model.ranks) and any(model.ranks)
    assert f"attention/query {model.ranks[0] or 'whole'} (" in said
    assert sum(map(np.size, params.values())) < sum(map(np.size, before.values()))
    assert len(fill_mask(output, "the [MASK] of names")[0]) == 5
    cli.run(["export", str(output), str(tmp_path / "files"), "--architecture", "BertForPreTraining"])
    assert "products of two matrices; exported as whole ones" in capsys.readouterr().out
    data = ["--data.path", str(small_run / "dataset")]
    cli.run(["compress", "quantize", str(output), "--output", str(tmp_path / "int8"), "--method", "dynamic", *data])
    assert f"int8 with {6 + sum(map(bool, model.ranks))} kernels of the layers" in capsys.readouterr().out
    assert len(fill_mask(tmp_path / "int8", "the [MASK] of names")[0]) == 5


def test_each_kind_has_the_rank_of_its_energy(small_run: Path, tmp_path: Path, capsys) -> None:
    """The larger one of two layers; a kind of which a product would have no fewer weights stays whole."""
    model = BertConfig(60, 16, 2, 2, 24, **SIZES)
    kinds = dict(zip(low_rank.KINDS, ((2, 3), (4, 1), (5, 5), (8, 8), (9, 2), (10, 9)), strict=True))
    description, draws = checkpoints.describe(checkpoints.find(small_run)), np.random.default_rng(0)
    run = dataclasses.replace(description.experiment, model=model)
    shapes = nn.meta.unbox(boxed_shapes(run.objective.module(model, Execution())))
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes)
    params = flax.traverse_util.flatten_dict(params, sep="/")
    for kind, ranks in kinds.items():
        path = f"bert/encoder/layers/{kind}/kernel"
        shape = {"feed_forward/intermediate": (16, 24), "feed_forward/output": (24, 16)}.get(kind, (16, 16))
        for layer, rank in enumerate(ranks):  # of equal singular values
            left, right = (np.linalg.qr(draws.normal(size=(size, size)))[0] for size in shape)
            params[path][layer] = (left[:, :rank] @ right[:rank]).reshape(params[path].shape[1:])
    tree = flax.traverse_util.unflatten_dict(params, sep="/")
    checkpoints.save_parameters(tmp_path / "run", tree, run, tokenizer=description.tokenizer)
    for options, expected, said in (
        (["--energy", "0.99"], (3, 4, 5, 0, 9, 0), "attention/output whole (100.0%)"),
        (["--energy", "0.45"], (2, 2, 3, 4, 5, 5), "attention/key 2 (50.0%)"),
        (["--rank", "9"], (0, 0, 0, 0, 9, 9), "feed_forward/output 9 (90.0%)"),
    ):
        output = tmp_path / options[1]
        cli.run(["compress", "factorize", str(tmp_path / "run"), "--output", str(output), *options])
        found, smaller = loaded(output)
        assert smaller == with_compression(model, ranks=expected) and said in capsys.readouterr().out
        (record,) = json.loads((output / "ancestry.json").read_text())["ancestors"]
        assert record["settings"] == {"ranks": [*expected], options[0][2:]: float(options[1])}
        for kind, rank in zip(low_rank.KINDS, expected, strict=True):
            path = f"bert/encoder/layers/{kind}"
            if not rank:
                np.testing.assert_array_equal(found[f"{path}/kernel"], params[f"{path}/kernel"])
            elif options[1] == "0.99":
                axes = 2 if kind == "attention/output" else 1
                for layer in range(2):
                    first, second = (found[f"{path}/{part}/kernel"][layer] for part in ("reduce", "expand"))
                    assert first.shape[axes:] == (rank,)
                    np.testing.assert_allclose(
                        np.tensordot(first, second, 1), params[f"{path}/kernel"][layer], atol=1e-6
                    )
