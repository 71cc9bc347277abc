"""Mistakes in the options of commands: what was meant, what excludes each other, and which is told first."""

import shlex
from pathlib import Path

import pytest


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
            (
                f"evaluate x --task blimp --data d {option}",
                f"{option.split()[0]} does not apply to --task blimp; leave it out",
            )
            for option in ("--stride 2", "--memory 2", "--split test", "--ensemble a", "--data.text review")
        ),
        *(
            (f"evaluate x --task {task} --data d {option} 1", f"{option} does not apply to --task {task}; leave it out")
            for task in ("similarity", "analogy")
            for option in ("--window", "--max_unknown", "--stride", "--memory")
        ),
        ("evaluate x --task lambada", "--task lambada needs --data; name its file or folder"),
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
        ("plan bert_tiny --topology v5e:2x2 --price v6e=2", "Expected --price for v5e, found one for v6e"),
        ("finetune bert_tiny --from random", "found one that pretrains on text; run it with plmjax pretrain"),
        ("export run --output folder", "without --output before it, found --output; leave the name out"),
        ("embed run", "Missing from plmjax embed: --input, --output; see plmjax embed --help."),
        ("pretrain", "Missing from plmjax pretrain: EXPERIMENT; see plmjax pretrain --help."),
        ("pretrain ModernBERT", "did you mean 'modernbert_tiny'"),
        ("pretrain bert_tiny --lr 1e-4", "found '--lr'; did you mean '--optimizer.learning_rate'?"),
        ("pretrain bert_tiny --fp16 1", "did you mean '--training.dtype'?"),
        ("plan bert_tiny --topology v5e:2x2 --batch_sizes 8", "--batch_sizes needs --search"),
        ("plan bert_tiny --topology v5e:2x2 --search --breakdown", "--breakdown and --search exclude each other"),
        ("plan bert_tiny", "Expected a slice to plan for, found none"),
    ],
)
def test_options_that_exclude_each_other_are_named(fails, command: str, message: str) -> None:
    assert message in fails(*shlex.split(command))


@pytest.mark.parametrize("option", ["--architecture BertModel", "--tokenizer t"])
def test_a_file_of_word_vectors_has_words_of_its_own(fails, option: str, tmp_path: Path) -> None:
    file = tmp_path / "vectors.txt"
    file.write_text("2 2\nfox 1 0\ndog 0 1\n", encoding="utf-8")
    said = fails("import", file, tmp_path / "run", *option.split())
    assert f"Expected neither --architecture nor --tokenizer for {file}, found one; leave it out" in said
    assert not (tmp_path / "run").exists()


def test_results_are_written_to_a_folder_and_a_tokenizer_to_a_new_one(fails, tmp_path: Path) -> None:
    file = tmp_path / "scores.json"
    file.write_text("{}", encoding="utf-8")
    said = fails("evaluate", "some/run", "--output", file)
    assert f"Expected a folder for --output, found the file {file}; name another." in said
    said = fails("tokenizer", "train", "--input", file, "--output", tmp_path)
    assert f"Expected a new folder for the tokenizer, found {tmp_path}; name another --output." in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["finetune", "finetune_gluee"], "none named 'finetune_gluee'; did you mean 'finetune_glue'?"),
        (["finetune", "finetune_gluee", "--form", "nowhere"], "none named 'finetune_gluee'"),
        (["finetune", "finetune_glue:stbs", "--from", "nowhere"], "found 'stbs'; did you mean 'stsb'?"),
        (["finetune", "bert_tiny", "--from", "nowhere"], "Expected an experiment on a task, found one that pre"),
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
