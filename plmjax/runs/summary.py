"""The summary of a finished run: held-out loss and unigram entropy, filled masks, generated texts, and an export."""

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from plmjax import experiment
from plmjax.contracts.system import Purpose
from plmjax.errors import UserError
from plmjax.files import storage
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.runs import mixtures
from plmjax.training import feed, loop
from plmjax.training.metrics import perplexity

EXAMPLES = 3
FEWEST = 8
"""Minimum number of words, or of characters, of a text that is shown."""
SAMPLES = "samples.jsonl"
"""File in a run directory with texts that the model generated, in the format of `plmjax generate --output`."""
SAMPLED = 48
"""Maximum number of tokens of a generated text; half of the model's maximum length if that is less."""


def show(result: loop.Result, source: feed.BatchSource, workdir: Path, report: Callable[[str], None] = print) -> None:
    """Print the result of a pretraining run, and export it to WORKDIR/export if its system can be exported."""
    if isinstance(source, feed.Mixes):
        plan = experiment.read(workdir / "experiment.json").resolved_phases
        report(mixtures.summary(source, plan, int(result.state.step)))
    if "eval/loss" in result.metrics:
        objective = result.program.experiment.objective
        _show_losses(result.metrics, objective.perplexity, report)
        if limit := result.program.experiment.training.evaluation_batches:
            report(f"           of {limit} batches at most; plmjax evaluate {workdir} reads all held-out text")
        if isinstance(objective, MaskedLanguageModel):
            _fill(result, source, workdir, report)
    if Purpose.CAUSAL_LM in experiment.read(workdir / "experiment.json").model.system:
        _generate(result, source, workdir, report)
    _export(workdir, report)


def _show_losses(metrics: dict[str, float], has_perplexity: bool, report: Callable[[str], None]) -> None:
    loss, entropy = metrics["eval/loss"], metrics.get("eval/unigram_entropy", math.nan)
    if "eval/unigram_loss" in metrics:  # The loss is no negative log-likelihood, so it has no perplexity.
        report(f"held-out   loss {loss:.4f}; with the counts of words only {metrics['eval/unigram_loss']:.4f}")
        return
    compared = f"; perplexity {perplexity(loss):.5g} against {perplexity(entropy):.5g}" if has_perplexity else ""
    report(f"held-out   loss {loss:.4f} nats a target; unigram entropy of the same targets {entropy:.4f}{compared}")


def _fill(result: loop.Result, source: feed.BatchSource, workdir: Path, report: Callable[[str], None]) -> None:
    """Replace one word in each of a few held-out texts by [MASK], and print the model's predictions.

    A decoded text can have more tokens than its row. Texts that are too long for the model are skipped.
    """
    from plmjax.data import tokenizers
    from plmjax.inference.fill_mask import MASK, fill_mask, masked_ids

    tokenizer, model = tokenizers.load(workdir / "tokenizer"), result.program.experiment.model

    def fits(example: tuple[str, str]) -> bool:
        row = model.template.lay_out([masked_ids(tokenizer, example[0])], tokenizer.vocabulary).tokens
        return model.longest is None or len(row) <= model.longest

    examples = (_hide(text, MASK) for text in _held_out(result, source, tokenizer))
    for hidden, word in itertools.islice(filter(fits, examples), EXAMPLES):
        guesses = ", ".join(f"'{token}' {probability:.2f}" for token, probability in fill_mask(workdir, hidden, 3)[0])
        report(f"fill-mask  {hidden}\n           was {word!r}; guessed {guesses}")


def _hide(text: str, mask: str) -> tuple[str, str]:
    """Return (the text with its middle word, or character, replaced by `mask`; that word)."""
    units, between = _units(text)
    place = len(units) // 2
    return between.join([*units[:place], mask, *units[place + 1 :]]), units[place]


def _units(text: str) -> tuple[list[str], str]:
    """Return (words, " "), or (characters, "") for a text with few spaces, as in Chinese and Thai."""
    words = text.split()
    return (words, " ") if len(words) >= FEWEST else ([*"".join(words)], "")


def _generate(result: loop.Result, source: feed.BatchSource, workdir: Path, report: Callable[[str], None]) -> None:
    """Generate texts from a few held-out prefixes: continuations, or target texts. Print the first two.

    A decoder with a token between documents also generates a text without a prefix. Tokens are sampled,
    unless the checkpoint that the run started from has generation settings. All texts are written to
    WORKDIR/samples.jsonl, for the report.
    """
    from plmjax.data import tokenizers
    from plmjax.generation.batch_generator import settings_of
    from plmjax.generation.generate import Generator, default_decoding, printable
    from plmjax.generation.options import Options

    run, tokenizer = experiment.read(workdir / "experiment.json"), tokenizers.load(workdir / "tokenizer")
    model = run.model
    half = SAMPLED if model.longest is None else min(SAMPLED, max(model.longest // 2, 1))
    beginnings = (_beginning(text, FEWEST) for text in _held_out(result, source, tokenizer))
    fitting = (text for text in beginnings if len(tokenizer.encode(text)) <= half)
    generator = Generator.load(workdir, max_unknown=1)
    begins = not generator.reads_sources and tokenizer.vocabulary.document_end >= 0
    prompts = [*([""] if begins else []), *itertools.islice(fitting, EXAMPLES)]
    if not prompts:  # there is no token between documents and no held-out row with enough words
        return
    decoding = Options(max_new_tokens=half).with_defaults(default_decoding(run)[0])
    texts = generator(prompts, settings_of(decoding, batch_size=EXAMPLES + 1))
    samples = [text for of_prompt in texts for text in of_prompt]
    storage.write(workdir / SAMPLES, "".join(json.dumps(dataclasses.asdict(text)) + "\n" for text in samples))
    for text in samples[:2]:
        between = " -> " if not generator.continues else " ..." if text.prompt else ""
        report(printable(f"generate   {text.prompt}{between}{text.text}"))


def _held_out(result: loop.Result, source: feed.BatchSource, tokenizer) -> Iterator[str]:
    """Yield prefixes of held-out rows as text: at most 2 `FEWEST` words, or characters in a text without spaces."""
    special = np.array(source.vocabulary.special)
    phase = result.program.evaluation_phase
    for batch in source.evaluation(phase, np.arange(phase.batch_size)):
        for row in batch["input_ids"]:
            text = tokenizer.decode(row[~np.isin(row, special)].tolist())
            if len(_units(text)[0]) >= FEWEST:
                yield _beginning(text, 2 * FEWEST)


def _beginning(text: str, count: int) -> str:
    """Return the first `count` words of a text, or characters if it has few spaces."""
    units, between = _units(text)
    return between.join(units[:count])


def _export(workdir: Path, report: Callable[[str], None]) -> None:
    from plmjax.interop.run_directories import can_export, export_checkpoint

    if can_export(workdir):
        try:
            report(export_checkpoint(workdir, workdir / "export", "auto"))
        except UserError as error:  # The run is complete; `plmjax export` can repeat the export.
            report(f"exported   nothing: {error}")
