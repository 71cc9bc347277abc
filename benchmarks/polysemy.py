"""Word senses in contextual embeddings: how often the nearest neighbor of an ambiguous word in context has its sense.

    plmjax pretrain experiments/elmo_tiny.py --data.input TEXT
    plmjax pretrain experiments/bert_tiny.py --data.input TEXT
    python benchmarks/polysemy.py ELMo=runs/elmo_tiny BERT=runs/bert_tiny --picture docs/pictures/polysemy.png

ambiguous_words.tsv has four sentences for each of two senses of 20 words. The vector of the word in a sentence is that
of its first piece, in one layer of a model. Its nearest neighbor, by cosine, is searched among the seven other
sentences with the word, three of which have the same sense. Static vectors are the same in all of them, so that 3 / 7
of the nearest neighbors share the sense.
"""

import argparse
import csv
import os
import tempfile
from pathlib import Path

os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}

import numpy as np

from plmjax.inference.embed import embed
from plmjax.training.checkpoints import checkpoints, start

SENTENCES = Path(__file__).with_name("ambiguous_words.tsv")
STATIC = 3 / 7


def read() -> list[tuple[str, str, list[str]]]:
    """Return (word, sense, words of the sentence) for every line."""
    with SENTENCES.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(word, sense, sentence.split()) for word, sense, sentence in rows]


def vectors(run: str, lines: list[tuple[str, str, list[str]]]) -> list[np.ndarray]:
    """Return for every layer the vectors of the ambiguous words, float32 [lines D], with the embeddings first."""
    description = checkpoints.describe(checkpoints.find(run))
    model, tokenizer = description.experiment.model, start.tokenizer_of(description)
    pieces = tokenizer.encode_words([words for _, _, words in lines])
    (begin,) = model.template.lay_out([[0]], tokenizer.vocabulary).starts
    places = []
    for (word, _, words), found in zip(lines, pieces, strict=True):
        before = words[: [each.lower() for each in words].index(word)]
        lengths = [1 if model.characters is not None else len(piece) for piece in found]
        places.append(begin + sum(lengths[: len(before)]))
    layers = []
    with tempfile.TemporaryDirectory() as folder:
        text, output = Path(folder) / "sentences.txt", Path(folder) / "vectors.npz"
        text.write_text("".join(" ".join(words) + "\n" for _, _, words in lines), encoding="utf-8")
        for layer in range(model.depth + 1):
            embed(run, text, output, layer=layer, pooling="none")
            with np.load(output) as arrays:
                layers.append(arrays["embeddings"][arrays["offsets"][:-1] + places])
    return layers


def shared(found: np.ndarray, lines: list[tuple[str, str, list[str]]]) -> np.ndarray:
    """Return for every line the share of its nearest neighbors that have its sense.

    There are several if cosines tie.
    """
    words, senses = (np.array(column) for column in list(zip(*lines, strict=True))[:2])
    found = found.astype(np.float64)
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    shares = []
    for line in range(len(lines)):
        others = np.flatnonzero((words == words[line]) & (np.arange(len(lines)) != line))
        cosines = found[others] @ found[line]
        nearest = others[cosines > cosines.max() - 1e-6]
        shares.append(np.mean(senses[nearest] == senses[line]))
    return np.array(shares)


def picture(scores: dict[str, list[float]], path: Path) -> None:
    """Draw a line over layers for every model."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(5, 3.4), layout="constrained")
    for name, values in scores.items():
        axis.plot(range(len(values)), [100 * value for value in values], "o-", label=name)
    axis.axhline(100 * STATIC, color="grey", linestyle="--", label="static vectors")
    axis.set(xlabel="layer (0: embeddings)", ylabel="nearest neighbour has the sense (%)", ylim=(0, 100))
    axis.set_xticks(range(max(map(len, scores.values()))))
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", alpha=0.3)
    axis.legend(frameon=False, loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def main() -> None:
    """Print the table, and draw it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", help="NAME=RUN of every model")
    parser.add_argument("--picture", type=Path, help="picture to write")
    options = parser.parse_args()
    lines, scores = read(), {}
    print(f"| {len(lines)} occurrences | layer | nearest has the sense, % | standard error |\n|---|---|---|---|")
    print(f"| static vectors | | {100 * STATIC:.1f} | |")
    for name, run in (each.split("=", 1) for each in options.runs):
        scores[name] = []
        for layer, found in enumerate(vectors(run, lines)):
            shares = shared(found, lines)
            scores[name].append(float(shares.mean()))
            error = shares.std() / np.sqrt(len(shares))
            print(f"| {name} | {layer} | {100 * shares.mean():.1f} | {100 * error:.1f} |")
    if options.picture:
        picture(scores, options.picture)


if __name__ == "__main__":
    main()
