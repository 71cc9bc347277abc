"""From BERT to ModernBERT, a change at a time, with the same training FLOPs and three seeds.

    python benchmarks/bert_to_modernbert.py DATA --output runs/bert_to_modernbert

DATA holds pretrain/wikipedia_en/train. Every run is a directory in OUTPUT; a command that was stopped and is run again
continues with the unfinished ones. At the end it writes docs/results/bert_to_modernbert.md. With --report it writes the
page from the finished runs and computes nothing.
"""

import argparse
import dataclasses
import functools
import statistics
from pathlib import Path
from typing import Any

import pieces
from comparison import flops, within
from pieces import Piece

from plmjax import experiment as experiments
from plmjax.experiment import Experiment
from plmjax.files import storage
from plmjax.runs.pretraining import pretrain

ROOT = Path(__file__).parents[1]
EXPERIMENTS = ROOT / "experiments" / "bert_to_modernbert.py"
PUBLISHED = {
    "bert": ("post-norm, learned positions, GELU, 15 % masked, linear decay, AdamW", ""),
    "rotary": ("rotary positions", "with SwiGLU and RMSNorm +1.9 GLUE (NeoBERT, figure 1)"),
    "norm": ("norms first, no biases", ""),
    "gate": ("GeGLU", "as good as SwiGLU (ModernBERT, appendix D)"),
    "window": ("a window in two of three layers", "equal to 100e9 tokens, faster (ModernBERT, appendix D)"),
    "masks": ("30 % masked", "better or equal (MosaicBERT); 15 to 20 % -0.7 % GLUE (NeoBERT)"),
    "schedule": ("constant, then 1 - sqrt", "as good as cosine (Hagele et al., arXiv 2405.18392)"),
    "optimizer": ("StableAdamW", "no clipping needed (Wortsman et al., arXiv 2304.13013)"),
    "muon": ("Muon in place of StableAdamW", "30 % fewer steps of a decoder; none for an encoder"),
}
"""Function -> its change, and what is published about it."""


def pretraining(name: str, data: str, budget: float, *, seed: int, workdir: Path) -> dict[str, Any]:
    """Pretrain with a seed and return the result."""
    run = prepared(name, data, budget)
    run = dataclasses.replace(run, training=dataclasses.replace(run.training, seed=seed))
    result = pretrain(run, workdir)
    return {"loss": result.metrics["eval/loss"], "steps": run.training.steps, "flops": flops(run, run.training.steps)}


def prepared(name: str, data: str, budget: float) -> Experiment:
    """Return a run of the budget, on files of text."""
    run = within(experiments.load(f"{EXPERIMENTS}:{name}"), budget)
    text = dataclasses.replace(run.data, input=(data,), format="auto")
    training = dataclasses.replace(run.training, evaluate_every=0)
    return dataclasses.replace(
        run, data=text, training=training, checkpoint=dataclasses.replace(run.checkpoint, best="")
    )


def page(found: dict[str, dict[str, Any]], options: argparse.Namespace) -> str:
    """Return the page of the finished runs."""
    rows, before = [], None
    for name, (change, published) in PUBLISHED.items():
        runs = [found[key] for seed in range(options.seeds) if (key := f"{name}-{seed}") in found]
        if not runs:
            continue
        losses = [run["loss"] for run in runs]
        mean, spread = statistics.fmean(losses), statistics.stdev(losses) if len(losses) > 1 else 0.0
        gain = "" if before is None else f"{mean - before:+.3f}"
        before = mean if name != "optimizer" else before
        rows.append(
            f"| `{name}` | {change} | {mean:.3f} ± {spread:.3f} | {gain} | {runs[0]['steps']:,} | {published} |"
        )
    minutes = sum(run["seconds"] for run in found.values()) / 60
    return "\n".join(
        [
            "# From BERT to ModernBERT, a change at a time",
            "",
            "    python benchmarks/bert_to_modernbert.py DATA",
            "",
            f"Each row has one change more than the row above, and the same {options.budget:.0e} model FLOPs, on",
            "the same Wikipedia articles. Held-out losses are nats per masked token, of 15 % of the tokens in each:",
            f"mean and deviation of {options.seeds} seeds. The last two rows differ from `schedule` in the optimizer",
            "alone, with the same learning rate of 0.001: the updates of Muon have the size of Adam's, and no rate was",
            "tuned. A difference below twice the deviation may be chance. These runs are short: a thousand steps of a",
            "model with four layers of width 128 say how fast a change learns at first, not what it reaches.",
            f"All runs together took {minutes:.0f} minutes of one core. The runs are in",
            "[experiments/bert_to_modernbert.py](../../experiments/bert_to_modernbert.py).",
            "",
            "| run | change | loss | difference | steps | published |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def main() -> None:
    """Make the runs, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with pretrain/wikipedia_en/train")
    parser.add_argument("--output", type=Path, default=Path("runs/bert_to_modernbert"))
    parser.add_argument("--budget", type=float, default=6e12, help="model FLOPs of each run")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1, help="number of processes, each on a core of its own")
    parser.add_argument("--report", action="store_true", help="write the page of the finished runs")
    options = parser.parse_args()
    text = str(options.data / "pretrain" / "wikipedia_en" / "train")
    every = [
        Piece(
            options.output / f"{name}-{seed}", functools.partial(pretraining, seed=seed), (name, text, options.budget)
        )
        for seed in range(options.seeds)
        for name in PUBLISHED
    ]
    if not options.report:
        pieces.work([every], options.workers)
    storage.write(ROOT / "docs" / "results" / "bert_to_modernbert.md", page(pieces.results(every), options))


if __name__ == "__main__":
    main()
