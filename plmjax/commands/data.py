"""The commands that prepare the inputs of a run: tokenizers, prepared datasets, counts."""

from typing import Annotated, Literal

from tyro.conf import Positional, arg

from plmjax.commands.arguments import Reference, default, load_classes
from plmjax.commands.command_line import Location
from plmjax.data.unknown_tokens import MAX_UNKNOWN
from plmjax.errors import UserError

Kind = Literal[
    "wordpiece",
    "byte-bpe",
    "gpt2-bpe",
    "bpe",
    "sentencepiece-unigram",
    "sentencepiece-bpe",
    "t5-unigram",
    "xlnet-unigram",
    "word",
    "char",
    "whitespace",
    "byte",
]


def tokenizer_train(
    input: tuple[Location, ...],
    output: Location,
    *,
    kind: Kind = "wordpiece",
    vocab_size: int = 30522,
    format: str = "auto",
    text_key: str = "text",
    streams: tuple[str, ...] = (),
    lowercase: Annotated[bool | None, default("by kind")] = None,
    experiment: Reference | None = None,
) -> None:
    """Train a tokenizer on raw text.

    Args:
        input: Files or folders of text, in any format of `plmjax prepare`.
        output: Folder for the tokenizer's files, a new or empty one.
        kind: Kind of tokenizer.
        vocab_size: Number of tokens, including special tokens.
        format: Format of the input.
        text_key: Key of the text in a JSON object, a row of a table, Parquet or Arrow file, or an example of TFDS.
        streams: Several texts of every document to train on, each as NAME=KEY, as in plmjax prepare.
        lowercase: Lower-case the text; wordpiece, bpe and word also strip the accents of Latin, Greek and Cyrillic. All
            kinds do so if it is left out, except for byte-bpe, gpt2-bpe, t5-unigram, xlnet-unigram, whitespace and
            byte.
        experiment: Experiment file that declares the format.
    """
    load_classes(experiment)
    from plmjax.data import formats, tokenizer_folder, tokenizers
    from plmjax.data.formats import records
    from plmjax.files import seals

    parts = records.Parts(records.streams(streams)) if streams else None
    inputs = [str(path) for path in input]
    settings = [format, text_key, streams, kind, vocab_size, lowercase]
    made_from = seals.digest([tokenizer_folder.state_of(inputs, format), *settings])
    with tokenizer_folder.open_for_training(output, made_from) as new:
        if new:
            texts = formats.texts(
                inputs, format=format, limit_bytes=tokenizers.sample(kind), text_key=text_key, parts=parts
            )
            tokenizers.train(kind, vocab_size, texts, output, lowercase=lowercase)
    print(f"tokenizer  {kind} with {tokenizers.load(output).vocabulary.size} tokens in {output}")


def prepare(
    input: tuple[str, ...],
    tokenizer: Location,
    output: Location,
    *,
    format: str = "auto",
    text_key: str = "text",
    streams: tuple[str, ...] = (),
    fields: tuple[str, ...] = (),
    held_out: float = 0.005,
    language: str = "en",
    max_unknown: float = MAX_UNKNOWN,
    clean: tuple[str, ...] = (),
    bad_words: str = "",
    special_names: tuple[str, ...] = (),
    piece_tokens: Annotated[int | None, default("4,194,304")] = None,
    processes: Annotated[int | None, default("all cores")] = None,
    runner: str = "",
    runner_options: tuple[str, ...] = (),
    experiment: Reference | None = None,
) -> None:
    """Convert raw text to a prepared dataset, once.

    Args:
        input: Files or folders of text.
        tokenizer: Tokenizer folder or published vocabulary.
        output: Folder for the dataset.
        format: Format of the text; docs/data.md lists them, and `auto` recognises most of them.
        text_key: Key of the text in a JSON object, a row of a table, Parquet or Arrow file, or an example of TFDS.
        streams: Several texts of every document, each as NAME=KEY, such as source=en target=de.
        fields: Keys of numbers that are stored with their document, such as a label.
        held_out: Fraction of the documents to hold out for evaluation.
        language: Language of the sentence splitter: en, zh, de, fr, ru, ja, ... (docs/data.md lists them).
        max_unknown: Maximum fraction of unknown tokens. A higher fraction is an error: the tokenizer does not fit the
            text.
        clean: Rules that drop or change documents, in their order: c4, fineweb, gopher or single rules; docs/data.md
            lists them.
        bad_words: File with a word or a phrase per line, for the rule c4_bad_words.
        special_names: Names of special tokens, such as <|endoftext|>, that are read as these tokens where the text has
            them; other names are plain text.
        piece_tokens: Least number of tokens of a piece, the part that a run with --data.cache_limit reads at once.
        processes: Number of worker processes.
        runner: Runner of Apache Beam that does the work instead of processes, such as FlinkRunner or DataflowRunner.
        runner_options: Options of Apache Beam, each as NAME=VALUE, or NAME for a switch.
        experiment: Experiment file that declares the format.
    """
    load_classes(experiment)
    from plmjax.data import tokenizers
    from plmjax.data.formats import records
    from plmjax.data.preparation import prepare as run

    _check_runner(runner, runner_options, processes)
    run(
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
        clean=clean,
        bad_words=bad_words,
        special_names=special_names,
        piece_tokens=piece_tokens,
        processes=processes,
        runner=runner,
        runner_options=runner_options,
    )


def cooccurrence(
    dataset: Positional[Annotated[Location, arg(metavar="DATASET")]],
    output: Location,
    *,
    window: int = 10,
    symmetric: Annotated[bool, arg(help_behavior_hint="")] = True,
    min_count: int = 5,
    memory: int = 1024,
    processes: Annotated[int | None, default("all cores that the memory allows")] = None,
    runner: str = "",
    runner_options: tuple[str, ...] = (),
) -> None:
    """Count cooccurrences of words in a dataset, for GloVe.

    Run the same command again to continue after a stop.

    Args:
        dataset: Prepared dataset, made with a tokenizer of words.
        output: Folder for the counts.
        window: Number of context words on each side; a word at distance d counts 1 / d.
        symmetric: Count words on the left only; otherwise on both sides.
        min_count: Minimum number of occurrences of a word in the training text; rarer words are not counted.
        memory: Memory of all processes together, or of each process of a runner, in MiB.
        processes: Number of worker processes.
        runner: Runner of Apache Beam that does the work instead of processes, such as FlinkRunner or DataflowRunner.
        runner_options: Options of Apache Beam, each as NAME=VALUE, or NAME for a switch.
    """
    from plmjax.data import store, tokenizers
    from plmjax.data.cooccurrence import Counting, check_words, count

    _check_runner(runner, runner_options, processes)
    opened = store.open_dataset(dataset, report=print)
    vocabulary = tokenizers.load(opened.directory / "tokenizer").vocabulary
    check_words(vocabulary, dataset)
    counting = Counting(window, symmetric, min_count)
    how = {"processes": processes, "runner": runner, "runner_options": runner_options}
    cells = count(opened, vocabulary.special, output, counting, memory=memory, **how)
    print(f"cells      {cells.count:,} of {cells.words:,} words in {output}")


def _check_runner(runner: str, options: tuple[str, ...], processes: int | None) -> None:
    """Raise UserError if the options of Apache Beam and of processes contradict each other."""
    if runner and processes:
        raise UserError("Expected either --processes of this machine or a --runner, found both; leave one of them out.")
    if options and not runner:
        raise UserError("Expected a --runner with --runner_options, found none; name one or leave the options out.")
