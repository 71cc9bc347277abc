"""Readers of a run's own files and of prepared data, each with a sample, and what makes their checksums right again."""

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

from plmjax import experiment
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import cooccurrence, store
from plmjax.data.cooccurrence import cells
from plmjax.data.layouts import SentencePairs
from plmjax.data.mixture import History, Stage
from plmjax.data.store.manifest import manifest_checksum
from plmjax.experiment import Data, Experiment, Training
from plmjax.files import json_text, locks
from plmjax.models.bert import BertConfig
from plmjax.objectives.objective import Objective
from plmjax.report import published
from plmjax.report.page import report
from plmjax.report.runs import Run
from plmjax.runs import folder as records
from plmjax.runs import mixtures
from plmjax.training import metrics
from plmjax.training.checkpoints import checkpoints, items
from plmjax.training.optimizers import BertAdamW
from tests.data import corpora
from tests.fuzzing.fuzzer import Reader
from tests.fuzzing.models import Fixtures
from tpu import job

RUN = Experiment(
    model=BertConfig.tiny(),
    objective=Objective(),
    data=Data(layout=SentencePairs(), sequence_length=64),
    optimizer=BertAdamW(),
    training=Training(steps=100, batch_size=8),
)


def _seal_ledger(name: str) -> Callable[[Path], None]:
    def seal(folder: Path) -> None:
        manifest = json.loads((folder / name).read_text())
        manifest["crc32c"] = manifest_checksum(manifest)
        (folder / name).write_text(json.dumps(manifest))

    return seal


def _dataset(folder: Path, given: Fixtures) -> None:
    corpora.write(
        folder,
        corpora.documents(12, 60, sentences=5, words=12),
        corpora.documents(2, 60, seed=1, sentences=5, words=12),
        vocab_size=60,
    )
    shutil.rmtree(folder / "checked", ignore_errors=True)


def _read_dataset(folder: Path) -> None:
    dataset = store.open_dataset(folder)
    for name in ("train", "validation"):
        dataset.fields(name)
        for stream in dataset.streams:
            split = dataset.split(name, stream)
            split.tokens(0, split.token_count), split.document_tokens[-1], split.sentence_offsets[-1]
    for stream in dataset.streams:
        dataset.unigram_counts(stream)
    dataset.check_tokenizer(dataset.tokenizer_fingerprint, "its", "do")
    dataset.fingerprint  # noqa: B018  computed when it is asked for


def _cells(folder: Path, given: Fixtures) -> None:
    source = folder.parent / "source"
    _dataset(source, given)
    special = Vocabulary.placeholder(60).special
    counting = cells.Counting(window=3, min_count=1)
    cooccurrence.count(store.open_dataset(source), special, folder, counting, processes=1, report=lambda line: None)
    shutil.rmtree(folder / "checked", ignore_errors=True)


def _read_cells(folder: Path) -> None:
    found = cells.open_cells(folder)
    found.read(0, found.count)


def _checkpoint(folder: Path, given: Fixtures) -> None:
    run = given("decoder_run")
    shutil.copytree(checkpoints.find(run), folder, dirs_exist_ok=True)


def _read_checkpoint(folder: Path) -> None:
    described = checkpoints.describe(folder)
    described.load_tokenizer()
    items.restore(folder, "params", None)


def _records() -> list[dict[str, float]]:
    values = {"train/loss": 7.5, "learning_rate": 1e-4, "tokens_per_second": 4000.0, "eval/loss": 5.0}
    return [{"step": step, "time": 1000.0 + step, **values} for step in (10, 20, 30)]


def _run(folder: Path, given: Fixtures) -> None:
    experiment.write(RUN, folder / "experiment.json")
    (folder / "metrics.jsonl").write_text("".join(metrics.to_line(record) for record in _records()))
    (folder / "samples.jsonl").write_text('{"prompt": "A", "text": "fox."}\n{"prompt": "B", "text": "dog."}\n')


def _figures(folder: Path, given: Fixtures) -> None:
    points = [
        {"step": 20, "value": 1.942, "deviation": {"value": 0.004}, "seeds": 4},
        {"samples": 2552704, "value": 0.72, "deviation": {"samples": 224080}},
        {"value": 1.78},
    ]
    figure = {"name": "T5", "source": "a paper", "metric": "eval/loss", "points": points}
    (folder / "figures.json").write_text(json.dumps({"figures": [figure]}))


def _read_figures(folder: Path) -> None:
    run = Run("run", RUN, _records())
    for figure in published.read_figures([str(folder / "figures.json")], [run]):
        for point in figure.points:
            published.compare(run, figure.metric, point)


def _seal_metrics(folder: Path) -> None:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    sealed = []
    for line in lines:
        with contextlib.suppress(ValueError, AttributeError):
            record = json_text.parse(line)
            record.pop(metrics.CHECKSUM, None)
            line = metrics.to_line(record).removesuffix("\n")
        sealed.append(f"{line}\n")
    (folder / "metrics.jsonl").write_text("".join(sealed))


def _experiment(folder: Path, given: Fixtures) -> None:
    experiment.write(RUN, folder / "experiment.json")


def _read_experiment(folder: Path) -> None:
    found = experiment.read(folder / "experiment.json")
    assert experiment.from_dict(experiment.to_dict(found)) == found
    experiment.flatten(found)


def _start(folder: Path, given: Fixtures) -> None:
    records.record_start(folder, "random", None)


def _mixture(folder: Path, given: Fixtures) -> None:
    stages = (Stage(0, {"wikipedia": 2, "books": 1}), Stage(100, {"books": 1, "news": 3}))
    mixtures.write(folder, History({name: "f00d" for stage in stages for name in stage.rows}, stages))


def _lock(folder: Path, given: Fixtures) -> None:
    with locks.lock(folder):
        content = (folder / locks.NAME).read_bytes()
    (folder / locks.NAME).write_bytes(content)


def _read_lock(folder: Path) -> None:
    with locks.lock(folder, lambda line: None):
        pass


JOB = job.Job(
    name="run",
    experiment="experiments/bert_tiny.py",
    overrides=("--training.steps", "6"),
    resolved={"training": {"steps": 6}},
    accelerator="v5e",
    topology="4x4",
    slices=1,
    spot=True,
    bucket="bucket",
    workdir="bucket/runs/run",
    package="0.tar.gz",
    jax="0.4.0",
    attempts=3,
)


def _job(folder: Path, given: Fixtures) -> None:
    (folder / "jobs" / "run" / "1").mkdir(parents=True)
    (folder / "jobs" / "run" / "job.json").write_bytes(dataclasses.replace(JOB, bucket=str(folder)).to_json())
    (folder / "jobs" / "run" / "1" / "verdict.json").write_bytes(job.Verdict("failed", "A host is gone.").to_json())


def _read_job(folder: Path) -> None:
    if found := job.read(str(folder), "run"):
        found.after_loss(1).to_json()
        job.verdict(dataclasses.replace(found, bucket=str(folder)))


RUNS = [
    Reader("dataset", _dataset, _read_dataset, _seal_ledger(store.MANIFEST)),
    Reader("cooccurrences", _cells, _read_cells, _seal_ledger(cells.MANIFEST)),
    Reader("checkpoint", _checkpoint, _read_checkpoint, items.write_manifest),
    Reader("experiment.json", _experiment, _read_experiment),
    Reader(
        "report",
        _run,
        lambda folder: report([folder], folder.parents[1] / "output" / "page.html"),
        _seal_metrics,
    ),
    Reader("published figures", _figures, _read_figures),
    Reader(
        "start.json",
        _start,
        lambda folder: records.record_start(folder, "random", None),
        owns=(records.START,),
    ),
    Reader("mixture.json", _mixture, mixtures.read),
    Reader("lock.json", _lock, _read_lock, owns=(locks.NAME,)),
    Reader("job.json", _job, _read_job),
]
