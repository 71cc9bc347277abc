"""Every option of every command has an effect that a user can observe: in what it prints, writes or refuses."""

import contextlib
import dataclasses
import inspect
import io
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import flax.traverse_util
import numpy as np
import pytest
from PIL import Image

from plmjax.commands import cli
from plmjax.data import store, tokenizers
from plmjax.errors import UserError
from plmjax.interop import word2vec, word_vectors
from plmjax.parallel.hosts import JoinOptions
from plmjax.training.checkpoints import checkpoints
from tests.conftest import on_one_device
from tests.effects import Effects
from tests.generation.test_effects_of_options import EFFECTS as OF_GENERATE
from tests.inference.conftest import classifiers
from tests.small_runs import DECODER_ROW

__all__ = ["classifiers"]

EFFECTS = Effects("tests/commands/test_effects_of_options.py")


def of(verb: str, *options: str) -> Callable:
    """Mark a test as the row of options of a command."""
    return EFFECTS.of(*(f"{verb} {option}" for option in options))


def shown_by(test: str, verb: str, *options: str) -> None:
    EFFECTS.shown_by(f"tests/{test}", *(f"{verb} {option}" for option in options))


QUANTIZATION = "compression/quantization"
shown_by("test_effects_of_options.py::test_a_run_shows", "pretrain", "experiment", "workdir")
shown_by("test_effects_of_options.py::test_a_run_on_a_task_shows", "finetune", "experiment", "workdir", "from")
shown_by(
    "runs/test_continued.py::test_begins_with_all_parameters_at_step_0_and_goes_on_from_there_alone", "pretrain", "from"
)
shown_by("finetuning/test_run.py::test_regression_and_the_random_twin", "finetune", "like")
shown_by("finetuning/test_seeds.py::test_each_seed_is_a_run_and_the_table_sums_them_up", "finetune", "seeds")
shown_by(
    "selfcheck/test_selfcheck.py::test_the_command_prints_a_table_and_writes_a_file", "selfcheck", "output", "json"
)
BENCHED = ("experiment", "json", "measured_steps")
shown_by("runs/test_bench.py::test_a_measure_that_this_machine_lacks_is_left_out", "bench", *BENCHED)
shown_by(
    "runs/test_stages.py::test_a_kept_checkpoint_is_continued_to_the_bit_and_decays_later", "pretrain", "continue_from"
)
for joined in ("pretrain", "finetune", "selfcheck"):
    shown_by(
        "parallel/test_hosts.py::test_a_host_alone_says_who_is_missing_and_an_option_comes_before_the_environment",
        joined,
        "join_seconds",
    )
shown_by("data/test_beam.py::test_a_job_server_gives_the_same_dataset", "prepare", "runner", "runner_options")
shown_by("data/test_beam.py::test_cooccurrences_are_those_of_processes", "cooccurrence", "runner", "runner_options")
shown_by("inference/test_published_corpora.py::test_perplexity_is_of_words_and_line_ends", "evaluate", "split")
shown_by("objectives/test_transformer_xl_pretraining.py::test_an_evaluation_may_remember_more", "evaluate", "memory")
TRAINED = ("checkpoint", "output", "method", "sparsity", "rewind")
shown_by("compression/test_prune.py::test_methods_that_train", "compress prune", *TRAINED)
STORED = ("checkpoint", "output", "granularity")
shown_by(f"{QUANTIZATION}/test_weights.py::test_each_weight_is_the_nearest_of_its_scale", "compress quantize", *STORED)
ON_DATA = ("method", "batches")
shown_by(
    f"{QUANTIZATION}/test_products.py::test_ranges_are_the_largest_values_of_the_examples",
    "compress quantize",
    *ON_DATA,
)
for name in ("checkpoint", "output", "rank", "energy"):
    shown_by("compression/test_factorization.py::test_each_kind_has_the_rank_of_its_energy", "compress factorize", name)
shown_by("interop/test_sentence_transformers.py::test_options_take_the_place_of_the_recipe", "embed", "prompt")
for name in ("method", "layers", "student", "teacher", "output"):
    shown_by("compression/distillation/test_distil.py::test_students_of_a_task", "compress distil", name)


def said(line: str) -> str:
    """Run a command and return the lines that it prints."""
    with on_one_device(), contextlib.redirect_stdout(io.StringIO()) as found:
        cli.run(shlex.split(line))
    return found.getvalue()


def parameters(run: Path) -> dict[str, np.ndarray]:
    return flax.traverse_util.flatten_dict(checkpoints.load_parameters(run)[0], sep="/")


def model(run: Path) -> Any:
    return checkpoints.describe(checkpoints.find(run)).experiment.model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """texts.jsonl and more.jsonl with documents, bad.txt with a word, lines.txt with two texts."""
    folder = tmp_path_factory.mktemp("files")
    for name, own in (("texts", "first"), ("more", "other")):
        documents = [
            {"body": f"The {own} saw word{n % 3}. The end.", "title": f"title{n % 3}", "n": n} for n in range(30)
        ]
        documents[0]["body"] += " [SEP] \u4ed6\u30023\u4e2a\u3002 Darn it."
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, documents)), encoding="utf-8")
    (folder / "bad.txt").write_text("darn\n", encoding="utf-8")
    (folder / "lines.txt").write_text("The class of an object.\nA name in the file.\n", encoding="utf-8")
    said(f"tokenizer train --input {folder}/texts.jsonl {folder}/more.jsonl --output {folder}/words --kind word "
         "--vocab_size 14 --format jsonl --text_key body --lowercase False")  # fmt: skip
    return folder


@of("tokenizer train", "input", "output", "kind", "vocab_size", "format", "text_key", "lowercase")
def test_a_tokenizer_is_made_of_the_texts_as_asked(folder: Path) -> None:
    made = tokenizers.load(folder / "words")
    unknown = made.vocabulary.unknown
    assert made.vocabulary.size == 14
    assert unknown not in made.encode("The first other")  # of both files, with its capital
    assert made.encode("title1") == made.encode("the") == made.encode("{") == [unknown]


@of("tokenizer train", "streams")
def test_a_tokenizer_is_made_of_several_texts(folder: Path) -> None:
    said(f"tokenizer train --input {folder}/texts.jsonl --output {folder}/both --kind word --streams a=body b=title")
    made = tokenizers.load(folder / "both")
    assert made.vocabulary.unknown not in made.encode("first title1")


@pytest.fixture(scope="module")
def dataset(folder: Path) -> store.Dataset:
    said(f"prepare --input {folder}/texts.jsonl {folder}/more.jsonl --tokenizer {folder}/words --output {folder}/data "
         "--format jsonl --text_key body --fields n --held_out 0.3 --language zh --special_names [SEP] "
         "--piece_tokens 40 --max_unknown 0.9")  # fmt: skip
    return store.open_dataset(folder / "data")


OF_A_DATASET: dict[str, Callable[[store.Dataset], bool]] = {
    "input": lambda made: sum(made.split(name).documents for name in ("train", "validation")) == 60,
    "output": lambda made: (made.directory / "manifest.json").exists(),
    "tokenizer": lambda made: tokenizers.load(made.directory / "tokenizer").vocabulary.size == 14,
    "format": lambda made: made.split("train").documents > 10,
    "text_key": lambda made: made.split("train").token_count > 200,
    "fields": lambda made: {*np.load(made.directory / "train.fields.n.npy")} <= {*range(30)},
    "held_out": lambda made: 10 <= made.split("validation").documents <= 26,
    "language": lambda made: sum(made.split(name).sentences for name in ("train", "validation")) == 60 * 2 + 2 * 3,
    "special_names": lambda made: tokens(made).count(made_of(made).vocabulary.sep) == 2,
    "piece_tokens": lambda made: pieces(made) > 3,
}
"""Option of `plmjax prepare` -> what the dataset shows."""


def pieces(made: store.Dataset) -> int:
    splits = json.loads((made.directory / "dataset_info.json").read_text(encoding="utf-8"))["splits"]
    return sum(int(length) for split in splits if split["name"] == "train" for length in split["shardLengths"])


def made_of(made: store.Dataset) -> Any:
    return tokenizers.load(made.directory / "tokenizer")


def tokens(made: store.Dataset) -> list[int]:
    return [one for name in ("train", "validation") for one in made.split(name).tokens(0, made.split(name).token_count)]


@pytest.mark.parametrize("option", OF_A_DATASET)
@of("prepare", *OF_A_DATASET)
def test_a_dataset_shows(option: str, dataset: store.Dataset) -> None:
    assert OF_A_DATASET[option](dataset)


@of("prepare", "streams", "clean", "bad_words", "max_unknown")
def test_a_dataset_has_several_texts_or_fewer_documents(folder: Path) -> None:
    files = f"prepare --input {folder}/texts.jsonl --tokenizer {folder}/words --output {folder}"
    with pytest.raises(UserError, match="more than --max_unknown"):
        said(f"{files}/few --text_key title")
    streams = said(f"{files}/streams --streams a=body b=title --max_unknown 1")
    assert "tokens of a" in streams and "tokens of b" in streams
    cleaned = said(f"{files}/clean --text_key body --clean c4_bad_words --bad_words {folder}/bad.txt --max_unknown 1")
    assert "kept 29 of 30 documents" in cleaned


@pytest.fixture(scope="module")
def cells(folder: Path, dataset: store.Dataset) -> Callable[[str], tuple[int, int]]:
    """Options of `plmjax cooccurrence` -> the numbers of cells and of words."""

    def count(options: str) -> tuple[int, int]:
        output = folder / f"counts {options}"
        found = said(f"cooccurrence {folder}/data --output '{output}' --processes 1 {options}")
        assert output.is_dir()
        return tuple(map(int, re.search(r"cells +(\d+) of (\d+) words", found).groups()))

    return count


@of("cooccurrence", "dataset", "output", "window", "symmetric", "min_count")
def test_words_are_counted_as_asked(cells: Callable[[str], tuple[int, int]]) -> None:
    every, words = cells("--min_count 1")
    assert cells("--min_count 1 --window 1")[0] < every
    assert cells("--min_count 1 --no_symmetric")[0] < every
    assert cells("--min_count 25")[1] < words


REFUSED: dict[str, tuple[str, str]] = {
    "cooccurrence memory": ("cooccurrence {folder}/data --output {folder}/x --memory 1", "a memory of at least 133"),
    "cooccurrence processes": ("cooccurrence {folder}/data --output {folder}/x --processes 0", "at least one process"),
    "prepare processes": (
        "prepare --input {folder}/bad.txt --tokenizer {folder}/words --output {folder}/x --processes 0",
        "at least one process",
    ),
    "embed batch_size": (
        "embed {run} --input {folder}/lines.txt --output {folder}/x.npz --batch_size 0", "--batch_size of at least 1",
    ),
    "attention batch_size": (
        "attention {run} --input {folder}/lines.txt --output {folder}/x.npz --batch_size 0",
        "--batch_size of at least 1",
    ),
    **{
        f"{command} max_unknown": (
            f"{command} {{run}} --input {{folder}}/odd.txt --output {{folder}}/x.npz --max_unknown 0.1",
            "more than --max_unknown",
        )
        for command in ("embed", "attention")
    },
    **{
        f"{verb.split()[0]} {option}": (f"{verb} --hosts 3 --host 7 {given}", message)
        for verb in ("pretrain bert_tiny", "finetune finetune_sentences --from random", "selfcheck")
        for option, given, message in (
            ("coordinator", "--coordinator nowhere", "found nowhere, 7 and 3"),
            ("hosts", "", "found no --coordinator"),
            ("host", "--coordinator localhost:1", "found localhost:1, 7 and 3"),
        )
    },
}  # fmt: skip
"""Option that changes nothing but speed or a limit -> a command with a value that it refuses, and its words."""


@pytest.mark.parametrize("option", REFUSED)
@EFFECTS.of(*REFUSED)
def test_a_value_that_cannot_be_is_refused(option: str, folder: Path, small_run: Path, dataset: store.Dataset) -> None:
    (folder / "odd.txt").write_text("the \N{SNOWMAN} of \N{SNOWMAN}\n", encoding="utf-8")
    line, message = REFUSED[option]
    with pytest.raises(UserError, match=re.escape(message)):
        said(line.format(folder=folder, run=small_run))


WITH_CLASSES = [name for name in cli.VERBS if "experiment" in inspect.signature(cli.verb(name)).parameters]
WITH_CLASSES = [name for name in WITH_CLASSES if not name.startswith(("pretrain", "finetune", "plan", "bench"))]


def needed(verb: Callable) -> Iterator[str]:
    """The arguments that a command cannot do without, each with a path to nothing."""
    for name, parameter in inspect.signature(verb).parameters.items():
        if parameter.default is inspect.Parameter.empty:
            yield from ["nowhere"] if "Positional" in str(parameter.annotation) else [f"--{name}", "nowhere"]


@pytest.mark.parametrize("command", WITH_CLASSES)
@EFFECTS.of(*(f"{command} experiment" for command in WITH_CLASSES))
def test_the_file_of_an_experiment_is_imported(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / f"classes_of_{command.replace(' ', '_').replace('-', '_')}.py"
    file.write_text("print('imported')\n\n\ndef experiment():\n    return None\n", encoding="utf-8")
    with pytest.raises(UserError):
        cli.run([*command.split(), *needed(cli.verb(command)), "--experiment", str(file)])
    assert "imported" in capsys.readouterr().out


@pytest.mark.nightly
@of("evaluate", "checkpoint", "data", "output", "json", "ensemble", "max_unknown")
def test_an_evaluation_of_a_task_is_of_its_file(classifiers: Path, tmp_path: Path) -> None:
    file, lines = (
        tmp_path / "two.jsonl",
        ['{"text": "a film", "label": "a"}', '{"text": "\N{SNOWMAN} \N{SNOWMAN} \N{SNOWMAN}", "label": "b"}'],
    )
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(UserError, match="text that the tokenizer knows"):
        said(f"evaluate {classifiers}/one --data {file}")
    options = f"evaluate {classifiers}/one --data {file} --max_unknown 0.9 --output {tmp_path}"
    found = json.loads(said(f"{options}/alone --json"))
    assert len((tmp_path / "alone" / "predictions.tsv").read_text().splitlines()) == 1 + 2
    assert json.loads((tmp_path / "alone" / "evaluation.json").read_text()) == found
    table = said(f"{options}/both --ensemble {classifiers}/two")
    assert re.search(r"eval/accuracy +[\d.]+\n", table) and "eval/loss" in found and "eval/loss" not in table


@of("evaluate", "window", "stride")
def test_a_text_is_read_in_windows(decoder_run: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("The class of an object is a name. " * 5, encoding="utf-8")
    found = json.loads(said(f"evaluate {decoder_run} --data {tmp_path}/text.txt --window 9 --stride 4 --json"))
    assert (found["eval/window"], found["eval/stride"]) == (9, 4) and DECODER_ROW != 9


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vectors in which king - man + woman is queen."""
    file = tmp_path_factory.mktemp("vectors") / "vectors.txt"
    numbers = {"king": (1, 1, 0), "man": (0, 1, 0), "woman": (0, 0, 1), "queen": (1, 0, 1), "fox": (0, 0.2, 0.1)}
    word2vec.write(file, [*numbers], np.array([*numbers.values()], np.float32))
    return file


@of("evaluate", "task")
def test_word_vectors_are_scored(vectors: Path, tmp_path: Path) -> None:
    (tmp_path / "questions.txt").write_text(": all\nman king woman queen\n", encoding="utf-8")
    assert "analogy" in said(f"evaluate {vectors} --task analogy --data {tmp_path}/questions.txt")


COMPLETED = {
    "pre": "prepare pretrain predict", "compress pr": "prune", "pretrain bert_sm": "bert_small",
    "pretrain bert_base_4x4:l": "bert_base_4x4:lamb_4096", "pretrain bert_tiny --optimizer la": "lamb",
    "pretrain bert_tiny --training.s": "--training.steps --training.seed", "finetune my.py --mesh.f": "--mesh.fsdp",
    "plan bert_tiny --topo": "--topology", "export run folder --to j": "jax", "pretrain bert_tiny --help a": "all",
    "evaluate no_such_": "",
}  # fmt: skip
"""Words after plmjax, the last one not whole -> what it can become."""
ASKING = {
    "bash": 'COMP_WORDBREAKS=" :" COMP_LINE="plmjax $1" COMP_POINT=1000; _plmjax; echo "${COMPREPLY[@]}"',
    "zsh": "words=(plmjax ${=1}) CURRENT=$#words; _plmjax",
    "fish": "echo (complete -C \"plmjax $argv[1]\" | string replace -r '\\t.*' '')",
}
"""Shell -> commands that print the completions of $1."""
STUBS = "compdef() { :; }; _files() { echo; }; compadd() { print -- ${(M)${argv[2,-1]}:#${words[CURRENT]}*}; }"
"""The part of zsh's completion that a shell without a terminal lacks."""


@of("completion", "shell")
@pytest.mark.parametrize("shell", [
    each if shutil.which(each) else pytest.param(each, marks=pytest.mark.skip(f"{each} is not installed"))
    for each in ASKING
])  # fmt: skip
def test_a_shell_completes_commands_experiments_and_options(shell: str, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(said(f"completion {shell}"))
    function = f"function ask; {ASKING[shell]}; end" if shell == "fish" else f"ask() {{ {ASKING[shell]}; }}"
    lines = "\n".join(f"ask {shlex.quote(line)}" for line in COMPLETED)
    program = "\n".join([STUBS if shell == "zsh" else "", f"source {script}", function, lines])
    done = subprocess.run(
        [shell, "-c", program], capture_output=True, text=True, env={"HOME": str(tmp_path), **os.environ}
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = [sorted(line.split()) for line in done.stdout.splitlines()]
    after_a_colon = {"pretrain bert_base_4x4:l": "lamb_4096"} if shell == "bash" else {}  # it replaces no more
    expected = {line: sorted(words.split()) for line, words in (COMPLETED | after_a_colon).items()}
    assert dict(zip(COMPLETED, found, strict=True)) == expected


@of("experiments", "words")
def test_the_experiments_with_a_word_are_listed() -> None:
    assert "glove_tiny" in said("experiments GloVe") and "bert_tiny" not in said("experiments GloVe")


@of("nearest", "vectors", "words", "minus", "top")
def test_the_nearest_words_are_listed(vectors: Path) -> None:
    lines = said(f"nearest {vectors} king woman --minus man --top 2").splitlines()
    assert len(lines) == 2 and lines[0].split()[1] == "queen"


@pytest.mark.nightly
@of("predict", "checkpoint", "input", "output", "format", "ensemble", "max_unknown")
def test_examples_are_predicted(classifiers: Path, tmp_path: Path) -> None:
    (tmp_path / "new.jsonl").write_text(
        '{"text": "a film"}\n{"text": "\N{SNOWMAN} \N{SNOWMAN} \N{SNOWMAN}"}\n', encoding="utf-8"
    )
    line = f"predict {classifiers}/one --input {tmp_path}/new.jsonl"
    with pytest.raises(UserError, match="text that the tokenizer knows"):
        said(f"{line} --output {tmp_path}/refused.jsonl")
    line += " --max_unknown 0.9"
    alone, both = said(line).splitlines(), said(f"{line} --ensemble {classifiers}/two").splitlines()
    assert len(alone) == len(both) == 2 and alone != both
    assert f"2 predictions in {tmp_path}/out.tsv" in said(f"{line} --format official --output {tmp_path}/out.tsv")
    assert (tmp_path / "out.tsv").read_text(encoding="utf-8").startswith("index\tprediction\n0\t")


@pytest.fixture(scope="module")
def embedded(folder: Path, small_run: Path) -> Callable[[str], dict[str, np.ndarray]]:
    """Options of `plmjax embed` -> the arrays that it writes for two lines."""

    def embed(options: str) -> dict[str, np.ndarray]:
        output = folder / f"{options.strip('- ')}.npz"
        assert "2 rows in" in said(f"embed {small_run} --input {folder}/lines.txt --output '{output}' {options}")
        with np.load(output) as found:
            return dict(found)

    return embed


@pytest.mark.nightly
@of("embed", "checkpoint", "input", "output", "layer", "mix", "pooling")
def test_vectors_are_those_asked_for(embedded: Callable[[str], dict[str, np.ndarray]]) -> None:
    first, last = (embedded(f"--layer {layer}")["embeddings"] for layer in (0, 1))
    np.testing.assert_allclose(embedded("--mix 0 0")["embeddings"], (first + last) / 2, rtol=1e-5, atol=1e-6)
    assert not np.allclose(embedded("--pooling cls")["embeddings"], last)


@pytest.mark.nightly
@of("attention", "checkpoint", "input", "output", "second")
def test_the_attention_of_a_pair_has_the_tokens_of_both(folder: Path, small_run: Path) -> None:
    for name, second in (("one", ""), ("pair", f"--second {folder}/lines.txt")):
        said(f"attention {small_run} --input {folder}/lines.txt --output {folder}/{name}.npz {second}")
    with np.load(folder / "one.npz") as one, np.load(folder / "pair.npz") as pair:
        assert pair["attentions_0"].shape[-1] == 2 * one["attentions_0"].shape[-1] - 1  # [CLS] once


@of("fill-mask", "checkpoint", "text", "top")
def test_as_many_tokens_as_asked_for_fill_a_mask(small_run: Path) -> None:
    (line,) = said(f"fill-mask {small_run} 'the [MASK] of' --top 3").splitlines()
    assert line.startswith("[MASK] 1") and len(re.findall(r"'[^']+' 0\.\d+", line)) == 3


shown_by(
    "training/checkpoints/test_averaging.py::test_the_best_checkpoints_are_averaged_with_the_last", "average", "best"
)


@of("average", "run", "output", "last")
def test_the_last_checkpoints_are_averaged(small_run: Path, tmp_path: Path) -> None:
    assert f"steps 3, 6 in {tmp_path}/both" in said(f"average {small_run} --output {tmp_path}/both --last 2")
    assert f"steps 6 in {tmp_path}/one" in said(f"average {small_run} --output {tmp_path}/one --last 1")


@pytest.mark.nightly
@of("compress prune", "rows", "rounds")
def test_heads_are_pruned_on_as_many_rows_in_as_many_rounds(small_run: Path, tmp_path: Path) -> None:
    said(f"compress prune {small_run} --output {tmp_path}/heads --method heads --sparsity 0.5 --rows 3 --rounds 2")
    assert model(tmp_path / "heads").layer_heads == (1,)
    (record,) = json.loads((tmp_path / "heads" / "ancestry.json").read_text())["ancestors"]
    assert (record["settings"]["rows"], record["settings"]["rounds"]) == (3, 2)


@of("compress share", "checkpoint", "output", "groups")
def test_layers_are_shared_as_asked(small_run: Path, tmp_path: Path) -> None:
    """compression/test_mistakes.py has a number of groups that the model has no layers for."""
    said(f"compress share {small_run} --output {tmp_path}/shared --groups 1")
    assert model(tmp_path / "shared").num_hidden_groups == 1


@pytest.fixture(scope="module")
def augmented(small_run: Path, vectors: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    """Options of `plmjax augment` -> the texts that it writes for one example."""
    folder = tmp_path_factory.mktemp("augmented")
    (folder / "one.jsonl").write_text('{"words": "the class of an object", "label": "a"}\n', encoding="utf-8")
    (folder / "keep.txt").write_text("the\nclass\nof\nan\n", encoding="utf-8")

    def augment(options: str) -> list[str]:
        output = folder / f"{len([*folder.iterdir()])}.jsonl"
        files = f"--input {folder}/one.jsonl --output {output} --text words"
        said(f"augment {small_run} {files} {options.format(folder=folder, vectors=vectors)}")
        return [json.loads(line)["words"] for line in output.read_text(encoding="utf-8").splitlines()]

    return augment


@pytest.mark.nightly
@of("augment", "checkpoint", "input", "output", "text", "vectors", "keep", "copies", "candidates", "fraction", "seed")
def test_examples_are_augmented_as_asked(augmented: Callable[[str], list[str]]) -> None:
    text, *copies = augmented("--copies 3 --candidates 4 --fraction 0.9 --seed 1")
    assert text == "the class of an object" and 1 <= len(copies) <= 3
    assert copies != augmented("--copies 3 --candidates 4 --fraction 0.9 --seed 2")[1:]
    assert augmented("--copies 3 --fraction 1e-9") == [text]
    kept = augmented("--copies 9 --fraction 0.9 --candidates 1 --keep {folder}/keep.txt")
    assert len(kept) <= 2 and all(one.startswith("the class of an ") for one in kept)


@of("import", "source", "checkpoint", "architecture", "tokenizer")
def test_a_folder_is_imported_as_asked(small_run: Path, tmp_path: Path) -> None:
    line = f"import {small_run}/export {tmp_path}/run --architecture BertModel --tokenizer {small_run}/tokenizer"
    assert said(line).startswith("imported   BertModel of")
    assert not any(path.startswith("masked_language_model") for path in parameters(tmp_path / "run"))


@pytest.mark.nightly
@of("export", "checkpoint", "output", "architecture", "to", "platforms", "rows", "length")
def test_a_run_is_exported_as_asked(small_run: Path, tmp_path: Path) -> None:
    said(f"export {small_run} {tmp_path}/folder --architecture BertModel")
    assert json.loads((tmp_path / "folder" / "config.json").read_text())["architectures"] == ["BertModel"]
    said(f"export {small_run} {tmp_path}/function --to jax --platforms cpu tpu --rows 2 --length 6")
    signature = json.loads((tmp_path / "function" / "signature.json").read_text())
    assert signature["platforms"] == ["cpu", "tpu"] and signature["inputs"]["input_ids"]["shape"] == [2, 6]


@pytest.mark.nightly
@of("export", "pooling", "normalize")
def test_vectors_of_texts_are_exported_as_asked(small_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    line = f"export {small_run} {tmp_path}/folder --to sentence-transformers --pooling cls --normalize"
    assert "cls pooling, length 1" in said(line)


@of("export", "vectors")
def test_word_vectors_are_exported_as_asked(vectors: Path, tmp_path: Path) -> None:
    said(f"export {vectors} {tmp_path}/glove.txt --vectors glove")
    assert (tmp_path / "glove.txt").read_text(encoding="utf-8").split()[0] == "king"  # without a line of sizes
    assert word_vectors.read(tmp_path / "glove.txt").words == word_vectors.read(vectors).words


@of("card", "workdir", "output")
def test_a_card_is_written_where_asked(small_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(small_run, tmp_path / "run")
    assert said(f"card {run}") == f"{run}/README.md\n"
    assert said(f"card {small_run} {tmp_path}/card.md") == f"{tmp_path}/card.md\n"
    assert "mlm_loss" in (tmp_path / "card.md").read_text(encoding="utf-8")


@of("report", "workdirs", "output", "curve", "words", "against")
def test_a_report_is_written_as_asked(small_run: Path, vectors: Path, tmp_path: Path) -> None:
    said(f"report {small_run} --output {tmp_path}/page.html --curve {tmp_path}/curve.png --against bert")
    assert Image.open(tmp_path / "curve.png").width > 100
    assert "Published figures" in (tmp_path / "page.html").read_text(encoding="utf-8")
    with pytest.raises(UserError):  # a run of BERT has no vectors of words
        said(f"report {small_run} --output {tmp_path}/words.html --words the of")


PLANNED = "plan bert_tiny --training.batch_size 16 --training.steps 100 --model.num_hidden_layers 1"


# 25 s of the compiler for TPUs: pytest -m nightly tests/commands/test_effects_of_options.py
@pytest.mark.nightly
@of("plan", "experiment", "from", "topology", "price", "search", "batch_sizes", "breakdown", "strict", "json")
def test_a_plan_is_made_as_asked(small_run: Path) -> None:
    found = json.loads(said(f"{PLANNED} --topology v5e:1x1 --price 2 --breakdown --json"))
    assert found["topology"] == "v5e:1x1" and "breakdown" in found["phases"][0]
    assert found["estimate"]["cost"] == pytest.approx(2 * found["estimate"]["chip_hours"])
    with pytest.raises(SystemExit, match="1"):
        said(f"{PLANNED} --topology v5e:1x1 --strict")  # rows of 32 tokens waste a TPU
    tried = json.loads(said(f"{PLANNED} --topology v5e:1x1 --search --batch_sizes 32 --json"))
    assert 32 in {one["batch_size"] for one in tried[0]["tried"]}
    with pytest.raises(UserError, match="nowhere"):
        said(f"{PLANNED} --topology v5e:1x1 --from nowhere")


def test_every_option_has_a_row() -> None:
    known = set()
    for verb in cli.VERBS:
        for name in inspect.signature(cli.verb(verb)).parameters:
            if name == "joining":
                known |= {f"{verb} {field.name}" for field in dataclasses.fields(JoinOptions)}
            elif name not in ("overrides", "writing", "mesh"):
                known.add(f"{verb} {name.rstrip('_')}")
    generated = {option for option in OF_GENERATE.rows if f"generate {option}" in known}
    assert {f"generate {option}" for option in generated} | {"generate experiment"} == {
        option for option in known if option.startswith("generate ")
    }
    EFFECTS.check(known - {f"generate {option}" for option in generated})
