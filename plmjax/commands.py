"""The commands of `plmjax`, one function each: it asks the library, and prints the result.

The docstring of a function is what its `--help` says. No module imported here imports JAX, which reads the environment
once, when it is imported: `plmjax.cli.main` sets it first.
"""

import functools
import json
import sys
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import OmitArgPrefixes, Positional, Suppress, UseAppendAction, arg

from plmjax.command_line import Location
from plmjax.data.unknown_tokens import MAX_UNKNOWN
from plmjax.errors import UserError, options_named
from plmjax.generation.options import Devices, Options
from plmjax.parallel import hosts as peers
from plmjax.parallel.hosts import JoinOptions

OF_ANOTHER_FILE = {"--experiment": "an import in the file of this run's experiment"}
"""Where a command that has an experiment of its own learns of the classes of another file."""
Overrides = Suppress[tuple[str, ...]]
Reference = Annotated[str, arg(metavar="EXPERIMENT")]
Kind = Literal[
    "wordpiece",
    "byte-bpe",
    "gpt2-bpe",
    "bpe",
    "sentencepiece-unigram",
    "sentencepiece-bpe",
    "t5-unigram",
    "word",
    "char",
]


def tokenizer_train(
    input: tuple[Location, ...],
    output: Location,
    kind: Kind = "wordpiece",
    vocab_size: int = 30522,
    format: str = "auto",
    text_key: str = "text",
    streams: tuple[str, ...] = (),
    lowercase: bool | None = None,
) -> None:
    """Trains a tokenizer on raw text.

    Args:
        input: Files or folders of text, in any format of `plmjax prepare`.
        output: Folder for the tokenizer's files, which must not exist.
        kind: What to train.
        vocab_size: Tokens, special ones included.
        format: Format of the input.
        text_key: What holds the text in a JSON object, a row of a table or a Parquet file, or an example of TFDS.
        streams: Several texts of every document to train on, each as NAME=KEY, as in plmjax prepare.
        lowercase: Lower-case the text; wordpiece, bpe and word strip accents too. By default all but byte-bpe,
            gpt2-bpe and t5-unigram do so.
    """
    from plmjax.data import formats, records, tokenizers
    from plmjax.pretraining.run import TOKENIZER_SAMPLE

    if output.exists():
        raise UserError(f"Expected a new folder for the tokenizer, found {output}; name another --output.")
    parts = records.Parts(records.streams(streams)) if streams else None
    texts = formats.texts([str(path) for path in input], format, TOKENIZER_SAMPLE, text_key, parts)
    trained = tokenizers.train(kind, vocab_size, texts, output, lowercase=lowercase)
    print(f"tokenizer  {kind} with {trained.vocabulary.size} tokens in {output}")


def prepare(
    input: tuple[str, ...],
    tokenizer: Location,
    output: Location,
    format: str = "auto",
    text_key: str = "text",
    streams: tuple[str, ...] = (),
    fields: tuple[str, ...] = (),
    held_out: float = 0.005,
    language: str = "en",
    max_unknown: float = MAX_UNKNOWN,
    processes: int | None = None,
) -> None:
    """Turns raw text into a prepared dataset, once.

    Args:
        input: Files or folders of text.
        tokenizer: Tokenizer folder or published vocabulary.
        output: Folder for the dataset.
        format: Format of the text; docs/data.md lists them, and `auto` recognises most of them.
        text_key: What holds the text in a JSON object, a row of a table or a Parquet file, or an example of TFDS.
        streams: Several texts of every document, each as NAME=KEY, such as source=en target=de.
        fields: Keys of numbers that are stored with their document, such as a label.
        held_out: Share of the documents that is held out for evaluation.
        language: Language of the sentence splitter: en, zh, de, fr, ru, ja, ... (docs/data.md lists them).
        max_unknown: Largest share of unknown tokens; with more, the tokenizer does not fit the text, which is refused.
        processes: Worker processes; all cores by default.
    """
    from plmjax.data import records, tokenizers
    from plmjax.data.prepare import prepare as run

    dataset = run(
        list(input),
        format,
        tokenizers.load(tokenizer),
        output,
        validation=held_out,
        language=language,
        text_key=text_key,
        streams=records.streams(streams),
        fields=fields,
        max_unknown=max_unknown,
        processes=processes,
    )
    for name in ("train", "validation"):
        for stream in dataset.streams:
            split = dataset.split(name, stream)
            which = f" of {stream}" if len(dataset.streams) > 1 else ""
            counts = f"{split.sentences:,} sentences, {split.token_count:,} tokens{which}"
            print(f"{name:<10} {split.documents:,} documents, {counts}")


def cooccurrence(
    dataset: Positional[Location],
    output: Location,
    window: int = 10,
    symmetric: bool = True,
    least: int = 5,
    memory: int = 1024,
    processes: int | None = None,
) -> None:
    """Counts how often words stand near each other in a prepared dataset, for GloVe; run again, it goes on.

    Args:
        dataset: Prepared dataset, made with a tokenizer of words.
        output: Folder for the count.
        window: Words to each side; each counts one over its distance.
        symmetric: Look to both sides; otherwise to the left alone.
        least: Occurrences in the training text of the rarest words that count.
        memory: MiB of all processes together.
        processes: Worker processes; all cores by default, as far as the memory reaches.
    """
    from plmjax.data import store, tokenizers
    from plmjax.data.cooccurrence import Counting, check_words, count

    opened = store.open_dataset(dataset, report=print)
    vocabulary = tokenizers.load(opened.directory / "tokenizer").vocabulary
    check_words(vocabulary, dataset)
    counting = Counting(window, symmetric, least)
    cells = count(opened, vocabulary.special, output, counting, memory=memory, processes=processes)
    print(f"cells      {cells.count:,} of {cells.words:,} words in {output}")


def experiments() -> None:
    """Lists the experiments that plmjax comes with."""
    from plmjax.experiment import catalogue

    print(catalogue.page())


def pretrain(
    experiment: Positional[Reference],
    from_: Annotated[str, arg(name="from")] = "random",
    workdir: Location | None = None,
    joining: OmitArgPrefixes[JoinOptions] = JoinOptions(),
    overrides: Overrides = (),
) -> None:
    """Pretrains an experiment; run again on the same workdir, it resumes.

    On several hosts the same command runs on each of them. The hosts of a TPU slice find each other; elsewhere give
    coordinator, hosts and host.

    Args:
        experiment: Name that plmjax experiments lists, or path/to/file.py[:FUNCTION]; --help after it has its options.
        from_: Run directory or checkpoint whose parameters, model and tokenizer a new run starts from, or `random`; or
            a file of word vectors, from which the table of a model of words starts.
        workdir: Folder of the run; runs/NAME by default. Several hosts must share it.
    """
    peers.join(joining)
    from plmjax import experiment as experiments
    from plmjax.pretraining.run import pretrain as run
    from plmjax.training.checkpoints import start

    composed = start.composed(experiments.load(experiment), from_)
    composed = experiments.override(composed, overrides, f"plmjax pretrain {experiment}")
    workdir = workdir or Path("runs") / Path(experiment.partition(":")[0]).stem
    with options_named(OF_ANOTHER_FILE):
        run(composed, workdir, checkpoint=from_)


def finetune(
    experiment: Positional[Reference],
    from_: Annotated[str, arg(name="from")],
    like: Location | None = None,
    workdir: Location | None = None,
    seeds: tuple[int, ...] = (),
    joining: OmitArgPrefixes[JoinOptions] = JoinOptions(),
    overrides: Overrides = (),
) -> None:
    """Fine-tunes a checkpoint on a task; run again on the same workdir, it resumes.

    On several hosts the same command runs on each of them, as with pretrain.

    Args:
        experiment: Name that plmjax experiments lists, or path/to/file.py[:FUNCTION]; --help after it has its options.
        from_: Run directory or checkpoint to start from; `random` starts from random parameters, a file of word
            vectors with these for the table of tokens.
        like: With --from random: run directory or checkpoint that gives the model and the tokenizer, but no parameters.
        workdir: Folder of the run; runs/NAME by default. Several hosts must share it.
        seeds: Fine-tune once with each of these seeds, in WORKDIR/seed_N, and print their mean and deviation.
    """
    peers.join(joining)
    from plmjax import experiment as experiments
    from plmjax.finetuning import seeds as several
    from plmjax.finetuning.run import finetune as run
    from plmjax.training.checkpoints import start

    composed = start.composed(experiments.load(experiment), like or from_)
    composed = experiments.override(composed, overrides, f"plmjax finetune {experiment}")
    workdir = workdir or Path("runs") / Path(experiment.partition(":")[0]).stem
    with options_named(OF_ANOTHER_FILE):
        if seeds:
            print(several.table(several.finetune_seeds(composed, from_, workdir, seeds, like)))
            return
        metrics = run(composed, from_, workdir, like)
    shown = (f"{name} {value if isinstance(value, int) else format(value, '.4f')}" for name, value in metrics.items())
    print("  ".join(shown))


def _load_classes(experiment: str | None) -> None:
    """Imports the experiment file that defines classes of a checkpoint; only the user can name code to import."""
    if experiment is not None:
        from plmjax.experiment import catalogue

        catalogue.load_classes(experiment)


def evaluate(
    checkpoint: Positional[Location],
    data: str | None = None,
    task: Literal["lambada", "blimp", "similarity", "analogy"] | None = None,
    window: int | None = None,
    stride: int | None = None,
    output: Location | None = None,
    ensemble: tuple[Location, ...] = (),
    max_unknown: float | None = None,
    json_: Annotated[bool, arg(name="json")] = False,
    experiment: Reference | None = None,
    overrides: Overrides = (),
) -> None:
    """Evaluates a run or checkpoint: perplexity, or the metrics of the task it was fine-tuned on.

    Of raw text a language model gives bits per byte and per character too, and its scores on tasks that it was not
    trained for. Word vectors are scored on word similarities and analogies. The columns of a task's file have the names
    of the task, or are named by options: --data.text review --data.label stars.

    Args:
        checkpoint: Run directory or checkpoint; of word vectors also a file of word2vec or GloVe.
        data: Other held-out data than the run's own: a prepared dataset, raw text, or labelled examples of the task, of
            a mixture NAME=FILE with the name of one of its tasks.
        task: Score a language model on this task without training: LAMBADA's last words or BLiMP's pairs, in --data;
            or score word vectors on similarities of words, or on analogies, in --data.
        window: Tokens that a language model reads at once; those of a row of its run by default.
        stride: Tokens by which that window moves on, so that each is told from more than window - stride tokens; by
            default what the rows of the run move by.
        output: Folder for evaluation.json and the predictions; WORKDIR/evaluations/NAME for a task's file NAME.
        ensemble: Further runs on the same task, whose predictions are averaged with this one's.
        max_unknown: Largest share of unknown tokens of raw text or of examples, 0.2 without it; with more, the
            checkpoint does not fit the text, which is refused.
        json_: Print JSON.
        experiment: Experiment file that defines classes which the checkpoint uses.
    """
    _load_classes(experiment)
    from plmjax.exchange.word_vectors import is_file_of_vectors
    from plmjax.inference import evaluate as evaluation
    from plmjax.inference.zero_shot import zero_shot
    from plmjax.training.metrics import to_json

    if output is not None and output.is_file():
        raise UserError(f"Expected a folder for --output, found the file {output}; name another.")
    if task is None and is_file_of_vectors(checkpoint):
        raise UserError(
            f"Expected --task similarity or analogy for the word vectors in {checkpoint}, found none; add it, and the "
            f"words to judge them by in --data."
        )
    share = {} if max_unknown is None else {"max_unknown": max_unknown}
    if task is None:
        settings = evaluation.settings_of(checkpoint, overrides)
        found = evaluation.evaluate(
            checkpoint, data, output, ensemble=ensemble, window=window, stride=stride, **share, **settings
        )
    elif overrides:
        raise UserError(f"Expected no {overrides[0]} with --task {task}, found it; leave it out.")
    elif ensemble:
        raise UserError(f"Expected no --ensemble with --task {task}, found {len(ensemble)} runs; leave it out.")
    elif data is None:
        raise UserError(f"Expected --data with --task {task}, found none; name its file or folder.")
    elif stride is not None:
        raise UserError(f"Expected no --stride with --task {task}, found {stride}; leave it out.")
    elif task in ("similarity", "analogy"):
        if window is not None:
            raise UserError(f"Expected no --window with --task {task}, found {window}; leave it out.")
        if max_unknown is not None:
            raise UserError(f"Expected no --max_unknown with --task {task}, found {max_unknown}; leave it out.")
        from plmjax.word_vectors import scores, vectors

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
    output: Location | None = None,
    format: Literal["jsonl", "official"] = "jsonl",
    ensemble: tuple[Location, ...] = (),
    max_unknown: float = MAX_UNKNOWN,
    experiment: Reference | None = None,
    overrides: Overrides = (),
) -> None:
    """Predicts examples without labels with a fine-tuned checkpoint, in their order.

    The columns of the file have the names of the task, or are named by options: --data.text review.

    Args:
        checkpoint: Run directory or checkpoint that was fine-tuned.
        input: File like those of the task, without labels; sentences can also be the lines of a .txt file.
        output: File to write; standard output without it.
        format: jsonl, with probabilities or scores; or official, the format of the task's own scripts.
        ensemble: Further runs on the same task, whose predictions are averaged with this one's.
        max_unknown: Largest share of unknown tokens; with more, the checkpoint does not fit the text, which is refused.
        experiment: Experiment file that defines classes which the checkpoint uses.
    """
    _load_classes(experiment)
    from plmjax.inference import predict as predictions

    settings = predictions.settings_of(checkpoint, overrides)
    if said := predictions.decoding(checkpoint, settings):
        print(f"decoding   {said}", file=sys.stderr)
    count = predictions.write(checkpoint, input, output, format, ensemble, max_unknown=max_unknown, **settings)
    if output is not None:
        print(f"{count} predictions in {output}")


def embed(
    checkpoint: Positional[Location],
    input: Location,
    output: Location,
    layer: int = -1,
    mix: tuple[str, ...] = (),
    pooling: Literal["cls", "mean", "none"] = "mean",
    batch_size: int = 32,
    max_unknown: float = MAX_UNKNOWN,
    experiment: Reference | None = None,
) -> None:
    """Writes contextual embeddings, one row per line of the input; run again after a stop, it continues.

    Args:
        checkpoint: Run directory or checkpoint.
        input: Text file, one text per line, also compressed.
        output: .npz or .jsonl file to write.
        layer: Hidden state to write: 0 is the embedding output, -1 the last layer.
        mix: Write a mean of all layers instead, weighted by the softmax of these numbers, embeddings first; or
            `learned` for the weights that the checkpoint was fine-tuned with.
        pooling: The [CLS] vector, the mean over tokens, or every token's vector.
        batch_size: Lines computed at once.
        max_unknown: Largest share of unknown tokens; with more, the checkpoint does not fit the text, which is refused.
        experiment: Experiment file that defines classes which the checkpoint uses.
    """
    _load_classes(experiment)
    from plmjax.inference.embed import embed as run

    how = {"layer": layer, "pooling": pooling, "mix": mix, "batch_size": batch_size, "max_unknown": max_unknown}
    rows = run(checkpoint, input, output, **how, report=print)
    print(f"{rows} rows in {output}")


def fill_mask(
    checkpoint: Positional[Location], text: Positional[str], top: int = 5, experiment: Reference | None = None
) -> None:
    """Shows what a model puts in place of [MASK].

    A masked language model gives words for each [MASK] by itself. Of an encoder-decoder, T5 gives what stands in all of
    them together, and BART the whole text; <mask> and <extra_id_0> may stand for [MASK].

    Args:
        checkpoint: Run directory or checkpoint.
        text: Text with one or more [MASK].
        top: Candidates shown for each, or for all together.
        experiment: Experiment file that defines classes which the checkpoint uses.
    """
    _load_classes(experiment)
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
    minus: tuple[str, ...] = (),
    top: int = 10,
    experiment: Reference | None = None,
) -> None:
    """Lists the words whose vectors are nearest to those of the given words.

    With `king woman --minus man` it answers an analogy: man is to king as woman is to what?

    Args:
        vectors: File of word vectors, of word2vec (text or binary) or GloVe; or run directory or checkpoint.
        words: Words whose directions are added.
        minus: Words whose directions are subtracted.
        top: Words listed, the nearest first, each with its cosine.
        experiment: Experiment file that defines classes which the checkpoint uses.
    """
    _load_classes(experiment)
    from plmjax.word_vectors.vectors import read

    for word, cosine in read(vectors).nearest(words, minus, top):
        print(f"{cosine:7.4f}  {word}")


def generate(
    checkpoint: Positional[Location],
    prompt: Positional[str | None] = None,
    input: Location | None = None,
    output: Location | None = None,
    writing: OmitArgPrefixes[Options] = Options(),
    mesh: Devices = Devices(),
    max_unknown: float = MAX_UNKNOWN,
    experiment: Reference | None = None,
) -> None:
    """Writes on after a prompt, or what a source becomes, and shows the text as it is written.

    Options that are left out are as the task says that the model was fine-tuned on, or as an imported checkpoint does;
    without either, tokens are drawn at temperature 1. A line on the standard error names what is in force.

    Args:
        checkpoint: Run directory or checkpoint of a model that predicts the next token.
        prompt: Text to go on from, of which an empty one begins a document; or what an encoder is to read.
        input: File with one prompt per line, also compressed; - for the standard input.
        output: File to write instead, a JSON object a line: prompt, text, tokens, stopped, log_probability, score,
            unknown_tokens.
        max_unknown: Largest share of unknown tokens of a prompt; with more, the checkpoint does not fit the text, which
            is refused.
        experiment: Experiment file that defines classes which the checkpoint uses.
    """
    _load_classes(experiment)
    from plmjax.generation.command import run

    say = functools.partial(print, end="", flush=True)
    note = functools.partial(print, file=sys.stderr)
    run(checkpoint, prompt, input, output, writing, mesh, say, note, max_unknown)


def plan(
    experiment: Positional[Reference],
    topology: UseAppendAction[tuple[str, ...]] = (),
    price: UseAppendAction[tuple[str, ...]] = (),
    search: bool = False,
    batch_sizes: tuple[int, ...] = (),
    breakdown: bool = False,
    strict: bool = False,
    json_: Annotated[bool, arg(name="json")] = False,
    overrides: Overrides = (),
) -> None:
    """Compiles the train step for TPU slices that are not here: does it fit, how fast, how long, at what cost.

    Args:
        experiment: Name that plmjax experiments lists, or path/to/file.py[:FUNCTION]; --help after it has its options.
        topology: Chip and shape, such as v3:8x8, or v5e:8x8*2 for two slices; several are compared in one table.
        price: Price of a chip-hour: a number, or v5e=1.2 for one generation; may be given several times.
        search: Look for the microbatches and the remat policy that are fastest on the slice.
        batch_sizes: Batches to search besides the experiment's own.
        breakdown: Show what a step's cycles are spent on: products, attention, normalisation, random bits, state, ...
        strict: Exit with code 1 when the step is wasteful.
        json_: Print JSON.
    """
    from plmjax import experiment as experiments
    from plmjax.plan import plan as plans
    from plmjax.plan import report as pages
    from plmjax.plan import search as searches
    from plmjax.plan.estimate import prices as read_prices

    composed = experiments.override(experiments.load(experiment), overrides, f"plmjax plan {experiment}")
    if not topology:
        raise UserError("Expected a slice to plan for, found none; give --topology v5e:4x4 or another.")
    if batch_sizes and not search:
        raise UserError("Expected --search with --batch_sizes, found none; add it.")
    if breakdown and search:
        raise UserError("Expected --breakdown or --search, found both; leave one out.")
    prices = read_prices(price)
    if search:
        found = [searches.search(composed, name, batch_sizes, prices=prices) for name in topology]
        print(json.dumps(found) if json_ else "\n".join(map(pages.search, found)))
        return
    if len(topology) == 1:
        made = [plans.plan(composed, topology[0], prices, breakdown)]
        print(json.dumps(made[0]) if json_ else pages.page(made[0]))
    else:
        made = [plans.plan_or_error(composed, name, prices, breakdown) for name in topology]
        print(json.dumps(made) if json_ else pages.table(made))
    if strict and any(phase["findings"] for one in made for phase in one.get("phases", ())):
        raise SystemExit(1)


def bench(
    experiment: Positional[Reference],
    json_: Annotated[bool, arg(name="json")] = False,
    measured_steps: int = 10,
    overrides: Overrides = (),
) -> None:
    """Measures the train step on this machine, and compares it with the machine's rate of matrix products.

    Args:
        experiment: Name that plmjax experiments lists, or path/to/file.py[:FUNCTION]; --help after it has its options.
        json_: Print JSON.
        measured_steps: Steps timed after two for warming up.
    """
    from plmjax import experiment as experiments
    from plmjax.training.bench import bench as run
    from plmjax.training.metrics import compact, to_json

    composed = experiments.override(experiments.load(experiment), overrides, f"plmjax bench {experiment}")
    for record in run(composed, measured_steps):
        if json_:
            print(to_json(record))
            continue
        for name, value in record.items():
            if value is not None:  # a CPU has no data sheet for an MFU
                print(f"{name:<24} {compact(value) if isinstance(value, float) else value}")


def average(
    run: Positional[Location],
    output: Location,
    last: int = 5,
    experiment: Reference | None = None,
) -> None:
    """Averages the parameters of a run's last checkpoints.

    Args:
        run: Run directory.
        output: Run directory to make, with one checkpoint.
        last: Checkpoints to average; the run must have kept as many (--checkpoint.keep).
        experiment: Experiment file that defines classes which the checkpoint uses.
    """
    _load_classes(experiment)
    from plmjax.training.checkpoints.averaging import average as run_average

    steps = run_average(run, output, last)
    print(f"averaged  the parameters of steps {', '.join(f'{step:,}' for step in steps)} in {output}")


def import_(
    source: Positional[Location],
    checkpoint: Positional[Location],
    architecture: str = "auto",
    tokenizer: Location | None = None,
) -> None:
    """Makes a run directory from a checkpoint of transformers, Google's BERT, ELMo or fastai, or from word vectors.

    Args:
        source: Folder with config.json and model.safetensors or pytorch_model.bin, with bert_model.ckpt, or with ELMo's
            options.json and an .hdf5 file; fastai's AWD-LSTM, a .pth file, with --tokenizer; or a file of word vectors,
            of word2vec or GloVe.
        checkpoint: Run directory to make.
        architecture: Class of transformers to read; auto takes the one that the folder names.
        tokenizer: Folder of the tokenizer, where it is not the source's own.
    """
    from plmjax.exchange.word_vectors import import_vectors, is_file_of_vectors

    if is_file_of_vectors(source):
        if architecture != "auto" or tokenizer is not None:
            raise UserError(
                f"Expected neither --architecture nor --tokenizer for {source}, found one; leave it out, as word "
                "vectors bring their own words."
            )
        print(import_vectors(source, checkpoint))
        return
    from plmjax.exchange.run_directories import import_checkpoint

    print(import_checkpoint(source, checkpoint, architecture, tokenizer))


def export(
    checkpoint: Positional[Location],
    output: Positional[Location],
    architecture: str = "auto",
    vectors: Literal["text", "binary", "glove"] | None = None,
    experiment: Reference | None = None,
) -> None:
    """Writes a checkpoint as transformers does, ELMo and AWD-LSTM in files of their own, or vectors of words alone.

    Args:
        checkpoint: Run directory or checkpoint; with --vectors also a file of word vectors.
        output: Folder to write; with --vectors a file.
        architecture: Class of transformers to write for; auto chooses the one that has all parameters.
        vectors: Write the vectors of the words alone, in word2vec's text or binary form or in GloVe's.
        experiment: Experiment file that defines classes which the checkpoint uses.
    """
    _load_classes(experiment)
    if vectors is not None:
        if architecture != "auto":
            raise UserError(f"Expected no --architecture with --vectors, found {architecture}; leave one of them out.")
        from plmjax.word_vectors.vectors import export as export_vectors

        print(export_vectors(checkpoint, output, vectors))
        return
    from plmjax.exchange.run_directories import export_checkpoint

    print(export_checkpoint(checkpoint, output, architecture))


def report(
    workdirs: Positional[Annotated[tuple[Location, ...], arg(help_behavior_hint="(one or more)")]],
    output: Location = Path("report.html"),
    curve: Location | None = None,
    words: tuple[str, ...] = (),
    experiment: Reference | None = None,
):
    """Writes one HTML page with the curves of one or more runs.

    Args:
        workdirs: Run directories.
        output: Page to write.
        curve: Picture of the loss curve to write as well (.png, .svg or .pdf).
        words: Words whose vectors are drawn, the principal two components of their directions in each run.
        experiment: Experiment file that defines classes which the checkpoint uses.
    """
    _load_classes(experiment)
    from plmjax.report.page import report as run

    places = []
    if words:
        from plmjax.word_vectors.plane import plane
        from plmjax.word_vectors.vectors import read

        places = [dict(zip(words, plane(read(workdir), words), strict=True)) for workdir in workdirs]
    run(workdirs, output, curve=curve, places=places)
    print(output)
