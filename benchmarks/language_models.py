"""Evaluate language models on the same text: bits per byte, perplexity and zero-shot scores. Write a page of the docs.

    python benchmarks/language_models.py RUN... [--data TEXT] [--eval FOLDER]

RUN is a run directory or a checkpoint. Without --data the text is the held-out part of the embedded corpus of the tiny
experiments, the documentation of the installed libraries. FOLDER has `lambada` and `blimp`, each a folder of their
files.
"""

import argparse
import math
import tempfile
from pathlib import Path
from typing import Any

import jax

from plmjax.data import formats, sentences
from plmjax.data.layouts import ContiguousStreams
from plmjax.data.preparation import split_of
from plmjax.files import storage
from plmjax.inference.evaluate import evaluate
from plmjax.inference.perplexity import row_length
from plmjax.inference.zero_shot import zero_shot
from plmjax.objectives.capabilities import ReadsDirections
from plmjax.training.checkpoints import checkpoints

ROOT = Path(__file__).parents[1]
ABOUT = """Bits are per byte and character of the original text, so that models with different tokenizers can be
compared. Perplexities per token cannot be compared. If a tokenizer lowercases the text, or does not know parts of it,
its bits are too low. Documents are read as in training: white space becomes one space, and the end token between
documents is scored too. Bidirectional models have a row per direction, and score the ends of sentences. The window
moves by the stride, and each token is scored once. With a state that is carried from row to row, the window is all
tokens before. A prefix language model reads the part of a window before the stride from both sides, as its prefix. The
first rows are the entropy of the token frequencies of this text, without any context.
"""
WHOLE = "all"
"""Window of a model that carries its state from row to row."""
ABOUT_TASKS = """Zero-shot scores: the share of LAMBADA's last words whose tokens are all the most likely ones, and the
share of BLiMP's pairs whose acceptable sentence is more likely, as means over the paradigms (chance is 50).
"""
HELD_OUT = 0.05
"""Fraction of the embedded corpus that the tiny experiments hold out."""


def held_out_documentation() -> str:
    """Return the held-out documents of the embedded corpus, separated by blank lines."""
    documents = (formats.prose(document) for document in formats.documents([], format=formats.DOCUMENTATION))
    chosen = (lines for lines in documents if split_of(sentences.split(lines), HELD_OUT) == "validation")
    return "\n\n".join("\n".join(lines) for lines in chosen) + "\n"


def measured(run: str, text: Path, tasks: Path | None) -> list[dict[str, Any]]:
    """Return the rows of a run, one per direction: its settings, and the result of `evaluate` with half-window strides.

    Zero-shot tasks are only for forward models that have a token for all of the text. Other models would be scored on
    the unknown token.
    """
    params, description = checkpoints.load_parameters(run)
    tokenizer = description.load_tokenizer()
    found = {
        "name": Path(run).name,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        "tokenizer": f"{tokenizer.kind}, {tokenizer.vocabulary.size:,}",
    }
    own = description.experiment
    carried = isinstance(own.data.layout, ContiguousStreams)
    ways = own.objective.directions if isinstance(own.objective, ReadsDirections) else ()
    if carried or ways:
        found |= evaluate(run, text) | {"eval/window": WHOLE, "eval/stride": ""}
    else:
        found |= evaluate(run, text, stride=max(1, row_length(own, None) // 2))
    if ways:
        return [_direction(found, way) for way in ways]
    if tasks is not None and not found["eval/unknown_tokens"]:
        (passages,) = formats.files([tasks / "lambada"])
        found |= zero_shot(run, "lambada", passages) | zero_shot(run, "blimp", tasks / "blimp")
    return [found]


def _direction(found: dict[str, Any], way: str) -> dict[str, Any]:
    """Return the row of one direction of a model."""
    prefix = f"eval/{way}_"
    own = {f"eval/{name.removeprefix(prefix)}": value for name, value in found.items() if name.startswith(prefix)}
    return found | own | {"name": f"{found['name']}, {way}"}


def page(found: list[dict[str, Any]], text: str, command: str) -> str:
    """Return the page: a row for the token frequencies of each tokenizer, then one per model, the best one last."""
    sizes = found[0]
    lines = [
        "# Language models on the same text",
        "",
        f"    {command}",
        "",
        f"The text is {text}:",
        f"{sizes['eval/bytes']:,} bytes, {sizes['eval/characters']:,} characters, {sizes['eval/words']:,} words.",
        ABOUT,
        "| model | unknown tokens | perplexity of a token | of a word | bits a character | bits a byte |",
        "|" + "---|" * 6,
    ]
    read = {(row["tokenizer"], row["eval/lowercased"], row["eval/unknown_tokens"]): row for row in found}
    for row in read.values():
        bits = row["eval/unigram_entropy"] * row["eval/tokens"] / math.log(2)
        cells = [
            f"frequencies of {row['tokenizer']}", f"{row['eval/unknown_tokens']:,}",
            f"{math.exp(row['eval/unigram_entropy']):,.1f}", "",
            f"{bits / row['eval/characters']:.3f}", f"{bits / row['eval/bytes']:.3f}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    best_last = sorted(found, key=lambda row: -row["eval/bits_per_byte"])
    for row in best_last:
        cells = [
            row["name"], f"{row['eval/unknown_tokens']:,}",
            f"{row['eval/perplexity']:,.1f}", f"{row['eval/word_perplexity']:,.0f}",
            f"{row['eval/bits_per_character']:.3f}", f"{row['eval/bits_per_byte']:.3f}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| model | parameters | tokenizer | lower case | window | stride |", "|" + "---|" * 6]
    for row in best_last:
        cells = [
            row["name"], f"{row['parameters']:,}", row["tokenizer"], "yes" if row["eval/lowercased"] else "no",
            str(row["eval/window"]), str(row["eval/stride"]),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    if any("blimp/accuracy" in row for row in found):
        lines += ["", *_zero_shot(found)]
    return "\n".join(lines) + "\n"


def _zero_shot(found: list[dict[str, Any]]) -> list[str]:
    absent = [row["name"] for row in found if "blimp/accuracy" not in row]
    found = [row for row in found if "blimp/accuracy" in row]
    fields = sorted(name for name in found[0] if name.startswith("blimp/") and isinstance(found[0][name], float))
    fields = [name for name in fields if name.count("/") == 1 and name != "blimp/accuracy"]
    lines = [ABOUT_TASKS.strip()]
    if absent:
        lines.append(f"Left out, because of unknown words or because they read both ways: {'; '.join(absent)}.")
    lines += ["", "| model | LAMBADA % | perplexity of its last words | BLiMP % |", "|---|---|---|---|"]
    for row in found:
        words = f"{100 * row['lambada/accuracy']:.1f} | {row['lambada/perplexity']:,.0f}"
        lines.append(f"| {row['name']} | {words} | {100 * row['blimp/accuracy']:.1f} |")
    titles = ["BLiMP %, of", *(name.removeprefix("blimp/") for name in fields)]
    lines += ["", f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    for row in found:
        lines.append(f"| {' | '.join([row['name'], *(f'{100 * row[name]:.1f}' for name in fields)])} |")
    return lines


def main() -> None:
    """Evaluate the runs and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", help="run directories or checkpoints")
    parser.add_argument("--data", type=Path, help="raw text")
    parser.add_argument("--eval", type=Path, help="folder with lambada/ and blimp/")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="folder of the page")
    options = parser.parse_args()
    command = f"python benchmarks/language_models.py {' '.join(f'runs/{Path(run).name}' for run in options.runs)}"
    command += f" --data {options.data}" if options.data else ""
    command += " --eval DATA/eval" if options.eval else ""
    with tempfile.TemporaryDirectory() as folder:
        text, name = options.data, str(options.data)
        if text is None:
            text = Path(folder) / "documentation.txt"
            text.write_text(held_out_documentation(), encoding="utf-8")
            name = "the held-out twentieth of the documentation of the installed libraries"
        found = [row for run in options.runs for row in measured(run, text, options.eval)]
    storage.write(options.docs / "language_models.md", page(found, name, command))
    print(options.docs / "language_models.md")


if __name__ == "__main__":
    main()
