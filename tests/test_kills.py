"""A command that was killed is run again to the same end, and two commands at once do not mix their files.

Nothing is lost, nothing is refused for ever. By day a command is killed at a few moments, with `-m slow` before every
operation by which Python changes the folder.
"""

import concurrent.futures
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flax.traverse_util
import pytest

from plmjax.training.checkpoints import ancestry, checkpoints
from tests.data.random_texts import document
from tests.files.test_locks import holder
from tests.inference.test_embed import TEXTS
from tests.kills import Commands, moments

VERBS = {
    "average": "average RUN --last 2 --output OUT",
    "prune": "compress prune RUN --output OUT",
    "lottery": "compress prune RUN --output OUT --method lottery --training.steps 2 --checkpoint.every 1",
    "factorize": "compress factorize RUN --output OUT --rank 2",
    "share": "compress share RUN --output OUT",
    "quantize": "compress quantize RUN --output OUT --method weight_only --granularity tensor",
    "import": "import EXPORT OUT",
    "export": "export RUN OUT",
    "export_jax": "export RUN OUT --to jax",
    "export_sentences": "export RUN OUT --to sentence-transformers",
    "embed": "embed RUN --input LINES --output OUT/vectors.npz",
    "tokenizer": "tokenizer train --input TEXT --output OUT --vocab_size 300",
    "prepare": "prepare --input TEXT --tokenizer WORDS --output OUT --processes 1 --clean c4_end_marks near_duplicates",
    "cooccurrence": "cooccurrence DATASET --output OUT --memory 300 --min_count 1 --processes 1",
    "report": "report RUN --output OUT/page.html",
    "card": "card RUN OUT/README.md",
}
"""A command of every verb that keeps something for its continuation, or writes several files."""
BY_DAY = {"average": 1, "embed": 1, "tokenizer": 3}
"""Verb -> number of moments."""
SOME = {"lottery": 2}
"""Verb whose command takes long -> number of moments by `-m slow`; the others are killed at all, too."""
OF_TIME = ("lock.json", "metrics.jsonl", "progress.json", "start.json", "source.json")
"""Files with times, or with paths of the inputs."""


@pytest.fixture(scope="module")
def commands() -> Iterator[Commands]:
    with Commands() as server:
        yield server


@pytest.fixture(scope="module")
def places(small_run: Path, tmp_path_factory: pytest.TempPathFactory, commands: Commands) -> dict[str, Path]:
    """Word of a command -> the file or folder that it stands for."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "lines.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    texts = [document(seed) for seed in (*range(60), *range(5))]
    (folder / "text.txt").write_text("\n\n".join(texts), encoding="utf-8")
    names = {"LINES": "lines.txt", "TEXT": "text.txt", "WORDS": "words", "DATASET": "dataset", "EXPORT": "export"}
    return {"RUN": small_run} | {name: folder / path for name, path in names.items()}


MADE = {
    "import": "export RUN EXPORT",
    "prepare": "tokenizer train --input TEXT --output WORDS --kind word --vocab_size 300",
    "cooccurrence": "prepare --input TEXT --tokenizer WORDS --output DATASET --processes 1",
}
"""Verb -> the command that makes its input."""


def prepared(verb: str, commands: Commands, places: dict[str, Path], folder: Path) -> None:
    """Make the input of a verb."""
    for needed in ("prepare", "cooccurrence") if verb == "cooccurrence" else (verb,):
        if needed in MADE:
            made = commands.run(words(MADE[needed], places, folder), folder)
            assert not made.code, made.said


def words(command: str, places: dict[str, Path], out: Path) -> list[Any]:
    found = []
    for word in command.split():
        name, _, rest = word.partition("/")
        found.append(out / rest if name == "OUT" else places.get(word, word))
    return found


def contents(out: Path) -> dict[str, Any]:
    """What a command leaves: its files, and for a run directory the parameters; times are left out."""
    runs = {path.parent.parent for path in out.glob("**/checkpoints/*") if path.name.isdigit()}
    found: dict[str, Any] = {}
    for run in runs:
        params, description = checkpoints.load_parameters(run)
        digest = ancestry.digest(flax.traverse_util.flatten_dict(params, sep="/"))
        found[f"{run.relative_to(out)} as a run"] = (digest, description.step, description.tokenizer)
    for path in sorted(out.glob("**/*")):
        inside = {"checkpoints", "tensorboard", "constants", "checked"} & {*path.relative_to(out).parts}
        if path.is_file() and not inside and path.name not in OF_TIME:
            found[path.relative_to(out).as_posix()] = path.read_bytes()
    return found


@pytest.mark.parametrize(
    ("verb", "chosen"),
    [
        *BY_DAY.items(),
        *(pytest.param(verb, SOME.get(verb, 4), marks=pytest.mark.slow, id=f"{verb}-some") for verb in VERBS),
        *(
            pytest.param(verb, 10**6, marks=[pytest.mark.slow, pytest.mark.timeout(0)], id=f"{verb}-every")
            for verb in VERBS
            if verb not in SOME
        ),
    ],
)
def test_a_killed_command_is_run_again_to_the_same_end(
    verb: str, chosen: int, commands: Commands, places: dict[str, Path], tmp_path: Path
) -> None:
    prepared(verb, commands, places, tmp_path)
    out, in_a_folder = tmp_path / "killed", "OUT/" in VERBS[verb]
    (tmp_path / "whole").mkdir() if in_a_folder else None
    whole = commands.run(words(VERBS[verb], places, tmp_path / "whole"), tmp_path / "whole")
    expected = contents(tmp_path / "whole")
    assert not whole.code and expected, whole.said
    again = commands.run(words(VERBS[verb], places, tmp_path / "whole"), tmp_path / "whole")
    assert not again.code and contents(tmp_path / "whole") == expected, again.said  # as after a kill at its very end
    for moment in moments(whole.moments, chosen):
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir() if in_a_folder else None
        command = words(VERBS[verb], places, out)
        assert commands.run(command, out, moment).code == -9
        done = commands.run(command, out)
        assert not done.code, (moment, done.said)
        assert contents(out) == expected, moment


@pytest.mark.parametrize("verb", [v if v == "cooccurrence" else pytest.param(v, marks=pytest.mark.slow) for v in VERBS])
def test_a_full_disk_is_one_sentence_and_then_the_command_goes_on(
    verb: str, commands: Commands, places: dict[str, Path], tmp_path: Path
) -> None:
    """A limit on the size of files fails as a full disk does, in the middle of the largest one too."""
    prepared(verb, commands, places, tmp_path)
    for name in ("whole", "full") if "OUT/" in VERBS[verb] else ():
        (tmp_path / name).mkdir()
    done = commands.run(words(VERBS[verb], places, tmp_path / "whole"), tmp_path / "whole")
    assert not done.code, done.said
    expected, out = contents(tmp_path / "whole"), tmp_path / "full"
    largest = max(path.stat().st_size for path in (tmp_path / "whole").glob("**/*") if path.is_file())
    for limit in (100, largest // 2, largest - 1):
        refused = commands.run(words(VERBS[verb], places, out), tmp_path, largest=limit)
        assert refused.code == 2 and "Expected " in refused.said.splitlines()[-1], (limit, refused)
    done = commands.run(words(VERBS[verb], places, out), tmp_path)
    assert not done.code and contents(out) == expected, done.said


HELD = [verb for verb in VERBS if verb not in ("report", "card", "embed")]


@pytest.mark.parametrize("verb", ["average", "tokenizer", *(pytest.param(v, marks=pytest.mark.slow) for v in HELD)])
def test_a_folder_at_work_is_refused(verb: str, places: dict[str, Path], commands: Commands, tmp_path: Path) -> None:
    prepared(verb, commands, places, tmp_path)
    with holder(tmp_path / "out") as process:
        refused = commands.run(words(VERBS[verb], places, tmp_path / "out"), tmp_path / "out")
    assert refused.code == 2 and f"found process {process.pid} on" in refused.said
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["lock.json"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("average", "prune"),
        ("prune", "factorize"),
        ("import", "average"),
        ("export", "export_jax"),
        ("tokenizer", "tokenizer --kind word"),
    ],
)
def test_of_two_commands_at_once_one_is_whole(
    one: str, other: str, places: dict[str, Path], commands: Commands, tmp_path: Path
) -> None:
    """One of them ends and leaves what it leaves alone; the other is refused, if it does not come after it."""
    prepared(one, commands, places, tmp_path)
    both = [VERBS[verb.partition(" ")[0]] + f" {verb.partition(' ')[2]}" for verb in (one, other)]
    alone = []
    for number, command in enumerate(both):
        assert not commands.run(words(command, places, tmp_path / f"alone{number}"), tmp_path).code
        alone.append(contents(tmp_path / f"alone{number}"))
    with Commands() as second, concurrent.futures.ThreadPoolExecutor(2) as pool:
        second.run(["--version"], tmp_path)  # it has imported everything
        for attempt in range(6):
            out = tmp_path / f"out{attempt}"
            ends = [
                pool.submit(server.run, words(command, places, out), out)
                for server, command in zip((commands, second), both, strict=True)
            ]
            ended = [end.result() for end in ends]
            assert {end.code for end in ended} <= {0, 2} and not min(end.code for end in ended), ended
            if [end.code for end in ended].count(0) == 1:
                assert contents(out) == alone[[end.code for end in ended].index(0)], ended
