"""Compare the training steps of two commits, alternately on the CPU.

    python benchmarks/commits.py BEFORE [--after HEAD] [--repeats 5] [--steps bert_step electra_step]

Each commit is checked out into a folder of its own, and each step is the one that the benchmark of this name measures
there. A step is measured in CPU-seconds of its process, which is bound to one core. Every second pair of steps is taken
in the other order. The last column is the median of the ratios of the pairs. Linux only.
"""

import argparse
import importlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

LAYERS = {"bert_step": 4, "gpt2_step": 4, "t5_step": 3, "awd_lstm_step": 3, "electra_step": 12}
ROWS = 4  # of ELECTRA, whose benchmark asks for rows instead of layers


def main() -> None:
    """Print a table in Markdown: a row for each step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", help="a commit")
    parser.add_argument("--after", default="HEAD", help="another commit")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", nargs="+", choices=LAYERS, default=list(LAYERS))
    arguments = parser.parse_args()
    print("| step | before, CPU-seconds | range | after | range | after / before |")
    print("|---|---|---|---|---|---|")
    with ExitStack() as stack:
        trees = [stack.enter_context(checkout(commit)) for commit in (arguments.before, arguments.after)]
        for name in arguments.steps:
            measured = alternate(name, trees, arguments.repeats)
            cells = [f"{statistics.median(x):.3f} | {min(x):.3f} to {max(x):.3f}" for x in measured]
            ratio = statistics.median(after / before for before, after in zip(*measured, strict=True))
            print(f"| {name} | {cells[0]} | {cells[1]} | {ratio:.3f} |", flush=True)


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Check a commit out into a temporary folder, and remove the folder at the end."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], check=True)


def alternate(name: str, trees: list[Path], repeats: int) -> list[list[float]]:
    """Return the CPU-seconds of each step in each tree. Two steps of each are left out: they compile and warm up."""
    workers = [
        subprocess.Popen(
            [sys.executable, __file__, "--work", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=tree,
            env=os.environ | {"PYTHONPATH": f"{tree}{os.pathsep}{tree / 'benchmarks'}"},
        )
        for tree in trees
    ]
    measured = [[] for _ in workers]
    for repeat in range(-2, repeats):
        for worker, seconds in list(zip(workers, measured, strict=True))[:: 1 if repeat % 2 else -1]:
            print("step", file=worker.stdin, flush=True)
            answer = worker.stdout.readline()
            if not answer:
                raise SystemExit(f"{name} in {worker.args} ended with code {worker.wait()}.")
            if repeat >= 0:
                seconds.append(float(answer))
    for worker in workers:
        worker.stdin.close()
        worker.wait()
    return measured


def work(name: str) -> None:
    """Take a step for each line of the standard input, and print its CPU-seconds."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no answer
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
    take = _step(name)
    for _ in sys.stdin:
        start = time.process_time()
        take()
        print(time.process_time() - start, file=answers, flush=True)


def _step(name: str) -> Callable[[], float]:
    sys.path.remove(str(Path(__file__).parent))  # the benchmarks of the commit, not those beside this file
    benchmark = importlib.import_module(name)
    if name == "electra_step":
        from plmjax.objectives.electra import ElectraPretraining

        return benchmark.stepper(ElectraPretraining(), ROWS)[0]
    return benchmark.ours(LAYERS[name])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2])
    else:
        main()
