"""Texts that are written given others: translation, summaries, answers in words.

An encoder-decoder reads the source, laid out as its template says, and its decoder writes the target after the model's
start token; both are a row of their own. In a batch the decoder's tokens are `decoder_input_ids`, `decoder_segment_ids`
and `decoder_positions`. A decoder alone reads both in one row,

    start source delimiter target

and learns the target and the end alone. What is asked for after each token stands in `next_ids` and `next_weights`, as
in pretraining (objectives/sequence_to_sequence.py, objectives/next_token.py).

Texts of a validation file are written by the beam search of plmjax/generation, and judged by the libraries that people
quote.
"""

import dataclasses
import itertools
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.scores import TokenScores
from plmjax.contracts.system import Kind, Purpose
from plmjax.contracts.template import Template
from plmjax.errors import UserError, options_named
from plmjax.finetuning.batches.encoded import Encoded
from plmjax.finetuning.metrics.judges import BleuAndChrf, Judge, Rouge
from plmjax.finetuning.tasks.task import Answers, Outputs, Record, Task, TaskObjective
from plmjax.finetuning.tasks.text_pairs import TextPairExamples, TextPairs
from plmjax.generation.options import Decoding, in_words
from plmjax.generation.writer import Settings, settings_of
from plmjax.objectives.capabilities import WritesTexts
from plmjax.objectives.objective import Batch, LossInputs, LossSums, apply
from plmjax.objectives.sequence_to_sequence import INPUTS, SequenceToSequence
from plmjax.vocabulary import Vocabulary

log = logging.getLogger(__name__)

PROMPTS = 32
"""Sources that are written after at once."""
LONGEST = 2**30
"""Tokens of a source at most where the model sets no limit."""

DEFAULTS = Decoding(
    beams=4, length_penalty=0.6, length_normalization="gnmt", early_stopping="likely", max_new_tokens=128
)
"""Settings of generation where neither the experiment nor the checkpoint has any."""
DECODER_ROW = Template("start A delimiter", "start A delimiter B document_end", "last")
"""The row of a decoder: what it writes after, and that with the target."""
WRITING = tuple(field.name for field in dataclasses.fields(Decoding))
"""Options of plmjax generate that a task has too."""


@dataclasses.dataclass(frozen=True)
class TextGeneration(Decoding, WritesTexts, TaskObjective):
    """Mean nats of each target token given the source and the target before it; base of the tasks that judge texts.

    Smoothing and z-loss are of the training loss alone (`SequenceToSequence`). The fields of `Decoding` say how texts
    are written. What they leave open is as the checkpoint says that the run starts from (`starting_from`), and then as
    `DEFAULTS` does.
    """

    task_class: ClassVar[type[Task]] = TextPairs
    purpose: ClassVar[Purpose] = Purpose.TEXT_TO_TEXT
    generates: ClassVar[bool] = True
    judge: ClassVar[Judge]
    """The metrics of the texts that were written; a field of objectives with one task."""
    prediction_settings: ClassVar[tuple[str, ...]] = WRITING

    label_smoothing: float = 0.0
    """Share of the probability that is asked for at the tokens that are not the target."""
    z_loss: float = 0.0
    """Factor of the square of each position's log of the sum of exponentials, 1e-4 for T5."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        self.check_rules("objective.")
        SequenceToSequence(self.label_smoothing, self.z_loss)
        self.writing()

    def starting_from(self, generation: Decoding | None) -> Self:
        """With the settings of a checkpoint for what is left open here; lengths that count prompts are left out."""
        return self.over(generation)

    def predicting(self, settings: Mapping[str, Any]) -> Self:
        """Other settings of how texts are written come before those that are there (`Decoding.over`)."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        kept = {name: value for name, value in fields.items() if name not in self.prediction_settings}
        return type(self)(**kept, **Decoding(**settings).over(self).given())

    def decoding(self) -> Decoding:
        """The settings with those of `DEFAULTS` for what is left open."""
        return Decoding(**self.given()).over(DEFAULTS)

    def writing(self) -> Settings:
        """The best text of a beam search, or another one if the options say so."""
        with options_named({f"--{name}": f"--objective.{name}" for name in WRITING}):
            return settings_of(self.decoding(), batch_size=PROMPTS)

    def prompts(self, texts: Sequence[str], tokenizer: Any, model: ModelConfig, task: TextPairs) -> list[list[int]]:
        """The prompts of a decoder, or the inputs of an encoder: sources as in training, the prefix before each.

        They may be as long as the model's positions allow, whatever the rows of the training were.
        """
        room = dataclasses.replace(task, sequence_length=model.longest or LONGEST)
        return self.encode(task.of_sources(texts), tokenizer, model, room).prompts()

    def module(self, config: Any, execution: Execution) -> nn.Module:
        """The module that writes text."""
        return config.module(Purpose.TEXT_TO_TEXT, execution)

    def check_model(self, config: ModelConfig) -> None:
        """Raises UserError for a model that has no positions for as much text.

        So it does for options of which one has no effect beside another.
        """
        decoding = self.decoding()
        if decoding.beams != 1:  # with one beam, the settings that an experiment has for its search wait for more
            decoding.check_effects("objective.")
        most = self.decoding().max_new_tokens
        if config.longest is not None and most >= config.longest:
            raise UserError(
                f"Expected --objective.max_new_tokens below the model's {config.longest} positions, found {most}; "
                f"lower it."
            )

    def encode(self, examples: TextPairExamples, tokenizer: Any, model: ModelConfig, task: TextPairs) -> Encoded:
        """A row of the source and one of the target for every pair, or for a decoder one of both."""
        apart = model.system.kind is Kind.ENCODER_DECODER
        if apart != (task.target_length > 0):
            kind, needed = ("an encoder-decoder", "above 0") if apart else ("a decoder", "0")
            raise UserError(
                f"Expected --data.target_length {needed} for {kind}, found {task.target_length}; change it."
            )
        sources = tokenizer.encode_batch(examples.sources)
        targets = tokenizer.encode_batch([target or "" for target in examples.targets])
        if apart:
            return self._two_rows(examples, sources, targets, tokenizer.vocabulary, model, task)
        return self._one_row(examples, sources, targets, tokenizer.vocabulary, model, task)

    def _two_rows(
        self,
        examples: TextPairExamples,
        sources: list[list[int]],
        targets: list[list[int]],
        vocabulary: Vocabulary,
        model: ModelConfig,
        task: TextPairs,
    ) -> Encoded:
        """The source as the model's template lays it out; the same of the target is what is asked for."""
        if model.longest is not None and task.target_length > model.longest:
            raise UserError(
                f"Expected --data.target_length of at most the model's {model.longest} positions, found "
                f"{task.target_length}; lower it."
            )
        template = model.template
        template.check(vocabulary)
        room = task.sequence_length - template.specials(1)
        sources = fitting(examples, sources, room, "source", "--data.sequence_length", cut=task.cut_sources)
        most = task.target_length - template.specials(1)
        targets = fitting(examples, targets, most, "target", "--data.target_length", cut=task.cut_targets)
        asked = [template.lay_out((target,), vocabulary).tokens for target in targets]
        given = [[model.decoder_start_token_id, *row[:-1]] for row in asked]
        decoder = encoded_rows(given, token_fields=next_tokens(asked, [0] * len(asked)))
        return dataclasses.replace(
            encoded_rows([template.lay_out((source,), vocabulary).tokens for source in sources]), decoder=decoder
        )

    def _one_row(
        self,
        examples: TextPairExamples,
        sources: list[list[int]],
        targets: list[list[int]],
        vocabulary: Vocabulary,
        model: ModelConfig,
        task: TextPairs,
    ) -> Encoded:
        """start source delimiter target, of which the target and the end are asked for.

        `max_new_tokens` places of a row are the target's, in training as when a text is written.
        """
        model.template.check(vocabulary)
        if DECODER_ROW.missing(vocabulary):
            raise UserError(
                "Expected a tokenizer with a start, a delimiter and an end token for a decoder that writes texts, "
                "found one without; fine-tune a GPT or a GPT-2 whose tokenizer has an end token."
            )
        new = self.decoding().max_new_tokens
        room = task.sequence_length - 2 - new
        sources = fitting(examples, sources, room, "source", "--data.sequence_length", cut=task.cut_sources)
        targets = fitting(examples, targets, new - 1, "target", "--objective.max_new_tokens", cut=task.cut_targets)
        rows = [DECODER_ROW.lay_out(texts, vocabulary).tokens for texts in zip(sources, targets, strict=True)]
        prompts = [len(source) + 1 for source in sources]
        fields = next_tokens([row[1:] for row in rows], prompts)
        encoded = encoded_rows([row[:-1] for row in rows], token_fields=fields)
        return dataclasses.replace(encoded, summaries=np.array(prompts, np.int32))

    def template(self, model: ModelConfig) -> Template:
        """As the model's; of a decoder, which writes the target in the row of its source, `DECODER_ROW`."""
        return model.template if model.system.kind is Kind.ENCODER_DECODER else DECODER_ROW

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        """The tokens of one row or of both, with their places in the packed pairs."""
        names = (*INPUTS, *(f"decoder_{name}" for name in INPUTS))
        return {name: batch[name] for name in names if name in batch}

    def loss_weights(self, batch: Batch) -> dict[str, jax.Array]:
        """1 for every token that is asked for, [R T]."""
        return {"target": batch["next_weights"]}

    def targets(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """The token after each."""
        return batch["next_ids"], batch["next_weights"]

    def sums(self, module: nn.Module, given: LossInputs, batch: Batch, key: jax.Array, *, training: bool) -> LossSums:
        """The loss of the targets; their nats, and how many of them are the likeliest."""
        scores = apply(self, module, given, batch, key, training=training).scores
        return self._sums(scores, batch, *((self.label_smoothing, self.z_loss) if training else (0.0, 0.0)))

    def sums_of(self, outputs: Any, batch: Batch) -> LossSums:
        """Nats of the targets."""
        return self._sums(outputs.scores, batch, 0.0, 0.0)

    def _sums(self, scores: TokenScores, batch: Batch, smoothing: float, z_loss: float) -> LossSums:
        ids, weights = self.targets(batch)
        loss, nats, likeliest = scores.smoothed_cross_entropy(ids, weights, smoothing=smoothing, z_loss=z_loss)
        count = jnp.sum(weights)
        found = {"nats": (jnp.sum(weights * nats), count), "accuracy": (jnp.sum(weights * likeliest), count)}
        return LossSums({"target": loss}, found)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The judge's."""
        return self.judge.names

    def signatures(self, task: Task) -> dict[str, str]:
        """The judge's; decoding, how the texts are written."""
        return self.judge.signatures() | {"decoding": in_words(self.decoding().given())}

    def records(self, examples: TextPairExamples, encoded: Encoded, outputs: Outputs) -> list[Record]:
        """line; prediction, the text that was written."""
        return [{"line": line, "prediction": text.strip()} for line, text in zip(examples.lines, outputs, strict=True)]

    def answer(self, examples: TextPairExamples, encoded: Encoded, outputs: Outputs) -> Answers:
        """predictions.jsonl: for every pair its line, its source, its target and what was written."""
        found, written = judged(self.judge, examples, self.records(examples, encoded, outputs))
        return found, {"predictions.jsonl": written}

    def official(self, records: Iterable[Record]) -> Iterator[str]:
        """The texts alone, one a line, as sacrebleu's command reads them."""
        return (" ".join(record["prediction"].split()) + "\n" for record in records)

    def train_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        """The model's, with a prediction at every position that writes."""
        rows, length = batch["input_ids"].shape
        return config.train_flops(rows, length, batch["next_ids"].shape[1])


@dataclasses.dataclass(frozen=True)
class Translation(TextGeneration):
    """Texts that are judged by BLEU and chrF."""

    judge: BleuAndChrf = BleuAndChrf()


@dataclasses.dataclass(frozen=True)
class Summarization(TextGeneration):
    """Texts that are judged by ROUGE."""

    judge: Rouge = Rouge()


def judged(judge: Judge, examples: TextPairExamples, records: list[Record]) -> tuple[dict[str, float], str]:
    """(the judge's metrics of what was written, a line of JSON for every pair: line, source, reference, prediction)."""
    lines = (
        {"line": record["line"], "source": source, "reference": target, "prediction": record["prediction"]}
        for source, target, record in zip(examples.sources, examples.targets, records, strict=True)
    )
    written = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    return judge.scores(examples.targets, [record["prediction"] for record in records]), written


def fitting(
    examples: TextPairExamples, texts: list[list[int]], most: int, side: str, option: str, *, cut: bool
) -> list[list[int]]:
    """Texts of at most so many tokens; with `cut` the others are cut at their end.

    side: which of a pair's texts these are. option: of the command line, that gives them more room.

    Raises:
        UserError: there is no room at all; or, without `cut`, a text is longer.
    """
    examples = examples.of_targets() if side == "target" else examples
    if most < 1:
        raise UserError(f"Expected room for a {side} of at least one token, found {most}; raise {option}.")
    longer = [number for number, text in enumerate(texts) if len(text) > most]
    if longer and not cut:
        first = longer[0]
        raise UserError(
            f"Expected a {side} of at most {most} tokens, found {len(texts[first])} in {examples.where(first)} and "
            f"{len(longer)} such {side}s in all; raise {option} or set --data.cut_{side}s True."
        )
    if longer:
        log.warning(
            "%d of %d %ss in %s are longer than %d tokens, the longest has %d, and are cut at their end.",
            len(longer), len(texts), side, examples.path, most, max(map(len, texts)),
        )  # fmt: skip
    return [text[:most] for text in texts]


def encoded_rows(rows: list[list[int]], token_fields: dict[str, np.ndarray] | None = None) -> Encoded:
    """Rows whose last token stands for them."""
    lengths = np.array([len(row) for row in rows])
    return Encoded(
        tokens=np.fromiter(itertools.chain.from_iterable(rows), np.int32, lengths.sum()),
        token_types=None,
        offsets=np.cumsum([0, *lengths]),
        summaries=(lengths - 1).astype(np.int32),
        sequence_fields={},
        token_fields=token_fields or {},
    )


def next_tokens(rows: list[list[int]], first: list[int]) -> dict[str, np.ndarray]:
    """next_ids, the tokens of rows; next_weights, 1 from the place `first` of each on."""
    weights = ([0.0] * place + [1.0] * (len(row) - place) for row, place in zip(rows, first, strict=True))
    count = sum(map(len, rows))
    return {
        "next_ids": np.fromiter(itertools.chain.from_iterable(rows), np.int32, count),
        "next_weights": np.fromiter(itertools.chain.from_iterable(weights), np.float32, count),
    }
