"""Training steps of BERT and GPT-2 beside those of PyTorch transformers, alternately on one GPU.

    python benchmarks/gpu_step.py [--steps bert_base_512 bert_large_512] [--repeats 5] [--unroll 24]

bfloat16 products, float32 parameters, dropout 0.1, clipping by the global norm, AdamW; BERT's logits at the masked
positions only. PyTorch has torch.compile, scaled-dot-product attention, autocast and the fused AdamW. The steps named
`cudnn` have cuDNN's attention in plmjax, and no dropout of attention in either program.

Each of the two programs has a process of its own. By turns, each takes 20 steps and waits for the last one. It prints
the median time of a step, the range, and the MFU: the model's FLOPs a second by those of the GPU's data sheet. The last
lines are the largest difference between cuDNN's attention and the dense one, and the rate of products of 8,192 x 8,192.
JAX for GPUs, torch and transformers must be installed.
"""

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

Steps = Callable[[int], None]
"""Takes a number of steps and waits for the last one."""
AT_ONCE = 20
"""Steps of a turn."""


class Case(NamedTuple):
    """A step that is measured: a model, the rows and tokens of its batch, and the masked positions of a row.

    attention: plmjax's backend of attention. The dropout of attention is 0 with cuDNN's, in both programs.
    unroll: `--training.unroll` of plmjax.
    """

    model: str
    rows: int
    length: int
    predictions: int = 0
    attention: str = "dense"
    unroll: int = 0

    @property
    def attention_dropout(self) -> float:
        """Rate of the dropout of attention."""
        return 0.0 if self.attention == "cudnn" else 0.1


CASES = {
    "bert_base_128": Case("base", 256, 128, 20),
    "bert_base_512": Case("base", 64, 512, 76),
    "bert_large_128": Case("large", 128, 128, 20),
    "bert_large_512": Case("large", 32, 512, 76),
    "bert_large_512_cudnn": Case("large", 32, 512, 76, "cudnn"),
    "gpt2_small_1024": Case("gpt2", 16, 1024),
    "gpt2_small_1024_cudnn": Case("gpt2", 16, 1024, 0, "cudnn"),
}


def experiment_of(case: Case) -> Any:
    """Return the experiment of a case."""
    from plmjax.data.layouts import Blocks, SentencePairs
    from plmjax.experiment import Data, Experiment, Training
    from plmjax.models.bert import BertConfig
    from plmjax.models.gpt2 import Gpt2Config
    from plmjax.objectives.bert import BertPretraining
    from plmjax.objectives.next_token import NextToken
    from plmjax.training.optimizers import AdamW, BertAdamW

    if case.model == "gpt2":
        config = Gpt2Config.small(attn_pdrop=case.attention_dropout)
    else:
        make = {"base": BertConfig.base, "large": BertConfig.large}[case.model]
        config = make(attention_probs_dropout_prob=case.attention_dropout)
    training = Training(batch_size=case.rows, steps=1000, attention=case.attention, unroll=case.unroll, platform="gpu")
    if case.model == "gpt2":
        data = Data(Blocks(), sequence_length=case.length)
        return Experiment(config, NextToken(), data=data, optimizer=AdamW(), training=training)
    data = Data(SentencePairs(), sequence_length=case.length)
    objective = BertPretraining(max_predictions=case.predictions)
    return Experiment(config, objective, data=data, optimizer=BertAdamW(), training=training)


def ours(case: Case) -> tuple[Steps, float]:
    """Return the step that `plmjax pretrain` runs, on synthetic rows, and its model FLOPs."""
    import jax

    from plmjax.contracts.vocabulary import Vocabulary
    from plmjax.parallel import mesh
    from plmjax.training import placement
    from plmjax.training import program as programs

    run = experiment_of(case)
    phase, size = run.resolved_phases[0], run.model.vocab_size
    devices, vocabulary = mesh.make(run.mesh, jax.devices()[:1]), Vocabulary.placeholder(size)
    program = programs.build(run, phase, devices, vocabulary, placement.of_layout(run))
    batch = jax.device_put(run.data.layout.synthetic(phase.batch_size, phase.sequence_length, size, 0))
    state = program.initialize(0)

    def take(count: int) -> None:
        nonlocal state
        for _ in range(count):
            state, _ = program.train(state, batch)
        jax.block_until_ready(state)

    return take, run.trained.train_flops(run.model, program.batch)


def theirs(case: Case) -> tuple[Steps, float]:
    """Return the step of transformers' model, compiled, and 0."""
    import torch
    from torch.nn.functional import cross_entropy
    from transformers import BertConfig, BertForPreTraining, GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    rows, length = case.rows, case.length
    if case.model == "gpt2":
        config = GPT2Config(attn_pdrop=case.attention_dropout, attn_implementation="sdpa", use_cache=False)
        model = GPT2LMHeadModel(config).cuda()
    else:
        sizes = {"base": (768, 12, 12, 3072), "large": (1024, 24, 16, 4096)}[case.model]
        names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
        config = BertConfig(
            **dict(zip(names, sizes, strict=True)),
            hidden_act="gelu_new",
            attention_probs_dropout_prob=case.attention_dropout,
            attn_implementation="sdpa",
        )
        model = BertForPreTraining(config).cuda()
    model.train()
    ids = torch.randint(5, model.config.vocab_size, (rows, length), device="cuda")
    labels = torch.zeros(rows, dtype=torch.long, device="cuda")
    numbers = torch.arange(rows, device="cuda")[:, None]

    def of_words() -> torch.Tensor:
        return model(ids, labels=ids).loss

    def of_masked() -> torch.Tensor:
        chosen = torch.rand(rows, length, device="cuda").argsort(1)[:, : case.predictions]
        encoded = model.bert(ids.scatter(1, chosen, 4))
        logits, relation = model.cls(encoded.last_hidden_state[numbers, chosen], encoded.pooler_output)
        targets = ids[numbers, chosen].flatten()
        return cross_entropy(logits.flatten(0, 1).float(), targets) + cross_entropy(relation.float(), labels)

    loss = torch.compile(of_words if case.model == "gpt2" else of_masked)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)

    def take(count: int) -> None:
        for _ in range(count):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                found = loss()
            found.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()

    return take, 0.0


def difference() -> float:
    """Return the largest difference of cuDNN's and the dense backend's outputs and gradients, by the largest of all.

    The rows are random, with a mask of padding and with a causal one.
    """
    import jax
    import jax.numpy as jnp

    from plmjax.contracts.visibility import Causal, KeyMask, Visibility
    from plmjax.layers.attention.backends import BACKENDS

    drawn = jax.random.normal(jax.random.key(0), (4, 4, 512, 8, 64))
    rows = tuple(each.astype(jnp.bfloat16) for each in drawn * jnp.array([0.125, 1, 1, 1])[:, None, None, None, None])
    padded = KeyMask((jnp.arange(512) < jnp.array([512, 300, 64, 7])[:, None]).astype(jnp.int32))
    found = []
    for visibility in (Visibility((padded,)), Visibility((Causal(),))):
        both = []
        for name in ("dense", "cudnn"):
            attend = lambda q, k, v, name=name, seen=visibility: BACKENDS[name](q, k, v, seen, (), 0.0, None)  # noqa: E731
            context, pull = jax.vjp(attend, *rows[:3])
            both.append([each.astype(jnp.float32) for each in (context, *pull(rows[3]))])
        found += [float(jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(a))) for a, b in zip(*both, strict=True)]
    return max(found)


def _work(build: Callable[[Case], tuple[Steps, float]], case: Case, pipe: Connection) -> None:
    """Send the model FLOPs, then the seconds of a step for every message."""
    take, flops = build(case)
    take(3)
    pipe.send(flops)
    while pipe.recv():
        begin = time.perf_counter()
        take(AT_ONCE)
        pipe.send((time.perf_counter() - begin) / AT_ONCE)


def measured(case: Case, repeats: int) -> tuple[dict[str, list[float]], float]:
    """Return program -> seconds of a step in each turn, and the model FLOPs of a step."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = {}, []
    for name, build in (("plmjax", ours), ("PyTorch", theirs)):
        pipes[name], end = context.Pipe()
        processes.append(context.Process(target=_work, args=(build, case, end), daemon=True))
        processes[-1].start()
        end.close()  # so that the wait ends if a worker dies
    flops = max(pipe.recv() for pipe in pipes.values())
    seconds: dict[str, list[float]] = {name: [] for name in pipes}
    for turn in range(-1, repeats):  # the first turn warms up
        for name, pipe in pipes.items():
            pipe.send(True)
            taken = pipe.recv()
            if turn >= 0:
                seconds[name].append(taken)
    for pipe in pipes.values():
        pipe.send(False)
    for process in processes:
        process.join()
    return seconds, flops


def main() -> None:
    """Print a line for each step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--unroll", type=int, default=0, help="layers unrolled in plmjax; 0 for the default of a run")
    options = parser.parse_args()
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # the other processes need memory too
    import jax
    import jax.numpy as jnp

    from plmjax.parallel import peak, topologies

    device = jax.devices("gpu")[0]
    sheet = topologies.peak_flops(device.device_kind)
    print("| step | rows x tokens | plmjax, ms | MFU | PyTorch, ms | MFU | times as fast |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for name in options.steps:
        case = CASES[name]._replace(unroll=options.unroll)
        seconds, flops = measured(case, options.repeats)
        cells = []
        for times in seconds.values():
            middle = statistics.median(times)
            cells.append(f"{1e3 * middle:.1f} ({1e3 * min(times):.1f} to {1e3 * max(times):.1f})")
            cells.append("-" if sheet is None else f"{100 * flops / middle / sheet:.0f} %")
        ratio = statistics.median(seconds["PyTorch"]) / statistics.median(seconds["plmjax"])
        print(f"| {name} | {case.rows} x {case.length} | {' | '.join(cells)} | {ratio:.2f} |", flush=True)
    print(f"cuDNN's attention differs from the dense one by at most {difference():.4f}")
    rate = max(peak.measured_flops(jnp.bfloat16, peak.product_size("gpu"), seconds=0.5) for _ in range(2))
    print(f"bfloat16 products: {rate / 1e12:.0f} TFLOP/s; {device.device_kind}, jax {jax.__version__}")


if __name__ == "__main__":
    main()
