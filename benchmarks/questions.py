"""Time to convert the questions of a file to rows of tokens: reading, tokenizing, windows, packing, batches.

    python benchmarks/questions.py squad/dev-v2.0.cs224n.json.gz --count 10000

The file's articles are repeated, with a new id for every question, until there are `count` questions.
"""

import argparse
import copy
import itertools
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from plmjax.data import tokenizers
from plmjax.finetuning.batches.source import ExampleRows
from plmjax.finetuning.files import json_file
from plmjax.finetuning.tasks.questions import Questions, SpanExtraction
from plmjax.models.bert import BertConfig


def repeated(source: str, count: int) -> dict:
    """Return `count` questions of the file. The texts are repeated about as often as the questions."""
    found, _ = json_file.parse(source)
    articles, left = [], count
    for number in itertools.count():
        for article in copy.deepcopy(found["data"]):
            for paragraph in article["paragraphs"]:
                paragraph["qas"] = paragraph["qas"][:left]
                left -= len(paragraph["qas"])
                for entry in paragraph["qas"]:
                    entry["id"] = f"{number}-{entry['id']}"
            articles.append(article)
            if not left:
                return {"data": articles}


def main() -> None:
    """Print the seconds of each part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", help="a file of SQuAD's form")
    parser.add_argument("--count", type=int, default=10_000, help="questions")
    parser.add_argument("--kind", default="wordpiece", help="kind of tokenizer, trained on the texts")
    parser.add_argument("--pack", type=int, default=2, help="most windows in a row")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "questions.json"
        path.write_text(json.dumps(repeated(options.file, options.count)), encoding="utf-8")
        task = Questions(train=str(path), pack=options.pack)
        once = Questions(train=options.file).read("train").contexts
        tokenizer = tokenizers.train(options.kind, 8192, once, Path(scratch) / "tokenizer")
        marks = [time.perf_counter()]
        examples = task.read("train")
        marks.append(time.perf_counter())
        encoded = SpanExtraction().encode(examples, tokenizer, BertConfig(vocab_size=8192), task)
        marks.append(time.perf_counter())
        rows = ExampleRows(encoded, task.sequence_length, task.pack, pad=0)
        marks.append(time.perf_counter())
        for first in range(0, len(rows), 16):
            rows.batch(rows.in_order[first : first + 16], np.arange(16))
        marks.append(time.perf_counter())
    print(f"{len(examples):,} questions, {len(encoded):,} windows, {len(encoded.tokens):,} tokens, {len(rows):,} rows")
    for name, seconds in zip(("reading", "tokens and windows", "packing", "batches"), np.diff(marks), strict=True):
        print(f"  {name:<20}{seconds:6.1f} s")
    print(f"  {'together':<20}{marks[-1] - marks[0]:6.1f} s")


if __name__ == "__main__":
    main()
