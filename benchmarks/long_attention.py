"""Time and memory of a training step against the length of its row: whole rows, windows, Longformer's attention, LSH.

    python benchmarks/long_attention.py [--lengths 512 1024 2048 4096 8192 16384] [--repeats 3] [--kinds dense LSH]
    python benchmarks/long_attention.py --lengths 65536 --topology v5e:1x1
    python benchmarks/long_attention.py --lengths 4096 --kinds dense LSH --layers 2 4 8 16
    python benchmarks/long_attention.py --picture docs/pictures/length_of_rows.png

An encoder of two layers of 256 that predicts 15 % of one row, with AdamW, in float32 and without dropout. Windows have
512 tokens; Longformer has 64 global tokens besides. Reformer's layers (LSH) hash twice, into chunks of 64 tokens, and
are reversible. Adaptive-Span (span) is a decoder whose heads look back 512 tokens at most. It reads the row in segments
of 512 tokens, and no gradient passes from one to the one before. Lite Transformer (long-short) is a decoder too: half
of its features go through attention to all earlier tokens, a block at a time, the other half through a convolution of
31 tokens. The steps take turns, in one process on one core, and their time is that of the processor; with `--repeats 0`
no time is taken. The memory is that of the compiled step, besides parameters and inputs. Linux only.

With `--topology` the steps are compiled for one TPU and not run, with products in bfloat16: the time is the refined
estimate of the compiler's schedule (docs/notes/estimates.md). `--layers` prints the memory of steps with so many
layers, which are not run either. `--picture` draws the table of docs/benchmarks.md.
"""

import argparse
import functools
import os
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pictures import drawn
from planned_attention import compiled_estimate
from turns import in_turns, use_one_core

os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.experiment import Mesh
from plmjax.models.adaptive_span import AdaptiveSpanConfig
from plmjax.models.lite_transformer.decoder import LiteTransformerDecoderConfig
from plmjax.models.longformer.longformer import LongformerConfig
from plmjax.models.reformer.reformer import ReformerConfig
from plmjax.models.roberta import RobertaConfig
from plmjax.parallel import mesh as meshes
from plmjax.parallel import sharding, topologies
from plmjax.planning.compilation import DoesNotFit

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
WINDOW, GLOBAL, CHUNK, LAYERS = 512, 64, 64, 2
KINDS = ("dense", "blockwise", "window", "Longformer", "LSH", "span", "long-short")
DECODERS = ("span", "long-short")
BLOCKWISE = ("blockwise", "long-short")
SIZES = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def config_of(kind: str, length: int, layers: int = LAYERS) -> Any:
    """Return the sizes of a kind for rows of `length` tokens."""
    sizes = SIZES | {"max_position_embeddings": length + 2, "num_hidden_layers": layers}
    windowed = {"attention_window": min(WINDOW, length)}
    # Twice as many buckets as chunks, always in two factors: the products of one factor grow with the square of a row.
    power = (2 * (length // CHUNK)).bit_length() - 1
    buckets = 2 ** (power // 2), 2 ** (power - power // 2)
    return {
        "dense": lambda: RobertaConfig(**sizes),
        "blockwise": lambda: RobertaConfig(**sizes),
        "window": lambda: RobertaConfig(**sizes, **windowed),
        "Longformer": lambda: LongformerConfig(
            **sizes, attention_window=(min(WINDOW, length),), max_global_tokens=GLOBAL
        ),
        "LSH": lambda: ReformerConfig(
            vocab_size=SIZES["vocab_size"],
            hidden_size=256,
            attn_layers=("lsh",) * layers,
            num_attention_heads=4,
            attention_head_size=64,
            feed_forward_size=1024,
            axial_pos_shape=(length // CHUNK, CHUNK),
            axial_pos_embds_dim=(128, 128),
            is_decoder=False,
            lsh_attn_chunk_length=CHUNK,
            num_buckets=buckets,
            num_hashes=2,
        ),
        "span": lambda: AdaptiveSpanConfig(
            vocab_size=SIZES["vocab_size"],
            d_model=256,
            n_layer=layers,
            n_head=4,
            d_inner=1024,
            attn_span=WINDOW,
            dropout=0.0,
        ),
        "long-short": lambda: LiteTransformerDecoderConfig(
            vocab_size=SIZES["vocab_size"],
            max_position_embeddings=length,
            d_model=256,
            decoder_layers=layers,
            decoder_ffn_dim=1024,
            decoder_kernel_sizes=(31,) * layers,
        ).with_dropout(0.0),
    }[kind]()


class Step(NamedTuple):
    """A training step (parameters, state, inputs) -> (parameters, state) and its inputs.

    initialize: () -> the first parameters and state.
    """

    take: Callable[..., Any]
    initialize: Callable[[], tuple[Any, Any]]
    inputs: dict[str, Any]


def step_of(kind: str, length: int, dtype: Any, layers: int = LAYERS) -> Step:
    """Return the step of a kind on one row of `length` tokens. dtype: that of the products."""
    config = config_of(kind, length, layers)
    execution = Execution(dtype=dtype, attention="blockwise" if kind in BLOCKWISE else "dense")
    purpose = Purpose.PRETRAINING if kind in DECODERS else Purpose.MASKED_TOKENS
    module, rule = config.module(purpose, execution), optax.adamw(1e-4)
    ids, predicted = jax.random.randint(jax.random.key(0), (1, length), 5, config.vocab_size), jnp.arange(0, length, 7)
    inputs = {"input_ids": ids} if kind in DECODERS else {"input_ids": ids, "masked_positions": predicted[None]}
    if kind == "Longformer":
        inputs["global_attention_mask"] = (jnp.arange(length) < GLOBAL)[None]

    def logits_of(params: Any, inputs: dict[str, jax.Array]) -> jax.Array:
        if kind not in DECODERS:
            return module.apply({"params": params}, **inputs).logits

        def read(memory: Any, segment: jax.Array) -> tuple[Any, Any]:
            found = module.apply({"params": params}, segment, cache=memory)
            return found.cache, found.scores

        if kind == "span":
            _, found = jax.lax.scan(read, config.memory(1, dtype), inputs["input_ids"].reshape(-1, 1, WINDOW))
            scores = jax.tree.map(lambda each: each[0], found).replace(hidden=found.hidden.reshape(1, length, -1))
        else:
            _, scores = read(None, inputs["input_ids"])
        return scores.replace(hidden=scores.hidden[:, predicted]).logits()

    def step(params: Any, state: Any, inputs: dict[str, jax.Array]) -> tuple[Any, Any]:
        def loss(params: Any) -> jax.Array:
            logits, targets = logits_of(params, inputs), inputs["input_ids"][:, predicted]
            return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

        updates, state = rule.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    def initialize() -> tuple[Any, Any]:
        params = nn.meta.unbox(module.init(jax.random.key(1), jnp.zeros((1, 8), jnp.int32)))["params"]
        return params, rule.init(params)

    return Step(step, initialize, inputs)


def compiled_step(kind: str, length: int) -> tuple[Callable[[], None], int]:
    """Return a function that takes a step and waits for it, and the bytes of memory that the step needs."""
    step = step_of(kind, length, jnp.float32)
    compiled = jax.jit(step.take, donate_argnums=(0, 1)).lower(*step.initialize(), step.inputs).compile()
    held = step.initialize()

    def take() -> None:
        nonlocal held
        held = jax.block_until_ready(compiled(*held, step.inputs))

    return take, compiled.memory_analysis().temp_size_in_bytes


def sizes_of(kind: str, length: int, layers: int) -> tuple[int, int]:
    """Return the bytes of the parameters of a step with so many layers, and the bytes of memory that it needs."""
    step = step_of(kind, length, jnp.float32, layers)
    given = jax.eval_shape(step.initialize)
    compiled = jax.jit(step.take, donate_argnums=(0, 1)).lower(*given, step.inputs).compile()
    parameters = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(given[0]))
    return parameters, compiled.memory_analysis().temp_size_in_bytes


def planned(kind: str, length: int, topology: str) -> str:
    """Return the cells of a step on one chip: both ends of its refined time, in ms, and its memory in MiB."""
    step, part = step_of(kind, length, jnp.bfloat16), topologies.parse(topology)
    mesh = meshes.make(Mesh(), part.devices())
    place = NamedSharding(mesh, PartitionSpec())
    given = jax.tree.map(
        lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=place),
        (*jax.eval_shape(step.initialize), step.inputs),
    )
    try:
        lowered = jax.jit(sharding.with_mesh(step.take, mesh), donate_argnums=(0, 1)).lower(*given)
        (fast, slow), size = compiled_estimate(lowered, part)
    except DoesNotFit as error:
        return f"does not fit | {error.needed / 2**20:,.0f}"
    return f"{1e3 * fast:,.1f} to {1e3 * slow:,.1f} | {size / 2**20:,.0f}"


def measured(length: int, repeats: int, kinds: Sequence[str] = KINDS) -> dict[str, tuple[list[float], int]]:
    """Return kind -> CPU-seconds of each turn, and the bytes of memory that a step needs."""
    steps = {kind: compiled_step(kind, length) for kind in kinds}
    seconds = in_turns({kind: take for kind, (take, _) in steps.items()}, repeats) if repeats else {}
    return {kind: (list(seconds[kind][:, 1]) if repeats else [], size) for kind, (_, size) in steps.items()}


def rows_of_page(text: str) -> dict[str, list[tuple[int, float, int]]]:
    """Return kind -> (tokens, CPU-seconds, MiB) of each row of the table on the page."""
    found: dict[str, list[tuple[int, float, int]]] = {}
    for tokens, kind, seconds, size in re.findall(
        r"^\| ([\d,]+) \| (\S+) \| ([\d.]+) \| [\d.]* \| ([\d,]+) \|", text, re.M
    ):
        found.setdefault(kind, []).append((int(tokens.replace(",", "")), float(seconds), int(size.replace(",", ""))))
    return found


def draw(found: Mapping[str, Sequence[tuple[int, float, int]]], path: Path) -> None:
    """Draw time and memory of a step against the tokens of its row, a line for each kind."""
    with drawn(path, 9, 3.6, 2) as (_, axes):
        for kind, rows in found.items():
            lengths = [row[0] for row in rows]
            for number, axis in enumerate(axes, start=1):
                axis.plot(lengths, [row[number] for row in rows], marker="o", markersize=3, label=kind)
        for axis, title in zip(axes, ("CPU-seconds a step", "memory, MiB"), strict=True):
            axis.set(xscale="log", yscale="log", xlabel="tokens in a row", title=title)
            axis.set_xticks(lengths, [f"{length:,}" for length in lengths], minor=False, fontsize=8)
            axis.minorticks_off()
        axes[0].legend(frameon=False, fontsize=8)


def print_depths(options: argparse.Namespace) -> None:
    """Print the memory of each kind with each number of layers."""
    print("| tokens | layers | attention | parameters, MiB | memory, MiB |\n|---|---|---|---|---|", flush=True)
    for length in options.lengths:
        for kind in options.kinds:
            for layers in options.layers:
                parameters, size = (each / 2**20 for each in sizes_of(kind, length, layers))
                print(f"| {length:,} | {layers} | {kind} | {parameters:.1f} | {size:,.0f} |", flush=True)


def main() -> None:
    """Print a line for each length and kind, with the factors from half the tokens."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    others = parser.add_mutually_exclusive_group()
    others.add_argument("--topology", default="", help="slice of one chip to compile for, such as v5e:1x1")
    others.add_argument("--layers", type=int, nargs="+", help="print the memory with so many layers, and run nothing")
    others.add_argument("--picture", type=Path, help="file to draw the table of docs/benchmarks.md to, and run nothing")
    options = parser.parse_args()
    if options.picture:
        draw(rows_of_page(PAGE.read_text(encoding="utf-8")), options.picture)
        return
    if options.layers:
        print_depths(options)
        return
    if options.topology:
        print("| tokens | attention | refined, ms a step | HBM, MiB |\n|---|---|---|---|", flush=True)
        for length in options.lengths:
            for kind in options.kinds:
                print(f"| {length:,} | {kind} | {planned(kind, length, options.topology)} |", flush=True)
        return
    use_one_core()
    before: dict[str, tuple[list[float], int]] = {}
    say = functools.partial(print, flush=True)
    say("| tokens | attention | CPU-seconds a step | range | times those before | memory, MiB | times that before |")
    say("|---|---|---|---|---|---|---|")
    for length in options.lengths:
        found = measured(length, options.repeats, options.kinds)
        for kind, (seconds, size) in found.items():
            cells = ["", "", ""]
            if seconds:
                middle = statistics.median(seconds)
                cells[:2] = f"{middle:.2f}", f"{min(seconds):.2f} to {max(seconds):.2f}"
                cells[2] = f"{middle / statistics.median(before[kind][0]):.2f}" if before else ""
            more = f"{size / before[kind][1]:.2f}" if before else ""
            say(f"| {length:,} | {kind} | {' | '.join(cells)} | {size / 2**20:,.0f} | {more} |")
        before = found


if __name__ == "__main__":
    main()
