"""Speed of text preparation, beside the tokenizers library alone on the same text in the same run.

    python benchmarks/prepare.py PATH... [--format auto] [--vocab_size 30522] [--processes N]

Both use every core. CPU seconds are given too, because only they can be compared on a busy machine.
"""

import argparse
import os
import resource
import tempfile
import threading
import time
from pathlib import Path


def cpu_seconds() -> float:
    """Return the user and system time of this process and of its finished children."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


class PeakMemory(threading.Thread):
    """Largest memory of this process and its children together (proportional set size), in bytes."""

    def __init__(self):
        super().__init__(daemon=True)
        self.peak = 0
        self._done = threading.Event()

    def __enter__(self) -> "PeakMemory":
        self.start()
        return self

    def __exit__(self, *error) -> None:
        self._done.set()
        self.join()

    def run(self) -> None:
        while not self._done.wait(0.1):
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            self.peak = max(self.peak, sum(map(self._memory, [str(os.getpid()), *children])))

    @staticmethod
    def _memory(process: str) -> int:
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:  # the process has ended
            return 0
        return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--format", default="auto")
    parser.add_argument("--vocab_size", type=int, default=30522)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()

    import tokenizers as library

    from plmjax.data import formats, tokenizers
    from plmjax.data.preparation import prepare

    with tempfile.TemporaryDirectory() as folder:
        sample = formats.texts(options.paths, format=options.format, limit_bytes=1 << 24)
        tokenizer = tokenizers.train("wordpiece", options.vocab_size, sample, Path(folder, "tokenizer"))
        engine = library.Tokenizer.from_file(str(Path(folder, "tokenizer", "tokenizer.json")))

        start, cpu = time.perf_counter(), cpu_seconds()
        with PeakMemory() as memory:
            dataset = prepare(
                options.paths, options.format, tokenizer, Path(folder, "dataset"), processes=options.processes
            )
        ours, ours_cpu = time.perf_counter() - start, cpu_seconds() - cpu
        tokens = sum(dataset.split(name).token_count for name in ("train", "validation"))

        size = 0
        library_tokens = 0
        theirs = theirs_cpu = 0.0
        documents = ["\n".join(formats.prose(d)) for d in formats.documents(options.paths, format=options.format)]
        for first in range(0, len(documents), 256):
            batch = documents[first : first + 256]
            size += sum(len(text.encode()) for text in batch)
            start, cpu = time.perf_counter(), cpu_seconds()
            encoded = engine.encode_batch(batch, add_special_tokens=False)
            theirs, theirs_cpu = theirs + time.perf_counter() - start, theirs_cpu + cpu_seconds() - cpu
            library_tokens += sum(len(e.ids) for e in encoded)

    print(f"text       {size / 1e6:,.1f} MB of prose, {tokens:,} tokens ({library_tokens:,} by the library)")
    for name, seconds, cpu in (("prepare", ours, ours_cpu), ("tokenizers", theirs, theirs_cpu)):
        rates = f"{tokens / seconds / 1e6:6.2f} M tokens/s  {size / seconds / 1e6:6.2f} MB/s"
        print(f"{name:<10} {rates}  {size / cpu / 1e6:6.2f} MB per core and second")
    print(f"ratio      {theirs / ours:6.2f} by the clock  {theirs_cpu / ours_cpu:6.2f} by CPU time")
    print(f"memory     {memory.peak / 2**30:6.2f} GiB at most, {options.processes} processes and the reader together")


if __name__ == "__main__":
    main()
