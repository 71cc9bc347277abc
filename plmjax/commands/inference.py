"""The commands that use a checkpoint."""

import sys
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from plmjax.commands.arguments import Overrides, Reference, load_classes
from plmjax.commands.command_line import Location
from plmjax.data.unknown_tokens import MAX_UNKNOWN
from plmjax.errors import UserError


def evaluate(
    checkpoint: Positional[Location],
    *,
    data: str | None = None,
    task: Literal["lambada", "blimp", "similarity", "analogy", "retrieval"] | None = None,
    window: int | None = None,
    stride: int | None = None,
    memory: int | None = None,
    split: Literal["train", "validation", "test"] | None = None,
    output: Location | None = None,
    ensemble: tuple[Location, ...] = (),
    max_unknown: float | None = None,
    json_: Annotated[bool, arg(name="json")] = False,
    experiment: Reference | None = None,
    overrides: Overrides = (),
) -> None:
    """Evaluate a run or checkpoint: perplexity, or the metrics of the task that it was fine-tuned on.

    For raw text, a language model also has bits per byte and per character, and scores on zero-shot tasks. Word vectors
    are scored on word similarities and analogies, vectors of texts on searches. The columns of a task's file have the
    names of the task, or are named by options: --data.text review --data.label stars.

    Args:
        checkpoint: Run directory or checkpoint; for word vectors also a file of word2vec or GloVe.
        data: Held-out data to use instead of the run's own: a prepared dataset, raw text, or labelled examples of the
            task; for a mixture NAME=FILE with the name of one of its tasks.
        task: Score a language model on this task without training: LAMBADA's last words or BLiMP's pairs, in --data; or
            score word vectors on word similarities or on analogies, in --data; or have the queries of a folder of BEIR
            in --data search its passages by the vectors of any encoder.
        window: Number of tokens that a language model reads at once; by default the length of a row of its run.
        stride: Number of tokens between the starts of two windows, so that each token has a context of more than window
            - stride tokens; by default the stride of the run's rows.
        memory: Number of tokens that a model with a memory remembers; by default that of its run's evaluations.
        split: Split of a published corpus in --data (--data.format enwik8, text8, wikitext-103 or wikitext-2); by
            default validation; or of a folder of BEIR for --task retrieval, by default test.
        output: Folder for evaluation.json and the predictions; WORKDIR/evaluations/NAME for a task's file NAME.
        ensemble: Other runs on the same task, whose predictions are averaged with those of this run.
        max_unknown: Maximum fraction of unknown tokens in raw text or examples, by default 0.2. A higher fraction is an
            error: the checkpoint does not fit the text.
        json_: Print JSON.
        experiment: Experiment file that defines classes which the checkpoint uses.
    """
    load_classes(experiment)
    from plmjax.inference import evaluate as evaluation
    from plmjax.inference.zero_shot import zero_shot
    from plmjax.interop.word_vector_runs import is_file_of_vectors
    from plmjax.training.metrics import to_json

    if output is not None and output.is_file():
        raise UserError(f"Expected a folder for --output, found the file {output}; name another.")
    if task is None and is_file_of_vectors(checkpoint):
        raise UserError(
            f"Expected --task similarity or analogy for the word vectors in {checkpoint}, found none; add it, and the "
            f"file of words in --data."
        )
    share = {} if max_unknown is None else {"max_unknown": max_unknown}
    if task is None:
        settings = evaluation.settings_of(checkpoint, overrides)
        found = evaluation.evaluate(
            checkpoint,
            data,
            output,
            ensemble=ensemble,
            window=window,
            stride=stride,
            memory=memory,
            split=split,
            **share,
            **settings,
        )
    elif overrides:
        raise UserError(f"Expected no {overrides[0]} with --task {task}, found it; leave it out.")
    elif ensemble:
        raise UserError(f"Expected no --ensemble with --task {task}, found {len(ensemble)} runs; leave it out.")
    elif data is None:
        raise UserError(f"Expected --data with --task {task}, found none; name its file or folder.")
    elif stride is not None:
        raise UserError(f"Expected no --stride with --task {task}, found {stride}; leave it out.")
    elif memory is not None:
        raise UserError(f"Expected no --memory with --task {task}, found {memory}; leave it out.")
    elif split is not None and task != "retrieval":
        raise UserError(f"Expected no --split with --task {task}, found {split}; leave it out.")
    elif task == "retrieval":
        if window is not None:
            raise UserError(f"Expected no --window with --task {task}, found {window}; leave it out.")
        from plmjax.inference.retrieval import score_retrieval

        found = score_retrieval(checkpoint, data, output, split=split, **share)
    elif task in ("similarity", "analogy"):
        if window is not None:
            raise UserError(f"Expected no --window with --task {task}, found {window}; leave it out.")
        if max_unknown is not None:
            raise UserError(f"Expected no --max_unknown with --task {task}, found {max_unknown}; leave it out.")
        from plmjax.inference import word_vector_scores as scores
        from plmjax.interop import word_vectors as vectors

        found = scores.score(vectors.read(checkpoint), task, data, output)
    else:
        found = zero_shot(checkpoint, task, data, output, window=window, **share)
    if json_:
        print(to_json(found))
    else:
        width = max(24, *map(len, found))
        for name, value in found.items():
            print(f"{name:<{width}} {value:.6g}" if isinstance(value, float) else f"{name:<{width}} {value}")


def predict(
    checkpoint: Positional[Location],
    input: Location,
    *,
    output: Location | None = None,
    format: Literal["jsonl", "official"] = "jsonl",
    ensemble: tuple[Location, ...] = (),
    max_unknown: float = MAX_UNKNOWN,
    experiment: Reference | None = None,
    overrides: Overrides = (),
) -> None:
    """Predict unlabelled examples with a fine-tuned checkpoint, in their order.

    The columns of the file have the names of the task, or are named by options: --data.text review.

    Args:
        checkpoint: Run directory or checkpoint that was fine-tuned.
        input: File like those of the task, without labels; sentences can also be the lines of a .txt file.
        output: File to write; standard output by default.
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
    checkpoint: Positional[Location],
    input: Location,
    output: Location,
    *,
    layer: int = -1,
    mix: tuple[str, ...] = (),
    pooling: Literal["cls", "mean", "none"] | None = None,
    prompt: str | None = None,
    batch_size: int = 32,
    max_unknown: float = MAX_UNKNOWN,
    experiment: Reference | None = None,
) -> None:
    """Write contextual embeddings, one row per line of the input; run again to continue after a stop.

    Args:
        checkpoint: Run directory or checkpoint.
        input: Text file, one text per line, also compressed.
        output: .npz or .jsonl file to write.
        layer: Hidden state to write: 0 is the embedding output, -1 the last layer.
        mix: Write a weighted mean of all layers instead, with the softmax of these numbers as weights, embeddings
            first; or `learned` for the weights of a fine-tuned checkpoint.
        pooling: The [CLS] vector, the mean over tokens, or the vector of every token. By default the recipe of an
            imported folder of sentence-transformers, with its layers, length and prompt, or else the mean.
        prompt: Name of a prompt of such a folder, which is put before every line; by default its own.
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
    checkpoint: Positional[Location],
    input: Location,
    output: Location,
    *,
    second: Location | None = None,
    batch_size: int = 8,
    max_unknown: float = MAX_UNKNOWN,
    experiment: Reference | None = None,
) -> None:
    """Write the attention weights of each line of the input: of every layer and head, from token to token.

    The file has, for line 0, tokens_0 and attentions_0 float32 [layers heads queries keys], and so on; each query's
    weights sum to 1. An encoder-decoder has encoder_attentions_0, decoder_tokens_0, decoder_attentions_0 and
    cross_attentions_0.

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
    checkpoint: Positional[Location], text: Positional[str], top: int = 5, experiment: Reference | None = None
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
    vectors: Positional[Location],
    words: Positional[Annotated[tuple[str, ...], arg(help_behavior_hint="(one or more)")]],
    *,
    minus: tuple[str, ...] = (),
    top: int = 10,
    experiment: Reference | None = None,
) -> None:
    """List the words whose vectors are nearest to those of the given words.

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
