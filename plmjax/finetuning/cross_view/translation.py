"""Translation as a task of cross-view training (Clark et al., EMNLP 2018, arXiv 1809.08370, section 3.3).

Its sources are sentences of words for the shared encoder; its targets are words of a vocabulary of their own, which is
learned from the train file. A sentence without a translation has no word that the primary decoder could be asked about.
So that decoder translates the sentence, by beam search, and the auxiliary decoders learn the translation word by word:

    L = - sum over both of them and over the words y of log p_v(y_t | ..., source)

Fields of a batch: decoder_input_ids, decoder_segment_ids, NAME/next_ids int32 [R U] and NAME/next_weights float32
[R U], as of plmjax/finetuning/tasks/text_generation.py.
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
from plmjax.finetuning.metrics.judges import BleuAndChrf
from plmjax.finetuning.tasks.tagging import lay_out_words
from plmjax.finetuning.tasks.task import Answers, Outputs, Record, Task
from plmjax.finetuning.tasks.text_generation import encoded_rows, fitting, judged, next_tokens
from plmjax.finetuning.tasks.text_pairs import TextPairExamples, TextPairs
from plmjax.generation.constraints import Constraints
from plmjax.generation.loop import written_within
from plmjax.generation.options import Decoding
from plmjax.generation.search import Lengths, Strategy
from plmjax.generation.strategies import strategy_of
from plmjax.layers.recurrent.lstm import GATES, LstmState
from plmjax.models.cvt.cvt import CvtConfig, States
from plmjax.models.cvt.translation import TRANSLATION_VIEWS, TranslationModules
from plmjax.objectives.objective import Batch

END, UNKNOWN = 0, 1
"""Before and after every translation; any word that is not among those of the vocabulary."""
MARKS = ("</s>", "<unk>")
"""Their spelling."""


@dataclasses.dataclass(frozen=True)
class CrossViewTranslation(CrossViewTask):
    """Translations, judged by BLEU and chrF."""

    task_class: ClassVar[type[Task]] = TextPairs
    views: ClassVar[tuple[str, ...]] = TRANSLATION_VIEWS
    fields: ClassVar[dict[str, type]] = {"next_ids": np.int32, "next_weights": np.float32}
    decodes: ClassVar[bool] = True
    counted: ClassVar[tuple[str, ...]] = ("accuracy",)
    metric_names: ClassVar[tuple[str, ...]] = BleuAndChrf.names

    target_words: tuple[str, ...] = ()
    """Words of the targets in the order of their numbers, after the two marks; empty takes those of the train file,
    the most frequent first."""
    target_size: int = 10_000
    """Largest number of target words, the marks included."""
    beams: int = 4
    """Beams of the search for a translation; 1 takes the likeliest word each time."""
    length_penalty: float = 1.0
    """Power of the length that a beam's score is divided by."""
    max_new_tokens: int = 32
    """Words of a translation at most, the mark at its end included."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        check_ranges("objective.tasks", self, target_size=(3, math.inf))
        self._decoding().check_rules("objective.tasks.")
        self._search()

    def judged(self, metrics: dict[str, float]) -> float:
        """BLEU, whose values go to 100."""
        return metrics["bleu"] / 100

    def signatures(self, task: Task) -> dict[str, str]:
        """sacrebleu's."""
        return BleuAndChrf().signatures()

    @property
    def prediction_size(self) -> int:
        """Words of a translation: every word of its source has all of them."""
        return self.max_new_tokens

    @property
    def _target_count(self) -> int:
        return len(MARKS) + len(self.target_words)

    def _decoding(self) -> Decoding:
        return Decoding(beams=self.beams, length_penalty=self.length_penalty, max_new_tokens=self.max_new_tokens)

    def _search(self) -> Strategy:
        return strategy_of(self._decoding())

    def modules(self, config: CvtConfig, dtype: jnp.dtype, name: str) -> nn.Module:
        """The decoders."""
        return TranslationModules(config, dtype, self._target_count, name=name)

    def fit_labels(self, train: TextPairExamples) -> Self:
        """The objective with the words of the train file's targets."""
        if self.target_words:
            return self
        counts = collections.Counter(itertools.chain.from_iterable(map(split, train.targets)))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))[: self.target_size - len(MARKS)]
        return dataclasses.replace(self, target_words=tuple(ranked))

    def encode(self, examples: TextPairExamples, tokenizer: Any, model: ModelConfig, task: TextPairs) -> Encoded:
        """The source's words, each as one token with its spelling; the target's for the decoder."""
        if not task.target_length:
            raise UserError("Expected --data.target_length above 0 for a translation, found 0; raise it.")
        room = task.sequence_length - model.template.specials(1)
        sources = [split(source) for source in examples.sources]
        sources = fitting(examples, sources, room, "source", "--data.sequence_length", cut=task.cut_sources)
        targets = [split(target or "") for target in examples.targets]
        most = min(task.target_length, self.max_new_tokens) - 1
        targets = fitting(examples, targets, most, "target", "--data.target_length", cut=task.cut_targets)
        numbers = {word: number for number, word in enumerate((*MARKS, *self.target_words))}
        asked = [[*(numbers.get(word, UNKNOWN) for word in target), END] for target in targets]
        decoder = encoded_rows([[END, *row[:-1]] for row in asked], next_tokens(asked, [0] * len(asked)))
        return dataclasses.replace(lay_out_words(sources, tokenizer, model, task).encoded(), decoder=decoder)

    def label_weights(self, batch: Batch) -> jax.Array:
        """1 for every word of a target and its end."""
        return batch["next_weights"]

    def label_nats(self, said: TokenScores, batch: Batch, smoothing: float) -> jax.Array:
        """Nats of the targets; they are not smoothed."""
        return said.weighted_cross_entropy(batch["next_ids"], batch["next_weights"])[0]

    def view_nats(
        self, modules: TaskModules, read: States, states: States, batch: Batch
    ) -> tuple[jax.Array, jax.Array]:
        """Nats of the translations that the primary decoder writes; `future` does not predict their first words."""
        texts, counts = self.written(modules, read, batch)
        rows, most = len(texts), self.max_new_tokens
        there = (jnp.arange(most) < counts[..., None]).astype(jnp.float32)
        sentences = jnp.arange(texts.shape[1])[:, None] + 1
        tokens = batch | {
            "decoder_input_ids": jnp.pad(texts[..., :-1], ((0, 0), (0, 0), (1, 0)), constant_values=END).reshape(
                rows, -1
            ),
            "decoder_segment_ids": jnp.where(there > 0, sentences, 0).reshape(rows, -1),
        }
        said, total = modules(states, tokens, self.views, training=True), jnp.zeros(())
        for view, scores in said.items():
            ahead = int(view == "future")  # at a word it says the one after the next
            asked, weights = (jnp.pad(x[..., ahead:], ((0, 0), (0, 0), (0, ahead))) for x in (texts, there))
            total += scores.weighted_cross_entropy(asked.reshape(rows, -1), weights.reshape(rows, -1))[0]
        return total, jnp.sum(there)

    def written(self, modules: TaskModules, states: States, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """The primary decoder's translations of the K sentences of every row: int [R K W], and how many words each has.

        W is `max_new_tokens`. The words of a translation and its end count; after it there is 0, and so is everything
        where a row has no such sentence.
        """
        rows, count = batch["example_ids"].shape
        search, most = self._search(), self.max_new_tokens
        start = jnp.full((rows * count, 1), END, jnp.int32)
        found = written_within(
            Translator(modules, count),
            search,
            Constraints(self._target_count, (END,)),
            modules.variables,
            start,
            (states, batch["segment_ids"]),
            jax.random.split(modules.key, len(start)),
            Lengths.alike(len(start), 0, most),
            capacity=1 + most,
        )
        counts = found.counts[:, 0].reshape(rows, count)
        sentences = jnp.arange(count) + 1
        there = jnp.any(batch["segment_ids"][:, None] == sentences[:, None], axis=-1)
        counts = jnp.where(there, counts, 0)
        texts = found.tokens[:, 0, 1:].reshape(rows, count, most)
        return jnp.where(jnp.arange(most) < counts[..., None], texts, 0), counts

    def counts(self, outputs: TokenScores, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
        """accuracy, of the words of the targets, each after those before it."""
        weights = batch["next_weights"]
        hits = outputs.cross_entropy(batch["next_ids"])[1]
        return {"accuracy": (jnp.sum(weights * hits), jnp.sum(weights))}

    def predicted(self, modules: TaskModules, said: TokenScores, states: States, batch: Batch) -> jax.Array:
        """The translation of its sentence, at every word."""
        texts, _ = self.written(modules, states, batch)
        of_word = jnp.maximum(batch["segment_ids"] - 1, 0)
        return jnp.take_along_axis(texts, of_word[..., None], axis=1)

    def records(self, examples: TextPairExamples, encoded: Encoded, outputs: Outputs) -> list[Record]:
        """line; prediction, the translation."""
        found = []
        for line, output in zip(examples.lines, outputs, strict=True):
            numbers = itertools.takewhile(lambda number: number != END, output[0].astype(np.int64).tolist())
            words = (MARKS[UNKNOWN] if n == UNKNOWN else self.target_words[n - len(MARKS)] for n in numbers)
            found.append({"line": line, "prediction": joined_words(words)})
        return found

    def answer(self, examples: TextPairExamples, encoded: Encoded, outputs: Outputs) -> Answers:
        """predictions.jsonl: for every pair its line, its source, its target and its translation."""
        scores, written = judged(BleuAndChrf(), examples, self.records(examples, encoded, outputs))
        return scores, {"predictions.jsonl": written}

    def official(self, records: Iterable[Record]) -> Iterator[str]:
        """The translations alone, one a line."""
        return (record["prediction"] + "\n" for record in records)

    def multiplications(self, config: CvtConfig, batch: dict[str, jax.ShapeDtypeStruct]) -> tuple[int, int, int]:
        """Multiplications for targets, for translations by both views, and for all beams that write these."""
        length, size, source = batch["input_ids"].shape[1], config.projection_size, 2 * config.lstm_outputs[1]
        rows, targets = batch["decoder_input_ids"].shape
        lstm = GATES * size * (config.word_dim + size)
        own = size * source + 2 * length * source + (source + size) * size + self._target_count * size
        words = rows * batch["example_ids"].shape[1] * self.max_new_tokens
        return rows * targets * (lstm + own), words * (lstm + len(self.views) * own), words * self.beams * (lstm + own)


@dataclasses.dataclass(frozen=True)
class Translator:
    """The primary decoder as a decoding loop sees it (plmjax.generation.decoder.Decoder).

    modules: of the task. sentences: K, those of a row; its translations stand side by side, in their order.

    A state is the encoder's states, the segments of the rows, and the state of the LSTM.
    """

    modules: TaskModules
    sentences: int

    def prefill(
        self, variables: Any, prompt: jax.Array, prompt_mask: jax.Array, source: Any, capacity: int
    ) -> tuple[jax.Array, Any]:
        """Reads the mark that begins a translation, int [R K, 1]."""
        size = self.modules.module.config.projection_size
        return self.decode_step(variables, prompt[:, 0], (*source, LstmState.zeros(len(prompt), size)))

    def decode_step(self, variables: Any, tokens: jax.Array, state: Any) -> tuple[jax.Array, Any]:
        """One word more of every translation."""
        states, segment_ids, lstm = state
        words = tokens.reshape(len(segment_ids), -1)
        beams = words.shape[1] // self.sentences
        sentences = jnp.broadcast_to(jnp.repeat(jnp.arange(self.sentences) + 1, beams), words.shape)
        given = self.modules.task, states, segment_ids, sentences, words, lstm
        scores, lstm = self.modules.module.apply(variables, *given, method="write")
        return scores.reshape(len(tokens), -1), (states, segment_ids, lstm)

    def take_rows(self, state: Any, indices: jax.Array) -> Any:
        """The LSTM's state of other translations of the same sentences, beside the same source."""
        *source, lstm = state
        return *source, jax.tree.map(lambda leaf: leaf[indices], lstm)


def split(text: str) -> list[str]:
    """Words and punctuation marks, as BERT and the tokenizers of words split them."""
    from tokenizers.pre_tokenizers import BertPreTokenizer

    return [word for word, _ in BertPreTokenizer().pre_tokenize_str(text)]


def joined_words(words: Iterable[str]) -> str:
    """A text of words and punctuation marks, as the tokenizers of words write it."""
    from tokenizers.decoders import WordPiece

    return WordPiece(prefix="\0").decode(list(words))
