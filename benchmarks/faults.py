"""Kill processes at random moments, run them again, and compare their results with an undisturbed run.

python benchmarks/faults.py [--kills 45] [--kinds prepare ...]

Each kind of work is run once undisturbed. Then it is repeatedly started, and killed with SIGKILL after a random time.
Whenever it reaches its end, its files are compared with the undisturbed run byte by byte, and it starts again from
nothing. Between two kills no finished checkpoint may be lost. The script prints one row per kind of work, the seconds
from SIGTERM to a finished checkpoint, and the seconds from a start to the first step.

The processes are forked from one that has imported everything, so none of them spends seconds on imports. After that
they do the same as the command line.
"""

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"

import numpy as np

KINDS = ("prepare", "pretrain", "save", "finetune", "restore")
TINY = "experiments/bert_tiny.py"
SMALL = (
    "--model.num_hidden_layers 1 --model.hidden_size 32 --model.num_attention_heads 2 --model.intermediate_size 64 "
    "--model.vocab_size 800 --tokenizer.vocab_size 800 --data.sequence_length 32 --data.layout.duplicates 1 "
    "--training.batch_size 16 --training.log_every 2 --training.evaluation_batches 2"
).split()
RUN = "--training.steps 60 --training.evaluate_every 12 --checkpoint.every 6 --checkpoint.keep 0".split()
SAVING = "--training.steps 24 --training.evaluate_every 12 --checkpoint.every 1 --checkpoint.keep 2".split()
TUNING = (
    "--data.sequence_length 32 --data.text sentence --data.label label --finetuning.epochs 0 --training.steps 36 "
    "--training.batch_size 16 --checkpoint.every 4 --checkpoint.keep 0"
).split()


def text(folder: Path) -> tuple[Path, Path]:
    """Write Python's language reference as documents, and its sentences labeled by the half of the alphabet."""
    from pydoc_data.topics import topics

    documents = [(name, " ".join(body.split())) for name, body in sorted(topics.items())]
    prose = folder / "reference.txt"
    prose.write_text("\n\n".join(body for _, body in documents if len(body) > 500), encoding="utf-8")
    rows = [(name < "m", part) for name, body in documents for part in re.findall(r"[^.]{30,120}\.", body)[:6]]
    sentences = folder / "sentences.tsv"
    lines = ["sentence\tlabel", *(f"{part.strip()}\t{int(early)}" for early, part in rows)]
    sentences.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return prose, sentences


def fork(work: Callable[[], None], log: Path) -> int:
    """Run a function in its own process, which may use JAX, unlike this one. Return the process id."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    code = 1
    try:
        work()
        code = 0
    except SystemExit as stop:
        code = stop.code
    except Exception:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def start(arguments: list[str], log: Path) -> int:
    """Run a plmjax command in its own process. Return the process id."""

    def command() -> None:
        from plmjax.commands import cli

        sys.argv = ["plmjax", *arguments]
        cli.main()

    return fork(command, log)


def wait(pid: int, seconds: float | None = None) -> int | None:
    """Return the exit code of a process, or None if it still runs after that time."""
    deadline = None if seconds is None else time.monotonic() + seconds
    while deadline is None or time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG if deadline else 0)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    return None


def digest(folder: Path) -> str:
    """Return the SHA-256 of the parameters, the metrics or, if there are none, the files of a command."""
    from plmjax.data import checksums
    from plmjax.training import metrics
    from plmjax.training.checkpoints import checkpoints

    found = hashlib.sha256()
    if (folder / "checkpoints").is_dir():
        import jax

        state, _ = checkpoints.load_parameters(folder)
        for leaf in jax.tree.leaves(state):
            found.update(np.ascontiguousarray(leaf).tobytes())
        clocks = ("time", "tokens_per_second", "mfu", "input_wait")
        for line in metrics.read(folder / "metrics.jsonl"):
            record = {name: value for name, value in line.items() if name not in clocks}
            found.update(json.dumps(record, sort_keys=True).encode())
    else:
        # Notes on checked files have the times of this copy.
        files = (path for path in folder.rglob("*") if path.is_file() and path.parent.name != checksums.FOLDER)
        for file in sorted(files):
            found.update(file.relative_to(folder).as_posix().encode() + file.read_bytes())
    return found.hexdigest()


def result(folder: Path, scratch: Path) -> str:
    """Return the `digest` of a folder, computed in its own process."""
    written = scratch / "digest"
    written.unlink(missing_ok=True)
    code = wait(fork(lambda: written.write_text(digest(folder)), scratch / "digest.log"))
    return written.read_text() if code == 0 else f"unreadable: {(scratch / 'digest.log').read_text()[-2000:]}"


def steps(folder: Path) -> set[int]:
    """Return the finished checkpoints of a run."""
    return {int(entry.name) for entry in (folder / "checkpoints").glob("*") if entry.name.isdigit()}


def kill_repeatedly(
    name: str,
    command: Callable[[Path], list[str]],
    scratch: Path,
    *,
    kills: int,
    draws: random.Random,
    keeps: bool = True,
    window: float = 1.0,
) -> dict[str, int | str]:
    """Kill a command that many times. Return the row of its kind.

    command: function from a folder to the arguments with which the command writes its result there.
    keeps: True if it keeps every checkpoint.
    window: part of its undisturbed run time in which it is killed.
    """
    log = scratch / f"{name}.log"
    begun = time.monotonic()
    assert wait(start(command(scratch / f"{name}-whole"), log)) == 0, log.read_text()[-3000:]
    seconds = (time.monotonic() - begun) * window
    expected = result(scratch / f"{name}-whole", scratch)
    done, half_written, ends, same, lost, refused, number = 0, 0, 0, 0, 0, 0, 0
    folder = scratch / f"{name}-{number}"
    while done < kills or ends == 0:
        before = steps(folder)
        pid = start(command(folder), log)
        code = wait(pid, draws.uniform(0, seconds)) if done < kills else wait(pid)
        if code is None:
            os.kill(pid, signal.SIGKILL)
            done += 1
            code = wait(pid)
            half_written += any((folder / "checkpoints").glob("*.orbax-checkpoint-tmp*"))
        elif code:
            refused += 1
            print(f"{name}: ended with {code}: {log.read_text().splitlines()[-1]}", file=sys.stderr)
        lost += keeps and not before <= steps(folder)
        if code == 0 or code > 0:
            ends += 1
            same += code == 0 and result(folder, scratch) == expected
            shutil.rmtree(folder, ignore_errors=True)
            number += 1
            folder = scratch / f"{name}-{number}"
    survived = done if same == ends and not lost and not refused else "not all"
    print(f"{name}: {done} kills, {same} of {ends} ends equal", file=sys.stderr, flush=True)
    return {
        "kind": name,
        "kills": done,
        "in the middle of a save": half_written,
        "checkpoints lost": lost,
        "starts refused": refused,
        "ends": ends,
        "equal ends": same,
        "survived": survived,
    }


def first_step(arguments: list[str], cache: Path) -> float:
    """Return the seconds from starting a fresh interpreter to the line of the first step."""
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache)}
    begun = time.monotonic()
    command = [sys.executable, "-m", "plmjax", *arguments, "--training.log_every", "1"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("step "):
                process.kill()
                return time.monotonic() - begun
    raise RuntimeError("The run ended without a step.")


def sigterm(arguments: list[str], folder: Path) -> float:
    """Return the seconds from SIGTERM to the end of a process that has saved its checkpoint."""
    command = [sys.executable, "-m", "plmjax", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("step "):
                break
        begun = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.communicate()
        seconds = time.monotonic() - begun
    assert process.returncode == 75 and steps(folder), process.returncode
    return seconds


def main() -> None:
    """Print the table and the two figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=45, help="kills of each of the five kinds")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS, help="kinds of work to kill")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draws = random.Random(options.seed)
    import orbax.checkpoint  # noqa: F401 - imported here once for all forked processes
    import tensorflow  # noqa: F401

    from plmjax.commands import cli  # noqa: F401
    from plmjax.data import pipeline, store, tokenizers  # noqa: F401
    from plmjax.data.preparation import run as preparation
    from plmjax.runs import (
        finetuning,  # noqa: F401
    )
    from plmjax.runs import pretraining as run  # noqa: F401

    # If transformers is installed, an export compares outputs with it, which takes half a minute.
    sys.modules["transformers"] = None
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(scratch / "programs")
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        prose, sentences = text(scratch)

        def pretraining(extra: list[str]) -> Callable[[Path], list[str]]:
            data = ["--data.path", str(scratch / "base" / "dataset")]
            return lambda folder: ["pretrain", TINY, "--workdir", str(folder), *data, *SMALL, *extra]

        preparation.UNIT_BYTES = 1 << 16  # a dataset of many units
        base = ["pretrain", TINY, "--workdir", str(scratch / "base"), "--data.input", str(prose), *SMALL, *RUN]
        assert wait(start(base, scratch / "base.log")) == 0, (scratch / "base.log").read_text()[-3000:]
        tokenizer = str(scratch / "base" / "tokenizer")
        kinds = {
            "prepare": lambda folder: [
                "prepare", "--input", str(prose), "--tokenizer", tokenizer, "--output", str(folder), "--processes", "1",
                "--clean", "exact_duplicates",
            ],
            "pretrain": pretraining(RUN),
            "save": pretraining(SAVING),
            "finetune": lambda folder: [
                "finetune", "experiments/finetune_sentences.py", "--from", str(scratch / "base"), "--workdir",
                str(folder), "--data.train", str(sentences), "--data.validation", str(sentences), *TUNING,
            ],
        }  # fmt: skip
        rows = [
            kill_repeatedly(
                name, command, scratch, kills=options.kills, draws=draws, keeps=name not in ("save", "prepare")
            )
            for name, command in kinds.items()
            if name in options.kinds
        ]
        template = scratch / "pretrain-whole"

        def restoring(folder: Path) -> list[str]:
            """A run with only its last steps left spends nearly all of its time on restoring."""
            if not folder.exists():
                shutil.copytree(template, folder)
                for step in steps(folder) - {54}:
                    shutil.rmtree(folder / "checkpoints" / str(step))
            return pretraining(RUN)(folder)

        if "restore" in options.kinds:
            if not template.exists():
                assert wait(start(pretraining(RUN)(template), scratch / "template.log")) == 0
            rows.append(kill_repeatedly("restore", restoring, scratch, kills=options.kills, draws=draws))
        print("| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
        for row in rows:
            print("| " + " | ".join(map(str, row.values())) + " |")
        print(f"\n{sum(row['kills'] for row in rows)} kills in all.")
        own = ["pretrain", TINY, "--data.path", str(scratch / "base" / "dataset"), "--tokenizer.vocab_size", "800"]
        folder = scratch / "term"
        print(
            f"SIGTERM to the end with a finished checkpoint: {sigterm([*own, '--workdir', str(folder)], folder):.1f} s"
        )
        for label in ("cold", "with the compilation cache"):
            seconds = first_step([*own, "--workdir", str(folder)], scratch / "fresh")
            print(f"restart to the first step, {label}: {seconds:.1f} s")


if __name__ == "__main__":
    main()
