"""The settings of a run: frozen dataclasses, one a group of options."""

import dataclasses
from typing import Any

import numpy as np

from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.settings import DataSettings, GenerationSettings, UpdateRule
from plmjax.data.layouts import Layout
from plmjax.data.unknown_tokens import MAX_UNKNOWN
from plmjax.errors import FROM_0, FROM_1, SHARE, UserError, check_choice, check_ranges
from plmjax.objectives.objective import Objective

PLATFORMS = ("auto", "cpu", "gpu", "tpu")

PREFERENCES = ("last", "best")


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """The tokenizer of a run: a folder that exists, or one to train on the run's own text."""

    path: str = ""
    """A tokenizer folder or published vocabulary; empty trains one on the input text."""
    kind: str = "wordpiece"
    """wordpiece, byte-bpe, gpt2-bpe, bpe, sentencepiece-unigram, sentencepiece-bpe, t5-unigram, word or char."""
    vocab_size: int = 8192
    """Tokens of a tokenizer that is trained, special ones included."""
    lowercase: bool | None = None
    """Lower-case the text; wordpiece, bpe and word strip accents too. None does so but for byte-bpe, gpt2-bpe and
    t5-unigram."""


@dataclasses.dataclass(frozen=True)
class Data:
    """The text of a run and how rows are cut from it."""

    layout: Layout | None
    """Layout of a row: sentence pairs, full sentences, blocks, streams; None: as in the run that --from names."""
    path: str = ""
    """A prepared dataset; empty prepares WORKDIR/dataset from `input`."""
    input: tuple[str, ...] = ()
    """Files or folders of raw text."""
    format: str = "auto"
    """text, lines, wikipedia-dump, wikiextractor, books, jsonl, tsv, parquet, tfds:NAME, or auto to recognise it;
    documentation takes the documentation strings of the installed libraries until `input` or `path` names text."""
    text_key: str = "text"
    """Field of the text in a JSON object, a row of a table or a Parquet file, or an example of TFDS."""
    streams: tuple[str, ...] = ()
    """Several texts of every document, each as NAME=KEY, such as source=en target=de; empty is one, of `text_key`."""
    language: str = "en"
    """Language of the sentence splitter: en, zh, de, fr, ru, ja, ... (docs/data.md lists them)."""
    held_out: float = 0.05
    """Share of the documents that is held out for evaluation when a dataset is prepared."""
    max_unknown: float = MAX_UNKNOWN
    """Largest share of unknown tokens; with more, the tokenizer does not fit the text, which is refused."""
    sequence_length: int = 128
    """Tokens in a row, special ones included."""

    def __post_init__(self) -> None:
        """Checks the numbers and the names."""
        if "" in self.input:
            raise UserError("Expected --data.input to name files or folders, found an empty name; leave it out.")
        check_ranges("data", self, held_out=SHARE, max_unknown=FROM_0, sequence_length=FROM_1)

    def tokens(self, batch_size: int, sequence_length: int) -> int:
        """Tokens of one global batch."""
        return self.layout.tokens(batch_size, sequence_length)


@dataclasses.dataclass(frozen=True)
class Training:
    """Length, batch size, logging and evaluation of a run, and how its step is computed."""

    steps: int = 1000
    """Optimizer steps of the whole run."""
    batch_size: int = 32
    """Rows of one optimizer step over all devices and microbatches."""
    accumulation: int = 1
    """Microbatches of one optimizer step; the gradient is that of the whole batch."""
    seed: int = 0
    """Seed of everything random."""
    log_every: int = 10
    """Steps between two logged lines."""
    evaluate_every: int = 0
    """Steps between two evaluations; 0 evaluates at the end only."""
    evaluation_batches: int = 0
    """Batches of one evaluation; 0 takes all of the held-out rows."""
    evaluation_batch_size: int = 0
    """Rows of an evaluation's batch over all devices; 0 is those of a training batch."""
    evaluation_sequence_length: int = 0
    """Tokens of a row of an evaluation; 0 is those of a training row."""
    patience: int = 0
    """Evaluations without a better checkpoint.best after which a run ends; 0 never ends early."""
    dtype: str = "auto"
    """float32, bfloat16, or auto: bfloat16 on TPU and GPU, float32 on CPU."""
    unroll: int = 0
    """Layers unrolled per trip of the loop over layers; 0 is all of them on CPU and one elsewhere."""
    remat: str = "none"
    """Activations of a layer that are stored for the backward pass: none, full, dots, dots_without_batch."""
    attention: str = "dense"
    """Backend of attention: dense, or blockwise in memory that grows with the row's length, not its square."""
    gradient_dtype: str = "float32"
    """Dtype of gradients as they are summed over devices: float32, or bfloat16 to halve the bytes. Those of matrices
    are in the dtype of the products anyway, unless there are microbatches."""
    dropout_generator: str = "auto"
    """Random bits of dropout: threefry2x32, the same on every mesh; rbg, the chip's own and much cheaper, which each
    device draws for its rows; or auto: rbg on TPU, threefry2x32 elsewhere."""
    platform: str = "auto"
    """cpu, gpu, tpu, or auto for what JAX finds; asking for an absent one is an error."""
    profile_steps: tuple[int, ...] = ()
    """First and last step of a profile written to WORKDIR/profile; empty profiles nothing."""

    def __post_init__(self) -> None:
        """Checks the numbers. JAX would drop the bits of a seed beyond 32, so that two seeds would be equal."""
        if not 0 <= self.seed < 2**32:
            raise UserError(f"Expected --training.seed from 0 to {2**32 - 1}, found {self.seed}; change it.")
        evaluation = ("evaluate_every", "evaluation_batches", "evaluation_batch_size", "evaluation_sequence_length")
        least_0 = (*evaluation, "steps", "patience", "unroll")
        least_1 = ("batch_size", "accumulation", "log_every")
        check_ranges("training", self, **dict.fromkeys(least_0, FROM_0), **dict.fromkeys(least_1, FROM_1))
        check_choice("--training.platform", self.platform, PLATFORMS)
        profiled = self.profile_steps
        if profiled and (len(profiled) > 2 or not 1 <= profiled[0] <= profiled[-1]):
            raise UserError(
                f"Expected --training.profile_steps to be a first and a last step from 1 on, found "
                f"{' '.join(map(str, profiled))}; change them."
            )


@dataclasses.dataclass(frozen=True)
class Finetuning:
    """The length, evaluations and unfreezing of a fine-tuning, in epochs of the task's train file; its dropout."""

    epochs: float = 0.0
    """Passes over the train file, resolved into training.steps; 0 leaves training.steps as it is."""
    warmup: float = 0.0
    """Share of the steps that warms up, resolved into optimizer.schedule.warmup_steps; 0 leaves that as it is."""
    evaluations: float = 0.0
    """Evaluations, each with a checkpoint, in an epoch; 0 leaves training.evaluate_every as it is."""
    unfreeze: float = 0.0
    """Epochs from which on each next group of parameters is trained, the head first, resolved into
    optimizer.unfreeze_every; 0 leaves that as it is."""
    dropout: float | None = None
    """Dropout within the encoder, of hidden states and of attention; None keeps what it was pretrained with."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        check_ranges("finetuning", self, epochs=FROM_0, warmup=SHARE, evaluations=FROM_0, unfreeze=FROM_0)
        if self.dropout is not None:
            check_ranges("finetuning", self, dropout=SHARE)


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """When the state is saved and which checkpoints are kept."""

    every: int = 1000
    """Steps between two checkpoints that are kept."""
    keep: int = 3
    """Newest of them that are kept; 0 keeps all."""
    minutes: float = 10.0
    """Minutes between two temporary checkpoints, each replaced by the next; 0 makes none."""
    best: str = ""
    """A metric, such as eval/loss, whose best checkpoint is kept as well; a leading - means larger is better."""
    prefer: str = "last"
    """last or best: the checkpoint of the run that is evaluated, exported or fine-tuned."""

    def __post_init__(self) -> None:
        """Checks the numbers and the preference."""
        check_ranges("checkpoint", self, every=FROM_0, keep=FROM_0, minutes=FROM_0)
        check_choice("--checkpoint.prefer", self.prefer, PREFERENCES)


@dataclasses.dataclass(frozen=True)
class Mesh:
    """Devices along each axis; 0 chooses a size for the model and the slice, and prints the reason."""

    data: int = 0
    """Copies of the model that share the batch."""
    fsdp: int = 0
    """Shards of the parameters, gathered layer by layer; they share the batch too."""
    tensor: int = 0
    """Shards of heads, feed-forward and vocabulary."""
    zero: bool = True
    """Divide parameters and optimizer state over `data`; a step gathers a copy of the parameters once (ZeRO)."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        check_ranges("mesh", self, data=FROM_0, fsdp=FROM_0, tensor=FROM_0)


@dataclasses.dataclass(frozen=True)
class Hosts:
    """When the hosts of a run stop because of another host."""

    silent_seconds: float = 60.0
    """Seconds without a message of a host before the others stop; a host that dies is noticed at once."""
    stall_minutes: float = 10.0
    """Minutes without a step before every thread's stack is printed and, on several hosts, the run stops; 0: never."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        check_ranges("hosts", self, silent_seconds=FROM_0, stall_minutes=FROM_0)


@dataclasses.dataclass(frozen=True)
class Tracking:
    """Services that a run reports to besides its own folder."""

    wandb: str = ""
    """Weights & Biases: PROJECT or ENTITY/PROJECT that gets the records of metrics.jsonl; empty sends nothing."""


@dataclasses.dataclass(frozen=True)
class Phase:
    """A part of a run with settings of its own; empty ones keep the experiment's."""

    fraction: float
    """Share of the run's steps."""
    sequence_length: int = 0
    """Tokens in a row."""
    batch_size: int = 0
    """Rows of one optimizer step."""
    accumulation: int = 0
    """Microbatches of one optimizer step."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        check_ranges("phases.N", self, sequence_length=FROM_0, batch_size=FROM_0, accumulation=FROM_0)


@dataclasses.dataclass(frozen=True)
class Start:
    """The mapping of a checkpoint's parameters (`--from`) to those of the run; this class changes nothing.

    A subclass maps them to another depth, length or system: every other layer, positions repeated, a body renamed.
    """

    def model(self, origin: Any) -> Any:
        """The config of the run's model, from that of the checkpoint."""
        return origin

    def map(self, params: dict[str, np.ndarray], origin: Any, model: Any) -> dict[str, np.ndarray]:
        """The run's parameters by path (`bert/encoder/layers/attention/query/kernel`), from the checkpoint's.

        origin, model: configs of the checkpoint's model and of the run's. Parameters of heads may be left out; they are
        drawn from the seed.
        """
        return params

    def draws(self, parameter: str) -> bool:
        """Return whether a parameter outside of the heads is drawn from the seed if the checkpoint has none."""
        return False


@dataclasses.dataclass(frozen=True)
class Experiment:
    """All settings of a run."""

    model: ModelConfig | None
    """The model's config; None: that of the checkpoint in --from."""
    objective: Objective | None
    """The task; None: that of the run that --from names."""
    data: DataSettings
    """The source of rows: `Data` for pretraining, a task of plmjax.finetuning for fine-tuning."""
    tokenizer: Tokenizer = Tokenizer()
    optimizer: UpdateRule | None = None
    """The update rule, of plmjax.training.optimizers; None where nothing is trained, as for an imported model.
    --optimizer NAME takes another rule: adafactor, adagrad, adamw, bert_adamw, glove_adagrad, lamb or sgd."""
    training: Training = Training()
    finetuning: Finetuning | None = None
    """`Finetuning` where the data is a task; None for pretraining."""
    start: Start = Start()
    """The mapping of the parameters of the checkpoint in --from to those of the run."""
    checkpoint: Checkpoint = Checkpoint()
    mesh: Mesh = Mesh()
    hosts: Hosts = Hosts()
    tracking: Tracking = Tracking()
    phases: tuple[Phase, ...] = ()
    """Parts of the run with different settings, such as length 128 and then 512; empty for a run of one part."""
    generation: GenerationSettings | None = None
    """Settings of generation where neither the task nor an option has any, such as those of an imported model:
    plmjax.generation.options.Generation. None leaves all open."""
