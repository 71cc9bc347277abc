"""Matrices of the layers as products of two of a lower rank."""

import dataclasses
import functools
import json
import math
import re
import types
from pathlib import Path

import chex
import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.compression import factorization
from plmjax.compression.factorization import Factors
from plmjax.compression.kernels import input_axes
from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.experiment import Experiment
from plmjax.generation.generate import generate
from plmjax.generation.writer import Settings
from plmjax.inference.fill_mask import fill_mask
from plmjax.models.albert import AlbertConfig
from plmjax.models.bert import BertConfig
from plmjax.models.distilbert import DistilBertConfig
from plmjax.models.electra import ElectraConfig
from plmjax.models.families import layer_sizes, low_rank
from plmjax.models.gpt2 import Gpt2Config
from plmjax.models.longformer.longformer import LongformerConfig
from plmjax.training.checkpoints import checkpoints
from tests.families import FAMILIES
from tests.products import flops
from tests.systems.modules import boxed_shapes, random_params

RANKS = (3, 2, 0, 4, 5, 6)
SIZES = {"max_position_embeddings": 16, "initializer_range": 0.3}
CONFIGS = {
    "bert": BertConfig(60, 16, 2, 2, 24, ranks=RANKS, **SIZES),
    "albert": AlbertConfig(60, 16, 3, 2, 24, ranks=RANKS, embedding_size=8, inner_group_num=2, **SIZES),
    "electra": ElectraConfig(60, 16, 2, 2, 24, ranks=RANKS, embedding_size=8, **SIZES),
    "distilbert": DistilBertConfig(60, 16, 2, 2, 24, ranks=RANKS, **SIZES),
    "gpt2": Gpt2Config(vocab_size=60, n_positions=16, n_embd=16, n_layer=2, n_head=2, ranks=RANKS),
}
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


@pytest.mark.nightly
@pytest.mark.parametrize("system", CONFIGS)
def test_a_product_of_two_matrices_is_its_whole_matrix(system: str) -> None:
    config = CONFIGS[system]
    purpose = Purpose.PRETRAINING if system == "gpt2" else Purpose.ENCODING
    module, variables = made(config, purpose)
    name = config.system.name
    params = variables["params"] if purpose is Purpose.PRETRAINING else {name: variables["params"]}
    whole, plain = low_rank.whole(params, config)
    assert plain.ranks == ()
    other, expected = made(plain, purpose)
    whole = whole if purpose is Purpose.PRETRAINING else whole[name]
    chex.assert_trees_all_equal_shapes(whole, expected["params"])
    np.testing.assert_allclose(outputs(module, variables["params"]), outputs(other, whole), atol=1e-5)
    # A matrix of random products has as large values as one of the initializer alone.
    kernel = flax.traverse_util.flatten_dict(whole, sep="/")
    initial = flax.traverse_util.flatten_dict(expected["params"], sep="/")
    (path,) = [path for path in kernel if path.endswith("feed_forward/output/kernel")][:1]
    assert np.std(kernel[path]) == pytest.approx(float(jnp.std(initial[path])), rel=0.35)


@pytest.mark.parametrize("system", ["bert", "gpt2"])
def test_the_model_computes_less(system: str) -> None:
    config = CONFIGS[system]

    def products(config) -> float:
        module = config.module(Purpose.PRETRAINING if system == "gpt2" else Purpose.ENCODING, Execution())
        return flops(functools.partial(outputs, module), nn.meta.unbox(boxed_shapes(module)))

    plain = dataclasses.replace(config, ranks=())
    inner = 24 if system == "bert" else 64
    saved = sum(
        a * b - rank * (a + b)
        for rank, (a, b) in zip(RANKS, (*((16, 16),) * 4, (16, inner), (inner, 16)), strict=True)
        if rank
    )
    tokens, layers = IDS.size, 2
    assert products(plain) - products(config) == 2 * tokens * layers * saved
    steps = [one.train_flops(*IDS.shape, 0) for one in (plain, config)]
    assert steps[0] - steps[1] == 3 * 2 * tokens * layers * saved


def test_the_decomposition_is_the_nearest_of_its_rank() -> None:
    draws = np.random.default_rng(0)
    params = {"layers/attention/output/kernel": draws.normal(size=(2, 2, 3, 5)), "layers/attention/output/bias": 1}
    factors = Factors.of(params, {"layers/attention/output": True})
    assert factors.full == 5 and factors.bound == 2
    for rank in range(1, 6):
        after = factors.applied(params, rank)
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
        assert factors.kept(rank) == pytest.approx(min(shares), abs=1e-6)
        assert factors.rank_of(min(shares) - 1e-6) == rank


@pytest.mark.parametrize(
    ("path", "axes", "inputs"),
    [
        ("attention/query/kernel", 3, 1), ("attention/output/kernel", 3, 2), ("feed_forward/output/kernel", 2, 1),
        ("attention/query/reduce/kernel", 2, 1), ("attention/query/expand/kernel", 3, 1),
        ("attention/output/reduce/kernel", 3, 2), ("attention/output/expand/kernel", 2, 1),
    ],
)  # fmt: skip
def test_the_axes_of_inputs_come_first(path: str, axes: int, inputs: int) -> None:
    """[D N H] and [N H D], and the two kernels of a lower rank: [D R] [R N H], and [N H R] [R D]."""
    assert input_axes(f"bert/encoder/layers/{path}", axes) == inputs


def test_a_rank_with_as_many_weights_as_the_matrix_is_not_worth_it() -> None:
    factors = Factors.of({"layers/inner/kernel": np.ones((1, 4, 4))}, {"layers/inner": True})
    assert [factors.worth(rank) for rank in (1, 2)] == [1, 0]  # 2 * 4 * 2 weights of 4 * 4


def test_every_matrix_keeps_its_share_of_the_energy() -> None:
    """One of two matrices of 5 x 5 has one singular value, the other five that are equal."""
    kernel = np.stack([np.diag([1.0, 0, 0, 0, 0]), np.eye(5)])
    factors = Factors.of({"layers/inner/kernel": kernel}, {"layers/inner": True})
    assert [factors.rank_of(energy) for energy in (0.1, 0.4, 0.5, 0.9)] == [1, 2, 3, 5]
    assert [factors.kept(rank) for rank in (1, 4)] == [0.2, 0.8]
    nothing = Factors.of({"layers/inner/kernel": np.zeros((1, 3, 4))}, {"layers/inner": True})
    assert (nothing.rank_of(0.9), nothing.kept(1), nothing.full) == (1, 1.0, 3)


def test_each_kind_has_the_rank_of_its_energy(tmp_path: Path, monkeypatch) -> None:
    """The larger one of two layers; a kind of which a product would have no fewer weights stays whole."""
    model = BertConfig(60, 16, 2, 2, 24, **SIZES)
    kinds = dict(zip(low_rank.KINDS, ((2, 3), (4, 1), (5, 5), (8, 8), (9, 2), (10, 9)), strict=True))
    draws, params = np.random.default_rng(0), {}
    for kind, ranks in kinds.items():
        shape = {"feed_forward/intermediate": (16, 24), "feed_forward/output": (24, 16)}.get(kind, (16, 16))
        kernel = np.zeros((2, *shape))
        for layer, rank in enumerate(ranks):  # of equal singular values
            left, right = (np.linalg.qr(draws.normal(size=(size, size)))[0] for size in shape)
            kernel[layer] = left[:, :rank] @ right[:rank]
        heads = (16, 2, 8) if kind.split("/")[-1] in ("query", "key", "value") else (2, 8, 16)
        kernel = kernel if kind.startswith("feed") else kernel.reshape(2, *heads)
        params[f"bert/encoder/layers/{kind}/kernel"] = kernel.astype(np.float32)
    run = types.SimpleNamespace(experiment=Experiment(model, None, None))
    source, written = types.SimpleNamespace(params=params, description=run), []
    monkeypatch.setattr(factorization.Source, "read", lambda checkpoint: source)
    monkeypatch.setattr(factorization, "write", lambda *arguments: written.append(arguments) or "a line")
    said = factorization.factorize("here", tmp_path, None, 0.99)
    ((output, _, found, run, by, settings),) = written
    assert run.model == dataclasses.replace(model, ranks=(3, 4, 5, 0, 9, 0))
    assert (output, by, settings) == (tmp_path, "factorize", {"ranks": [3, 4, 5, 0, 9, 0], "energy": 0.99})
    assert "attention/key 4 (100.0%)" in said and "attention/output whole (100.0%)" in said
    assert found[path := "bert/encoder/layers/attention/output/kernel"] is params[path]
    query, reduce, expand = (f"bert/encoder/layers/attention/query/{name}kernel" for name in ("", "reduce/", "expand/"))
    np.testing.assert_allclose(np.einsum("ldr,lrnh->ldnh", found[reduce], found[expand]), params[query], atol=1e-6)
    factorization.factorize("here", tmp_path, None, 0.45)
    assert written[1][3].model.ranks == (2, 2, 3, 4, 5, 5)
    said = factorization.factorize("here", tmp_path, 9, None)
    assert "feed_forward/output 9 (90.0%)" in said
    assert written[2][5] == {"ranks": [0, 0, 0, 0, 9, 9], "rank": 9}


@pytest.mark.parametrize("name", ["bert", "roberta", "albert", "electra", "distilbert", "gpt", "gpt2"])
def test_every_projection_of_a_system_has_the_rank_of_its_kind(name: str) -> None:
    """Only projections of the system's first module are read. The generator of an ELECTRA has whole matrices."""
    module = FAMILIES[name].heads[0].module
    module = module.clone(config=dataclasses.replace(module.config, ranks=(1, 2, 3, 4, 5, 6)))
    shapes = flax.traverse_util.flatten_dict(nn.meta.unbox(boxed_shapes(module)), sep="/")
    ranks = {path: leaf.shape[-1] for path, leaf in shapes.items() if path.endswith("/reduce/kernel")}
    assert len(ranks) == len(low_rank.KINDS)
    for rank, kind in enumerate(low_rank.KINDS, start=1):
        assert [own for path, own in ranks.items() if path.endswith(f"{kind}/reduce/kernel")] == [rank]


@pytest.mark.parametrize("name", ["bert", "albert"])
def test_whole_matrices_are_the_products(name: str) -> None:
    """With the names, the shapes and the config of a model that has whole ones, stacked or not."""
    config = CONFIGS[name]
    before = {name: random_params(config.module(Purpose.ENCODING, Execution()))}
    after, model = low_rank.whole(before, config)
    assert model == dataclasses.replace(config, ranks=())
    shapes = {name: nn.meta.unbox(boxed_shapes(model.module(Purpose.ENCODING, Execution())))}
    assert jax.tree.map(np.shape, after) == jax.tree.map(lambda leaf: leaf.shape, shapes)
    flat, found = (flax.traverse_util.flatten_dict(tree, sep="/") for tree in (before, after))
    layer, letter = ("encoder/layers", "l") if name == "bert" else ("encoder/group_0/layer_0", "")
    for kind, axes in (("attention/query", "dr,rnh->dnh"), ("feed_forward/output", "dr,rf->df")):
        path = f"{name}/{layer}/{kind}"
        product = re.sub("(?<![a-z])(?=[a-z])", letter, axes)
        first, second = (flat[f"{path}/{part}/kernel"] for part in ("reduce", "expand"))
        np.testing.assert_allclose(found[f"{path}/kernel"], np.einsum(product, first, second), rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(found[f"{path}/bias"], flat[f"{path}/expand/bias"])
    assert low_rank.whole(after, model) == (after, model)


@pytest.mark.nightly
def test_commands_take_the_result(small_run: Path, tmp_path: Path, capsys) -> None:
    output = tmp_path / "out"
    cli.run(["compress", "factorize", str(small_run), "--output", str(output), "--energy", "0.5"])
    said = capsys.readouterr().out
    (params, model), (before, _) = loaded(output), loaded(small_run)
    assert len(model.ranks) == 6 and all(0 <= rank <= 21 for rank in model.ranks) and any(model.ranks)
    assert f"attention/query {model.ranks[0] or 'whole'} (" in said
    for place, kind in enumerate(low_rank.KINDS):
        path = f"bert/encoder/layers/{kind}"
        if not model.ranks[place]:
            np.testing.assert_array_equal(params[f"{path}/kernel"], before[f"{path}/kernel"])
            continue
        matrix = before[f"{path}/kernel"].astype(np.float64)
        kept = np.tensordot(params[f"{path}/reduce/kernel"][0], params[f"{path}/expand/kernel"][0], 1)
        assert np.sum((matrix[0] - kept) ** 2) <= 0.5001 * np.sum(matrix**2)
    assert sum(map(np.size, params.values())) < sum(map(np.size, before.values()))
    assert len(fill_mask(output, "the [MASK] of names")[0]) == 5
    cli.run(["export", str(output), str(tmp_path / "files"), "--architecture", "BertForPreTraining"])
    assert "products of two matrices; exported as whole ones" in capsys.readouterr().out
    cli.run(["compress", "prune", str(output), "--output", str(tmp_path / "sparse"), "--sparsity", "0.5"])
    pruned, _ = loaded(tmp_path / "sparse")
    (path,) = [path for path in pruned if path.endswith("intermediate/reduce/kernel")]
    assert np.mean(pruned[path] == 0) == pytest.approx(0.5, abs=0.01)
    data = ["--data.path", str(small_run / "dataset")]
    cli.run(["compress", "quantize", str(output), "--output", str(tmp_path / "int8"), "--method", "dynamic", *data])
    assert f"int8 with {6 + sum(map(bool, model.ranks))} kernels of the layers" in capsys.readouterr().out
    assert len(fill_mask(tmp_path / "int8", "the [MASK] of names")[0]) == 5


@pytest.mark.nightly
def test_the_result_is_fine_tuned(task_run: Path, sentiment: tuple[str, str], tmp_path: Path) -> None:
    output = tmp_path / "out"
    cli.run(["compress", "factorize", str(task_run), "--output", str(output), "--rank", "8"])
    assert loaded(output)[1].ranks == (8,) * 6
    task = ["--data.train", sentiment[0], "--data.validation", sentiment[1], "--data.text", "sentence"]
    short = ["--finetuning.epochs", "0", "--training.steps", "2", "--finetuning.warmup", "0"]
    workdir = ["--from", str(output), "--workdir", str(tmp_path / "tuned")]
    cli.run(["finetune", "experiments/finetune_sentences.py", *workdir, *task, *short])
    (params, model), (before, _) = loaded(tmp_path / "tuned"), loaded(output)
    assert model.ranks == (8,) * 6 and params.keys() == before.keys()
    path = "bert/encoder/layers/attention/query/reduce/kernel"
    assert not np.array_equal(params[path], before[path])


@pytest.mark.nightly
def test_a_decoder_at_full_energy_writes_the_same(decoder_run: Path, tmp_path: Path) -> None:
    params, _ = loaded(decoder_run)
    (path,) = [path for path in params if path.endswith("feed_forward/intermediate/kernel")]
    left, values, right = np.linalg.svd(params[path], full_matrices=False)
    narrow = params | {path: ((left[:, :, :6] * values[:, None, :6]) @ right[:, :6]).astype(np.float32)}
    description = checkpoints.describe(checkpoints.find(decoder_run))
    tree = flax.traverse_util.unflatten_dict(narrow, sep="/")
    checkpoints.save_parameters(tmp_path / "narrow", tree, description.experiment, description.tokenizer)
    cli.run(
        ["compress", "factorize", str(tmp_path / "narrow"), "--output", str(tmp_path / "out"), "--energy", "0.9999"]
    )
    assert loaded(tmp_path / "out")[1].ranks == (0, 0, 0, 0, 6, 0)
    texts = [generate(tmp_path / name, ["The"], Settings(max_new_tokens=8))[0][0] for name in ("narrow", "out")]
    assert texts[0].text == texts[1].text
    assert math.isclose(texts[0].log_probability, texts[1].log_probability, abs_tol=1e-3)


def test_what_is_refused(fails, small_run: Path, tmp_path: Path) -> None:
    output = ("--output", tmp_path / "out")

    def refused(*arguments: object) -> str:
        return fails("compress", "factorize", small_run, *output, *arguments)

    assert "Expected either --rank or --energy, found neither" in refused()
    assert "Expected either --rank or --energy, found both" in refused("--rank", 4, "--energy", 0.9)
    assert "Expected --rank of at least 1, found 0" in refused("--rank", 0)
    assert "Expected --energy above 0 and below 1, found 1" in refused("--energy", 1)
    assert "Expected --rank of at most 21, with which a product has fewer weights" in refused("--rank", 30)
    assert "Expected a lower --energy, with which" in refused("--energy", 0.99999)
    assert "which does not train, found '--training.steps" in refused("--rank", 4, "--training.steps", "3")
    assert not (tmp_path / "out").exists()
    cli.run(["compress", "factorize", str(small_run), "--output", str(tmp_path / "narrow"), "--rank", "4"])
    narrow = tmp_path / "narrow"
    (params, model), (before, _) = loaded(narrow), loaded(small_run)
    assert model.ranks == (4,) * 6
    (record,) = json.loads((narrow / "ancestry.json").read_text())["ancestors"]
    assert record["settings"] == {"ranks": [4] * 6, "rank": 4}
    assert sum(path.endswith("/reduce/kernel") for path in params) == 6
    path = "bert/encoder/layers/feed_forward/output"
    left, values, right = np.linalg.svd(before[f"{path}/kernel"][0])
    product = params[f"{path}/reduce/kernel"][0] @ params[f"{path}/expand/kernel"][0]
    np.testing.assert_allclose(product, (left[:, :4] * values[:4]) @ right[:4], atol=1e-5)
    assert "found ranks of 4 4 4 4 4 4" in fails("compress", "factorize", narrow, *output, "--rank", 2)
    with pytest.raises(Exception, match="found ranks of 4 4 4 4 4 4; remove heads and features first"):
        layer_sizes.EncoderParts().without_zeros(*loaded(narrow))
    with pytest.raises(Exception, match=r"Expected --model\.ranks of 6 numbers from 0, found 3 4"):
        BertConfig(ranks=(3, 4))
    with pytest.raises(Exception, match="Expected whole matrices for a Longformer"):
        LongformerConfig(ranks=RANKS)
