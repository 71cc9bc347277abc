"""Readers of tasks, raw text and lists of words, each with a sample."""

import bz2
import functools
import gzip
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from plmjax.data import formats, text_size, tokenizers
from plmjax.data.formats import corpora, records
from plmjax.data.formats.corpora import SPLITS
from plmjax.data.unknown_tokens import MAX_UNKNOWN, UnknownTokens
from plmjax.finetuning.tasks.choices import Choices
from plmjax.finetuning.tasks.label_sets import LabelSets
from plmjax.finetuning.tasks.parsing import Parsing
from plmjax.finetuning.tasks.questions import Questions
from plmjax.finetuning.tasks.retrieval import Retrieval
from plmjax.finetuning.tasks.sentences import Sentences
from plmjax.finetuning.tasks.tagging import Tagging
from plmjax.finetuning.tasks.task import FileTask
from plmjax.finetuning.tasks.text_pairs import TextPairs
from plmjax.inference import word_vector_scores as scores
from plmjax.inference import zero_shot
from plmjax.interop.word_vectors import WordVectors
from tests.data.formats.published import DECLARED, write
from tests.fuzzing.fuzzer import Reader
from tests.fuzzing.models import TABLE, TEXT, WORDS, Fixtures

Files = Mapping[str, bytes]


def _write(files: Files, folder: Path, given: Fixtures) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)


def _lines(*rows: Any) -> bytes:
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode()


# ----------------------------------------------------------------------------------------------------------- tasks

TSV = "text\tlabel\nA good film.\tyes\nA bad film, naïve.\tno\nSo so.\tno\n".encode()
CSV = b'text,label\n"A good, long film.",yes\n"A ""bad"" film",no\nSo so.,no\n'
PAIRS = _lines({"source": "A dog.", "target": "Ein Hund."}, {"source": "A cat.", "target": "Eine Katze."})
CHOICES = _lines(
    {"context": "It rains.", "choices": ["He is wet.", "He is dry."], "label": 0},
    {"context": "It shines.", "choices": ["He is wet.", "He is dry."], "label": "B"},
)
SETS = _lines({"text": "A goal.", "label": ["sport", "news"]}, {"text": "A vote.", "label": []})
CONLL = b"-DOCSTART- O\n\nThe O\nfox B-ANIMAL\n\nParis B-PLACE\nis O\n"
CONLLU = (
    b"# text = The fox sleeps\n1-2\tThe fox\t_\t_\t_\t_\t_\t_\t_\t_\n"
    b"1\tThe\tthe\tDET\t_\t_\t2\tdet\t_\t_\n2\tfox\tfox\tNOUN\t_\t_\t3\tnsubj\t_\t_\n"
    b"3\tsleeps\tsleep\tVERB\t_\t_\t0\troot\t_\t_\n\n1\tGo\tgo\tVERB\t_\t_\t0\troot\t_\t_\n\n"
)
SEARCHES = b"query\tpositive\tnegative\tscore\nWho digs?\tA fox.\tA car.\t2.5\nWho howls?\tA wolf.\tA fox.\t0\n"
BEIR = {
    "corpus.jsonl": _lines({"_id": "d1", "title": "Fox", "text": "Foxes dig."}, {"_id": "d2", "text": "Wolves howl."}),
    "queries.jsonl": _lines({"_id": "1", "text": "Who digs?"}, {"_id": "2", "text": "Who howls?"}),
    "qrels/dev.tsv": b"query-id\tcorpus-id\tscore\n1\td1\t1\n2\td2\t2\n2\td1\t0\n",
}
CONTEXT = "The fox sleeps in the den by day, and hunts by night."
SQUAD = json.dumps(
    {
        "version": "v2.0",
        "data": [
            {
                "title": "Fox",
                "paragraphs": [
                    {
                        "context": CONTEXT,
                        "qas": [
                            {"id": "a", "question": "Where?", "answers": [{"text": "the den", "answer_start": 18}]},
                            {"id": "b", "question": "Who?", "is_impossible": True, "answers": []},
                        ],
                    }
                ],
            }
        ],
    },
    indent=1,
).encode()


def _task(task: FileTask, name: str, labelled: bool, folder: Path) -> None:
    """All examples of a file."""
    path = str(folder / name)
    if labelled:
        task.with_validation_file(path).read("validation")
    else:
        list(task.parts(path, 2))


def _search(folder: Path) -> None:
    """All queries and passages of a folder of BEIR."""
    Retrieval(split="dev").with_validation_file(str(folder)).read("validation")


def _tasks(name: str, content: bytes, task: FileTask, labelled: bool = True, **others: bytes) -> list[Reader]:
    """A task's reader of a file, and of the same one gzipped."""
    files = {name: content} | {other.replace("_", "."): text for other, text in others.items()}
    packed = {f"{other}.gz": gzip.compress(text, mtime=0) for other, text in files.items()}
    made = []
    for suffix, contents in (("", files), (".gz", packed)):
        what = f"task, {type(task).__name__} of {name}{suffix}{'' if labelled else ' to predict'}"
        read = functools.partial(_task, task, f"{name}{suffix}", labelled)
        made.append(Reader(what, functools.partial(_write, contents), read))
    return made


TASKS = [
    *_tasks("a.tsv", TSV, Sentences()),
    *_tasks("a.csv", CSV, Sentences())[:1],
    *_tasks("a.jsonl", SETS, LabelSets())[:1],
    *_tasks("a.jsonl", CHOICES, Choices())[:1],
    *_tasks("a.conll", CONLL, Tagging(scheme="IOB2")),
    *_tasks("a.conllu", CONLLU, Parsing()),
    *_tasks("a.json", SQUAD, Questions()),
    *_tasks("a.jsonl", PAIRS, TextPairs())[:1],
    *_tasks("a.en", b"A dog.\nA cat.\n", TextPairs(source="en", target="de"), a_de=b"Ein Hund.\nEine Katze.\n"),
    *_tasks("a.txt", b"A good film.\nA bad film.\n", Sentences(), False),
    *_tasks("a.txt", b"The fox sleeps\nIt hunts\n", Parsing(), False)[:1],
    *_tasks("a.tsv", SEARCHES, Retrieval(negatives=("negative",)))[:1],
    *_tasks("a.csv", SEARCHES.replace(b"\t", b","), Retrieval(score="score"))[:1],
    Reader("task, a folder of BEIR", functools.partial(_write, BEIR), _search),
]

# -------------------------------------------------------------------------------------------------------- raw text

WIKI = (
    '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" xml:lang="en">\n'
    "  <page><title>Fox</title><ns>0</ns><id>1</id><revision><id>2</id><text xml:space=\"preserve\">'''Foxes''' are "
    "[[Canidae|canids]].&lt;ref&gt;A book.&lt;/ref&gt; {{cite|a|{{b}}}}\n{| class=x\n| a cell\n|}\n== Life ==\n* They "
    "eat &amp;amp; sleep.</text></revision></page>\n"
    "  <page><title>Wolf</title><ns>0</ns><id>3</id><revision><id>4</id><text>Wolves howl.</text></revision></page>\n"
    "</mediawiki>\n"
)
EXTRACTED = '<doc id="1" url="u" title="Fox">\nFox\n\nFoxes dig.\nThey sleep.\n</doc>\n' * 2
BOOK = (
    "The Project Gutenberg EBook of Nothing, by Nobody\n\n*** START OF THIS PROJECT GUTENBERG EBOOK NOTHING ***\n\n"
    + "It was a dark and stormy night; the rain fell in torrents, except at\noccasional intervals.\n\n" * 5
    + "*** END OF THIS PROJECT GUTENBERG EBOOK NOTHING ***\n"
)
OBJECTS = _lines({"text": "One.\nTwo.", "n": 1}, {"text": "Three. naïve", "n": 2.5})
PAGES = b"".join(
    b"WARC/1.0\r\nWARC-Type: %s\r\nContent-Length: %d\r\n\r\n%s\r\n\r\n" % (kind, len(content), content)
    for kind, content in ((b"warcinfo", b"a: b\r\n"), (b"conversion", "One. naïve\nTwo.".encode()))
)
COLUMNS = "n\ttext\n1\tOne. Two.\n2.5\tThree. naïve\n".encode()


def _parquet(folder: Path, given: Fixtures) -> None:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"text": ["One. Two.", "Three.", None], "n": [1.0, 2.0, 3.0]})
    pyarrow.parquet.write_table(table, folder / "a.parquet")


def _arrow(indexed: bool, folder: Path, given: Fixtures) -> None:
    import pyarrow.ipc

    table = pyarrow.table({"text": ["One. Two.", "Three.", None], "n": [1.0, 2.0, 3.0]})
    new = pyarrow.ipc.new_file if indexed else pyarrow.ipc.new_stream
    with new(str(folder / "a.arrow"), table.schema) as writer:
        writer.write_table(table)


def _zstandard(content: bytes) -> bytes:
    import pyarrow

    return pyarrow.compress(content, codec="zstd", asbytes=True)


def _documents(format: str, folder: Path) -> None:
    """The prose of all documents, and the size of the text."""
    for document in formats.documents([folder], format=format):
        for paragraph in formats.prose(document):
            paragraph.encode("utf-8")
    text_size.measure([folder], format)


def _records(format: str, folder: Path) -> None:
    """The parts of all records."""
    parts = records.Parts({"text": "text"}, ("n",))
    for document in formats.documents([folder], format=format, parts=parts):
        formats.streams_of(document, parts), formats.fields_of(document, parts)


def _raw(format: str, name: str, content: bytes, read: Callable[[str, Path], None] = _documents) -> Reader:
    what = f"raw text, {name} as {format}{', parts' if read is _records else ''}"
    return Reader(what, functools.partial(_write, {name: content}), functools.partial(read, format))


def _corpus(name: str) -> Reader:
    """All splits of a small published corpus."""

    def read(folder: Path) -> None:
        for part in DECLARED[name].parts([folder], SPLITS, lambda count: None):
            DECLARED[name].size("".join(corpora.units(part.text)))

    return Reader(f"raw text, {name}", lambda folder, given: write(name, folder), read)


RAW = [
    *map(_corpus, DECLARED),
    _raw("auto", "a.txt", TEXT.encode()),
    _raw("text", "a.txt", TEXT.encode()),
    _raw("lines", "a.txt", TEXT.encode()),
    _raw("auto", "wiki.xml", WIKI.encode()),
    _raw("wikipedia-dump", "wiki.xml.bz2", bz2.compress(WIKI.encode())),
    _raw("wikiextractor", "wiki_00", EXTRACTED.encode()),
    _raw("books", "book.txt", BOOK.encode()),
    _raw("jsonl", "a.jsonl", OBJECTS),
    _raw("tsv", "a.tsv", COLUMNS),
    _raw("auto", "a.txt.gz", gzip.compress(TEXT.encode(), mtime=0)),
    _raw("auto", "a.txt.zst", _zstandard(TEXT.encode())),
    _raw("jsonl", "a.jsonl", OBJECTS, _records),
    _raw("tsv", "a.tsv", COLUMNS, _records),
    Reader("raw text, a.parquet", _parquet, functools.partial(_documents, "auto")),
    _raw("auto", "a.warc.wet", PAGES),
    _raw("wet", "a.warc.wet.gz", gzip.compress(PAGES, mtime=0) * 2),
    Reader("raw text, a.arrow", functools.partial(_arrow, False), functools.partial(_documents, "auto")),
    Reader("raw text, a.arrow, parts", functools.partial(_arrow, False), functools.partial(_records, "arrow")),
    Reader("raw text, a.arrow with an index", functools.partial(_arrow, True), functools.partial(_documents, "auto")),
    Reader("raw text, a.parquet, parts", _parquet, functools.partial(_records, "parquet")),
]

# --------------------------------------------------------------------------------------------------- lists of words


@functools.cache
def _known() -> WordVectors:
    return WordVectors("vectors.txt", WORDS, TABLE)


@functools.cache
def _model() -> Any:
    """A stand-in with all that the tasks ask of a language model: a tokenizer, and the nats of rows."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        tokenizer = tokenizers.train("byte-bpe", 290, [TEXT], folder)

    def score(rows: list[list[int]], lasts: list[int] | None = None) -> list[Any]:
        counts = [len(row) - 1 for row in rows] if lasts is None else lasts
        return [SimpleNamespace(nats=np.ones(count), likeliest=np.ones(count, bool)) for count in counts]

    return SimpleNamespace(tokenizer=tokenizer, begin=0, window=1000, score=score)


def _zero_shot(task: str, path: Path) -> None:
    model = _model()
    zero_shot.TASKS[task](model, path, UnknownTokens(model.tokenizer.vocabulary, MAX_UNKNOWN))


PAIR = {"sentence_good": "The fox sleeps.", "sentence_bad": "The fox sleep.", "field": "syntax", "UID": "agreement"}
LISTS = [
    Reader(
        "word similarity",
        functools.partial(_write, {"a.txt": b"king\tqueen\t8.5\nman woman 8.3\nking man 2\nthe queen 1\n"}),
        lambda folder: scores.similarity(_known(), folder / "a.txt"),
    ),
    Reader(
        "word analogy",
        functools.partial(_write, {"a.txt": b": royal\nking queen man woman\nman woman king queen\n: gram1\n"}),
        lambda folder: scores.analogy(_known(), folder / "a.txt"),
    ),
    Reader(
        "BLiMP",
        functools.partial(_write, {"a.jsonl": _lines(PAIR, PAIR)}),
        lambda folder: _zero_shot("blimp", folder / "a.jsonl"),
    ),
    Reader(
        "LAMBADA",
        functools.partial(_write, {"a.txt": b"The quick brown fox\nIt was the best\n"}),
        lambda folder: _zero_shot("lambada", folder / "a.txt"),
    ),
]
