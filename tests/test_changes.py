"""A change runs the tests with the mark `nightly` that are about it."""

import subprocess
from pathlib import Path

import pytest

from tests.changes import brings_back, changed_files


def git(root: Path, *arguments: str) -> str:
    who = "-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"
    return subprocess.run(["git", "-C", str(root), *who, *arguments], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    for name, text in {"one.py": "1", "two words.py": "2", ".gitignore": "ignored.py"}.items():
        (tmp_path / name).write_text(text)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    return tmp_path


def test_files_that_differ_from_a_commit_or_are_new(repository: Path) -> None:
    assert changed_files(repository, "HEAD") == []
    (repository / "two words.py").write_text("3")
    git(repository, "commit", "--quiet", "-a", "-m", "second")
    (repository / "new.py").write_text("")
    (repository / "ignored.py").write_text("")
    assert changed_files(repository, "HEAD") == ["new.py"]
    assert changed_files(repository, "HEAD~1") == ["two words.py", "new.py"]


def test_a_commit_that_is_not_there_is_named(repository: Path) -> None:
    with pytest.raises(ValueError, match="a commit in --changed-since, found 'no-branch'"):
        changed_files(repository, "no-branch")


def test_without_a_repository_nothing_has_changed(tmp_path: Path) -> None:
    assert changed_files(tmp_path, "HEAD") == []


@pytest.mark.parametrize(
    ("test", "file", "expected"),
    [
        ("data/test_tokenizers.py::test_a", "tests/data/test_tokenizers.py", True),
        ("data/test_tokenizers.py::test_a", "tests/data/test_store.py", False),
        ("data/remote/test_commands.py::test_a", "plmjax/data/store/writer.py", True),
        ("data/remote/test_commands.py::test_a", "plmjax/training/loop.py", False),
        ("test_storage.py::test_a", "plmjax/files/storage.py", True),
        ("test_storage.py::test_a", "plmjax/files/buckets.py", False),
        ("test_main.py::test_a", "plmjax/__main__.py", True),
        ("models/reformer/test_reformer.py::test_a", "plmjax/models/reformer/chunked_attention.py", True),
        ("models/test_albert.py::test_a", "plmjax/models/albert.py", True),
        ("models/test_albert.py::test_a", "plmjax/models/bert.py", False),
        ("systems/test_parity.py::test_a[albert-AlbertForMaskedLM-tokens]", "plmjax/models/albert.py", True),
        ("systems/test_parity.py::test_a[albert-AlbertForMaskedLM-tokens]", "plmjax/models/bert.py", False),
        ("systems/test_parity.py::test_a[t5-T5Model-both sides]", "plmjax/layers/attention/bands.py", True),
        ("training/test_step.py::test_a[bart-all]", "plmjax/models/bart/bart.py", True),
        ("training/test_step.py::test_a[bart-all]", "plmjax/training/step.py", True),
        ("systems/test_counts.py::test_a[t5]", "tests/families/encoders.py", True),
        ("training/test_step.py::test_a[t5-all]", "tests/families/encoders.py", False),
        ("test_experiments.py::test_a", "experiments/bert_tiny.py", True),
        ("test_copying.py::test_a", "benchmarks/copying.py", True),
        ("test_copying.py::test_a", "benchmarks/pieces.py", False),
        ("finetuning/test_docs.py::test_command[1]", "docs/finetuning.md", True),
        ("finetuning/test_docs.py::test_command[1]", "docs/data.md", False),
        ("finetuning/test_run.py::test_a", "docs/finetuning.md", False),
        ("finetuning/test_run.py::test_a", "README.md", False),
    ],
)
def test_a_test_comes_back_with_what_it_is_about(test: str, file: str, expected: bool) -> None:
    assert brings_back(test, ["setup.py", file]) is expected
