"""Every option of a command reaches the function of the library that does its work, by the name that it has there."""

import importlib
import inspect
import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plmjax import experiment as experiments
from plmjax.commands import cli
from plmjax.commands.arguments import load_classes
from plmjax.compression.distillation.augmentation import Settings
from plmjax.errors import UserError
from plmjax.generation.options import Devices, Options
from plmjax.inference import evaluate, fill_gaps, predict
from plmjax.interop import word_vector_runs as word_vectors

RUN, OUT = Path("some/run"), Path("some/output")
CALLS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "prune": (
        "compress prune some/run --output some/output --method heads --sparsity 0.25 --rows 7 --rounds 3 "
        "--rewind r --experiment bert_tiny --training.steps 9",
        "compression.pruning.command:prune",
        {"checkpoint": "some/run", "output": OUT, "method": "heads", "sparsity": 0.25, "rows": 7, "rounds": 3}
        | {"rewind": Path("r"), "experiment": "bert_tiny", "overrides": ["--training.steps", "9"]},
    ),
    "distil": (
        "compress distil some/run --output some/output --method patient --layers 0 3 --student random "
        "--experiment bert_tiny --training.steps 9",
        "compression.distillation.command:distil",
        {"teacher": "some/run", "output": OUT, "method": "patient", "layers": (0, 3), "student": "random"}
        | {"experiment": "bert_tiny", "overrides": ["--training.steps", "9"]},
    ),
    "quantize": (
        "compress quantize some/run --output some/output --method static --granularity tensor --batches 5 "
        "--experiment bert_tiny --training.steps 9",
        "compression.quantization.command:quantize",
        {"checkpoint": "some/run", "output": OUT, "method": "static", "granularity": "tensor", "batches": 5}
        | {"experiment": "bert_tiny", "overrides": ["--training.steps", "9"]},
    ),
    "factorize": (
        "compress factorize some/run --output some/output --rank 4 --energy 0.5",
        "compression.factorization:factorize",
        {"checkpoint": "some/run", "output": OUT, "rank": 4, "energy": 0.5},
    ),
    "share": (
        "compress share some/run --output some/output --groups 3",
        "compression.sharing:share",
        {"checkpoint": "some/run", "output": OUT, "groups": 3},
    ),
    "augment": (
        "augment some/run --output some/output --input a.tsv --text premise claim --vectors v.txt --keep "
        "stop.txt --copies 4 --candidates 6 --share 0.3 --seed 8",
        "compression.distillation.augmentation:augment",
        {"checkpoint": "some/run", "input": Path("a.tsv"), "output": OUT, "text": ("premise", "claim")}
        | {"vectors": Path("v.txt"), "keep": Path("stop.txt")}
        | {"settings": Settings(copies=4, candidates=6, share=0.3, seed=8)},
    ),
    "tokenizer": (
        "tokenizer train --input a b --output new --kind word --vocab_size 77 --lowercase False",
        "data.tokenizers:train",
        {"kind": "word", "vocab_size": 77, "texts": "the texts", "directory": Path("new"), "lowercase": False},
    ),
    "texts of a tokenizer": (
        "tokenizer train --input a b --output new --format jsonl --text_key body --streams source=en target=de",
        "data.formats:texts",
        {"inputs": ["a", "b"], "format": "jsonl", "limit_bytes": 1 << 26, "text_key": "body"}
        | {"parts": ({"source": "en", "target": "de"}, ())},
    ),
    "texts of a tokenizer without streams": (
        "tokenizer train --input a --output new",
        "data.formats:texts",
        {"inputs": ["a"], "format": "auto", "limit_bytes": 1 << 26, "text_key": "text", "parts": None},
    ),
    "prepare": (
        "prepare --input a b --tokenizer t --output new --format jsonl --text_key body --streams s=x "
        "--fields n m --held_out 0.25 --language de --max_unknown 0.5 --clean c4_lines gopher --bad_words "
        "bad.txt --piece_tokens 99 --processes 3 --special_names [MASK] [SEP]",
        "data.preparation:prepare",
        {"inputs": ["a", "b"], "format": "jsonl", "tokenizer": "the tokenizer in t", "output": Path("new")}
        | {"validation": 0.25, "language": "de", "text_key": "body", "streams": {"s": "x"}, "fields": ("n", "m")}
        | {"max_unknown": 0.5, "clean": ("c4_lines", "gopher"), "bad_words": "bad.txt", "piece_tokens": 99}
        | {"processes": 3, "runner": "", "runner_options": (), "special_names": ("[MASK]", "[SEP]")},
    ),
    "prepare by a runner": (
        "prepare --input a --tokenizer t --output new --runner FlinkRunner --runner_options a=b c",
        "data.preparation:prepare",
        {"inputs": ["a"], "format": "auto", "tokenizer": "the tokenizer in t", "output": Path("new")}
        | {"validation": 0.005, "language": "en", "text_key": "text", "streams": {}, "fields": ()}
        | {"max_unknown": 0.2, "clean": (), "bad_words": "", "piece_tokens": None, "processes": None}
        | {"runner": "FlinkRunner", "runner_options": ("a=b", "c"), "special_names": ()},
    ),
    "import": (
        "import here there --architecture BertModel --tokenizer t",
        "interop.run_directories:import_checkpoint",
        {"source": Path("here"), "workdir": Path("there"), "architecture": "BertModel", "tokenizer": Path("t")},
    ),
    "export": (
        "export here there --architecture BertModel",
        "interop.run_directories:export_checkpoint",
        {"checkpoint": Path("here"), "directory": Path("there"), "architecture": "BertModel"},
    ),
    "export vectors": (
        "export here there --vectors glove",
        "interop.word_vectors:export",
        {"source": Path("here"), "output": Path("there"), "form": "glove"},
    ),
    "export to sentence-transformers": (
        "export here there --to sentence-transformers --pooling cls --normalize",
        "interop.sentence_transformers:export_sentence_transformer",
        {"checkpoint": Path("here"), "directory": Path("there"), "pooling": "cls", "normalize": True},
    ),
    "export to jax": (
        "export here there --to jax --platforms cpu tpu --rows 3 --length 5",
        "interop.exported_function:export_function",
        {"checkpoint": Path("here"), "directory": Path("there"), "platforms": ("cpu", "tpu"), "rows": 3, "length": 5},
    ),
    "evaluate": (
        "evaluate some/run --data d --window 5 --stride 3 --memory 7 --split test --output some/output "
        "--ensemble a b --max_unknown 0.5 --data.text review",
        "inference.evaluate:evaluate",
        {"checkpoint": RUN, "data": "d", "output": OUT, "ensemble": (Path("a"), Path("b")), "window": 5, "stride": 3}
        | {"memory": 7, "split": "test", "max_unknown": 0.5, "settings": {"told": ["--data.text", "review"]}},
    ),
    "evaluate on a task": (
        "evaluate some/run --task blimp --data d --window 5 --output some/output --max_unknown 0.5",
        "inference.zero_shot:zero_shot",
        {"checkpoint": RUN, "task": "blimp", "data": "d", "output": OUT, "window": 5, "max_unknown": 0.5},
    ),
    "predict": (
        "predict some/run --input a.tsv --output some/output --format official --ensemble a b "
        "--max_unknown 0.5 --data.text review",
        "inference.predict:write",
        {"checkpoint": RUN, "input": Path("a.tsv"), "output": OUT, "format": "official"}
        | {"ensemble": (Path("a"), Path("b")), "max_unknown": 0.5, "settings": {"told": ["--data.text", "review"]}},
    ),
    "embed": (
        "embed some/run --output some/output --input a.txt --layer 2 --mix 0.5 1 --pooling cls "
        "--batch_size 3 --max_unknown 0.5 --prompt query",
        "inference.embed:embed",
        {
            "prompt": "query",
            "checkpoint": RUN,
            "input": Path("a.txt"),
            "output": OUT,
            "layer": 2,
            "pooling": "cls",
            "mix": ("0.5", "1"),
        }
        | {"batch_size": 3, "max_unknown": 0.5, "report": print},
    ),
    "fill-mask": (
        "fill-mask some/run 'a [MASK]' --top 3",
        "inference.fill_mask:fill_mask",
        {"checkpoint": RUN, "text": "a [MASK]", "top": 3},
    ),
    "report": (
        "report a b --output page.html --curve c.svg",
        "report.page:report",
        {"workdirs": (Path("a"), Path("b")), "output": Path("page.html"), "curve": Path("c.svg"), "places": []},
    ),
    "card": (
        "card a b",
        "report.model_card:write",
        {"workdir": Path("a"), "output": Path("b")},
    ),
    "average": (
        "average some/run --output some/output --last 2",
        "training.checkpoints.averaging:average",
        {"run": RUN, "output": OUT, "last": 2},
    ),
    "generate": (
        "generate some/run 'a prompt' --input a.txt --output some/output --temperature 0.5 --seed 3 "
        "--mesh.data 2 --mesh.tensor 3 --max_unknown 0.5",
        "generation.command:run",
        {"checkpoint": RUN, "prompt": "a prompt", "input": Path("a.txt"), "output": OUT, "max_unknown": 0.5}
        | {"options": Options(temperature=0.5, seed=3), "devices": Devices(data=2, tensor=3)},
    ),
}


class Called(Exception):
    """Ends a command where the library would do its work."""


@pytest.mark.parametrize(("command", "function", "expected"), CALLS.values(), ids=CALLS)
def test_every_option_reaches_the_library(
    command: str, function: str, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module, name = f"plmjax.{function}".split(":")
    library = importlib.import_module(module)
    signature, found = inspect.signature(getattr(library, name)), {}

    def called(*given: Any, **named: Any) -> None:
        bound = signature.bind(*given, **named)
        bound.apply_defaults()
        found.update(bound.arguments)
        raise Called

    monkeypatch.setattr("plmjax.data.tokenizers.load", lambda path: f"the tokenizer in {path}")
    monkeypatch.setattr("plmjax.data.formats.texts", lambda *_: "the texts")
    monkeypatch.setattr("plmjax.data.formats.files", lambda *_: [])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(word_vectors, "is_file_of_vectors", lambda path: False)
    monkeypatch.setattr(fill_gaps, "writes_gaps", lambda checkpoint: False)
    monkeypatch.setattr(predict, "decoding", lambda checkpoint, settings: "")
    for inference in (evaluate, predict):
        monkeypatch.setattr(inference, "settings_of", lambda checkpoint, overrides: {"told": overrides})
    monkeypatch.setattr(library, name, called)
    with pytest.raises(Called):
        cli.run(shlex.split(command))
    assert {name: found[name] for name in expected} == expected
    others = {"experiment", "run", "report", "write", "note", "origin"}  # what no option names
    assert found.keys() - expected.keys() <= others | {"compiles", "warmup", "split", "progress"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], {"memory": 1024, "processes": None, "runner": "", "runner_options": ()}),
        (["--memory", "300", "--processes", "2"], {"memory": 300, "processes": 2, "runner": "", "runner_options": ()}),
        (
            ["--memory", "300", "--runner", "FlinkRunner", "--runner_options", "a=b", "c"],
            {"memory": 300, "processes": None, "runner": "FlinkRunner", "runner_options": ("a=b", "c")},
        ),
    ],
)
def test_every_option_reaches_the_count(
    options: list[str], expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from plmjax.data import cooccurrence, store, tokenizers

    found: dict[str, Any] = {}

    def called(dataset, special, output, counting, **named):
        found.update(dataset=dataset, special=special, output=output, counting=counting, **named)
        return SimpleNamespace(count=1, words=1)

    opened = SimpleNamespace(directory=tmp_path)  # on the disk, if the dataset is in a bucket
    vocabulary, asked = SimpleNamespace(special=(0, 4)), []
    monkeypatch.setattr(store, "open_dataset", lambda *given, report: asked.append(given) or opened)
    monkeypatch.setattr(tokenizers, "load", lambda path: asked.append(path) or SimpleNamespace(vocabulary=vocabulary))
    monkeypatch.setattr(cooccurrence, "check_words", lambda *given: asked.append(given))
    monkeypatch.setattr(cooccurrence, "count", called)
    counting = ["--window", "3", "--no-symmetric", "--least", "7"]
    cli.run(["cooccurrence", "data", "--output", "counts", *counting, *options])
    assert asked == [(Path("data"),), tmp_path / "tokenizer", (vocabulary, Path("data"))]
    whole = {"dataset": opened, "special": (0, 4), "output": Path("counts")}
    assert found == whole | {"counting": cooccurrence.Counting(3, False, 7)} | expected


@pytest.mark.parametrize(
    ("command", "option", "meant"),
    [
        ("generate some/run", "--data", "--mesh.data"),
        ("generate some/run", "--mesh.tensr", "--mesh.tensor"),
        ("generate some/run", "--temprature", "--temperature"),
        ("pretrain bert_tiny", "--coordinatr", "--coordinator"),
    ],
)
def test_the_option_that_is_meant_is_named_as_the_command_has_it(fails, command: str, option: str, meant: str) -> None:
    said = fails(*command.split(), f"{option}=2")
    assert f"found '{option}'; did you mean '{meant}'?" in said


@pytest.mark.parametrize("option", ["--overrides", "--checkpoin"])
def test_an_argument_without_an_option_is_not_named_as_one(fails, option: str) -> None:
    said = fails("generate", "some/run", f"{option}=2")
    assert f"Expected an option of plmjax generate, found '{option}'; " in said
    assert "mean '--checkpoint'" not in said
    assert "mean '--overrides'" not in said
    said = fails("predict", "some/run", "--input", "x.tsv", "--text=2")
    assert "; known: --ensemble, --experiment, --format, --input, --max_unknown, --output." in said


@pytest.mark.parametrize(
    ("command", "message"),
    [
        *(
            (f"evaluate x --task blimp --data d {option}", f"Expected no {option.split()[0]} with --task blimp, found")
            for option in ("--stride 2", "--memory 2", "--split test", "--ensemble a", "--data.text review")
        ),
        *(
            (f"evaluate x --task {task} --data d {option} 1", f"Expected no {option} with --task {task}, found 1")
            for task in ("similarity", "analogy")
            for option in ("--window", "--max_unknown", "--stride", "--memory")
        ),
        ("evaluate x --task lambada", "Expected --data with --task lambada, found none"),
        *(
            (
                f"export x y --to {other} --{name}",
                f"Expected --{name.split()[0]} with --to {own}, found it with --to {other}",
            )
            for own, name, others in (
                ("sentence-transformers", "pooling cls", ("transformers", "jax")),
                ("sentence-transformers", "normalize", ("transformers", "jax")),
                ("jax", "platforms cpu", ("transformers", "sentence-transformers")),
                ("jax", "rows 2", ("transformers", "sentence-transformers")),
                ("jax", "length 2", ("transformers", "sentence-transformers")),
            )
            for other in others
        ),
        *(
            (f"export x y --to {library} {option}", f"Expected no {option.split()[0]} with --to {library}, found one")
            for library in ("jax", "sentence-transformers")
            for option in ("--vectors text", "--architecture BertModel")
        ),
        (
            "export x y --vectors text --architecture BertModel",
            "Expected no --architecture with --vectors, found BertM",
        ),
        ("prepare --input a --tokenizer t --output o --runner x --processes 2", "Expected either --processes of this"),
        (
            "cooccurrence a --output o --runner x --processes 2",
            "Expected either --processes of this machine or a --runn",
        ),
        ("cooccurrence a --output o --runner_options x", "Expected a --runner with --runner_options, found none"),
        ("plan bert_tiny --topology v5e:2x2 --batch_sizes 8", "--batch_sizes needs --search"),
        ("plan bert_tiny --topology v5e:2x2 --search --breakdown", "--breakdown and --search exclude each other"),
        ("plan bert_tiny", "Expected a slice to plan for, found none"),
    ],
)
def test_options_that_exclude_each_other_are_named(fails, command: str, message: str) -> None:
    assert message in fails(*shlex.split(command))


@pytest.mark.parametrize(
    ("findings", "options", "wasteful"),
    [
        ([[]], "--strict", False),
        ([["slow"]], "--strict", True),
        ([["slow"]], "", False),
        ([[], ["slow"]], "--strict", True),
        ([["slow"], []], "--strict --json", True),
    ],
)
def test_a_strict_plan_fails_if_a_phase_of_any_slice_is_wasteful(
    findings: list[list[str]], options: str, wasteful: bool, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """A slice for which there is no plan has no phases."""
    for made in (
        [{"phases": [{"findings": found} for found in findings]}],
        [{"phases": [{"findings": found}]} for found in findings],
    ):
        plans = iter([*made, {"error": "too small"}] if len(made) > 1 else made)
        for name in ("plan", "plan_or_error"):
            monkeypatch.setattr(f"plmjax.plan.plan.{name}", lambda *_, plans=plans: next(plans))
        for name in ("page", "table"):
            monkeypatch.setattr(f"plmjax.plan.report.{name}", lambda made: f"{made}")
        slices = "--topology v5e:2x2 " * (len(made) + (len(made) > 1))
        command = shlex.split(f"plan bert_tiny {slices} {options}")
        if wasteful:
            with pytest.raises(SystemExit) as ended:
                cli.run(command)
            assert ended.value.code == 1
        else:
            cli.run(command)
        assert next(plans, None) is None and ("--json" not in options or json.loads(capsys.readouterr().out))


def test_words_are_plotted_by_the_vectors_of_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, Any] = {}
    monkeypatch.setattr("plmjax.interop.word_vectors.read", lambda workdir: f"vectors of {workdir}")
    monkeypatch.setattr(
        "plmjax.inference.word_vector_plane.plane", lambda vectors, words: [(vectors, word) for word in words]
    )
    monkeypatch.setattr("plmjax.report.page.report", lambda workdirs, output, **named: found.update(named))
    cli.run(["report", "a", "b", "--words", "fox", "dog"])
    assert found["places"] == [{word: (f"vectors of {run}", word) for word in ("fox", "dog")} for run in ("a", "b")]


def test_the_experiment_that_is_named_is_imported_for_the_classes_of_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "classes_of_a_checkpoint.py"
    file.write_text(
        "import dataclasses\n\n\n@dataclasses.dataclass(frozen=True)\nclass Mine:\n    size: int = 3\n\n\n"
        "def experiment():\n    return None\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    named = {"type": "classes_of_a_checkpoint:Mine", "size": 4}
    load_classes(None)
    with pytest.raises(UserError, match="Expected a class of plmjax or of a loaded experiment file"):
        experiments.from_dict(named)
    load_classes(str(file))
    assert experiments.from_dict(named).size == 4


@pytest.mark.parametrize("option", ["--architecture BertModel", "--tokenizer t"])
def test_a_file_of_word_vectors_has_words_of_its_own(fails, option: str, tmp_path: Path) -> None:
    file = tmp_path / "vectors.txt"
    file.write_text("2 2\nfox 1 0\ndog 0 1\n", encoding="utf-8")
    said = fails("import", file, tmp_path / "run", *option.split())
    assert f"Expected neither --architecture nor --tokenizer for {file}, found one; leave it out" in said
    assert not (tmp_path / "run").exists()


def test_an_evaluation_is_written_to_a_folder(fails, tmp_path: Path) -> None:
    file = tmp_path / "scores.json"
    file.write_text("{}", encoding="utf-8")
    said = fails("evaluate", "some/run", "--output", file)
    assert f"Expected a folder for --output, found the file {file}; name another." in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["finetune", "finetune_gluee"], "none named 'finetune_gluee'; did you mean 'finetune_glue'?"),
        (["finetune", "finetune_gluee", "--form", "nowhere"], "none named 'finetune_gluee'"),
        (["finetune", "finetune_glue:stbs", "--from", "nowhere"], "found 'stbs'; did you mean 'stsb'?"),
        (["finetune", "bert_tiny", "--from", "nowhere"], "Expected an experiment with a task and an objective"),
        (
            ["finetune", "finetune_glue:stsb", "--from", "nowhere", "--model.width", "3", "--data.trian", "x"],
            "found '--data.trian'; did you mean '--data.train'?",
        ),
        (
            ["pretrain", "finetune_glue:stsb", "--from", "nowhere"],
            "found one on Sentences; name another, or run it with plmjax finetune",
        ),
        (["pretrain", "bert_tyni", "--form", "nowhere"], "none named 'bert_tyni'; did you mean 'bert_tiny'?"),
        (["bench", "bert_tyni", "--jsom"], "none named 'bert_tyni'"),
        (["finetune", "finetune_glue:stsb"], "Missing from plmjax finetune: --from"),
        (
            ["finetune", "finetune_glue:stsb", "--from", "nowhere"],
            "Expected a run directory or a checkpoint at nowhere",
        ),
    ],
)
def test_a_mistake_in_the_experiment_is_reported_before_that_in_a_checkpoint(arguments, message, fails) -> None:
    assert message in fails(*arguments)
