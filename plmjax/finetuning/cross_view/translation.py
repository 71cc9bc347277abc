"""Translation as a task of cross-view training (Clark et al., EMNLP 2018, arXiv 1809.08370, section 3.3).

Its sources are sentences of words for the shared encoder. Its targets are words of a separate vocabulary, which is
learned from the train file. A sentence without a translation has no target words for the primary decoder. So this
decoder translates the sentence, by beam search, and the auxiliary decoders learn the translation word by word:

    L = - sum over the auxiliary decoders v and over the words y_t of log p_v(y_t | ..., source)

Fields of a batch, for rows of U decoder tokens: decoder_input_ids, decoder_segment_ids, NAME/next_ids int32 [R U] and
NAME/next_weights float32 [R U], as in plmjax/finetuning/tasks/text_generation.py.
"""

import collections
import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.scores import TokenScores
from plmjax.errors import UserError, check_ranges
from plmjax.finetuning.batches.encoded import Encoded
from plmjax.finetuning.cross_view.tasks import CrossViewTask, TaskModules
from plmjax.finetuning.metrics.text_metrics import BleuAndChrf
from plmjax.finetuning.tasks.tagging import lay_out_words
from plmjax.finetuning.tasks.task import Answers, Outputs, Record, Task
from plmjax.finetuning.tasks.text_generation import encode_rows, fit_to_length, next_tokens, score_texts
from plmjax.finetuning.tasks.text_pairs import TextPairExamples, TextPairs
from plmjax.generation.constraints import Constraints
from plmjax.generation.loop import generate_within
from plmjax.generation.options import Decoding
from plmjax.generation.search import Lengths, Strategy
from plmjax.generation.strategies import strategy_of
from plmjax.layers.recurrent.lstm import GATES, LstmState
from plmjax.models.cvt.cvt import CvtConfig, States
from plmjax.models.cvt.translation import TRANSLATION_VIEWS, TranslationModules
from plmjax.objectives.objective import Batch

END, UNKNOWN = 0, 1
"""END stands before and after every translation; UNKNOWN replaces any word outside the vocabulary."""
MARKS = ("</s>", "<unk>")
"""The spelling of END and UNKNOWN."""


@dataclasses.dataclass(frozen=True)
class CrossViewTranslation(CrossViewTask):
    """Translations, evaluated by BLEU and chrF."""

    task_class: ClassVar[type[Task]] = TextPairs
    views: ClassVar[tuple[str, ...]] = TRANSLATION_VIEWS
    fields: ClassVar[dict[str, type]] = {"next_ids": np.int32, "next_weights": np.float32}
    decodes: ClassVar[bool] = True
    counted: ClassVar[tuple[str, ...]] = ("accuracy",)
    metric_names: ClassVar[tuple[str, ...]] = BleuAndChrf.names

    target_words: tuple[str, ...] = ()
    """Words of the targets in the order of their numbers, after the two marks.

    If empty, the words of the train file are taken, the most frequent first.
    """
    target_size: int = 10_000
    """Largest number of target words, including the marks."""
    beams: int = 4
    """Number of beams of the search for a translation; 1 takes the most likely word at each step."""
    length_penalty: float = 1.0
    """Power of the length by which a beam's score is divided."""
    max_new_tokens: int = 32
    """Largest number of words of a translation, including the mark at its end."""

    def __post_init__(self) -> None:
        check_ranges("objective.tasks", self, target_size=(3, math.inf))
        self._decoding().check_rules("objective.tasks.")
        self._search()

    def main_metric(self, metrics: dict[str, float]) -> float:
        """Return BLEU divided by 100, its largest value."""
        return metrics["bleu"] / 100

    def signatures(self, task: Task) -> dict[str, str]:
        return BleuAndChrf().signatures()

    @property
    def prediction_size(self) -> int:
        """Return the length of translations in `predictions`, which repeats each at every word of its source."""
        return self.max_new_tokens

    @property
    def _target_count(self) -> int:
        return len(MARKS) + len(self.target_words)

    def _decoding(self) -> Decoding:
        return Decoding(beams=self.beams, length_penalty=self.length_penalty, max_new_tokens=self.max_new_tokens)

    def _search(self) -> Strategy:
        return strategy_of(self._decoding())

    def modules(self, config: CvtConfig, dtype: jnp.dtype, name: str) -> nn.Module:
        return TranslationModules(config, dtype, self._target_count, name=name)

    def fit_labels(self, train: TextPairExamples) -> Self:
        if self.target_words:
            return self
        counts = collections.Counter(itertools.chain.from_iterable(map(split, train.targets)))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))[: self.target_size - len(MARKS)]
        return dataclasses.replace(self, target_words=tuple(ranked))

    def encode(self, examples: TextPairExamples, tokenizer: Any, model: ModelConfig, task: TextPairs) -> Encoded:
        """Encode the source's words, each as one token with its spelling, and the target's words for the decoder."""
        if not task.target_length:
            raise UserError("Expected --data.target_length above 0 for a translation, found 0; raise it.")
        room = task.sequence_length - model.template.specials(1)
        sources = [split(source) for source in examples.sources]
        sources = fit_to_length(
            examples, sources, room, side="source", option="--data.sequence_length", cut=task.cut_sources
        )
        targets = [split(target or "") for target in examples.targets]
        longest = min(task.target_length, self.max_new_tokens) - 1
        targets = fit_to_length(
            examples, targets, longest, side="target", option="--data.target_length", cut=task.cut_targets
        )
        numbers = {word: number for number, word in enumerate((*MARKS, *self.target_words))}
        asked = [[*(numbers.get(word, UNKNOWN) for word in target), END] for target in targets]
        decoder = encode_rows([[END, *row[:-1]] for row in asked], next_tokens(asked, [0] * len(asked)))
        return dataclasses.replace(lay_out_words(sources, tokenizer, model, task).encode(), decoder=decoder)

    def label_weights(self, batch: Batch) -> jax.Array:
        """Return 1 for every word of a target and for its end, float32 [R U]."""
        return batch["next_weights"]

    def label_nats(self, scores: TokenScores, batch: Batch, smoothing: float) -> jax.Array:
        """Return the nats of the targets, without label smoothing."""
        return scores.weighted_cross_entropy(batch["next_ids"], batch["next_weights"])[0]

    def view_nats(
        self, modules: TaskModules, read: States, states: States, batch: Batch
    ) -> tuple[jax.Array, jax.Array]:
        """Return the auxiliary decoders' nats of the primary decoder's translations, and the number of their words.

        `future` does not predict the first words.
        """
        texts, counts = self.translate(modules, read, batch)
        rows, limit = len(texts), self.max_new_tokens
        there = (jnp.arange(limit) < counts[..., None]).astype(jnp.float32)
        sentences = jnp.arange(texts.shape[1])[:, None] + 1
        tokens = batch | {
            "decoder_input_ids": jnp.pad(texts[..., :-1], ((0, 0), (0, 0), (1, 0)), constant_values=END).reshape(
                rows, -1
            ),
            "decoder_segment_ids": jnp.where(there > 0, sentences, 0).reshape(rows, -1),
        }
        outputs, total = modules(states, tokens, self.views, training=True), jnp.zeros(())
        for view, scores in outputs.items():
            ahead = int(view == "future")  # At a word, `future` predicts the word after the next one.
            asked, weights = (jnp.pad(x[..., ahead:], ((0, 0), (0, 0), (0, ahead))) for x in (texts, there))
            total += scores.weighted_cross_entropy(asked.reshape(rows, -1), weights.reshape(rows, -1))[0]
        return total, jnp.sum(there)

    def translate(self, modules: TaskModules, states: States, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Return the primary decoder's translations of the K sentences of every row, and their lengths.

        The translations are int [R K W]; W is `max_new_tokens`. A length counts the words of a translation and its end
        token. After the end, and where a row has fewer sentences, ids are 0.
        """
        rows, count = batch["example_ids"].shape
        search, limit = self._search(), self.max_new_tokens
        start = jnp.full((rows * count, 1), END, jnp.int32)
        found = generate_within(
            Translator(modules, count),
            search,
            Constraints(self._target_count, (END,)),
            variables=modules.variables,
            prompt=start,
            source=(states, batch["segment_ids"]),
            keys=jax.random.split(modules.key, len(start)),
            lengths=Lengths.alike(len(start), 0, limit),
            capacity=1 + limit,
        )
        counts = found.counts[:, 0].reshape(rows, count)
        sentences = jnp.arange(count) + 1
        there = jnp.any(batch["segment_ids"][:, None] == sentences[:, None], axis=-1)
        counts = jnp.where(there, counts, 0)
        texts = found.tokens[:, 0, 1:].reshape(rows, count, limit)
        return jnp.where(jnp.arange(limit) < counts[..., None], texts, 0), counts

    def counts(self, outputs: TokenScores, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
        weights = batch["next_weights"]
        hits = outputs.cross_entropy(batch["next_ids"])[1]
        return {"accuracy": (jnp.sum(weights * hits), jnp.sum(weights))}

    def predictions(self, modules: TaskModules, scores: TokenScores, states: States, batch: Batch) -> jax.Array:
        """Return the translation of each word's sentence, at every word: int [R T W]."""
        texts, _ = self.translate(modules, states, batch)
        sentence = jnp.maximum(batch["segment_ids"] - 1, 0)
        return jnp.take_along_axis(texts, sentence[..., None], axis=1)

    def records(self, examples: TextPairExamples, encoded: Encoded, outputs: Outputs) -> list[Record]:
        found = []
        for line, output in zip(examples.lines, outputs, strict=True):
            numbers = itertools.takewhile(lambda number: number != END, output[0].astype(np.int64).tolist())
            words = (MARKS[UNKNOWN] if n == UNKNOWN else self.target_words[n - len(MARKS)] for n in numbers)
            found.append({"line": line, "prediction": join_words(words)})
        return found

    def evaluate_outputs(self, examples: TextPairExamples, encoded: Encoded, outputs: Outputs) -> Answers:
        """Return metrics and predictions.jsonl: line, source, target and translation of every pair."""
        scores, written = score_texts(BleuAndChrf(), examples, self.records(examples, encoded, outputs))
        return scores, {"predictions.jsonl": written}

    def submission(self, records: Iterable[Record]) -> Iterator[str]:
        """Yield only the translations, one per line."""
        return (record["prediction"] + "\n" for record in records)

    def multiplications(self, config: CvtConfig, batch: dict[str, jax.ShapeDtypeStruct]) -> tuple[int, int, int]:
        """Return the multiplications for targets, for translations in all views, and for all beams of the search."""
        length, size, source = batch["input_ids"].shape[1], config.projection_size, 2 * config.lstm_outputs[1]
        rows, targets = batch["decoder_input_ids"].shape
        lstm = GATES * size * (config.word_dim + size)
        own = size * source + 2 * length * source + (source + size) * size + self._target_count * size
        words = rows * batch["example_ids"].shape[1] * self.max_new_tokens
        return rows * targets * (lstm + own), words * (lstm + len(self.views) * own), words * self.beams * (lstm + own)


@dataclasses.dataclass(frozen=True)
class Translator:
    """The primary decoder for a decoding loop (plmjax.generation.decoder.Decoder).

    A state consists of the encoder's states, the segments of the rows, and the state of the LSTM.

    Attributes:
        modules: modules of the task.
        sentences: K, the number of sentences of a row. The translations of a row are stored side by side, in the order
            of its sentences.
    """

    modules: TaskModules
    sentences: int

    def prefill(
        self, variables: Any, prompt: jax.Array, prompt_mask: jax.Array, *, source: Any, capacity: int
    ) -> tuple[jax.Array, Any]:
        """Read the start token of the translations, int [R K, 1]."""
        size = self.modules.module.config.projection_size
        return self.decode_step(variables, prompt[:, 0], (*source, LstmState.zeros(len(prompt), size)))

    def decode_step(self, variables: Any, tokens: jax.Array, state: Any) -> tuple[jax.Array, Any]:
        states, segment_ids, lstm = state
        words = tokens.reshape(len(segment_ids), -1)
        beams = words.shape[1] // self.sentences
        sentences = jnp.broadcast_to(jnp.repeat(jnp.arange(self.sentences) + 1, beams), words.shape)
        inputs, target = (self.modules.task, states, segment_ids, sentences), {"words": words, "before": lstm}
        scores, lstm = self.modules.module.apply(variables, *inputs, **target, method="write")
        return scores.reshape(len(tokens), -1), (states, segment_ids, lstm)

    def take_rows(self, state: Any, indices: jax.Array) -> Any:
        """Return the LSTM states of the rows; the source stays the same."""
        *source, lstm = state
        return *source, jax.tree.map(lambda leaf: leaf[indices], lstm)


def split(text: str) -> list[str]:
    """Split a text into words and punctuation marks, like BERT and the word tokenizers."""
    from tokenizers.pre_tokenizers import BertPreTokenizer

    return [word for word, _ in BertPreTokenizer().pre_tokenize_str(text)]


def join_words(words: Iterable[str]) -> str:
    """Join words and punctuation marks to a text, like the word tokenizers."""
    from tokenizers.decoders import WordPiece

    return WordPiece(prefix="\0").decode(list(words))
