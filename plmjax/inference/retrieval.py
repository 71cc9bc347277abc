"""Evaluation of an encoder's text vectors without training: queries search passages, or pairs of texts are compared.

The vectors are those of `plmjax embed`: by the recipe of the checkpoint, or means over the tokens. Queries and passages
get the prompts that have the names in `QUERY` and `PASSAGE`. If the recipe has none, they get its default prompt.
Scored pairs always get the default prompt, as in the evaluator of sentence-transformers. A fine-tuning run that
evaluates itself puts its `query_prefix` before both texts of a pair instead.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from plmjax.data.unknown_tokens import MAX_UNKNOWN, UnknownTokens
from plmjax.errors import UserError
from plmjax.files import storage
from plmjax.finetuning.files import tables, text_files
from plmjax.finetuning.tasks.contrastive import Contrastive
from plmjax.finetuning.tasks.retrieval import Retrieval, SimilarityExamples
from plmjax.inference import encoded_texts
from plmjax.inference.vectors import Encoder, Vectors
from plmjax.layers.text_vectors import Normalize, TextVectors
from plmjax.training.metrics import write_evaluation

QUERY, PASSAGE = ("query",), ("document", "passage", "corpus")
"""Names of the prompts of queries and of passages in sentence-transformers (`encode_query`, `encode_document`). The
first that the recipe has is used."""
SPLITS = {"train": "train", "validation": "dev", "test": "test"}
"""Name of a split in plmjax -> its name in BEIR."""
COLUMNS = ("query", "positive", "negatives", "score", "columns")
"""Settings of `Retrieval` for a table."""
COMPARED = ("cosine", "dot")
BATCH, BLOCK = 32, 4096


def score_retrieval(
    checkpoint: str | Path,
    data: str,
    output: str | Path | None = None,
    *,
    split: str | None = None,
    max_unknown: float = MAX_UNKNOWN,
    **columns: Any,
) -> dict[str, Any]:
    """Return the metrics of the searches in a BEIR folder or a table of pairs, or of scored pairs.

    Args:
        data: a BEIR folder or a table.
        output: folder for evaluation.json and the results: search.trec with the passages of every query in the TREC
            format, or predictions.tsv with the similarity of every pair.
        split: "train", "validation" or "test" of a folder; "test" by default.
        max_unknown: largest allowed fraction of unknown tokens in the texts.
        columns: the fields of `Retrieval` in `COLUMNS`, for a table; with a `score`, pairs are compared.

    Returns:
        "retrieval/ndcg@10", "retrieval/mrr@10" and "retrieval/recall@100", or for pairs with a score
            "retrieval/spearman" and "retrieval/pearson"; the numbers of queries and passages, or of pairs;
            "retrieval/cut", the number of texts that were truncated; and "retrieval/unknown_tokens".

    Raises:
        UserError: there is no checkpoint, its model does not embed texts, the folder or table is wrong, there are too
            many unknown tokens, or the recipe has another similarity than cosine or dot product.
    """
    encoder = Encoder(checkpoint)
    recipe = encoder.run.text_vectors or TextVectors()
    similarity = recipe.similarity or "cosine"
    if similarity not in COMPARED:
        raise UserError(
            f"Expected vectors that are compared by cosine or dot product in {checkpoint}, found {similarity}; name "
            f"another checkpoint."
        )
    is_table = text_files.suffix(str(data)) in tables.DELIMITERS
    if is_table and split is not None:
        raise UserError(f"Expected no --split for the table {data}, found {split}; leave it out.")
    if columns and not is_table:
        raise UserError(
            f"Expected no --data.{next(iter(columns))} for {data}, which is no table, found one; leave it out."
        )
    task = Retrieval(validation=str(data), split=SPLITS[split or "test"], **columns)
    examples = task.read("validation")
    unknown = UnknownTokens(encoder.tokenizer.vocabulary, encoded_texts.limit_of(encoder.run.model, max_unknown))
    if isinstance(examples, SimilarityExamples):
        counts = {"pairs": len(examples)}
        sides = [([text for pair in examples.pairs for text in pair], ())]
    else:
        counts = {"queries": len(examples.queries), "passages": len(examples.passages)}
        sides = [(examples.queries, QUERY), (examples.passages, PASSAGE)]
    found, cut = [], 0
    for texts, names in sides:
        name = next((name for name in names if name in dict(recipe.prompts)), None)
        wanted = Vectors(encoder.run.model.depth, (), 1.0, recipe, recipe.prompt(name))
        vectors, shortened = _embed(encoder, texts, wanted, unknown)
        found.append(Normalize()(vectors, {}) if similarity == "cosine" else vectors)
        cut += shortened
    unknown.check(data)
    scores, files = Contrastive().compare(examples, np.concatenate(found))
    scores |= {**counts, "cut": cut, "unknown_tokens": unknown.count}
    metrics = {f"retrieval/{name}": value for name, value in scores.items()}
    if output is not None:
        storage.path(output).mkdir(parents=True, exist_ok=True)
        write_evaluation(storage.path(output), metrics, files)
    return metrics


def _embed(encoder: Encoder, texts: Sequence[str], wanted: Vectors, unknown: UnknownTokens) -> tuple[np.ndarray, int]:
    """Return the vectors of texts, float32 [texts D], and the number of texts that were truncated."""
    vectors, cut = [], 0
    for first in range(0, len(texts), BLOCK):
        encoded = encoder.read(texts[first : first + BLOCK], wanted)
        for ids in encoded.ids if encoded.spellings is None else ():
            unknown.add(np.asarray(ids))
        arrays, _ = encoder(encoded, wanted, BATCH)
        vectors.append(arrays["embeddings"])
        cut += int(arrays["cut"].sum())
    return np.concatenate(vectors), cut
