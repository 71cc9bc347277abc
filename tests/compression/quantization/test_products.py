"""Checkpoints that compute in int8."""

import functools
import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import flax.traverse_util
import jax
import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.compression.examples import examples_of
from plmjax.compression.quantization.products import with_int8_parameters
from plmjax.compression.run import Source
from plmjax.contracts.execution import Execution
from plmjax.generation.generate import generate
from plmjax.inference.evaluate import evaluate
from plmjax.layers import int8
from plmjax.training.checkpoints import checkpoints


def quantized(run: Path, output: Path, *arguments: str) -> dict[str, np.ndarray]:
    cli.run(["compress", "quantize", str(run), "--output", str(output), *arguments])
    return flax.traverse_util.flatten_dict(checkpoints.load_parameters(output)[0], sep="/")


@pytest.fixture(scope="module")
def static(task_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("static") / "run"
    quantized(task_run, output, "--method", "static", "--batches", "2")
    return output


@pytest.mark.nightly
@pytest.mark.parametrize("granularity", ["tensor", "channel"])
def test_scales_are_those_of_the_stored_kernels(task_run: Path, tmp_path: Path, granularity: str, capsys) -> None:
    params = quantized(task_run, tmp_path / "out", "--method", "dynamic", "--granularity", granularity)
    assert "products in int8 with 6 kernels of the layers" in capsys.readouterr().out
    scales = [path for path in params if path.endswith("/kernel_scale")]
    assert len(scales) == 6 and not any("range" in path for path in params)
    for path in scales:
        kernel = params[f"{path.rpartition('/')[0]}/kernel"]
        grid = kernel.reshape(len(kernel), -1, params[path].shape[1]) * params[path][:, None]
        np.testing.assert_allclose(grid, np.round(grid), atol=1e-3)
        assert np.abs(grid).max() == pytest.approx(127)
        assert (np.ptp(params[path], axis=1) == 0).all() == (granularity == "tensor")
    run = checkpoints.describe(checkpoints.find(tmp_path / "out")).experiment
    assert run.training.matmul_precision == "int8_dynamic" and run.compression is None
    before, after = evaluate(task_run), evaluate(tmp_path / "out")
    assert after["eval/loss"] != before["eval/loss"] == pytest.approx(after["eval/loss"], abs=0.02)


@pytest.mark.nightly
def test_ranges_are_the_largest_values_of_the_examples(task_run: Path, static: Path) -> None:
    params = flax.traverse_util.flatten_dict(checkpoints.load_parameters(static)[0], sep="/")
    ranges = {path: value for path, value in params.items() if path.endswith("_range")}
    assert len(ranges) == 12 and all(value.shape == (1,) and value > 0 for value in ranges.values())
    layer = "bert/encoder/layers/attention"
    same = [ranges[f"{layer}/{name}/input_range"] for name in ("query", "key", "value")]
    assert same[0] == same[1] == same[2]
    # Those of the first layer: its input and its queries on two batches, without dropout.
    source = Source.read(task_run)
    run = source.description.experiment
    (phase,), feed = run.resolved_phases, examples_of(source, run)
    module, largest = run.objective.module(run.model, Execution()), []
    apply = jax.jit(functools.partial(module.apply, output_hidden_states=True))
    tree = flax.traverse_util.unflatten_dict(source.params, sep="/")
    for batch in itertools.islice(feed.train(phase, 0, np.arange(phase.batch_size)), 2):
        x = np.asarray(apply({"params": tree}, **run.objective.model_inputs(batch)).hidden_states[0])
        queries = np.einsum("btd,dnh->btnh", x, source.params[f"{layer}/query/kernel"][0])
        queries += source.params[f"{layer}/query/bias"][0]
        largest.append([np.abs(x).max(), np.abs(queries).max()])
    found = [float(ranges[f"{layer}/query/{name}_range"][0]) for name in ("input", "output")]
    np.testing.assert_allclose(found, np.max(largest, axis=0), rtol=1e-5)
    assert not np.allclose(largest[0], largest[1], rtol=1e-3)
    before, after = evaluate(task_run), evaluate(static)
    assert after["eval/loss"] != before["eval/loss"] == pytest.approx(after["eval/loss"], abs=0.05)
    (record,) = json.loads((static / "ancestry.json").read_text())["ancestors"]
    assert record["settings"] == {"method": "static", "granularity": "channel", "batches": 2}


@pytest.mark.nightly
def test_a_decoder_writes_in_int8(decoder_run: Path, prose: Path, tmp_path: Path) -> None:
    tokenizer, dataset = tmp_path / "tokenizer", tmp_path / "dataset"
    checkpoints.describe(checkpoints.find(decoder_run)).write_tokenizer(tokenizer)
    cli.run(["prepare", "--input", str(prose), "--tokenizer", str(tokenizer), "--output", str(dataset)])
    output = tmp_path / "decoder"
    quantized(decoder_run, output, "--method", "dynamic", "--data.path", str(dataset))
    alone, together = (generate(output, prompts, max_new_tokens=6) for prompts in (["The"], ["The", "A name is bound"]))
    assert alone[0][0].text == together[0][0].text and alone[0][0].tokens == 6
    assert alone[0][0].log_probability == pytest.approx(together[0][0].log_probability, abs=1e-4)


@pytest.mark.nightly
def test_fine_tuning_and_exports_are_float32(static: Path, sentiment: tuple[str, str], tmp_path: Path, capsys) -> None:
    cli.run(["export", str(static), str(tmp_path / "files")])
    assert "; stored in int8; exported in float32" in capsys.readouterr().out
    task = ["--data.train", sentiment[0], "--data.validation", sentiment[1], "--data.text", "sentence"]
    short = ["--finetuning.epochs", "0", "--training.steps", "2", "--finetuning.warmup", "0"]
    workdir = ["--from", str(static), "--workdir", str(tmp_path / "tuned")]
    cli.run(["finetune", "experiments/finetune_sentences.py", *workdir, *task, *short])
    params, description = checkpoints.load_parameters(tmp_path / "tuned")
    assert description.experiment.training.matmul_precision == "float"
    assert int8.remove_scales(params).keys() == params.keys()
    assert not any("range" in path for path in flax.traverse_util.flatten_dict(params, sep="/"))


def test_every_output_has_its_own_scale() -> None:
    """[D N H] and [N H D], in three layers; the scales are laid out as the outputs of the product."""
    groups = [SimpleNamespace(prefixes=("encoder/layers",), index=0)]
    scales = {"query": np.arange(1, 31).reshape(3, 1, 2, 5), "output": np.arange(1, 13).reshape(3, 1, 1, 4)}
    shapes, params, ranges = {"query": (3, 4, 2, 5), "output": (3, 2, 5, 4)}, {}, {}
    for name, scale in scales.items():
        kernel = f"encoder/layers/attention/{name}/kernel"
        params |= {f"{kernel}/int8": np.ones(shapes[name], np.int8), f"{kernel}/scale": np.float32(scale)}
        ranges[f"encoder/layers/attention/{name}/{int8.INPUT}"] = np.ones(3, np.float32)
    found = with_int8_parameters(params, ranges, SimpleNamespace(parameter_groups=groups), static=False)
    assert not any(path.endswith(int8.INPUT) for path in found)
    for name, outputs in (("query", 10), ("output", 4)):
        expected = np.arange(1, 3 * outputs + 1, dtype=np.float32).reshape(3, outputs)
        np.testing.assert_array_equal(found[f"encoder/layers/attention/{name}/{int8.KERNEL_SCALE}"], expected)


@pytest.mark.parametrize("shared", [True, False])
def test_layers_that_share_a_projection_have_the_largest_of_their_ranges(shared: bool) -> None:
    """An ALBERT calls its layer once for every layer of a BERT, and every call has a range of its own."""
    layers = () if shared else (3,)
    kernel = {"int8": np.ones((*layers, 4, 2), np.int8), "scale": np.full((*layers, 1, 1), 0.5, np.float32)}
    params = {f"encoder/layers/output/kernel/{name}": array for name, array in kernel.items()}
    groups = [] if shared else [SimpleNamespace(prefixes=("encoder/layers",), index=0)]
    ranges = {f"encoder/layers/output/{name}": np.float32([1, 4, 2]) for name in (int8.INPUT, int8.OUTPUT)}
    found = with_int8_parameters(params, ranges, SimpleNamespace(parameter_groups=groups), static=True)
    for name in (int8.INPUT, int8.OUTPUT):
        assert found[f"encoder/layers/output/{name}"].tolist() == (4 if shared else [1, 4, 2])
    scales = found[f"encoder/layers/output/{int8.KERNEL_SCALE}"]
    np.testing.assert_array_equal(scales, np.full((*layers, 2), 0.5, np.float32), strict=True)
