"""The settings of a run: frozen dataclasses, one for each group of options."""

import dataclasses
import functools
import re
from typing import Any

import numpy as np

from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.settings import (
    CompressionSettings,
    DataSettings,
    GenerationSettings,
    UpdateRule,
    VectorSettings,
)
from plmjax.data import remote
from plmjax.data.layouts import Layout
from plmjax.data.mixing import Mixture
from plmjax.data.unknown_tokens import MAX_UNKNOWN
from plmjax.errors import FRACTION, FROM_0, FROM_1, UserError, check_choice, check_ranges, quoted
from plmjax.experiment.phases import Phase, ResolvedPhase, resolve
from plmjax.objectives.objective import Objective

PLATFORMS = ("auto", "cpu", "gpu", "tpu")

PREFERENCES = ("last", "best")
RINGS = ("auto", "on", "off")
KERNELS = ("auto", "off")


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """The tokenizer of a run: an existing folder, or one to train on the text of the run."""

    path: str = ""
    """A tokenizer folder or published vocabulary; empty trains one on the input text."""
    kind: str = "wordpiece"
    """wordpiece, byte-bpe, gpt2-bpe, bpe, sentencepiece-unigram, sentencepiece-bpe, t5-unigram, xlnet-unigram, word,
    char, whitespace or byte.
    """
    vocab_size: int = 8192
    """Number of tokens of a tokenizer to train, including special tokens."""
    lowercase: bool | None = None
    """Lower-case the text; wordpiece, bpe and word also strip the accents of Latin, Greek and Cyrillic. None does so
    except for byte-bpe, gpt2-bpe, t5-unigram, xlnet-unigram, whitespace and byte.
    """


@dataclasses.dataclass(frozen=True)
class Data:
    """The text of a run, and the layout of its rows."""

    layout: Layout | None
    """Layout of a row: sentence pairs, full sentences, blocks, streams; None takes that of the run in --from."""
    path: str = ""
    """A prepared dataset; empty prepares WORKDIR/dataset from `input`."""
    mixture: Mixture = Mixture()
    """Several prepared datasets in place of `path` and `input`."""
    input: tuple[str, ...] = ()
    """Files or folders of raw text."""
    format: str = "auto"
    """text, lines, wikipedia-dump, wikiextractor, books, jsonl, tsv, parquet, arrow, wet, tfds:NAME, or auto to
    recognise it; enwik8, text8, wikitext-103 and wikitext-2 are published corpora with splits of their own;
    documentation takes the documentation strings of the installed libraries until `input` or `path` names text.
    """
    text_key: str = "text"
    """Key of the text in a JSON object, a row of a table, Parquet or Arrow file, or an example of TFDS."""
    streams: tuple[str, ...] = ()
    """Several texts of every document, each as NAME=KEY, such as source=en target=de; empty for one text, that of
    `text_key`.
    """
    language: str = "en"
    """Language of the sentence splitter: en, zh, de, fr, ru, ja, ... (docs/data.md lists them)."""
    held_out: float = 0.05
    """Fraction of the documents to hold out for evaluation when a dataset is prepared; a published corpus has its own
    held-out text.
    """
    max_unknown: float = MAX_UNKNOWN
    """Maximum fraction of unknown tokens. A higher fraction is an error: the tokenizer does not fit the text."""
    clean: tuple[str, ...] = ()
    """Rules that drop or change documents, in their order: c4, fineweb, gopher or single rules (docs/data.md lists
    them).
    """
    bad_words: str = ""
    """File with a word or a phrase per line, for the rule c4_bad_words."""
    special_names: tuple[str, ...] = ()
    """Names of special tokens, such as <|endoftext|>, that are read as these tokens where the raw text has them; other
    names are plain text.
    """
    sequence_length: int = 128
    """Number of tokens in a row, including special tokens."""
    cache_limit: str = ""
    """Bytes that a dataset in a bucket may take on the disk of a host, such as 10GB; each one, in a mixture. A larger
    dataset is read in pieces during training, in an order of two levels (docs/data.md). Empty copies every dataset
    whole.
    """
    shuffle_window: int = 16
    """Number of pieces whose rows are shuffled together, of a dataset that is read in pieces."""

    def __post_init__(self) -> None:
        if "" in self.input:
            raise UserError("Expected --data.input to name files or folders, found an empty name; leave it out.")
        check_ranges("data", self, held_out=FRACTION, max_unknown=FROM_0, sequence_length=FROM_1, shuffle_window=FROM_1)
        if self.cache_bytes is not None and self.layout is not None:
            remote.check_layout(self.layout)

    @property
    def cache_bytes(self) -> int | None:
        """Bytes that a dataset in a bucket may take on the disk; None for no limit."""
        return remote.parse_bytes("--data.cache_limit", self.cache_limit) if self.cache_limit else None

    def tokens(self, batch_size: int, sequence_length: int) -> int:
        """Return the number of tokens of one global batch."""
        return self.layout.tokens(batch_size, sequence_length)


@dataclasses.dataclass(frozen=True)
class Training:
    """Length, batch size, logging and evaluation of a run, and the execution of its step."""

    steps: int = 1000
    """Number of optimizer steps of the whole run; 0 takes those of `tokens`, of the phases, or of
    `finetuning.epochs`.
    """
    tokens: float = dataclasses.field(default=0.0, kw_only=True)
    """Number of tokens of the whole run, in place of `steps`; the nearest number of steps is taken. 0 takes `steps`."""
    batch_size: int = 32
    """Number of rows of one optimizer step, over all devices and microbatches."""
    accumulation: int = 1
    """Number of microbatches of one optimizer step; the gradient is that of the whole batch."""
    seed: int = 0
    """Seed of all random numbers."""
    log_every: int = 10
    """Number of steps between two logged lines."""
    evaluate_every: int = 0
    """Number of steps between two evaluations; 0 evaluates at the end only."""
    evaluation_batches: int = 0
    """Number of batches of one evaluation; 0 takes all held-out rows."""
    evaluation_batch_size: int = 0
    """Number of rows of an evaluation batch, over all devices; 0 takes that of a training batch."""
    evaluation_sequence_length: int = 0
    """Number of tokens of an evaluation row; 0 takes that of a training row."""
    patience: int = 0
    """Number of evaluations without a better checkpoint.best after which a run ends; 0 never ends early."""
    dtype: str = "auto"
    """float32, bfloat16, or auto: bfloat16 on TPU and GPU, float32 on CPU."""
    unroll: int = 0
    """Layers unrolled per iteration of the loop over layers; 0 unrolls all on CPU and one elsewhere."""
    remat: str = "none"
    """Activations of a layer that are stored for the backward pass: none, full, dots, dots_without_batch."""
    attention: str = "dense"
    """Backend of attention: dense; blockwise, whose memory grows linearly with the length of a row; or cudnn, the fused
    kernel of NVIDIA GPUs, for bfloat16 and no dropout of attention, which is dense in evaluations on other devices.
    """
    matmul_precision: str = "float"
    """Precision of the matrix products of attention and feed-forward networks: float; int8_dynamic or int8_static in a
    run that plmjax compress quantize made.
    """
    gradient_dtype: str = "float32"
    """Dtype of gradients in the sum over devices: float32, or bfloat16 for half the bytes. Gradients of matrices have
    the dtype of the products if that is smaller; along rings, gradients of embedding tables too.
    """
    dropout_prng: str = "auto"
    """Random number generator of dropout: threefry2x32, the same on every mesh; rbg, the fast generator of the chip,
    with which each device draws numbers for its own rows; or auto: rbg on TPU, threefry2x32 elsewhere.
    """
    platform: str = "auto"
    """cpu, gpu, tpu, or auto for JAX's default; it is an error if the machine lacks the platform."""
    rings: str = "auto"
    """Rings of devices along which parameters and gradients travel beside computation: auto for slices on which plans
    are faster with them (v5e and v6e); off leaves them to the compiler; on is an error where the step of several
    devices cannot have them.
    """
    kernels: str = "auto"
    """Own kernels of Pallas: auto for TPUs on which plans are faster with them; off computes with XLA alone."""
    compiler_options: tuple[str, ...] = ()
    """Further options NAME=VALUE for the compiler of the train step, such as xla_tpu_scoped_vmem_limit_kib=16384.
    NAME= with nothing after it leaves out an option that plmjax sets.
    """
    profile_steps: tuple[int, ...] = ()
    """First and last step of a profile, which is written to WORKDIR/profile; empty for no profile."""

    def __post_init__(self) -> None:
        """Check the settings. JAX uses only the lowest 32 bits of a seed, so larger seeds could be equal to others."""
        if not 0 <= self.seed < 2**32:
            raise UserError(f"Expected --training.seed from 0 to {2**32 - 1}, found {self.seed}; change it.")
        evaluation = ("evaluate_every", "evaluation_batches", "evaluation_batch_size", "evaluation_sequence_length")
        least_0 = (*evaluation, "steps", "tokens", "patience", "unroll")
        least_1 = ("batch_size", "accumulation", "log_every")
        check_ranges("training", self, **dict.fromkeys(least_0, FROM_0), **dict.fromkeys(least_1, FROM_1))
        check_choice("--training.platform", self.platform, PLATFORMS)
        check_choice("--training.rings", self.rings, RINGS)
        check_choice("--training.kernels", self.kernels, KERNELS)
        for option in self.compiler_options:
            if not re.fullmatch(r"\w+=.*", option):
                raise UserError(
                    f"Expected NAME=VALUE in --training.compiler_options, found {quoted(option)}; write "
                    f"xla_tpu_scoped_vmem_limit_kib=16384 or another option of XLA."
                )
        profiled = self.profile_steps
        if profiled and (len(profiled) > 2 or not 1 <= profiled[0] <= profiled[-1]):
            raise UserError(
                f"Expected --training.profile_steps to be a first and a last step from 1 on, found "
                f"{' '.join(map(str, profiled))}; change them."
            )


@dataclasses.dataclass(frozen=True)
class Finetuning:
    """Length, evaluations and unfreezing of a fine-tuning, in epochs of the task's train file; its dropout."""

    epochs: float = 0.0
    """Number of passes over the train file, which sets training.steps; 0 does not set it."""
    warmup: float = 0.0
    """Fraction of the steps with warm-up, which sets optimizer.schedule.warmup_steps; 0 does not set it."""
    evaluations: float = 0.0
    """Number of evaluations per epoch, each with a checkpoint; 0 does not set training.evaluate_every."""
    unfreeze: float = 0.0
    """Number of epochs after which one more group of parameters is trained, from the head down, which sets
    optimizer.unfreeze_every; 0 does not set it.
    """
    dropout: float | None = None
    """Dropout within the encoder, of hidden states and of attention; None keeps that of pretraining."""

    def __post_init__(self) -> None:
        check_ranges("finetuning", self, epochs=FROM_0, warmup=FRACTION, evaluations=FROM_0, unfreeze=FROM_0)
        if self.dropout is not None:
            check_ranges("finetuning", self, dropout=FRACTION)


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Intervals between checkpoints, and the checkpoints to keep."""

    every: int = 1000
    """Number of steps between two permanent checkpoints; 0 saves one at the end only."""
    keep: int = 3
    """Number of permanent checkpoints to keep, the newest ones; 0 keeps all."""
    minutes: float = 10.0
    """Minutes between two temporary checkpoints, each replaced by the next; 0 saves none."""
    best: str = ""
    """A metric, such as eval/loss, whose best checkpoint is kept too; a leading - means larger is better."""
    prefer: str = "last"
    """last or best: the checkpoint of the run that is evaluated, exported or fine-tuned."""

    def __post_init__(self) -> None:
        check_ranges("checkpoint", self, every=FROM_0, keep=FROM_0, minutes=FROM_0)
        check_choice("--checkpoint.prefer", self.prefer, PREFERENCES)


@dataclasses.dataclass(frozen=True)
class Mesh:
    """Number of devices along each axis; 0 chooses it for the model and the slice, and prints the reason."""

    data: int = 0
    """Number of copies of the model that share the batch; 0 chooses it."""
    fsdp: int = 0
    """Number of shards of the parameters, gathered layer by layer, which share the batch too; 0 chooses it."""
    tensor: int = 0
    """Number of shards of heads, feed-forward and vocabulary; 0 chooses it."""
    zero: bool = True
    """Shard parameters and optimizer state over `data`; a step gathers a copy of the parameters once (ZeRO)."""

    def __post_init__(self) -> None:
        check_ranges("mesh", self, data=FROM_0, fsdp=FROM_0, tensor=FROM_0)


@dataclasses.dataclass(frozen=True)
class Hosts:
    """Time limits after which a run stops because a host is silent or makes no progress."""

    silent_seconds: float = 60.0
    """Seconds without a message from a host before the others stop; a host that dies is noticed at once."""
    stall_minutes: float = 10.0
    """Minutes that a step may take before the stack of every thread is printed and the run stops, to be started again;
    0 never stops it.
    """
    activity_minutes: float = 60.0
    """Minutes that any other activity may take before the run stops in the same way: the start, a restore, a
    compilation, the first batch, a batch of an evaluation, an export; 0 never stops it.
    """

    def __post_init__(self) -> None:
        check_ranges("hosts", self, silent_seconds=FROM_0, stall_minutes=FROM_0, activity_minutes=FROM_0)


@dataclasses.dataclass(frozen=True)
class Tracking:
    """Services that a run reports to, in addition to its own folder."""

    wandb: str = ""
    """Weights & Biases: PROJECT or ENTITY/PROJECT that receives the records of metrics.jsonl; empty sends nothing."""


@dataclasses.dataclass(frozen=True)
class WeightMapping:
    """A mapping of the parameters of a checkpoint (`--from`) to those of the run. The base class changes nothing.

    A subclass maps them to another depth, length or system, by taking every second layer, repeating positions or
    renaming an encoder.
    """

    def model(self, origin: Any) -> Any:
        """Return the model config of the run for the model config of the checkpoint."""
        return origin

    def map(self, params: dict[str, np.ndarray], origin: Any, model: Any) -> dict[str, np.ndarray]:
        """Return the parameters of the run, a dict by path (`bert/encoder/layers/attention/query/kernel`).

        params: parameters of the checkpoint by path. origin, model: configs of the checkpoint's model and of the run's.
        The result may lack parameters of heads; they are sampled from the seed.
        """
        return params

    def is_sampled(self, parameter: str) -> bool:
        """Return whether a parameter outside of the heads is sampled from the seed if `map` does not return it."""
        return False


@dataclasses.dataclass(frozen=True)
class Experiment:
    """All settings of a run."""

    model: ModelConfig | None
    """The model's config; None takes that of the checkpoint in --from."""
    objective: Objective | None
    """The objective; None takes that of the run that --from names."""
    data: DataSettings
    """The source of rows: `Data` for pretraining, a task of plmjax.finetuning for fine-tuning."""
    tokenizer: Tokenizer = Tokenizer()
    optimizer: UpdateRule | None = None
    """The update rule, of plmjax.training.optimizers; None if nothing is trained, as for an imported model.
    --optimizer NAME takes another rule: adafactor, adagrad, adamw, bert_adamw, glove_adagrad, lamb, muon, sgd or
    stable_adamw.
    """
    training: Training = Training()
    finetuning: Finetuning | None = None
    """`Finetuning` if the data is a task; None for pretraining."""
    weight_mapping: WeightMapping = WeightMapping()
    """The mapping of the parameters of the checkpoint in --from to those of the run."""
    checkpoint: Checkpoint = Checkpoint()
    mesh: Mesh = Mesh()
    hosts: Hosts = Hosts()
    tracking: Tracking = Tracking()
    phases: tuple[Phase, ...] = ()
    """Phases with different settings, such as length 128 and then 512; empty for a run of one phase."""
    generation: GenerationSettings | None = None
    """Settings of generation that neither the task nor an option sets, such as those of an imported model:
    plmjax.generation.options.Generation. None sets nothing.
    """
    text_vectors: VectorSettings | None = None
    """The recipe for the vectors of texts, such as that of an imported model: plmjax.layers.text_vectors.TextVectors.
    None takes the mean over the tokens.
    """
    compression: CompressionSettings | None = None
    """The way to compress the model while it is trained, of plmjax.compression; None trains it as it is."""

    @functools.cached_property
    def resolved_phases(self) -> tuple[ResolvedPhase, ...]:
        """The phases with a value for every setting; one phase for the complete run if the experiment names none.

        Raises:
            UserError: the lengths of the phases do not fit each other, or a phase has no step.
        """
        return resolve(self.phases, self.training, self.data)

    def phase_at(self, step: int) -> ResolvedPhase:
        """Return the phase of a step; steps are counted from 1."""
        return next((phase for phase in self.resolved_phases if step <= phase.last_step), self.resolved_phases[-1])

    @property
    def training_objective(self) -> Objective:
        """The objective of the train step: `objective`, modified by `compression`."""
        if self.compression is None:
            return self.objective
        return self.compression.training_objective(self.objective, self.training.steps)

    @property
    def evaluation_objective(self) -> Objective:
        """The objective of the evaluations: `objective.in_evaluation()`, modified by `compression`."""
        objective = self.objective.in_evaluation()
        if self.compression is None:
            return objective
        return self.compression.evaluation_objective(objective, self.training.steps)
