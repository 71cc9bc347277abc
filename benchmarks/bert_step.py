"""BERT-Base's training step, ours and PyTorch transformers', alternately on the CPU.

    python benchmarks/bert_step.py [--layers 12] [--repeats 5]

Batch 4, length 128, 20 masked positions a row, float32, dropout 0.1, clipping by the global norm, AdamW. Both compute
logits at the masked positions only. Each runs in a process of its own and takes a step when told to. A step is measured
in CPU-seconds of its process, which a busy machine distorts less than time on the clock, and each process is bound to
one core: with more, OpenMP's threads count the time they spend waiting for each other. Linux only.

Found with jax 0.10.2 and torch 2.13 on an AMD EPYC with AVX-512 that others were using too: 2.75 CPU-seconds against
4.13, 1.5 times as fast. Most of it is the matrix products there: 512 x 768 by 768 x 3072 ran at 165 and at 79 GFLOP/s.
"""

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

ROWS, LENGTH, PREDICTIONS, VOCABULARY = 4, 128, 20, 30522


def plmjax_step(layers: int) -> Callable[[], float]:
    """The step that `plmjax pretrain` runs: masking, forward, backward, update. -> a function: one step -> loss."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import numpy as np

    from plmjax import experiment
    from plmjax.data.layouts import SentencePairs
    from plmjax.models.bert import BertConfig
    from plmjax.objectives.bert import BertPretraining
    from plmjax.parallel import mesh
    from plmjax.training import phases, step
    from plmjax.training.optimizers import BertAdamW
    from plmjax.vocabulary import Vocabulary

    run = experiment.Experiment(
        model=BertConfig.base(num_hidden_layers=layers),
        objective=BertPretraining(max_predictions=PREDICTIONS),
        data=experiment.Data(SentencePairs(), sequence_length=LENGTH),
        optimizer=BertAdamW(),
        training=experiment.Training(batch_size=ROWS, steps=1000),
    )
    phase = phases.resolve(run)[0]
    fields = run.data.layout.batch(ROWS, LENGTH)
    vocabulary = Vocabulary.placeholder(VOCABULARY)
    program = step.build(run, phase, mesh.make(run.mesh, jax.devices()[:1]), vocabulary, lambda _: fields)
    random = np.random.default_rng(0)
    batch = {name: np.zeros(field.shape, field.dtype) for name, field in fields.items()} | {
        "input_ids": random.integers(5, VOCABULARY, (ROWS, LENGTH), np.int32),
        "segment_ids": np.ones((ROWS, LENGTH), np.int32),
        "positions": np.tile(np.arange(LENGTH, dtype=np.int32), (ROWS, 1)),
        "next_sentence_weights": np.ones((ROWS, 1), np.float32),
    }
    state = program.initialize(0)

    def take() -> float:
        nonlocal state
        state, metrics = program.train(state, batch)
        return float(metrics["loss"])

    return take


def pytorch_step(layers: int) -> Callable[[], float]:
    """The same arithmetic with transformers' modules and torch's fused AdamW. -> a function: one step -> loss."""
    import torch
    from torch.nn.functional import cross_entropy
    from transformers import BertConfig, BertForPreTraining

    config = BertConfig(vocab_size=VOCABULARY, num_hidden_layers=layers, hidden_act="gelu_new")
    model = BertForPreTraining(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    torch.manual_seed(0)
    ids = torch.randint(5, VOCABULARY, (ROWS, LENGTH))
    mask, types = torch.ones_like(ids), torch.zeros_like(ids)
    labels = torch.zeros(ROWS, dtype=torch.long)
    rows = torch.arange(ROWS)[:, None]

    def take() -> float:
        chosen = torch.rand(ROWS, LENGTH).argsort(1)[:, :PREDICTIONS]
        targets = ids[rows, chosen]
        shown = ids.clone()
        shown[rows, chosen] = 4
        encoded = model.bert(shown, attention_mask=mask, token_type_ids=types)
        logits, relation = model.cls(encoded.last_hidden_state[rows, chosen], encoded.pooler_output)
        loss = cross_entropy(logits.flatten(0, 1), targets.flatten()) + cross_entropy(relation, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return take


def work(build: Callable[[int], Callable[[], float]], layers: int, pipe: Connection) -> None:
    """Takes a step for every message and answers (CPU-seconds, seconds, loss)."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    take = build(layers)
    while pipe.recv():
        cpu, clock = time.process_time(), time.perf_counter()
        loss = take()
        pipe.send((time.process_time() - cpu, time.perf_counter() - clock, loss))


def main() -> None:
    """Alternates the two and prints medians, spreads and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()

    context = multiprocessing.get_context("spawn")
    pipes, processes = {}, []
    for name, build in (("plmjax", plmjax_step), ("pytorch", pytorch_step)):
        pipes[name], end = context.Pipe()
        processes.append(context.Process(target=work, args=(build, arguments.layers, end), daemon=True))
        processes[-1].start()
        end.close()  # so that a worker that dies ends the wait for its answer

    measured = {name: [] for name in pipes}
    for repeat in range(-2, arguments.repeats):  # two steps warm up: compilation, memory, caches
        for name, pipe in pipes.items():
            pipe.send(True)
            answer = pipe.recv()
            if repeat >= 0:
                measured[name].append(answer)
    for name, answers in measured.items():
        cpu, clock, losses = zip(*answers, strict=True)
        print(
            f"{name:8} {statistics.median(cpu):6.3f} CPU-seconds a step ({min(cpu):.3f} to {max(cpu):.3f}), "
            f"{statistics.median(clock):6.3f} s on the clock, last loss {losses[-1]:.3f}"
        )
    cpu = {name: statistics.median(answer[0] for answer in answers) for name, answers in measured.items()}
    print(f"plmjax is {cpu['pytorch'] / cpu['plmjax']:.3f} x as fast as PyTorch a CPU-second")
    for pipe in pipes.values():
        pipe.send(False)
    for process in processes:
        process.join()


if __name__ == "__main__":
    main()
