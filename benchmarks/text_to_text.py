"""Text-to-text tasks on real text: the share of padding on both sides, and the time to corrupt a row.

    plmjax tokenizer train --kind byte-bpe --vocab_size 8192 --input TEXT --output TOKENIZER
    plmjax prepare --input TEXT --tokenizer TOKENIZER --output DATASET
    python benchmarks/text_to_text.py DATASET

Sources have at most 512 tokens. If the tokenizer has no sentinels, its last hundred tokens are used: the choice of
tokens changes no count. Time is processor time of a compiled function that does nothing else, on one CPU device.
"""

import argparse
import dataclasses
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import pipeline, store, tokenizers
from plmjax.data.layouts import Chunks, FullSentences
from plmjax.objectives.denoising import Denoising
from plmjax.objectives.text_to_text.independent_noise import DroppedTokens, MaskedText, ReplacedSpans
from plmjax.objectives.text_to_text.prefix_language_model import TextToTextPrefixLanguageModel
from plmjax.objectives.text_to_text.span_corruption import SpanCorruption
from plmjax.objectives.text_to_text.text_to_text import TextToText
from plmjax.objectives.text_to_text.whole_text import Deshuffling, TextToTextLanguageModel

LONGEST, ROWS = 512, 32
TASKS: list[tuple[TextToText, int]] = [
    (SpanCorruption(), SpanCorruption().row_length(LONGEST)),
    (MaskedText(), LONGEST - 1),
    (Deshuffling(), LONGEST - 1),
    (TextToTextLanguageModel(), LONGEST - 1),
    (TextToTextPrefixLanguageModel(), 2 * (LONGEST - 2)),
    (ReplacedSpans(), LONGEST - 1),
    (DroppedTokens(), LONGEST - 1),
    (Denoising(), LONGEST),
]
"""Tasks, and the number of tokens of their rows."""


def measure(task: TextToText, tokens: int, dataset: store.Dataset, *, vocabulary: Vocabulary, steps: int) -> str:
    """Measure how a task corrupts rows; return its line of the table: lengths, padding, milliseconds a row."""
    layout = FullSentences() if isinstance(task, Denoising) else Chunks()
    source = pipeline.DatasetSource(layout, dataset, vocabulary, seed=0)
    batches = source.train(SimpleNamespace(index=0, sequence_length=tokens, batch_size=ROWS, steps=steps), 0)
    corrupt = jax.jit(lambda batch, key: task.corrupt(batch, key, vocabulary))
    seconds, padding = 0.0, []
    for step in range(steps):
        batch = next(batches)
        begin = time.process_time()
        found = jax.block_until_ready(corrupt(batch, jax.random.key(step)))
        seconds += (time.process_time() - begin) * (step > 0)  # the first is compiled
        padding.append([np.mean(found[name] == 0) for name in ("segment_ids", "decoder_segment_ids")])
    batches.close()
    source_tokens, target_tokens = task.lengths(tokens)
    shares = " | ".join(f"{share:.1%}" for share in np.mean(padding, axis=0))
    of_row = seconds / (steps - 1) / ROWS * 1e3
    return f"| {type(task).__name__} | {tokens} | {source_tokens}, {target_tokens} | {shares} | {of_row:.2f} |"


def main() -> None:
    """Print a line for each task."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path, help="a prepared dataset with a byte-bpe tokenizer")
    parser.add_argument("--steps", type=int, default=20, help="batches of 32 rows for each task")
    arguments = parser.parse_args()
    dataset = store.open_dataset(arguments.dataset)
    vocabulary = tokenizers.load(arguments.dataset / "tokenizer").vocabulary
    if not vocabulary.sentinels:
        last = vocabulary.size - 1
        vocabulary = dataclasses.replace(vocabulary, sentinels=tuple(range(last, last - 100, -1)))
    print("| task | tokens of a row | source, target | source: padding | target: padding | ms a row |")
    for task, tokens in TASKS:
        print(measure(task, tokens, dataset, vocabulary=vocabulary, steps=arguments.steps), flush=True)


if __name__ == "__main__":
    main()
