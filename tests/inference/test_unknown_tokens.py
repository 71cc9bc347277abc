"""Text that a tokenizer does not know is counted by every command that reads text; too much of it is a mistake."""

import json
from pathlib import Path

import pytest

from plmjax.commands import cli
from plmjax.inference.evaluate import evaluate

STRANGE = "今天天气很好，我们去公园散步吧。"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text in Chinese, the same as labelled examples, and examples of which one word in twenty is."""
    folder = tmp_path_factory.mktemp("strange")
    (folder / "text.txt").write_text(f"{STRANGE}\n" * 20, encoding="utf-8")
    for name, texts in (("all", [STRANGE] * 6), ("few", ["a film of the plot and the film"] * 9 + ["the \N{SNOWMAN}"])):
        rows = [json.dumps({"text": text, "label": "a"}, ensure_ascii=False) + "\n" for text in texts]
        (folder / f"{name}.jsonl").write_text("".join(rows), encoding="utf-8")
    return folder


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


@pytest.mark.nightly
def test_any_text_is_evaluated_where_the_share_allows_it(small_run: Path, folder: Path) -> None:
    found = evaluate(small_run, folder / "text.txt", max_unknown=1)
    assert found["eval/unknown_tokens"] > 100
