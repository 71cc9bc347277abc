"""Every option of a preparation reaches the part that reads it, and the description that a dataset is known by."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plmjax.data import cleaning, formats, store
from plmjax.data.cleaning.rule import Settings
from plmjax.data.formats import records
from plmjax.data.preparation import files, pool, prepare, run
from plmjax.data.preparation.conversion import Conversion
from plmjax.data.unknown_tokens import MAX_UNKNOWN
from plmjax.errors import UserError
from plmjax.files import seals


class Reached(Exception):
    """Ends a preparation when the test has seen enough."""


OPTIONS = {
    "validation": 0.25, "language": "de", "text_key": "body", "streams": {"source": "en"}, "fields": ("stars",),
    "split": "test", "max_unknown": 0.3, "clean": ("c4",), "bad_words": "words.txt", "piece_tokens": 7, "processes": 3,
    "runner": "FlinkRunner", "runner_options": ["parallelism=2"],
}  # fmt: skip


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Part of a preparation -> its arguments; nothing is read or written."""
    found: dict[str, Any] = {}

    def recorded(where: Any, name: str, result: Any = None) -> None:
        def call(*arguments: Any) -> Any:
            found[name] = arguments
            if result is Reached:
                raise Reached
            return result

        monkeypatch.setattr(where, name, call)

    recorded(formats, "sources", [{"path": "a", "bytes": 5, "digest": "d"}])
    recorded(cleaning, "cleaner", SimpleNamespace(description={"cleaning": ["c4"]}, report=lambda: None))
    recorded(run, "UnknownTokens")
    recorded(run.output_folder, "is_finished", False)
    recorded(run, "Pool", Reached)
    monkeypatch.setattr(run.os, "cpu_count", lambda: 11)
    return found


def test_every_option_reaches_the_part_that_reads_it(told: dict[str, Any], tokenizer, tmp_path: Path) -> None:
    with pytest.raises(Reached):
        prepare(["a", Path("b")], "jsonl", tokenizer, tmp_path / "out", **OPTIONS)
    parts = records.Parts({"source": "en"}, ("stars",))
    assert told["sources"] == (["a", Path("b")], "jsonl", "test")
    assert told["UnknownTokens"] == (tokenizer.vocabulary, 0.3)
    assert told["cleaner"] == (("c4",), "words.txt", "de", "jsonl", parts)
    output, sources, description, known = told["is_finished"]
    assert (output, sources, known) == (tmp_path / "out", [{"path": "a", "bytes": 5, "digest": "d"}], tokenizer)
    assert description == {
        "preparation": run.VERSION, "format": "jsonl", "language": "de", "validation": 0.25, "text_key": "body",
        "streams": {"source": "en"}, "fields": ["stars"], "split": "test", "piece_tokens": 7, "cleaning": ["c4"],
    }  # fmt: skip
    conversion, *rest = told["Pool"]
    assert rest == [tmp_path / "out", 3, "FlinkRunner", ["parallelism=2"]]
    assert conversion == Conversion(
        formats.Input(("a", "b"), "jsonl", "body", parts, "test"), tokenizer, "de", 0.25, 0.3, conversion.cleaner, 7,
        run.SIZES, run.output_folder.digest(sources, description, tokenizer),
    )  # fmt: skip


def test_what_is_not_given_is_as_it_was_before_there_was_the_option(
    told: dict[str, Any], tokenizer, tmp_path: Path
) -> None:
    """A dataset of a single text is known by fewer entries, and has as many processes as there are cores."""
    with pytest.raises(Reached):
        prepare(["a"], "text", tokenizer, tmp_path / "out")
    assert told["UnknownTokens"] == (tokenizer.vocabulary, MAX_UNKNOWN) and told["cleaner"][-1] is None
    assert told["is_finished"][2] == {
        "preparation": run.VERSION, "format": "text", "language": "en", "validation": 0.05, "text_key": "text",
        "streams": {}, "fields": [], "cleaning": ["c4"],
    }  # fmt: skip
    assert told["Pool"][2:] == (11, "", ()) and told["Pool"][0].source.parts is None


def test_numbers_alone_belong_to_the_text_under_its_key(told: dict[str, Any], tokenizer, tmp_path: Path) -> None:
    with pytest.raises(Reached):
        prepare(["a"], "jsonl", tokenizer, tmp_path / "out", text_key="body", fields=["stars"])
    assert told["Pool"][0].source.parts == records.Parts({store.TEXT: "body"}, ("stars",))


@pytest.mark.parametrize("runner", ["", "FlinkRunner"])
def test_processes_and_runners_make_the_same_conversion(
    runner: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each process makes it of all its fields. What is started is ended."""
    conversion = Conversion(formats.Input(("a",)), "words", "de", 0.2, 0.3, cleaning.Cleaner((), Settings()), 7)
    made: list[Any] = []
    workers = SimpleNamespace(
        __enter__=lambda: made.append("entered"), __exit__=lambda *error: made.append(("left", error))
    )
    beam = SimpleNamespace(Beam=lambda *given, output: made.append((*given, output)) or workers)
    monkeypatch.setitem(sys.modules, "plmjax.data.beam", beam)
    monkeypatch.setattr(pool, "Workers", lambda *given, doing, advice: made.append(given) or workers)
    with pytest.raises(Reached), pool.Pool(conversion, tmp_path, 3, runner, ["parallelism=2"]):
        raise Reached
    fields = (conversion.source, "words", "de", 0.2, 0.3, conversion.cleaner, 7, conversion.sizes, "")
    expected = (runner, ["parallelism=2"], Conversion, *fields, tmp_path) if runner else (3, Conversion, *fields)
    assert made[0] == expected and made[1] == "entered" and made[2][1][0] is Reached


def test_pieces_have_a_token_or_more(told: dict[str, Any], tokenizer, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="pieces of at least one token, found 0; raise the number"):
        prepare(["a"], "text", tokenizer, tmp_path / "out", piece_tokens=0)
    with pytest.raises(Reached):
        prepare(["a"], "text", tokenizer, tmp_path / "out", piece_tokens=1)


def test_a_unit_that_is_changed_while_it_is_read_is_one_sentence(tmp_path: Path) -> None:
    seals.write(tmp_path / files.WRITTEN, "text", [], {"shards": {}})
    assert files.counts(tmp_path / files.WRITTEN, "text") == {"shards": {}}
    with pytest.raises(UserError, match=r"the finished unit of this preparation at .*unit.json, found it changed"):
        files.counts(tmp_path / files.WRITTEN, "another text")
