"""Word senses in contextual embeddings: how often the nearest neighbor of an ambiguous word in context has its sense.

    plmjax pretrain experiments/elmo_tiny.py --data.input TEXT
    plmjax pretrain experiments/comparison.py:bert --workdir runs/bert --data.input TEXT --training.steps 4000
    python benchmarks/polysemy.py ELMo=runs/elmo_tiny BERT=runs/bert --picture docs/pictures/polysemy.png

ambiguous_words.tsv has four sentences for each of two senses of 20 words. The vector of the word in a sentence is the
mean of its pieces, in one layer of a model. Its nearest neighbor, by cosine, is searched among the seven other
sentences with the word, three of which have the same sense. Static vectors are the same in all of them, so that 3 / 7
of the nearest neighbors share the sense.

A small vocabulary splits words, and vectors of pieces tell little of the word, so the words that it has whole are
counted by themselves too. A model with absolute positions may find the sentence in which the word stands at the nearest
one, which is counted for the positions alone.
"""

import argparse
import csv
import os
import tempfile
from pathlib import Path

os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}

import numpy as np
from pictures import drawn

from plmjax.inference.embed import embed_file
from plmjax.training.checkpoints import checkpoints

SENTENCES = Path(__file__).with_name("ambiguous_words.tsv")
STATIC = 3 / 7


def read() -> list[tuple[str, str, list[str]]]:
    """Return (word, sense, words of the sentence) for every line."""
    with SENTENCES.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(word, sense, sentence.split()) for word, sense, sentence in rows]


def place(line: tuple[str, str, list[str]]) -> int:
    """Return the number of words before the ambiguous one."""
    word, _, words = line
    return [each.lower() for each in words].index(word)


def vectors(run: str, lines: list[tuple[str, str, list[str]]]) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Return the vectors of the ambiguous words, their numbers of pieces and their positions.

    Returns:
        For every layer float32 [lines D], with the embeddings first; int [lines]; int [lines].
    """
    description = checkpoints.describe(checkpoints.find(run))
    model, tokenizer = description.experiment.model, description.load_tokenizer()
    pieces = tokenizer.encode_words([words for _, _, words in lines])
    (begin,) = model.template.lay_out([[0]], tokenizer.vocabulary).starts
    lengths = [[1 if model.characters is not None else len(piece) for piece in found] for found in pieces]
    places = np.array([sum(each[: place(line)]) for each, line in zip(lengths, lines, strict=True)])
    counts = np.array([each[place(line)] for each, line in zip(lengths, lines, strict=True)])
    layers = []
    with tempfile.TemporaryDirectory() as folder:
        text, output = Path(folder) / "sentences.txt", Path(folder) / "vectors.npz"
        text.write_text("".join(" ".join(words) + "\n" for _, _, words in lines), encoding="utf-8")
        for layer in range(model.depth + 1):
            embed_file(run, text, output, layer=layer, pooling="none")
            with np.load(output) as arrays:
                found, firsts = arrays["embeddings"], arrays["offsets"][:-1] + begin + places
            spans = zip(firsts, counts, strict=True)
            layers.append(np.stack([found[first : first + count].mean(axis=0) for first, count in spans]))
    return layers, counts, places


def shared(near: np.ndarray, lines: list[tuple[str, str, list[str]]]) -> np.ndarray:
    """Return for every line the fraction of its nearest neighbors with its sense; several neighbors may be equally
    near.

    Args:
        near: [lines lines], larger for lines that are nearer.
    """
    words, senses = (np.array(column) for column in list(zip(*lines, strict=True))[:2])
    shares = []
    for line in range(len(lines)):
        others = np.flatnonzero((words == words[line]) & (np.arange(len(lines)) != line))
        nearest = others[near[line, others] > near[line, others].max() - 1e-6]
        shares.append(np.mean(senses[nearest] == senses[line]))
    return np.array(shares)


def cosines(found: np.ndarray) -> np.ndarray:
    """Return the cosines of vectors [lines D] with each other."""
    found = found.astype(np.float64)
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    return found @ found.T


def percent(shares: np.ndarray) -> str:
    """Return the mean and its standard error, in percent."""
    if not len(shares):
        return "-"
    return f"{100 * shares.mean():.1f} ± {100 * shares.std() / np.sqrt(len(shares)):.1f}"


def picture(scores: dict[str, list[float]], path: Path) -> None:
    """Draw a line over layers for every model."""
    with drawn(path, 5, 3.4) as (_, (axis,)):
        for name, values in scores.items():
            axis.plot(range(len(values)), [100 * value for value in values], "o-", label=name)
        axis.axhline(100 * STATIC, color="grey", linestyle="--", label="static vectors")
        axis.set(xlabel="layer (0: embeddings)", ylabel="nearest neighbour has the sense (%)", ylim=(0, 100))
        axis.set_xticks(range(max(map(len, scores.values()))))
        axis.legend(frameon=False, loc="lower right")


def main() -> None:
    """Print the table, and draw it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", help="NAME=RUN of every model")
    parser.add_argument("--picture", type=Path, help="picture to write")
    options = parser.parse_args()
    lines, scores = read(), {}
    print("| nearest has the sense, % | layer | all occurrences | words in one piece |\n|---|---|---|---|")
    print(f"| static vectors | | {100 * STATIC:.1f} | {100 * STATIC:.1f} |")
    for name, run in (each.split("=", 1) for each in options.runs):
        layers, counts, places = vectors(run, lines)
        scores[name] = []
        for layer, found in enumerate(layers):
            shares = shared(cosines(found), lines)
            scores[name].append(float(shares.mean()))
            print(f"| {name} | {layer} | {percent(shares)} | {percent(shares[counts == 1])} |")
        shares = shared(-np.abs(places[:, None] - places), lines)
        print(f"| {name}, nearest position | | {percent(shares)} | {percent(shares[counts == 1])} |")
    if options.picture:
        picture(scores, options.picture)


if __name__ == "__main__":
    main()
