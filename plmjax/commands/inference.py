"""The commands that use a checkpoint."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from plmjax.commands.arguments import Overrides, Reference, Run, default, load_classes
from plmjax.commands.command_line import Location
from plmjax.data.unknown_tokens import MAX_UNKNOWN
from plmjax.errors import UserError, listed, quoted


def evaluate(
    checkpoint: Positional[Run],
    *,
    data: Annotated[str | None, default("the run's own")] = None,
    task: Literal["lambada", "blimp", "similarity", "analogy", "retrieval"] | None = None,
    window: Annotated[int | None, default("the length of a row of the run")] = None,
    stride: Annotated[int | None, default("that of the run's rows")] = None,
    memory: Annotated[int | None, default("that of the run's evaluations")] = None,
    split: Annotated[Literal["train", "validation", "test"] | None, default("validation; test for retrieval")] = None,
    output: Annotated[Location | None, default("WORKDIR/evaluations/NAME for a task's file NAME")] = None,
    ensemble: tuple[Location, ...] = (),
    max_unknown: Annotated[float | None, default(MAX_UNKNOWN)] = None,
    json_: Annotated[bool, arg(name="json")] = False,
    experiment: Reference | None = None,
    overrides: Overrides = (),
) -> None:
    """Evaluate a run: perplexity, or the metrics of its task.

    For raw text, a language model also has bits per byte and per character, and scores on zero-shot tasks. Word vectors
    are scored on word similarities and analogies, vectors of texts on searches. The columns of a task's file have the
    names of the task, or are named by options: --data.text review --data.label stars.

    Args:
        checkpoint: Run directory or checkpoint; for word vectors also a file of word2vec or GloVe.
        data: Held-out data: a prepared dataset, raw text, or labelled examples of the task; for a mixture NAME=FILE
            with the name of one of its tasks.
        task: Score without training, on --data: a language model on LAMBADA's last words or BLiMP's pairs, word vectors
            on similarities or analogies of words, the vectors of any encoder on retrieval. For retrieval the queries of
            a folder of BEIR or of a table search its passages; with --data.score pairs of texts are compared.
        window: Number of tokens that a language model reads at once.
        stride: Number of tokens between the starts of two windows, so that each token has a context of more than window
            minus stride tokens.
        memory: Number of tokens that a model with a memory remembers.
        split: Split of a published corpus in --data (--data.format enwik8, text8, wikitext-103 or wikitext-2),
            or of a folder of BEIR for --task retrieval.
        output: Folder for evaluation.json and the predictions.
        ensemble: Other runs on the same task, whose predictions are averaged with those of this run.
        max_unknown: Maximum fraction of unknown tokens in raw text or examples. A higher fraction is an error: the
            checkpoint does not fit the text.
        json_: Print JSON.
        experiment: Experiment file that defines classes which the checkpoint uses.
    """
    load_classes(experiment)
    from plmjax.inference import evaluate as evaluation
    from plmjax.interop.word_vector_runs import is_file_of_vectors
    from plmjax.training.metrics import to_json

    if output is not None and output.is_file():
        raise UserError(f"Expected a folder for --output, found the file {output}; name another.")
    if task is None and is_file_of_vectors(checkpoint):
        raise UserError(
            f"Expected --task similarity or analogy for the word vectors in {checkpoint}, found none; add it, and the "
            f"file of words in --data."
        )
    options = {"ensemble": ensemble, "window": window, "stride": stride, "memory": memory, "split": split}
    options |= {} if max_unknown is None else {"max_unknown": max_unknown}
    if task is None:
        found = evaluation.evaluate(
            checkpoint, data, output, **options, **evaluation.settings_of(checkpoint, overrides)
        )
    else:
        found = _score(task, checkpoint, data, output, overrides=overrides, options=options)
    if json_:
        print(to_json(found))
    else:
        width = max(24, *map(len, found))
        for name, value in found.items():
            print(f"{name:<{width}} {value:.6g}" if isinstance(value, float) else f"{name:<{width}} {value}")


TASK_OPTIONS = {
    "lambada": ("window", "max_unknown"),
    "blimp": ("window", "max_unknown"),
    "similarity": (),
    "analogy": (),
    "retrieval": ("split", "max_unknown"),
}
"""Task that `evaluate` scores without training -> its options besides --data, --output and --json."""


def _score(
    task: str,
    checkpoint: str,
    data: str | None,
    output: Path | None,
    *,
    overrides: Overrides,
    options: Mapping[str, Any],
) -> Mapping[str, Any]:
    """Return the metrics of a task of `TASK_OPTIONS`."""
    given = {name: value for name, value in options.items() if value not in (None, ())}
    refused = [f"--{name}" for name in given if name not in TASK_OPTIONS[task]]
    if task != "retrieval":
        refused = [*overrides[:1], *refused]
    if refused:
        raise UserError(f"{refused[0]} does not apply to --task {task}; leave it out.")
    if data is None:
        raise UserError(f"--task {task} needs --data; name its file or folder.")
    if task == "retrieval":
        from plmjax.inference.retrieval import score_retrieval

        return score_retrieval(checkpoint, data, output, **given, **_columns(overrides))
    if task in ("similarity", "analogy"):
        from plmjax.inference import word_vector_scores as scores
        from plmjax.interop import word_vectors as vectors

        return scores.score(vectors.read(checkpoint), task, data, output)
    from plmjax.inference.zero_shot import zero_shot

    return zero_shot(checkpoint, task, data, output, **given)


def _columns(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the columns of a table of queries and passages, which options such as --data.query premise name."""
    from plmjax import experiment as experiments
    from plmjax.finetuning.tasks.contrastive import Contrastive
    from plmjax.finetuning.tasks.retrieval import Retrieval
    from plmjax.inference.retrieval import COLUMNS

    run = experiments.Experiment(model=None, objective=Contrastive(), data=Retrieval())
    known = {f"--data.{name}": name for name in COLUMNS}
    given = [experiments.normalize_option(word.partition("=")[0]) for word in overrides if word.startswith("--")]
    for option in given:
        if option not in known:
            raise UserError(f"Expected one of {listed(known)} with --task retrieval, found {quoted(option)}; drop it.")
    data = experiments.override(run, overrides).data
    return {known[option]: getattr(data, known[option]) for option in given}


def predict(
    checkpoint: Positional[Run],
    input: Location,
    *,
    output: Annotated[Location | None, default("the standard output")] = None,
    format: Literal["jsonl", "official"] = "jsonl",
    ensemble: tuple[Location, ...] = (),
    max_unknown: float = MAX_UNKNOWN,
    experiment: Reference | None = None,
    overrides: Overrides = (),
) -> None:
    """Predict unlabelled examples with a fine-tuned model.

    Predictions have the order of the examples. The columns of the file have the names of the task, or are named by
    options: --data.text review.

    Args:
        checkpoint: Run directory or checkpoint that was fine-tuned.
        input: File like those of the task, without labels; sentences can also be the lines of a .txt file.
        output: File to write.
        format: jsonl, with probabilities or scores; or official, the format of the task's own scripts.
        ensemble: Other runs on the same task, whose predictions are averaged with those of this run.
        max_unknown: Maximum fraction of unknown tokens. A higher fraction is an error: the checkpoint does not fit the
            text.
        experiment: Experiment file that defines classes which the checkpoint uses.
    """
    load_classes(experiment)
    from plmjax.inference import predict as predictions

    settings = predictions.settings_of(checkpoint, overrides)
    if sentence := predictions.describe_decoding(checkpoint, settings):
        print(f"decoding   {sentence}", file=sys.stderr)
    count = predictions.write(
        checkpoint, input, output=output, format=format, ensemble=ensemble, max_unknown=max_unknown, **settings
    )
    if output is not None:
        print(f"{count} predictions in {output}")


def embed(
    checkpoint: Positional[Run],
    input: Location,
    output: Location,
    *,
    layer: int = -1,
    mix: tuple[str, ...] = (),
    pooling: Annotated[Literal["cls", "mean", "none"] | None, default("the model's own recipe, or the mean")] = None,
    prompt: Annotated[str | None, default("its own")] = None,
    batch_size: int = 32,
    max_unknown: float = MAX_UNKNOWN,
    experiment: Reference | None = None,
) -> None:
    """Write contextual embeddings of the lines of a file.

    The output has one row per line. Run the same command again to continue after a stop.

    Args:
        checkpoint: Run directory or checkpoint.
        input: Text file, one text per line, also compressed.
        output: .npz file to write, with the arrays embeddings, lengths and cut (truncated or not); or .jsonl.
        layer: Hidden state to write: 0 is the embedding output, -1 the last layer.
        mix: Write a weighted mean of all layers instead, with the softmax of these numbers as weights, embeddings
            first; or `learned` for the weights of a fine-tuned checkpoint.
        pooling: The [CLS] vector, the mean over tokens, or the vector of every token. An imported folder of
            sentence-transformers has its own recipe, with layers, a length and a prompt.
        prompt: Name of a prompt of such a folder, which is put before every line.
        batch_size: Number of lines in a batch.
        max_unknown: Maximum fraction of unknown tokens. A higher fraction is an error: the checkpoint does not fit the
            text.
        experiment: Experiment file that defines classes which the checkpoint uses.
    """
    load_classes(experiment)
    from plmjax.inference.embed import embed_file as run

    settings = {"layer": layer, "pooling": pooling, "prompt": prompt, "mix": mix}
    settings |= {"batch_size": batch_size, "max_unknown": max_unknown}
    rows = run(checkpoint, input, output, **settings, report=print)
    print(f"{rows} rows in {output}")


def attention(
    checkpoint: Positional[Run],
    input: Location,
    output: Location,
    *,
    second: Location | None = None,
    batch_size: int = 8,
    max_unknown: float = MAX_UNKNOWN,
    experiment: Reference | None = None,
) -> None:
    """Write the attention weights of each line of a file.

    The file has the weights of every layer and head: for line 0, tokens_0 and attentions_0, float32 [layers heads
    queries keys], and so on. The weights of each query sum to 1. An encoder-decoder has encoder_attentions_0,
    decoder_tokens_0, decoder_attentions_0 and cross_attentions_0.

    Args:
        checkpoint: Run directory or checkpoint.
        input: Text file, one text per line, also compressed.
        output: .npz file to write.
        second: Text file with the other text of each line: the second of a pair, or the target of an encoder-decoder.
        batch_size: Number of lines in a batch.
        max_unknown: Maximum fraction of unknown tokens. A higher fraction is an error: the checkpoint does not fit the
            text.
        experiment: Experiment file that defines classes which the checkpoint uses.
    """
    load_classes(experiment)
    from plmjax.inference.attention import attention as run

    settings = {"second": second, "batch_size": batch_size, "max_unknown": max_unknown}
    count = run(checkpoint, input, output, **settings, report=print)
    print(f"{count} texts in {output}")


def fill_mask(
    checkpoint: Positional[Run], text: Positional[str], top: int = 5, experiment: Reference | None = None
) -> None:
    """Predict the tokens in place of [MASK].

    A masked language model predicts words for each [MASK] independently. An encoder-decoder predicts them together: T5
    the spans in place of all of them, BART the whole text. <mask> and <extra_id_0> mean the same as [MASK]; the names
    of other tokens that plmjax places, such as [SEP], are plain text.

    Args:
        checkpoint: Run directory or checkpoint.
        text: Text with one or more [MASK].
        top: Number of candidates for each [MASK], or for all together.
        experiment: Experiment file that defines classes which the checkpoint uses.
    """
    load_classes(experiment)
    from plmjax.generation.generate import printable
    from plmjax.inference.fill_gaps import fill_gaps, writes_gaps
    from plmjax.inference.fill_mask import fill_mask as run

    if writes_gaps(checkpoint):
        for filled in fill_gaps(checkpoint, text, top):
            print(f"{filled.probability:.3f}  " + ("  ".join(map(repr, filled.spans)) or printable(filled.text)))
        return
    for number, candidates in enumerate(run(checkpoint, text, top), start=1):
        print(f"[MASK] {number}  " + "  ".join(f"'{token}' {probability:.3f}" for token, probability in candidates))


def nearest(
    vectors: Positional[Annotated[Location, arg(metavar="VECTORS")]],
    words: Positional[Annotated[tuple[str, ...], arg(help_behavior_hint="(one or more)")]],
    *,
    minus: tuple[str, ...] = (),
    top: int = 10,
    experiment: Reference | None = None,
) -> None:
    """List the words whose vectors are nearest to given words.

    `king woman --minus man` solves the analogy "man is to king as woman is to ...".

    Args:
        vectors: File of word vectors, of word2vec (text or binary) or GloVe; or run directory or checkpoint.
        words: Words whose directions are added.
        minus: Words whose directions are subtracted.
        top: Words listed, the nearest first, each with its cosine.
        experiment: Experiment file that defines classes which the checkpoint uses.
    """
    load_classes(experiment)
    from plmjax.interop.word_vectors import read

    for word, cosine in read(vectors).nearest(words, minus, top):
        print(f"{cosine:7.4f}  {word}")
