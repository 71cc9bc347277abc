"""The commands of `plmjax compress`, which make smaller models from trained checkpoints."""

from typing import Annotated

from tyro.conf import Positional, arg

from plmjax.commands.arguments import Overrides, Reference
from plmjax.commands.command_line import Location

Checkpoint = Annotated[str, arg(metavar="CHECKPOINT")]
Teacher = Annotated[str, arg(metavar="TEACHER")]


def prune(
    checkpoint: Positional[Checkpoint],
    output: Location,
    method: str = "magnitude",
    sparsity: float | None = None,
    rows: int | None = None,
    rounds: int | None = None,
    rewind: Location | None = None,
    experiment: Reference | None = None,
    overrides: Overrides = (),
) -> None:
    """Set weights of a model to 0, or remove heads and features, to make it smaller.

    gradual, movement, soft_movement, block_movement and lottery train the model, on the data of its own run or with
    another experiment, whose options may follow, such as --training.steps 1000 or --compression.begin 0.2.

    Args:
        checkpoint: Run directory or checkpoint.
        output: Run directory to write, with one checkpoint.
        method: magnitude, two_of_four or heads, which do not train; gradual, movement, soft_movement, block_movement
            or lottery.
        sparsity: Share of the layers' weights that become 0; with heads, the share of the heads that are removed. By
            default 0.5; two_of_four and soft_movement have none.
        rows: With heads, the number of training rows on which the importance of a head is measured; by default 256.
        rounds: With heads, the number of rounds of measuring and removing; by default 1.
        rewind: With lottery, the checkpoint whose weights the kept ones get before they are trained.
        experiment: Experiment that trains the model, in place of that of its run; its file defines classes too.
    """
    from plmjax.commands.arguments import load_classes
    from plmjax.compression.pruning.command import prune as run

    load_classes(experiment)
    line = run(
        checkpoint,
        output,
        method,
        sparsity,
        rows=rows,
        rounds=rounds,
        rewind=rewind,
        experiment=experiment,
        overrides=overrides,
    )
    print(line)


def distil(
    teacher: Positional[Teacher],
    output: Location,
    method: str = "soft_targets",
    layers: tuple[int, ...] = (),
    student: str | None = None,
    experiment: Reference | None = None,
    overrides: Overrides = (),
) -> None:
    """Train a student, a smaller model, beside its teacher.

    It is trained on the data of the teacher's run or with another experiment, whose options may follow, such as
    --training.steps 1000 or --compression.temperature 4. Both have the same tokenizer.

    Args:
        teacher: Run directory or checkpoint.
        output: Run directory to write, with one checkpoint of the student.
        method: soft_targets, distilbert, patient, tinybert or mobilebert.
        layers: Numbers of the teacher's layers that the student begins with, from 0; by default every other one.
        student: Run directory or checkpoint that the student begins with in place of the teacher's layers; or random,
            for random parameters of the sizes of the teacher or of --experiment, with options such as
            --model.hidden_size.
        experiment: Experiment that trains the student, in place of that of the teacher; its file defines classes too.
    """
    from plmjax.commands.arguments import load_classes
    from plmjax.compression.distillation.command import distil as run

    load_classes(experiment)
    print(run(teacher, output, method, layers, student, experiment, overrides))


def quantize(
    checkpoint: Positional[Checkpoint],
    output: Location,
    method: str = "weight_only",
    granularity: str = "channel",
    batches: int | None = None,
    experiment: Reference | None = None,
    overrides: Overrides = (),
) -> None:
    """Store the weights of a model in int8, a quarter of the size; multiply in int8 too.

    dynamic, static and aware read the examples of the checkpoint's own run, whose options may follow, such as
    --data.train. aware trains on them, and takes another experiment too.

    Args:
        checkpoint: Run directory or checkpoint.
        output: Run directory to write, with one checkpoint.
        method: weight_only, which multiplies in float; dynamic, which scales the activations of each token by their
            largest value; static, by the largest value of some training batches; or aware, which trains the model with
            rounded values.
        granularity: channel for a scale for each output of a matrix, tensor for one scale for the whole matrix.
        batches: With static, the number of training batches; by default 16.
        experiment: Experiment that trains the model, in place of that of its run; its file defines classes too.
    """
    from plmjax.commands.arguments import load_classes
    from plmjax.compression.quantization.command import quantize as run

    load_classes(experiment)
    print(run(checkpoint, output, method, granularity, batches, experiment, overrides))


def factorize(
    checkpoint: Positional[Checkpoint],
    output: Location,
    rank: int | None = None,
    energy: float | None = None,
    overrides: Overrides = (),
) -> None:
    """Replace the matrices of the layers by products of two smaller ones.

    Fine-tune the result with plmjax finetune --from.

    Args:
        checkpoint: Run directory or checkpoint of a BERT, RoBERTa, ALBERT, ELECTRA, DistilBERT, GPT or GPT-2.
        output: Run directory to write, with one checkpoint.
        rank: Rank of every product; a matrix of which it would have no fewer weights stays whole.
        energy: In place of --rank, the least share of the sum of squared singular values that every product keeps.
    """
    from plmjax.compression.factorization import factorize as run
    from plmjax.compression.run import without_options

    without_options(overrides, "plmjax compress factorize")
    print(run(checkpoint, output, rank, energy))


def share(checkpoint: Positional[Checkpoint], output: Location, groups: int = 1, overrides: Overrides = ()) -> None:
    """Give the layers of a group the same parameters, as in ALBERT: the means of their own.

    Train the result with plmjax finetune --from or plmjax pretrain --from.

    Args:
        checkpoint: Run directory or checkpoint of a BERT or an ALBERT.
        output: Run directory to write, with one checkpoint of an ALBERT.
        groups: Number of groups of layers; as many as layers give each its own parameters.
    """
    from plmjax.compression.run import without_options
    from plmjax.compression.sharing import share as run

    without_options(overrides, "plmjax compress share")
    print(run(checkpoint, output, groups))


def augment(
    checkpoint: Positional[Checkpoint],
    input: Location,
    output: Location,
    text: tuple[str, ...] = ("text",),
    vectors: Location | None = None,
    keep: Location | None = None,
    copies: int = 20,
    candidates: int = 15,
    share: float = 0.4,
    seed: int = 0,
) -> None:
    """Write further examples of a task, in which words are replaced by likely ones, to train a student on.

    Args:
        checkpoint: Run directory or checkpoint of a BERT that was pretrained on hidden words.
        input: .tsv, .csv or .jsonl file of examples.
        output: File of the same format to write: every example, and after it its copies.
        text: Columns of the texts.
        vectors: File or run of word vectors, such as GloVe's, for words of several tokens; without it these words
            stay.
        keep: File of words that are never replaced, one a line, such as stop words.
        copies: Number of copies of a text that are drawn; equal ones are written once.
        candidates: Number of candidates of a word.
        share: Probability that a word of a copy is replaced.
        seed: Seed of the draws.
    """
    from plmjax.compression.distillation.augmentation import Settings
    from plmjax.compression.distillation.augmentation import augment as run

    settings = Settings(copies, candidates, share, seed=seed)
    read, written = run(checkpoint, input, output, text, vectors, keep, settings)
    print(f"augmented  {read:,} examples became {written:,} in {output}")
