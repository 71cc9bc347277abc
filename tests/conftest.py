"""Eight simulated CPU devices for every test, set before JAX is imported."""

import atexit
import contextlib
import gc
import os
import shutil
import signal
import tempfile

from tests.xla_flags import FAST_COMPILATION, cpu_flags

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TPU_SKIP_MDS_QUERY"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["XLA_FLAGS"] = cpu_flags(devices=8)
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # equal programs are compiled once, in processes of their own too
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="plmjax-test-programs-")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
# Threads of torch and of BLAS wait for each other's shares of a small model busily: half of the time of a comparison.
os.environ["OMP_NUM_THREADS"] = "1"

# What a shell runs in the background ignores Ctrl-C, and so would the commands that tests start and send it to.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import pytest

from tests import paths
from tests.object_store import ObjectStore
from tests.once import copied, made_once
from tests.optional import torch, transformers
from tests.small_runs import DECODER_ROW, SMALL_BERT

# XLA has read its flags once its devices are there. libtpu reads them when a program is compiled for a TPU, and ends
# the process at a flag that it does not know.
jax.devices()
# Commands remember files there: not for the person who runs the tests.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="plmjax-test-state-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)
# Tracing makes many small objects that live on: collecting them as often as by default takes a tenth of its time.
gc.set_threshold(200_000, 50, 50)
os.environ["XLA_FLAGS"] = os.environ["XLA_FLAGS"].replace(FAST_COMPILATION, "")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says at the end of a run which tests were skipped because nothing is beside the checkout."""
    needs, skipped = f"needs {paths.SHARED}/", terminalreporter.stats.get("skipped", [])
    skipped = [one for one in skipped if needs in str(one.longrepr)]
    if skipped:
        files = sorted({one.nodeid.partition("::")[0] for one in skipped})
        terminalreporter.section("skipped for want of what lies beside the checkout", yellow=True)
        terminalreporter.write_line(f"{len(skipped)} tests need {paths.SHARED}: {', '.join(files)}")


LONGEST = (
    "parallel/test_hosts.py",
    "systems",
    "test_readme.py",
    "third_party/test_strangers.py",
    "files/test_storage.py",
    "finetuning/test_kinds.py",
    "finetuning/test_run.py",
    "training/test_loop.py",
    "training/test_step.py",
    "test_main.py",
    "planning",
    "tpu",
    "finetuning/test_docs.py",
    "test_python_docs.py",
    "test_experiments.py",
    "interop/test_import_export.py",
    "compression",
    "finetuning/cross_view",
)
"""Files and folders of tests that take longest. A file is the work of one process, so that whoever gets one of these
last works on while the other processes have nothing left to do."""


def pytest_xdist_auto_num_workers() -> int:
    """`-n auto`: a process more than there are cores, since some tests wait for servers, hosts and signals."""
    return len(os.sched_getaffinity(0)) + 1 if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files go first."""
    folders = [Path(__file__).parent / name for name in LONGEST]
    assert all(folder.exists() for folder in folders), "LONGEST names a file that is not there"
    rank = {folder: place for place, folder in enumerate(folders)}
    items.sort(key=lambda item: min(rank.get(folder, len(rank)) for folder in (item.path, *item.path.parents)))


MOST_MEMORY = 4 * 2**30
"""Bytes of a process of tests, three of which are at work on a machine of two cores."""


@pytest.fixture(scope="module", autouse=True)
def programs_fit_into_memory() -> Iterator[None]:
    """Drops the compiled programs before they are too many, at the end of a file of tests.

    Every program for the CPU takes memory, and pieces of the process' address space, of which Linux gives 65,530 by
    default; the suite compiles so many that it would run out of both, which ends the process.
    """
    yield
    maps, pages = Path("/proc/self/maps"), Path("/proc/self/statm")
    many = not maps.exists() or maps.read_bytes().count(b"\n") > 40_000
    if many or int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") > MOST_MEMORY:
        jax.clear_caches()
        gc.collect()


@contextlib.contextmanager
def on_one_device() -> Iterator[None]:
    """Runs of this process take one of the simulated devices, where they compile and compute in two thirds of the time.

    For what proves no mesh: tasks, predictions, commands, files.
    """
    from plmjax.training import loop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "devices", lambda platform: jax.devices()[:1])
        yield


ON_ONE_DEVICE = (
    "compression", "files", "finetuning", "generation", "inference", "interop", "models", "runs",
    "third_party/test_windowed.py", "test_benchmarks.py", "test_outputs.py", "test_python_docs.py",
    "test_readme.py", "tpu/test_docs.py",
)  # fmt: skip
"""Files and folders of tests whose runs take one device."""


@pytest.fixture(scope="module", autouse=True)
def devices_of_runs(request: pytest.FixtureRequest) -> Iterator[None]:
    """One device where that proves as much as all eight."""
    here = request.path.relative_to(Path(__file__).parent)
    enough = any(here.is_relative_to(name) for name in ON_ONE_DEVICE)
    with on_one_device() if enough else contextlib.nullcontext():
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real text beside the checkout."""
    return paths.beside_the_checkout("data")


@pytest.fixture(scope="session")
def prose(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of real English: Python's own language reference, cut into documents with blank lines between them.

    They are so many, over 300, that a twentieth of them is held out whatever the text of this version of Python is.
    """

    def make(folder: Path) -> None:
        from pydoc_data.topics import topics

        documents, open_document = [], ""
        for _, topic in sorted(topics.items()):
            for paragraph in topic.split("\n\n"):
                open_document = f"{open_document} {' '.join(paragraph.split())}".strip()
                if len(open_document) > 1000:
                    documents, open_document = [*documents, open_document], ""
        (folder / "reference.txt").write_text("\n\n".join(documents), encoding="utf-8")

    return made_once(tmp_path_factory, "prose", make) / "reference.txt"


@pytest.fixture(scope="session")
def small_run(prose: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a finished, very small pretraining run."""
    from plmjax.commands import cli

    def make(folder: Path) -> None:
        with on_one_device():
            files = ["--workdir", str(folder / "small"), "--data.input", str(prose)]
            cli.run(["pretrain", "experiments/bert_tiny.py", *files, *SMALL_BERT])

    return copied(tmp_path_factory, made_once(tmp_path_factory, "runs", make)) / "small"


@pytest.fixture(scope="session")
def decoder_run(prose: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a small GPT-2 whose random parameters are large enough that tokens differ."""
    import flax.linen as nn
    import jax.numpy as jnp

    from plmjax.contracts.execution import Execution
    from plmjax.contracts.system import Purpose
    from plmjax.data import tokenizers
    from plmjax.data.layouts import Chunks
    from plmjax.experiment import Data, Experiment, Training
    from plmjax.models.gpt2 import Gpt2Config
    from plmjax.objectives.next_token import NextToken
    from plmjax.training.checkpoints import checkpoints

    def make(folder: Path) -> None:
        tokenizer = tokenizers.train("byte-bpe", 300, [prose.read_text(encoding="utf-8")], folder / "tokenizer")
        sizes = {"n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 64, "initializer_range": 0.3}
        config = Gpt2Config(vocab_size=tokenizer.vocabulary.size, bos_token_id=None, eos_token_id=None, **sizes)
        module = config.module(Purpose.PRETRAINING, Execution())
        params = nn.meta.unbox(jax.jit(module.init)(jax.random.key(3), jnp.zeros((1, 2), jnp.int32)))["params"]
        data, training = Data(layout=Chunks(), sequence_length=DECODER_ROW), Training(unroll=1)
        run = Experiment(model=config, objective=NextToken(), data=data, training=training)
        files = checkpoints.tokenizer_files(folder / "tokenizer")
        checkpoints.save_parameters(folder / "run", params, run, tokenizer=files)

    return copied(tmp_path_factory, made_once(tmp_path_factory, "decoder", make)) / "run"


@pytest.fixture(scope="session")
def prefix_run(decoder_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model as the run of a prefix language model."""
    import dataclasses

    from plmjax.objectives.prefix_language_model import PrefixLanguageModel
    from plmjax.training.checkpoints import checkpoints

    params, description = checkpoints.load_parameters(decoder_run)
    run = dataclasses.replace(description.experiment, objective=PrefixLanguageModel())
    folder = tmp_path_factory.mktemp("prefix") / "run"
    checkpoints.save_parameters(folder, params, run, tokenizer=description.tokenizer)
    return folder


@pytest.fixture(scope="session")
def reference(small_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple]:
    """text -> hidden states [L+1 T D] and predictions of `small_run` in transformers, each text alone and unpadded."""

    from plmjax.data import tokenizers
    from plmjax.interop.run_directories import export_checkpoint

    folder = tmp_path_factory.mktemp("export")
    export_checkpoint(small_run, folder, "BertForPreTraining")
    model = transformers.BertForPreTraining.from_pretrained(folder).eval()
    tokenizer = tokenizers.load(folder)

    def states(text: str):
        ids = [tokenizer.vocabulary.cls, *tokenizer.with_parsed_special().encode(text), tokenizer.vocabulary.sep]
        with torch.no_grad():
            outputs = model(torch.tensor([ids]), output_hidden_states=True)
        return torch.stack(outputs.hidden_states)[:, 0].numpy(), outputs.prediction_logits[0].numpy()

    return states


@pytest.fixture(scope="module")
def object_store() -> Iterator[ObjectStore]:
    """A local Cloud Storage that every client of this process and of those it starts talks to."""
    with ObjectStore() as store, store.environment():
        yield store


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The user's cache folder, for the tests of one file."""
    from plmjax.files import storage

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield storage.cache()


@pytest.fixture
def bucket(object_store: ObjectStore) -> str:
    """The name of a new, empty bucket there."""
    name = f"bucket-{len(object_store.buckets)}"
    object_store.create(name)
    return name


@pytest.fixture
def fails(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs a command that must end with an exit code, 2 by default, and one sentence, and returns the sentence."""

    from plmjax.commands import cli

    def run(*arguments: object, code: int = 2) -> str:
        monkeypatch.setattr("sys.argv", ["plmjax", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            cli.main()
        said = capsys.readouterr().err.strip().splitlines()
        assert stop.value.code == code
        assert len(said) == 1 and said[0].startswith("plmjax: ") and said[0].endswith((".", "?")), said
        return said[0]

    return run
