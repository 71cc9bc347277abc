"""The summary of a finished run: held-out loss beside the unigram entropy, some filled masks, an export."""

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from plmjax import experiment
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.training import feed, loop
from plmjax.training.metrics import perplexity

EXAMPLES = 3


def show(result: loop.Result, source: feed.Source, workdir: Path, say: Callable[[str], None] = print) -> None:
    """Prints the result of a pretraining run and exports it to WORKDIR/export where its system can be exported."""
    if "eval/loss" in result.metrics:
        _show_losses(result.metrics, say)
        if isinstance(experiment.read(workdir / "experiment.json").objective, MaskedLanguageModel):
            _fill(result, source, workdir, say)
    _export(workdir, say)


def _show_losses(metrics: dict[str, float], say: Callable[[str], None]) -> None:
    loss, entropy = metrics["eval/loss"], metrics.get("eval/unigram_entropy", math.nan)
    say(
        f"held-out   loss {loss:.4f} nats a target; unigram entropy of the same targets {entropy:.4f}; "
        f"perplexity {perplexity(loss):.5g} against {perplexity(entropy):.5g}"
    )


def _fill(result: loop.Result, source: feed.Source, workdir: Path, say: Callable[[str], None]) -> None:
    """Hides one word of a few held-out sentences and prints what the model puts there."""
    from plmjax.data import tokenizers
    from plmjax.inference.fill_mask import fill_mask

    tokenizer = tokenizers.load(workdir / "tokenizer")
    for text in itertools.islice(_held_out(result, source, tokenizer), EXAMPLES):
        words = text.split()
        place = len(words) // 2
        hidden = " ".join([*words[:place], "[MASK]", *words[place + 1 :]])
        guesses = ", ".join(f"'{token}' {probability:.2f}" for token, probability in fill_mask(workdir, hidden, 3)[0])
        say(f"fill-mask  {hidden}\n           was {words[place]!r}; guessed {guesses}")


def _held_out(result: loop.Result, source: feed.Source, tokenizer) -> Iterator[str]:
    """The beginnings of held-out rows, as text of at most sixteen words."""
    special = np.array(source.vocabulary.special)
    phase = result.program.evaluation_phase
    for batch in source.evaluation(phase, np.arange(phase.batch_size)):
        for row in batch["input_ids"]:
            text = tokenizer.decode(row[~np.isin(row, special)].tolist())
            if len(text.split()) >= 8:
                yield " ".join(text.split()[:16])


def _export(workdir: Path, say: Callable[[str], None]) -> None:
    from plmjax.exchange.run_directories import can_export, export_checkpoint

    if can_export(workdir):
        say(export_checkpoint(workdir, workdir / "export", "auto"))
