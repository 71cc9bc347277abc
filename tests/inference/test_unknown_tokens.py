"""Text that a tokenizer does not know: every command that reads text counts it, and refuses too much of it."""

import json
from pathlib import Path

import pytest

from plmjax.commands import cli
from plmjax.inference.evaluate import evaluate

STRANGE = "今天天气很好，我们去公园散步吧。"
TOO_MANY = "Expected text that the tokenizer knows"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text in Chinese, the same as labelled examples, and examples of which one word in twenty is."""
    folder = tmp_path_factory.mktemp("strange")
    (folder / "text.txt").write_text(f"{STRANGE}\n" * 20, encoding="utf-8")
    for name, texts in (("all", [STRANGE] * 6), ("few", ["a film of the plot and the film"] * 9 + ["the \N{SNOWMAN}"])):
        rows = [json.dumps({"text": text, "label": "a"}, ensure_ascii=False) + "\n" for text in texts]
        (folder / f"{name}.jsonl").write_text("".join(rows), encoding="utf-8")
    return folder


def test_every_command_refuses_text_that_is_hardly_known(
    fails, small_run: Path, classifiers: Path, folder: Path, tmp_path: Path
) -> None:
    labelled = folder / "all.jsonl"
    for command in (
        ["evaluate", small_run, "--data", folder / "text.txt"],
        ["evaluate", classifiers / "one", "--data", labelled],
        ["evaluate", classifiers / "one", "--data", labelled, "--ensemble", classifiers / "two"],
        ["predict", classifiers / "one", "--input", labelled],
        ["embed", small_run, "--input", folder / "text.txt", "--output", tmp_path / "vectors.npz"],
    ):
        said = fails(*command)
        assert TOO_MANY in said and "found 100.0%" in said and "raise --max_unknown to use it anyway" in said
        assert "Expected --max_unknown from 0 to 1, found 2" in fails(*command, "--max_unknown", 2)
    assert not list(tmp_path.iterdir())


def test_a_few_unknown_tokens_are_counted(
    small_run: Path, classifiers: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert evaluate(classifiers / "one", folder / "few.jsonl")["eval/unknown_tokens"] == 1
    for command, stream in (
        (["predict", str(classifiers / "one"), "--input", str(folder / "few.jsonl")], "err"),
        (["embed", str(small_run), "--input", str(folder / "few.jsonl"), "--output", str(tmp_path / "v.npz")], "out"),
    ):
        capsys.readouterr()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", ["plmjax", *command])
            cli.main()
        assert "of the tokens, 1 of " in getattr(capsys.readouterr(), stream)


def test_the_share_is_refused_where_it_has_no_effect(fails, small_run: Path) -> None:
    assert "Expected raw text in --data for --max_unknown, found none" in fails(
        "evaluate", small_run, "--max_unknown", 0.5
    )
    assert "found" in fails("evaluate", small_run, "--data", small_run / "dataset", "--max_unknown", 0.5)
    assert "Expected no --max_unknown with --task analogy" in fails(
        "evaluate", small_run, "--task", "analogy", "--data", "x", "--max_unknown", 0.5
    )


@pytest.mark.nightly
def test_any_text_is_evaluated_where_the_share_allows_it(small_run: Path, folder: Path) -> None:
    found = evaluate(small_run, folder / "text.txt", max_unknown=1)
    assert found["eval/unknown_tokens"] > 100
