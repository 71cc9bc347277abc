"""A command never replaces what is not its own: not a device, not a file or folder of somebody else."""

import contextlib
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.errors import UserError
from plmjax.files import storage
from plmjax.inference import predict
from plmjax.interop import word2vec

Fails = Callable[..., str]


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """A pipe, which is no regular file, as devices are none."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    """A file of word vectors."""
    word2vec.write(tmp_path / "words.txt", ["fox"], np.array([[1, 2]], np.float32))
    return tmp_path / "words.txt"


@contextlib.contextmanager
def read_beside(path: Path, copy: Path) -> Iterator[None]:
    """Another process that reads a pipe until it is closed, and is done when the block ends."""
    with copy.open("w") as file:
        reader = subprocess.Popen(["cat", str(path)], stdout=file)
        try:
            yield
            reader.wait(60)
        finally:
            reader.kill()


def test_a_pipe_is_written_into(tmp_path: Path, pipe: Path) -> None:
    with read_beside(pipe, tmp_path / "copy"):
        storage.write(pipe, "into it\n")
    assert (tmp_path / "copy").read_text() == "into it\n"
    assert stat.S_ISFIFO(pipe.stat().st_mode) and sorted(os.listdir(tmp_path)) == ["copy", "pipe"]


NAMES = ("proc", "link_to_link", *(pytest.param(one, marks=pytest.mark.nightly) for one in ("link", "link_in_folder")))


@pytest.fixture(params=NAMES)
def standard_output(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A name of the standard output as systems have it; /dev itself is left alone, as it belongs to the machine."""
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("needs /proc")
    device = tmp_path / "dev"
    device.mkdir()
    (device / "fd").symlink_to("/proc/self/fd")
    (device / "absolute").symlink_to("/proc/self/fd/1")
    (device / "relative").symlink_to("fd/1")
    names = {
        "proc": Path("/proc/self/fd/1"),
        "link": device / "absolute",
        "link_to_link": device / "relative",
        "link_in_folder": device / "fd" / "1",
    }
    return names[request.param]


def test_the_standard_output_goes_on_where_it_is(standard_output: Path, tmp_path: Path) -> None:
    """Also where a shell has sent it to a file: what was written before stays, what comes after follows."""
    program = (
        "from pathlib import Path; from plmjax.files import storage\n"
        f"print('before'); storage.write(Path({str(standard_output)!r}), 'into it\\n'); print('after')"
    )
    with (tmp_path / "out").open("w") as out:
        subprocess.run([sys.executable, "-c", program], stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "before\ninto it\nafter\n"


def test_a_closed_output_is_not_replaced(standard_output: Path, tmp_path: Path) -> None:
    """A link to nothing looks like a new file's name."""
    program = (
        "import os; from pathlib import Path; from plmjax.files import storage\nos.close(1)\n"
        f"try:\n    storage.write(Path({str(standard_output)!r}), 'into it')\n"
        "except storage.UserError as error:\n    os.write(2, str(error).encode())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True)
    assert f"Expected an open file behind {standard_output}, found: " in done.stderr.decode()
    assert not standard_output.is_file() or standard_output.is_symlink()


@pytest.mark.parametrize("verb", ["generate", "report", "curve", "embed", "embed.jsonl", "vectors"])
def test_a_file_of_somebody_else_stays(
    verb: str, fails: Fails, tmp_path: Path, small_run: Path, decoder_run: Path
) -> None:
    """Refused before anything is read or computed."""
    thesis = tmp_path / {"curve": "a.png", "embed": "a.npz", "embed.jsonl": "a.jsonl"}.get(verb, "thesis")
    lines = tmp_path / "lines.txt"
    thesis.write_text("years of work\n"), lines.write_text("a line\n")
    said = fails(*{
        "generate": ["generate", decoder_run, "a", "--output", thesis],
        "report": ["report", small_run, "--output", thesis],
        "curve": ["report", small_run, "--output", tmp_path / "page.html", "--curve", thesis],
        "vectors": ["export", small_run, thesis, "--vectors", "text"],
    }.get(verb, ["embed", small_run, "--input", lines, "--output", thesis]))  # fmt: skip
    assert f"or one that this command wrote, found another one at {thesis}" in said
    assert thesis.read_text() == "years of work\n" and not (tmp_path / "page.html").exists()


def test_predictions_do_not_replace_other_files(tmp_path: Path, small_run: Path) -> None:
    for text, refused in (("years of work\n", True), ('{"line": 1, "prediction": 0}\n', False)):
        (tmp_path / "out").write_text(text)
        with pytest.raises(UserError) as error:  # without a refusal, by the checkpoint: it is of no task
            predict.write(small_run, tmp_path / "lines.txt", output=tmp_path / "out")
        assert ("or one that this command wrote" in str(error.value)) == refused
        assert (tmp_path / "out").read_text() == text


@pytest.mark.nightly
def test_a_file_that_the_command_wrote_is_written_again(
    tmp_path: Path, small_run: Path, decoder_run: Path, vectors: Path, capsys: pytest.CaptureFixture
) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("a line\n")
    for command, name in (
        (["report", small_run, "--curve", tmp_path / "a.svg", "--output"], "page.html"),
        (["report", small_run, "--output", tmp_path / "page.html", "--curve"], "a.png"),
        (["report", small_run, "--output", tmp_path / "page.html", "--curve"], "a.pdf"),
        (["embed", small_run, "--input", lines, "--output"], "a.npz"),
        (["embed", small_run, "--input", lines, "--output"], "a.jsonl"),
        (["generate", decoder_run, "a", "--max_new_tokens", 1, "--output"], "texts.jsonl"),
    ):
        (tmp_path / name).write_text("")  # an empty one may be written over too
        for _ in range(2):
            cli.run([*map(str, command), str(tmp_path / name)])
        assert (tmp_path / name).stat().st_size
    for form in ("text", "glove"):
        cli.run(["export", str(vectors), str(tmp_path / "vectors"), "--vectors", form])
    assert all(line.startswith("decoding   ") for line in capsys.readouterr().err.splitlines())


def test_word_vectors_go_into_a_pipe_and_no_folder(fails: Fails, vectors: Path, tmp_path: Path, pipe: Path) -> None:
    with read_beside(pipe, tmp_path / "copy"):
        cli.run(["export", str(vectors), str(pipe), "--vectors", "glove"])
    assert (tmp_path / "copy").read_text() == "fox 1.0 2.0\n"
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert f"found the folder {tmp_path}" in fails("export", vectors, tmp_path, "--vectors", "text")


def test_an_export_replaces_an_export_alone(fails: Fails, small_run: Path, tmp_path: Path, pipe: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "config.json").write_text("{}")
    assert "or one of an earlier export, found other files in" in fails("export", small_run, theirs)
    assert [(file.name, file.read_text()) for file in theirs.iterdir()] == [("config.json", "{}")]
    assert f"found the file {pipe}" in fails("export", small_run, pipe)
    for _ in range(2):
        cli.run(["export", str(small_run), str(tmp_path / "ours"), "--architecture", "BertModel"])
    assert (tmp_path / "ours" / "config.json").is_file()


def test_a_run_is_not_made_where_a_tokenizer_is(small_run: Path, tmp_path: Path, fails: Fails) -> None:
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("mine")
    assert f"Expected no run in {tmp_path}" in fails("average", small_run, "--last", 2, "--output", tmp_path)
    assert (tmp_path / "tokenizer" / "tokenizer.json").read_text() == "mine"


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"Expected a file for --output, found the folder {tmp_path}"):
        storage.check_file(tmp_path, "--output", lambda beginning: True)
