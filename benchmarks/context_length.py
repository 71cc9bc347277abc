"""Transformer-XL beside GPT-2 with the same FLOPs: bits per byte, and loss by the number of tokens before each.

    python benchmarks/context_length.py TRAIN HELD_OUT

TRAIN and HELD_OUT are folders of books. The two models are those of experiments/gpt2_tiny.py and
transformer_xl_tiny.py, with one tokenizer. Each is a run directory in OUTPUT, so a command that was stopped continues.
It prints tables, draws docs/pictures/context_length.png, and runs on one core if the system can bind to it.

Dai et al. (arXiv 1901.02860, section 4.3 and appendix C) define the relative effective context length for a group of
models. Let l_i(c, t) be the nats of model i for token t, given the c tokens before it:

    baseline b(c, t) = min over i of l_i(c, t)
    f_i(c, c') = mean of min(b(c, t), l_i(c', t)), over the share r of the tokens with the largest b(c, t)
    gain g_i(c, c') = 1 - exp(f_i(c, c') - f_i(c, c))

The length is the first c = D, 2 D, ... whose gain g_i(c, c + D) is below 0.01.
"""

import argparse
import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax
from comparison import flops, within
from pictures import drawn
from turns import use_one_core

from plmjax import experiment as experiments
from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Purpose
from plmjax.data.preparation import prepare
from plmjax.experiment import Experiment, Tokenizer
from plmjax.inference.evaluate import evaluate
from plmjax.objectives.transformer_xl import TransformerXlPretraining
from plmjax.runs.pretraining import pretrain
from plmjax.training.checkpoints import checkpoints

ROOT = Path(__file__).parents[1]
MODELS = {"gpt2": "GPT-2", "transformer_xl": "Transformer-XL"}
"""Name of an experiment without `_tiny`, and of its model -> its name in the tables. The first one's tokenizer serves
both."""
HEADER = (
    "| model | parameters | steps | tokens | FLOPs | tokens before each | perplexity of a token | bits a byte |\n"
    + "|---" * 8
    + "|"
)
"""The first two lines of the table of bits per byte."""
REMEMBERED = (32, 64, 128, 256, 512)
"""Numbers of tokens that Transformer-XL remembers in the table of bits per byte."""
LENGTH = 64
"""Number of tokens of a row that is read with a memory."""
STEP = 16
"""Difference of two lengths of context, D."""
CONTEXTS = tuple(range(STEP, 257, STEP))
SHARES = (0.1, 0.5, 1.0)
"""Shares of the hardest tokens, r."""
ROWS = 32
"""Number of rows whose last token is predicted at once."""


def trained(run: Experiment, workdir: Path, first: Path, options: argparse.Namespace) -> Path:
    """Pretrain a model with the budget, and return its run directory.

    first: run directory of the first model, which is trained before the others; they take its text and tokens.
    options: `train` is a folder of books, `budget` the model FLOPs.
    """
    data = dataclasses.replace(run.data, format="books", input=(str(options.train),), held_out=0.05)
    if workdir != first:
        run = dataclasses.replace(run, tokenizer=Tokenizer(path=str(first / "tokenizer")))
        data = dataclasses.replace(data, path=str(first / "dataset"), input=())
    training = dataclasses.replace(run.training, evaluation_batches=10)
    pretrain(within(dataclasses.replace(run, data=data, training=training), options.budget), workdir)
    return workdir


def row(name: str, workdir: Path, found: dict[str, Any], context: str) -> str:
    """Return the row of a model in the table of bits per byte."""
    params, description = checkpoints.load_parameters(workdir)
    run = description.experiment
    tokens = sum(each.steps * run.data.tokens(each.batch_size, each.sequence_length) for each in run.resolved_phases)
    cells = [
        name, f"{sum(leaf.size for leaf in jax.tree.leaves(params)):,}", f"{run.training.steps:,}",
        f"{tokens / 1e6:.1f} M", f"{flops(run, run.training.steps):.2g}", context,
        f"{found['eval/perplexity']:.1f}", f"{found['eval/bits_per_byte']:.3f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def compare(text: Path, workdirs: Sequence[Path]) -> None:
    """Print the table of bits per byte."""
    print(HEADER)
    gpt2, transformer_xl = workdirs
    window = checkpoints.describe(checkpoints.find(gpt2)).experiment.data.sequence_length
    context = f"{window // 2} to {window - 1}, in windows"
    print(row(MODELS["gpt2"], gpt2, evaluate(gpt2, text, window=window, stride=window // 2, format="books"), context))
    for memory in REMEMBERED:
        found = evaluate(transformer_xl, text, window=LENGTH, memory=memory, format="books")
        print(row(MODELS["transformer_xl"], transformer_xl, found, f"{memory}, remembered"), flush=True)
    print()


@functools.partial(jax.jit, static_argnums=0)
def last_nats(module: nn.Module, params: Any, rows: jax.Array) -> jax.Array:
    """Return the nats of the last token of each row given those before it, float32 [B]: int [B T+1]."""
    logits = module.apply({"params": params}, rows[:, :-1]).scores.last_logits()
    return optax.softmax_cross_entropy_with_integer_labels(logits, rows[:, -1])


def by_context(config: ModelConfig, params: Any, tokens: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return the nats of the tokens at `places` [N] given the tokens before, for each of CONTEXTS: float32 [C N].

    A model with a limited number of positions reads as many tokens as it has positions.
    """
    module, found = config.module(Purpose.CAUSAL_LM, Execution()), {}
    for context in dict.fromkeys(min(each, config.longest or each) for each in CONTEXTS):
        rows = tokens[places[:, None] + np.arange(-context, 1)].astype(np.int32)
        parts = [last_nats(module, params, rows[first : first + ROWS]) for first in range(0, len(rows), ROWS)]
        found[context] = np.concatenate(parts)
    return np.stack([found[min(each, config.longest or each)] for each in CONTEXTS])


def gain(nats: np.ndarray, model: int, short: int, *, long: int, share: float) -> float:
    """Return the gain of a model from a longer context, relative to the best model with the shorter one.

    nats: [models contexts N]. short, long: indices of two contexts. share: fraction r of the hardest tokens.
    """
    baseline = nats[:, short].min(axis=0)
    hardest = np.argsort(-baseline, kind="stable")[: max(round(share * len(baseline)), 1)]
    better = np.minimum(baseline, nats[model, long])
    return float(-np.expm1(better[hardest].mean() - baseline[hardest].mean()))


def effective_context(nats: np.ndarray, model: int, share: float, threshold: float = 0.01) -> int:
    """Return the index of the context that a longer one improves by less than the threshold, at most the last one."""
    last = nats.shape[1] - 1
    gains = (gain(nats, model, short, long=short + 1, share=share) < threshold for short in range(last))
    return next((short for short, ended in enumerate(gains) if ended), last)


def contexts(text: Path, workdirs: Sequence[Path], options: argparse.Namespace) -> None:
    """Print the table of effective lengths, and draw the picture of the mean nats by length of context."""
    tokens, begins = prepared(text, workdirs[0], options.output / "held_out")
    inside = np.arange(len(tokens)) - begins[np.searchsorted(begins, np.arange(len(tokens)), "right") - 1]
    places = np.random.default_rng(0).choice(np.flatnonzero(inside >= CONTEXTS[-1]), options.places, replace=False)
    nats = np.stack([by_context(*evaluated(workdir), tokens, places) for workdir in workdirs])
    print("| model | " + " | ".join(f"hardest {share:.0%}" if share < 1 else "all tokens" for share in SHARES) + " |")
    print("|" + "---|" * (len(SHARES) + 1))
    for model, workdir in enumerate(workdirs):
        lengths = [str(CONTEXTS[effective_context(nats, model, share)]) for share in SHARES]
        print(f"| {MODELS[workdir.name]} | {' | '.join(lengths)} |")
    print("\n| model | " + " | ".join(map(str, CONTEXTS)) + " |\n|" + "---|" * (len(CONTEXTS) + 1))
    for workdir, curve in zip(workdirs, nats.mean(axis=2), strict=True):
        print(f"| {MODELS[workdir.name]} | {' | '.join(f'{value:.3f}' for value in curve)} |", flush=True)
    print()
    draw({MODELS[workdir.name]: curves for workdir, curves in zip(workdirs, nats, strict=True)}, options.picture)


def draw(nats: dict[str, np.ndarray], path: Path) -> None:
    """Draw the mean nats of each model by context length, and mark its effective context length, that of all tokens.

    nats: name of a model -> [contexts N].
    """
    both = np.stack(list(nats.values()))
    with drawn(path, 6, 3.6) as (_, (axis,)):
        for model, (name, colour) in enumerate(zip(nats, ("#c0693a", "#1b6ca8"), strict=True)):
            curve, end = both[model].mean(axis=1), effective_context(both, model, SHARES[-1])
            axis.plot(CONTEXTS, curve, "-", color=colour, label=name)
            axis.plot(CONTEXTS[end], curve[end], "o", color=colour, markersize=7)
        axis.set(xlabel="tokens before the predicted one", ylabel="nats a token")
        axis.legend(frameon=False)


def prepared(text: Path, workdir: Path, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of a text and the first token of each document in it, int [N] and int [documents]."""
    tokenizer = checkpoints.describe(checkpoints.find(workdir)).load_tokenizer()
    split = prepare([text], "books", tokenizer, folder, validation=0, progress=False).split("train")
    return np.asarray(split.tokens(0, split.token_count)), split.document_tokens[:-1]


def evaluated(workdir: Path) -> tuple[ModelConfig, Any]:
    """Return the config of a run with the settings of an evaluation, and its parameters."""
    params, description = checkpoints.load_parameters(workdir)
    run: Experiment = description.experiment
    remembers = isinstance(run.objective, TransformerXlPretraining)
    return run.objective.evaluation_config(run.model) if remembers else run.model, params


def main() -> None:
    """Train both models and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train", type=Path, help="folder of books to train on")
    parser.add_argument("held_out", type=Path, help="folder of books to evaluate on")
    parser.add_argument("--output", type=Path, default=Path("runs/context_length"), help="folder of the runs")
    parser.add_argument(
        "--picture", type=Path, default=ROOT / "docs" / "pictures" / "context_length.png", help="its file"
    )
    parser.add_argument("--budget", type=float, default=8e12, help="model FLOPs of each pretraining")
    parser.add_argument("--places", type=int, default=2048, help="tokens predicted from each length of context")
    options = parser.parse_args()
    use_one_core()
    runs = {name: experiments.load(str(ROOT / "experiments" / f"{name}_tiny.py")) for name in MODELS}
    first = options.output / next(iter(MODELS))
    workdirs = [trained(run, options.output / name, first, options) for name, run in runs.items()]
    compare(options.held_out, workdirs)
    contexts(options.held_out, workdirs, options)


if __name__ == "__main__":
    main()
