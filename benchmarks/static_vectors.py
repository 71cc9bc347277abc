"""Static word vectors on every kind of task, frozen and trained: the baseline for contextual models.

    plmjax pretrain experiments/word2vec_tiny.py
    python benchmarks/static_vectors.py runs/word2vec_tiny DATA --output runs/static_vectors

DATA is the folder finetune/ that benchmarks/comparison.py reads, with movie_reviews/. The vectors are those of any run
with an embedding table, or of `plmjax import`. Every fine-tuning run is a run directory in OUTPUT. A command that was
stopped resumes.
"""

import argparse
import dataclasses
from pathlib import Path

from comparison import TASKS, split_by_premise

from plmjax import experiment as experiments
from plmjax.runs.seeds import finetune_seeds, summary

EXPERIMENTS = {
    "subjectivity": "static_vectors",
    "movie_reviews": "static_vectors:reviews",
    "snli": "static_vectors:snli",
    "pos": "static_vectors:parts_of_speech",
    "wnut17": "static_vectors:entities",
    "squad": "static_vectors:questions",
}
FILES = {name: files for name, (_, *files) in TASKS.items()} | {
    "movie_reviews": ["movie_reviews/train.jsonl.gz", "movie_reviews/dev.jsonl.gz"]
}
TEXT = {"subjectivity": "sentence", "movie_reviews": "text"}
METRICS = {name: metric for name, (metric, *_) in TASKS.items()} | {"movie_reviews": "accuracy"}


def scored(vectors: Path, data: Path, task: str, *, frozen: bool, seeds: int, output: Path) -> tuple[float, float]:
    """Return the mean and deviation of the task's metric over the seeds, in percent."""
    run = experiments.load(EXPERIMENTS[task])
    files = [data / name for name in FILES[task]]
    if task == "snli":
        files = split_by_premise(files[0], output / "data")
    columns = {"text": TEXT[task]} if task in TEXT else {}
    run = dataclasses.replace(
        run,
        data=dataclasses.replace(run.data, train=str(files[0]), validation=str(files[1]), **columns),
        optimizer=dataclasses.replace(run.optimizer, frozen=("encoder",) if frozen else ()),
    )
    workdir = output / f"{task}-{'frozen' if frozen else 'trained'}"
    results = finetune_seeds(run, vectors, workdir, range(seeds))
    mean, deviation = summary(results, f"eval/{METRICS[task]}")
    factor = 1 if task == "squad" else 100  # its official metric is in percent
    return factor * mean, factor * deviation


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("vectors", type=Path, help="run whose vectors are read")
    parser.add_argument("data", type=Path, help="folder of the tasks")
    parser.add_argument("--output", type=Path, default=Path("runs/static_vectors"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", nargs="*", default=list(EXPERIMENTS), choices=list(EXPERIMENTS))
    options = parser.parse_args()
    rows = ["| task | frozen | trained |\n|---|---|---|"]
    for task in options.tasks:
        cells = []
        for frozen in (True, False):
            mean, deviation = scored(
                options.vectors, options.data, task, frozen=frozen, seeds=options.seeds, output=options.output
            )
            cells.append(f"{mean:.1f} ± {deviation:.1f}")
        rows.append(f"| {task}, {METRICS[task]} | {' | '.join(cells)} |")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
