"""The commands of `plmjax compress`, which make smaller models from trained checkpoints."""

from typing import Annotated

from tyro.conf import Positional, arg

from plmjax.commands.arguments import Overrides
from plmjax.commands.command_line import Location
from plmjax.compression import factorization, sharing
from plmjax.compression.distillation import augmentation
from plmjax.compression.run import refuse_options

Checkpoint = Annotated[str, arg(metavar="CHECKPOINT")]


def factorize(
    checkpoint: Positional[Checkpoint],
    output: Location,
    *,
    rank: int | None = None,
    energy: float | None = None,
    overrides: Overrides = (),
) -> None:
    """Replace matrices by products of two smaller ones.

    Fine-tune the result with plmjax finetune --from.

    Args:
        checkpoint: Run directory or checkpoint of a BERT, RoBERTa, ALBERT, ELECTRA, DistilBERT, GPT or GPT-2.
        output: Run directory to write, with one checkpoint.
        rank: Rank of every product; a matrix stays whole if its product would have as many weights or more.
        energy: In place of --rank, the least fraction of the sum of squared singular values that every product keeps.
    """
    refuse_options(overrides, "plmjax compress factorize")
    print(factorization.factorize(checkpoint, output, rank, energy))


def share(checkpoint: Positional[Checkpoint], output: Location, groups: int = 1, overrides: Overrides = ()) -> None:
    """Give groups of layers the same parameters, as in ALBERT.

    The shared parameters of a group are the means over its layers. Train the result with plmjax finetune --from or
    plmjax pretrain --from.

    Args:
        checkpoint: Run directory or checkpoint of a BERT or an ALBERT.
        output: Run directory to write, with one checkpoint of an ALBERT.
        groups: Number of groups of layers; with as many groups as layers, each layer keeps its own parameters.
    """
    refuse_options(overrides, "plmjax compress share")
    print(sharing.share(checkpoint, output, groups))


def augment(
    checkpoint: Positional[Checkpoint],
    input: Location,
    output: Location,
    *,
    text: tuple[str, ...] = ("text",),
    vectors: Location | None = None,
    keep: Location | None = None,
    copies: int = 20,
    candidates: int = 15,
    fraction: float = 0.4,
    seed: int = 0,
) -> None:
    """Write further examples of a task, to train a student on.

    In each further example some words are replaced by likely words.

    Args:
        checkpoint: Run directory or checkpoint of a BERT that was pretrained on masked tokens.
        input: .tsv, .csv or .jsonl file of examples.
        output: File of the same format to write: every example, and after it its copies.
        text: Columns of the texts.
        vectors: File or run of word vectors, such as GloVe's, for words of several tokens; without it these words
            stay.
        keep: File of words that are never replaced, one a line, such as stop words.
        copies: Number of copies of a text that are drawn; equal ones are written once.
        candidates: Number of candidates of a word.
        fraction: Probability that a word of a copy is replaced.
        seed: Seed of the draws.
    """
    settings = augmentation.Settings(copies, candidates, fraction, seed=seed)
    read, written = augmentation.augment(
        checkpoint, input, output, text=text, vectors=vectors, keep=keep, settings=settings
    )
    print(f"augmented  {read:,} examples became {written:,} in {output}")
