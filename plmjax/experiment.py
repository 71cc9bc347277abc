"""What an experiment is: frozen dataclasses that a file in experiments/ composes, one a function.

An experiment is plain data. It is written to the run directory as JSON, read back from there, compared with the one a
resume was asked for, and overridden field by field on the command line.
"""

import dataclasses
import importlib
import importlib.util
import json
import sys
import types
import typing
from pathlib import Path
from typing import Any

from plmjax.data.layouts import Layout
from plmjax.errors import UserError, nearest
from plmjax.objectives.objective import Objective


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """Which tokenizer a run uses: a folder that exists, or one to train on the run's own text."""

    path: str = ""
    """A tokenizer folder or published vocabulary; empty trains one on the input text."""
    kind: str = "wordpiece"
    """wordpiece, byte-bpe, bpe, sentencepiece-unigram, sentencepiece-bpe, word or char."""
    vocab_size: int = 8192
    """Tokens of a tokenizer that is trained, special ones included."""
    lowercase: bool = True
    """Lower-case and strip accents (BERT's uncased normalisation)."""


@dataclasses.dataclass(frozen=True)
class Data:
    """The text of a run and how rows are cut from it."""

    layout: Layout
    """How a row is laid out: sentence pairs, blocks, streams."""
    path: str = ""
    """A prepared dataset; empty prepares WORKDIR/dataset from `input`."""
    input: tuple[str, ...] = ()
    """Files or folders of raw text; empty takes the documentation strings of the installed libraries."""
    format: str = "auto"
    """text, wikipedia-dump, wikiextractor, books, jsonl, tfds:NAME, or auto to recognise it."""
    language: str = "en"
    """Language of the sentence splitter: en or zh."""
    validation: float = 0.05
    """Share of the documents kept aside for evaluation when a dataset is prepared."""
    sequence_length: int = 128
    """Tokens in a row, special ones included."""


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """The update rule and its schedule."""

    name: str = "bert_adamw"
    """bert_adamw (as its authors': no bias correction), adamw (textbook), lamb."""
    learning_rate: float = 1e-4
    """Peak learning rate."""
    schedule: str = "linear"
    """linear, constant, cosine, inverse_square_root or slanted_triangular, after the warm-up."""
    warmup_steps: int = 0
    """Steps of linear warm-up."""
    weight_decay: float = 0.01
    """Decoupled weight decay, times the learning rate."""
    beta1: float = 0.9
    """Decay of the first moment."""
    beta2: float = 0.999
    """Decay of the second moment."""
    epsilon: float = 1e-6
    """Added to the root of the second moment."""
    clip_norm: float = 1.0
    """Largest global norm of the gradient; 0 clips nothing."""
    decay_exclude: tuple[str, ...] = ("layer_norm", "bias")
    """Parameters whose path holds one of these words are not decayed."""
    frozen: tuple[str, ...] = ()
    """Parameters whose path begins with one of these names are not trained."""


@dataclasses.dataclass(frozen=True)
class Training:
    """Length, size and rhythm of a run, and how its step is computed."""

    steps: int = 1000
    """Optimizer steps of the whole run."""
    batch_size: int = 32
    """Rows of one optimizer step over all devices and microbatches."""
    accumulation: int = 1
    """Microbatches of one optimizer step; the gradient is that of the whole batch."""
    seed: int = 0
    """Everything random follows from it and the step."""
    log_every: int = 10
    """Steps between two logged lines."""
    evaluate_every: int = 0
    """Steps between two evaluations; 0 evaluates at the end only."""
    evaluation_batches: int = 0
    """Batches of one evaluation; 0 takes all of the held-out rows."""
    dtype: str = "auto"
    """float32, bfloat16, or auto: bfloat16 on TPU and GPU, float32 on CPU."""
    unroll: int = 0
    """Layers unrolled per trip of the loop over layers; 0 is all of them on CPU and one elsewhere."""
    remat: str = "none"
    """What the backward pass keeps of a layer: none, full, dots, dots_without_batch."""
    dropout_generator: str = "auto"
    """Random bits of dropout: threefry2x32, rbg, or auto: rbg on TPU, threefry2x32 elsewhere."""
    platform: str = "auto"
    """cpu, gpu, tpu, or auto for what JAX finds; asking for an absent one is an error."""
    profile_steps: tuple[int, ...] = ()
    """First and last step of a profile written to WORKDIR/profile; empty profiles nothing."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """When the state is saved and what is kept."""

    every: int = 1000
    """Steps between two checkpoints that are kept."""
    keep: int = 3
    """Newest of them that are kept; 0 keeps all."""
    minutes: float = 10.0
    """Minutes between two temporary checkpoints, each replaced by the next; 0 makes none."""
    best: str = ""
    """A metric, such as eval/loss, whose best checkpoint is kept as well; a leading - means larger is better."""


@dataclasses.dataclass(frozen=True)
class Mesh:
    """Devices along each axis; 0 for `data` takes what the other axes leave."""

    data: int = 0
    """Copies of the model that share the batch."""
    fsdp: int = 1
    """Pieces the parameters are cut into, gathered layer by layer; they share the batch too."""
    tensor: int = 1
    """Pieces heads, feed-forward and vocabulary are cut into."""
    zero: bool = True
    """Shard the optimizer state over `data` (ZeRO stage 1)."""


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


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A whole run, as data."""

    model: Any
    """The model's config."""
    objective: Objective
    """The pretraining task."""
    data: Data
    tokenizer: Tokenizer = Tokenizer()
    optimizer: Optimizer = Optimizer()
    training: Training = Training()
    checkpoint: Checkpoint = Checkpoint()
    mesh: Mesh = Mesh()
    phases: tuple[Phase, ...] = ()
    """Parts of the run that differ, such as length 128 and then 512; empty for a run of one piece."""
