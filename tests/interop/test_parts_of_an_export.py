"""All that an import or an export is told, and all that a run has, reaches the library's part that it is for."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError
from plmjax.experiment import Experiment
from plmjax.finetuning.tasks.sentences import Sentences, SequenceClassification
from plmjax.generation.options import Generation
from plmjax.interop import run_directories
from plmjax.models.bert import BertConfig
from plmjax.training.checkpoints.checkpoints import Description

RUN = Experiment(
    model=BertConfig.tiny(), objective=SequenceClassification(labels=("no", "yes")), data=Sentences(sequence_length=16)
)
TOKENIZER = SimpleNamespace(vocabulary=Vocabulary(9, begin=2, end=3), save=lambda folder: None)


class Called(Exception):
    """Ends a command where another part would do its work."""


def end(*given: Any, **named: Any) -> None:
    raise Called(*given, *named.values())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple]:
    """Name of a part of the library -> its arguments, of parts that answer with words."""
    found: dict[str, tuple] = {}

    def answer(name: str, result: Any) -> Any:
        def part(*given: Any, **named: Any) -> Any:
            found[name] = (*given, named) if named else given
            return result

        return part

    def replaced(module: str, **parts: Any) -> None:
        for name, result in parts.items():
            monkeypatch.setattr(f"plmjax.interop.run_directories.{module}{name}", answer(f"{module}{name}", result))

    replaced("huggingface.", compare=0.0, save=None, has_form=True, architecture_held="Held")
    replaced("huggingface.", as_architecture=("the module", None), transformers_installed=True)
    replaced("written.", compare=7)
    replaced("tokenizer_files.", compare=8, rows_with="the layout")
    replaced("weight_mapping.", tokenizer_of=TOKENIZER)
    replaced("", _writes=True, _rows="the rows", _written_generation=({"top_k": 3}, ["lost: one"]), claim=None)
    return found


@pytest.mark.parametrize(("named", "architecture"), [("auto", "Held"), ("Other", "Other")])
def test_an_export_is_written_and_compared_as_the_class_that_is_chosen(
    named: str, architecture: str, asked: dict[str, tuple], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    description = Description(RUN, 5, {"vocab.txt": b"a"})
    monkeypatch.setattr(run_directories.checkpoints, "load_parameters", lambda path: ({"kernel": 1}, description))
    monkeypatch.setattr(run_directories.checkpoints, "find", lambda path: path)
    monkeypatch.setattr(run_directories.items, "in_int8", lambda folder, item: [])
    monkeypatch.setattr(run_directories.int8, "without_scales", lambda params: params)
    monkeypatch.setattr(run_directories.low_rank, "whole", lambda params, config: (params, config))
    monkeypatch.setattr(run_directories, "_dense", lambda params, run: (params, run, []))
    said = run_directories.export_checkpoint("run", tmp_path / "out", named)
    assert said.startswith(f"exported   {architecture} of step 5 to ") and said.endswith("; lost: one")
    assert asked["claim"] == (tmp_path / "out", architecture, 5)
    model, params, folder, extras = asked["huggingface.save"]
    scratch = extras.pop("tokenizer")
    assert scratch.name and extras == {
        "architecture": architecture,
        "generation": {"top_k": 3},
        "labels": ("no", "yes"),
        "problem_type": "single_label_classification",
        "rows": "the layout",
    }
    assert folder == tmp_path / "out" and params == {"kernel": 1}
    assert asked["huggingface.compare"] == (model, params, folder, architecture)
    assert asked["written.compare"] == (model, params, folder, TOKENIZER, "the layout", architecture)
    assert asked["tokenizer_files.compare"] == (TOKENIZER, "the layout", folder)
    assert asked["_rows"][0] == RUN and asked["_rows"][2:] == ("the module", architecture)
    assert asked["_written_generation"][2] == architecture


@pytest.mark.parametrize("library", ["transformers", "google-research/bert"])
@pytest.mark.parametrize("named", [None, "tokenizer"])
def test_an_import_is_a_run_with_the_tokenizer_and_the_settings_of_its_folder(
    library: str, named: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Only transformers has settings of generation. The run is read back before it is told of."""
    done: dict[str, Any] = {}
    folder, place = tmp_path / "there", tmp_path / (named or "there")
    place.mkdir(exist_ok=True)
    folder.mkdir(exist_ok=True)
    (place / "tokenizer_config.json").write_text(json.dumps({"source_lang": "en", "target_lang": "de"}))
    module = SimpleNamespace(config=RUN.model)
    monkeypatch.setattr(
        run_directories.libraries,
        "load",
        lambda path, architecture: done.update(load=(path, architecture)) or (module, {}, library, "a file"),
    )
    monkeypatch.setattr(run_directories, "_tokenizer", lambda *given: done.update(tokenizer=given) or TOKENIZER)
    data = run_directories.TextPairs()
    part = run_directories._Imported("Class", "inside", RUN.objective, data, "checked")
    monkeypatch.setattr(run_directories, "_of_transformers", lambda *given: done.update(part=given) or part)
    monkeypatch.setattr(run_directories, "_generation", lambda *given: done.update(of=given) or Generation(top_k=3))
    monkeypatch.setattr(run_directories, "_files", lambda tokenizer: {"vocab.txt": b"a"})
    monkeypatch.setattr(run_directories.checkpoints, "save_parameters", lambda *given: done.update(save=given))
    monkeypatch.setattr(run_directories.checkpoints, "load_parameters", lambda path: ({"other": {}}, None))
    monkeypatch.setattr(
        run_directories, "_same_bits", lambda found, expected, what: done.update(bits=(found, expected))
    )
    workdir = tmp_path / "run"
    run_directories.import_checkpoint(folder, workdir, "Class", named and tmp_path / named)
    generation = Generation(top_k=3) if library == "transformers" else None
    assert done["load"] == (folder, "Class") and done["tokenizer"] == (place, module)
    assert done["part"] == (module, {}, library, folder, TOKENIZER, place)
    saved_in, tree, run, files = done["save"]
    assert (saved_in, tree, files) == (workdir, {"inside": {}}, {"vocab.txt": b"a"})
    assert (run.model, run.objective, run.generation) == (RUN.model, RUN.objective, generation)
    assert (run.data.source, run.data.target) == ("en", "de")
    assert done["bits"] == ({"other": {}}, tree) and done.get("of", ()) in ((folder, module, TOKENIZER.vocabulary), ())
    assert ("of" in done) is (library == "transformers")


def test_settings_of_generation_that_the_model_cannot_keep_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Such as a forced token that its vocabulary lacks."""
    files = run_directories.huggingface
    monkeypatch.setattr(run_directories, "_writes", lambda module: True)
    monkeypatch.setattr(files, "read_settings", lambda folder: {})
    monkeypatch.setattr(files, "read_generation", lambda folder: {"forced_bos_token_id": 99})
    module = SimpleNamespace(config=BertConfig.tiny(vocab_size=9))
    vocabulary = SimpleNamespace(document_end=3, size=9, special=(0,), pad=0)
    with pytest.raises(UserError, match="99"):
        run_directories._generation(tmp_path, module, vocabulary)
