"""A corpus of gigabytes prepared by one process, by a pool and by Apache Beam: equal bytes, speed, memory, and a kill.

    python benchmarks/large_corpus.py DATA --output FOLDER [--gigabytes 10] [--ways one pool killed DirectRunner]

DATA holds pretrain/wikipedia_en/train. The corpus is made of it, with 30 % of the words of every document replaced by
others, in files of 256 MiB of the format `text`. It and the datasets stay in FOLDER; a dataset that is there is not
made again. `pool` has a process for each core. `killed` is a pool of which one process is killed in the middle; then
the command is run again. Other names are runners of Apache Beam.

The table has the seconds by the clock and of the processors, tokens per core and second, and the largest memory of all
processes together. The last line says whether the ledgers, with the checksums of all files, are equal. Linux only.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from prepare import PeakMemory, cpu_seconds  # beside this file

from plmjax.data import formats, store, tokenizers
from plmjax.data.preparation import files, prepare
from plmjax.errors import UserError

FILE_BYTES = 1 << 28
REPLACED = 0.3
WAYS = ("one", "pool", "killed")


def corpus(texts: list[str], size: int) -> Iterator[str]:
    """Yield copies of the texts until they have `size` bytes. In each copy, other positions have random words."""
    draws = np.random.default_rng(0)
    vocabulary = np.array(sorted({word for text in texts[:200] for word in text.split()}), object)
    for _ in itertools.count():
        for text in texts:
            words = np.array(text.replace("\n", " \n ").split(" "), object)
            chosen = (draws.random(len(words)) < REPLACED) & (words != "\n")
            words[chosen] = vocabulary[draws.integers(len(vocabulary), size=int(chosen.sum()))]
            document = " ".join(words).replace(" \n ", "\n") + "\n\n"
            yield document
            size -= len(document.encode())
            if size <= 0:
                return


def make(data: Path, folder: Path, size: int) -> None:
    """Write the corpus."""
    inputs = data / "pretrain" / "wikipedia_en" / "train"
    texts = ["\n".join(formats.prose(document)) for document in formats.documents([inputs])]
    folder.mkdir(parents=True)
    documents = corpus([text for text in texts if text], size)
    for number in range(-(-size // FILE_BYTES)):
        written = 0
        with (folder / f"{number:04d}.txt").open("w", encoding="utf-8") as file:
            for document in documents:
                file.write(document)
                written += len(document.encode())
                if written >= FILE_BYTES:
                    break


def settings(way: str) -> dict:
    """Return the arguments of `prepare` for a way."""
    return {"one": {"processes": 1}, "pool": {}, "killed": {}}.get(way, {"runner": way})


def kill_one(output: Path, units: int) -> None:
    """Kill one of the processes that work for this one when a fifth of the units is finished."""
    while len(list(output.glob(f"{files.FOLDER}/*/{files.WRITTEN}"))) < max(1, units // 5):
        time.sleep(0.1)
    children = Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read_text().split()
    command = {child: Path(f"/proc/{child}/cmdline").read_bytes() for child in children if child != str(os.getpid())}
    os.kill(int(next(child for child, words in command.items() if b"spawn_main" in words)), signal.SIGKILL)


def measured(way: str, inputs: list[Path], tokenizer: tokenizers.Tokenizer, output: Path) -> str:
    """Prepare the corpus. Return a row of the table."""
    start, cpu, note = time.perf_counter(), cpu_seconds(), ""
    with PeakMemory() as memory:
        if way == "killed":
            size = sum(path.stat().st_size for path in inputs)
            context = multiprocessing.get_context("spawn")
            killer = context.Process(target=kill_one, args=(output, size >> 25), daemon=True)
            killer.start()
            try:
                prepare(inputs, "text", tokenizer, output)
                raise SystemExit("Expected a killed process to end the preparation, found it finished.")
            except UserError as error:
                kept = len(list(output.glob(f"{files.FOLDER}/*/{files.WRITTEN}")))
                note = f" ({kept} units were finished at the kill: {str(error).split(';')[0]})"
        dataset = prepare(inputs, "text", tokenizer, output, **settings(way))
    seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu
    tokens = sum(dataset.split(name).token_count for name in store.SPLITS)
    rate = tokens / cpu / 1e6
    return (
        f"| {way}{note} | {seconds:,.0f} | {cpu:,.0f} | {tokens / 1e6:,.0f} | {rate:.2f} | {memory.peak / 2**30:.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument("--ways", nargs="+", default=list(WAYS))
    options = parser.parse_args()

    text, size = options.output / "corpus", int(options.gigabytes * 1e9)
    if not text.exists():
        make(options.data, text, size)
    inputs = sorted(text.iterdir())
    if not (options.output / "tokenizer").exists():
        start = time.perf_counter()
        tokenizers.train("wordpiece", 30522, formats.texts(inputs, format="text"), options.output / "tokenizer")
        print(f"tokenizer  trained on a sample in {time.perf_counter() - start:,.0f} s")
    tokenizer = tokenizers.load(options.output / "tokenizer")
    print(f"corpus     {sum(path.stat().st_size for path in inputs) / 1e9:.2f} GB in {len(inputs)} files\n")
    print("| way | seconds | of all cores | M tokens | M tokens per core and second | memory, GiB |")
    print("|---|---|---|---|---|---|")
    for way in options.ways:
        print(measured(way, inputs, tokenizer, options.output / way), flush=True)
    ledgers = [json.loads((options.output / way / store.MANIFEST).read_text()) for way in options.ways]
    print(f"\nequal      {all(manifest == ledgers[0] for manifest in ledgers)}")


if __name__ == "__main__":
    main()
