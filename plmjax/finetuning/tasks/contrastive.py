"""Contrastive learning of text vectors, with the other passages of a batch as negatives.

The loss of a query is the cross-entropy of its passage among the passages in all rows of the global batch,

    -log( exp(s(q, p) / T) / sum over passages c of exp(s(q, c) / T) ),

where s is the cosine or the dot product of the vectors (Henderson et al. 2017, arXiv 1705.00652, section 4;
MultipleNegativesRankingLoss of sentence-transformers, whose scale is 1 / T). The passages are those of the pairs and
their hard negatives. If each line of a text is both query and passage, the two differ only in their dropout masks: this
is unsupervised SimCSE (Gao et al. 2021, arXiv 2104.08821). With several `sizes` (Matryoshka) the loss is the weighted
sum of the losses of the first features of the vectors (Kusupati et al. 2022, arXiv 2205.13147, equation 1).

A passage is not a negative of a query if any line of the train file has its text as the passage of the same query.

Deviation: sentence-transformers takes such passages as negatives. Its sampler can keep equal texts apart in a batch,
but not a passage that answers two queries of the batch.

Deviation: SimCSE trains a layer with tanh above [CLS], and leaves it out of evaluations. Here there is no such layer.

The negatives do not depend on microbatches. All texts of a batch are encoded in microbatches, and their activations are
computed again in the backward pass. So the gradient is that of the whole batch, with the memory of a microbatch. Gao et
al. 2021, arXiv 2101.06983, cache the gradient of the vectors instead.

An example of a train batch has C texts: the query, its passage and its negatives. Fields are [R C T] and [R C K], with

    passage_ids  int32 [R C K]    id of the passage's text, from 1; 0 for a query
    positives    int32 [R C K P]  ids of all passages that answer the example's query, padded with 0
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Kind, Purpose
from plmjax.contracts.template import Template, TokenRow
from plmjax.errors import ABOVE_0, FROM_0, UserError, check_choice, check_ranges, quoted
from plmjax.finetuning.batches.encoded import Encoded, row_arrays
from plmjax.finetuning.metrics import classification, retrieval
from plmjax.finetuning.tasks.retrieval import PairExamples, Retrieval, SearchExamples, SimilarityExamples
from plmjax.finetuning.tasks.task import Answers, Examples, Outputs, Task, TaskObjective, check_length, exists
from plmjax.layers.text_vectors import Normalize, TextVectors
from plmjax.models.families.text_encoder import POOLINGS, TextEncoder, TextEncoderOutput
from plmjax.objectives.capabilities import ComparesRows
from plmjax.objectives.objective import Batch, LossInputs, LossSums, apply, apply_and_collect, cross_entropy

SIMILARITIES = ("cosine", "dot")
PROMPTS = ("document", "query")
"""Names of the prompts of passages and queries, in the order in which sentence-transformers writes them."""


@dataclasses.dataclass(frozen=True)
class Contrastive(ComparesRows, TaskObjective):
    """Cross-entropy of a query's passage among all passages of the batch.

    Raises:
        UserError: an unknown pooling or similarity, a number out of its range, no metric, or `sizes` and `size_weights`
            of different lengths.
    """

    task_class: ClassVar[type[Task]] = Retrieval
    purpose: ClassVar[Purpose] = Purpose.EMBEDDING
    evaluates_losses: ClassVar[bool] = False
    prediction_settings: ClassVar[tuple[str, ...]] = ("features", "ndcg_at", "mrr_at", "recall_at")

    pooling: str = "mean"
    """mean over the tokens of a text, or cls: the token that represents it."""
    similarity: str = "cosine"
    """cosine of two vectors, or dot (dot product). For the cosine the run's recipe divides vectors by their norm."""
    temperature: float = 0.05
    """T, by which the loss divides similarities; sentence-transformers has its inverse, a scale of 20."""
    sizes: tuple[int, ...] = ()
    """Numbers of first features, each of which has a loss (Matryoshka); empty trains whole vectors only."""
    size_weights: tuple[float, ...] = ()
    """Weights of the losses of `sizes`; 1 for each by default."""
    features: int = 0
    """Number of first features of a vector that evaluations use; 0 for all."""
    ndcg_at: tuple[int, ...] = (10,)
    """Numbers of top passages K in the metrics ndcg@K."""
    mrr_at: tuple[int, ...] = (10,)
    """Numbers of top passages K in the metrics mrr@K."""
    recall_at: tuple[int, ...] = (100,)
    """Numbers of top passages K in the metrics recall@K."""

    def __post_init__(self) -> None:
        check_choice("--objective.pooling", self.pooling, POOLINGS)
        check_choice("--objective.similarity", self.similarity, SIMILARITIES)
        check_ranges("objective", self, temperature=ABOVE_0, features=FROM_0)
        for name in ("sizes", "size_weights", "ndcg_at", "mrr_at", "recall_at"):
            values = getattr(self, name)
            if min(values, default=1) <= 0 or (len(set(values)) < len(values) and name != "size_weights"):
                found = " ".join(map(str, values))
                raise UserError(f"Expected different numbers above 0 for --objective.{name}, found {found}; change it.")
        if not (self.ndcg_at or self.mrr_at or self.recall_at):
            raise UserError("Expected a metric, found none; set --objective.ndcg_at 10, or mrr_at or recall_at.")
        if self.size_weights and len(self.size_weights) != len(self.sizes):
            raise UserError(
                f"Expected a weight for each of the {len(self.sizes)} --objective.sizes, found "
                f"{len(self.size_weights)} --objective.size_weights; give as many."
            )

    def check_model(self, config: Any) -> None:
        """Raise UserError for a model that does not encode token ids, or a size above that of its vectors."""
        system = config.system
        if system.kind not in (Kind.ENCODER, Kind.WORD_VECTORS) or "input_ids" not in system.reads:
            system.refuse("reads the tokens of a text from both sides", advice="fine-tune an encoder such as BERT")
        for name, sizes in (("sizes", self.sizes), ("features", (self.features,))):
            _check_size(max(sizes, default=0), config.width, name)

    def evaluation_metrics(self, task: Retrieval) -> tuple[str, ...]:
        """Return the names of the metrics of a search, or of pairs of texts with a score."""
        if task.compares_scores:
            return ("spearman", "pearson")
        kinds = (("ndcg", self.ndcg_at), ("mrr", self.mrr_at), ("recall", self.recall_at))
        return tuple(f"{name}@{limit}" for name, limits in kinds for limit in limits)

    def module(self, config: Any, execution: Execution) -> nn.Module:
        return TextEncoder(config, execution, self.pooling)

    def text_vectors(self, task: Retrieval, model: ModelConfig) -> TextVectors:
        """Return the recipe of the trained vectors: pooling, normalization, length, prompts and similarity."""
        last = self.pooling == "cls" and model.template.summary == "last"
        prompts = zip(PROMPTS, (task.passage_prefix, task.query_prefix), strict=True)
        return TextVectors(
            pooling=("lasttoken" if last else self.pooling,),
            layers=(Normalize(),) if self.similarity == "cosine" else (),
            longest=task.sequence_length,
            prompts=tuple(prompts) if task.query_prefix or task.passage_prefix else (),
            similarity=self.similarity,
        )

    def encode(self, examples: Examples, tokenizer: Any, model: ModelConfig, task: Retrieval) -> Encoded:
        """Encode the pairs of a train file, or the texts of an evaluation. Texts that are too long are truncated.

        The texts of an evaluation are all queries, then all passages; or the two texts of each scored pair side by
        side.
        """
        template = model.template
        check_length(template, tokenizer.vocabulary, task.sequence_length)
        if isinstance(examples, PairExamples):
            return self._encode_pairs(examples, tokenizer, model, task)
        if isinstance(examples, SearchExamples):
            texts = [*(task.query_prefix + one for one in examples.queries)]
            texts += [task.passage_prefix + one for one in examples.passages]
        else:
            texts = [task.query_prefix + one for pair in examples.pairs for one in pair]
        rows = _lay_out(texts, examples, tokenizer, template=template, length=task.sequence_length)
        return Encoded(**row_arrays(rows), sequence_fields={})

    def _encode_pairs(self, examples: PairExamples, tokenizer: Any, model: ModelConfig, task: Retrieval) -> Encoded:
        """Encode the texts of each pair side by side: query, passage, negatives."""
        asked = dict.fromkeys(examples.queries)
        given = dict.fromkeys(itertools.chain(examples.positives, *examples.negatives))
        texts = [*(task.query_prefix + one for one in asked), *(task.passage_prefix + one for one in given)]
        rows = _lay_out(texts, examples, tokenizer, template=model.template, length=task.sequence_length)
        row_of_query = dict(zip(asked, rows, strict=False))
        row_of_passage = dict(zip(given, rows[len(asked) :], strict=True))
        number = {text: number for number, text in enumerate(given, start=1)}
        answers: dict[str, dict[int, None]] = {}
        for query, positive in zip(examples.queries, examples.positives, strict=True):
            answers.setdefault(query, {})[number[positive]] = None
        count, most = 2 + len(examples.negatives[0]), max(map(len, answers.values()))
        passage_ids = np.zeros((len(examples), count), np.int32)
        positives = np.zeros((len(examples), count, most), np.int32)
        laid_out = []
        for place, query in enumerate(examples.queries):
            passages = [examples.positives[place], *examples.negatives[place]]
            laid_out += [row_of_query[query], *(row_of_passage[text] for text in passages)]
            passage_ids[place, 1:] = [number[text] for text in passages]
            positives[place, :, : len(answers[query])] = [*answers[query]]
        fields = {"passage_ids": passage_ids.reshape(-1), "positives": positives.reshape(-1, most)}
        return Encoded(**row_arrays(laid_out), sequence_fields=fields, choices=count)

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        """Return the texts of all examples as rows: [R, C, ...] -> [R C, ...].

        Token types are left out, as in `plmjax embed`, because single texts have only one type.
        """
        inputs = super().model_inputs(batch) | {"cls_positions": batch["cls_positions"]}
        inputs.pop("token_type_ids", None)
        return {name: field.reshape(-1, field.shape[-1]) for name, field in inputs.items()}

    def loss_weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Return weights of 1 for every query, [R K], and 0 for padding, for each size."""
        return dict.fromkeys(self._terms(), exists(batch)[:, 0])

    def coefficients(self) -> dict[str, float]:
        """Return `size_weights` by term."""
        return dict(zip(self._terms(), self.size_weights, strict=True)) if self.size_weights else {}

    def losses(self, outputs: TextEncoderOutput, batch: Batch) -> dict[str, jax.Array]:
        """Return the cross-entropy of every query's passage in nats, [R K], for each size."""
        there = exists(batch)[:, 0]
        own = jnp.arange(there.size)
        return {
            term: cross_entropy(self.scores(outputs, batch, size), own).reshape(there.shape)
            for term, size in self._terms().items()
        }

    def counts(self, outputs: TextEncoderOutput, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
        """Count the queries whose most similar passage, by whole vectors, is their own."""
        there = exists(batch)[:, 0].reshape(-1)
        right = jnp.argmax(self.scores(outputs, batch, None), axis=-1) == jnp.arange(there.size)
        return {"accuracy": (jnp.sum(right * there), jnp.sum(there))}

    def _terms(self) -> dict[str, int | None]:
        """Return a dict from term of the loss to number of first features; None for all features."""
        return {f"first_{size}": size for size in self.sizes} or {"task": None}

    def scores(self, outputs: TextEncoderOutput, batch: Batch, size: int | None) -> jax.Array:
        """Return the scores of all passages of the batch for each query, float32 [R K, R (C - 1) K].

        Passage i is that of query i. Padding, and other passages that answer the query, have the lowest finite float32.

        size: number of first features; None for all.
        """
        shape = batch["example_ids"].shape  # R C K
        vectors = outputs.vectors[..., :size]
        vectors = (_unit(vectors) if self.similarity == "cosine" else vectors).reshape(*shape, -1)
        queries = vectors[:, 0].reshape(-1, vectors.shape[-1])
        passages = _passages(vectors)
        scores = jnp.einsum("qd,pd->qp", queries, passages, precision=jax.lax.Precision.HIGHEST) / self.temperature
        numbers = _passages(batch["passage_ids"][..., None])[:, 0]
        answers = batch["positives"][:, 0].reshape(len(queries), -1)
        own = jnp.arange(len(passages)) == jnp.arange(len(queries))[:, None]
        is_answer, _ = jax.lax.scan(
            lambda found, answer: (found | (answer[:, None] == numbers), None), jnp.zeros_like(own), answers.T
        )
        return jnp.where(own | (numbers > 0) & ~is_answer, scores, jnp.finfo(jnp.float32).min)

    def sums_in_microbatches(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array, *, microbatches: int
    ) -> LossSums:
        """Return the sums of a batch whose texts are encoded in microbatches.

        Microbatch i has the rows i, i + microbatches, and so on. Devices have contiguous rows, so no row moves between
        devices.
        """
        if microbatches == 1:
            return self.sums(module, loss_inputs, batch, key, training=True)

        def split(x: jax.Array) -> jax.Array:  # [R ...] -> [microbatches, R / microbatches, ...]
            return jnp.moveaxis(x.reshape(-1, microbatches, *x.shape[1:]), 1, 0)

        def encode(collections: Any, sliced: tuple[Batch, jax.Array]) -> tuple[Any, jax.Array]:
            rows, key = sliced
            inputs = loss_inputs.replace(collections=collections)
            outputs, collections = apply_and_collect(self, module, inputs, batch=rows, key=key, training=True)
            return collections, outputs.vectors.reshape(*rows["example_ids"].shape[:2], *outputs.vectors.shape[1:])

        sliced = (jax.tree.map(split, batch), jax.random.split(key, microbatches))
        encode = jax.checkpoint(encode, prevent_cse=False)
        collections, vectors = jax.lax.scan(encode, loss_inputs.collections, sliced)
        vectors = jnp.moveaxis(vectors, 0, 1)  # [R / microbatches, microbatches, C K D]
        vectors = vectors.reshape(-1, *vectors.shape[-2:])  # [R C, K, D], as the module returns them
        return self.sums_of(TextEncoderOutput(vectors), batch).replace(collections=collections)

    def evaluation(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array
    ) -> tuple[LossSums, tuple[jax.Array, jax.Array, jax.Array]]:
        """Return sums of 0, since an evaluation has no loss, and (vectors [R K D], example ids, sequence starts)."""
        vectors = apply(self, module, loss_inputs, batch=batch, key=key, training=False).vectors
        none = dict.fromkeys(self._terms(), jnp.zeros(()))
        return LossSums(none, {}), (vectors, batch["example_ids"], batch["sequence_starts"])

    def evaluate_outputs(self, examples: Examples, encoded: Encoded, outputs: Outputs) -> Answers:
        return self.compare(examples, self._finish(np.stack(outputs)))

    def compare(self, examples: SearchExamples | SimilarityExamples, vectors: np.ndarray) -> Answers:
        """Return the metrics of text vectors, and a file with the results.

        search.trec has the passages of each query in the TREC format: query, Q0, passage, rank, similarity, name.
        predictions.tsv has the line, the score and the similarity of each pair.

        vectors: float32 [S D], of all queries and then all passages, or of the two texts of each pair side by side.
            They are compared by dot products.
        """
        if isinstance(examples, SimilarityExamples):
            found = np.sum(vectors[::2] * vectors[1::2], axis=-1)
            metrics = classification.regression(np.array(examples.scores), found)
            lines = [
                f"{line}\t{score:g}\t{value:.6f}\n"
                for line, score, value in zip(examples.lines, examples.scores, found.tolist(), strict=True)
            ]
            table = "".join(["line\tscore\tsimilarity\n", *lines])
            return {name: metrics[name] for name in ("spearman", "pearson")}, {"predictions.tsv": table}
        limits = {"ndcg_at": self.ndcg_at, "mrr_at": self.mrr_at, "recall_at": self.recall_at}
        rankings = retrieval.search(
            vectors[: len(examples)],
            vectors[len(examples) :],
            query_ids=examples.query_ids,
            passage_ids=examples.passage_ids,
            count=max(max(numbers, default=0) for numbers in limits.values()),
        )
        files = {"search.trec": retrieval.trec_run(examples.query_ids, rankings)}
        return retrieval.score_rankings(rankings, examples.judgements, **limits), files

    def _finish(self, vectors: np.ndarray) -> np.ndarray:
        """Truncate vectors to `features`, and divide them by their norm for the cosine: [S D] -> [S features]."""
        _check_size(self.features, vectors.shape[1], "features")
        vectors = vectors[:, : self.features or None]
        return Normalize()(vectors, {}) if self.similarity == "cosine" else vectors

    def head_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        """Return the FLOPs of the similarities: 6 times the size for each pair of query and passage, for each size."""
        rows, count, packed = batch["example_ids"].shape
        features = sum(size or config.width for size in self._terms().values())
        return 6.0 * features * (rows * packed) ** 2 * (count - 1)


def _check_size(size: int, width: int, name: str) -> None:
    if size > width:
        raise UserError(
            f"Expected --objective.{name} of at most the {width} features of the model's vectors, found {size}; lower "
            f"it."
        )


def _unit(vectors: jax.Array) -> jax.Array:
    """Divide vectors by their norms. A zero vector stays zero, and its gradient is finite."""
    squares = jnp.sum(jnp.square(vectors), axis=-1, keepdims=True)
    return vectors * jax.lax.rsqrt(jnp.maximum(squares, 1e-24))


def _lay_out(
    texts: Sequence[str], examples: Examples, tokenizer: Any, *, template: Template, length: int
) -> list[TokenRow]:
    """Return the rows of texts. Raise UserError for a text without tokens, which has no vector."""
    rows = [template.lay_out([ids], tokenizer.vocabulary, length) for ids in tokenizer.encode_batch(list(texts))]
    for text, row in zip(texts, rows, strict=True):
        if not row.tokens:
            raise UserError(
                f"Expected texts of at least one token in {examples.path}, found {quoted(text)}; remove it."
            )
    return rows


def _passages(fields: jax.Array) -> jax.Array:
    """Return the fields of all passages, positives first and then negatives: [R C K X] -> [R (C - 1) K, X]."""
    first, others = fields[:, 1], fields[:, 2:]
    return jnp.concatenate([first.reshape(-1, fields.shape[-1]), others.reshape(-1, fields.shape[-1])])
