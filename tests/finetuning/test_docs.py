"""Every command of docs/finetuning.md, in its order, on a few rows of each format; only the training is left out.

Where it would begin, the first parameters are saved instead, so that what is evaluated and predicted afterwards is a
checkpoint of that very command.
"""

import gzip
import json
import re
import shlex
from pathlib import Path

import jax
import pytest

from plmjax.commands import cli
from plmjax.experiment import Mesh
from plmjax.files import storage
from plmjax.finetuning.tasks.mixture import Mixture
from plmjax.parallel import mesh as meshes
from plmjax.training import loop
from plmjax.training import program as programs
from plmjax.training.checkpoints import checkpoints
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "finetuning.md").read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(line.replace("\\\n", " "))
    for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    for line in re.split(r"(?<!\\)\n", block.strip())
]
LOOPED = ["--training.batch_size", "8", "--training.unroll", "1"]
SHORTER = ["--data.sequence_length", "32", "--data.pack", "2", *LOOPED]
"""Rows that a very small model has positions for."""
PRETRAINED = ["--data.sequence_length", "24", "--data.layout.overlap", "4", *LOOPED]

OF_EXPERIMENTS = {
    "finetune_questions": "--data.stride 8 --data.question_length 8",
    "finetune_xlnet": "--data.stride 8 --data.question_length 8 --data.pack 1",
    "translate_multi30k": "--model.vocab_size 280 --tokenizer.vocab_size 280 --objective.max_new_tokens 6",
    "translate_bart": "--data.target_length 32 --objective.max_new_tokens 6",
    "summarize": (
        "--data.target_length 32 --objective.max_new_tokens 6 --objective.min_new_tokens 0 --objective.beams 2"
    ),
    "ulmfit.py:general": "--model.embedding_size 8 --model.hidden_size 8 --model.num_layers 1",
    "t5_mixture": (
        "--model.vocab_size 300 --tokenizer.vocab_size 300 --data.target_length 32 --objective.max_new_tokens 6 "
        "--model.num_layers 1 --model.num_decoder_layers 1"
    ),
}
"""Further sizes that are smaller in some experiments."""


class Reached(Exception):
    """The command has come to its training."""


def table(path: str, names: str, row: str, delimiter: str = "\t") -> None:
    """Eight rows, {n} in which is 0 or 1."""
    rows = [names, *(row.format(n=number % 2) for number in range(8))]
    Path(path).write_text("\n".join(line.replace("|", delimiter) for line in rows) + "\n")


def questions(path: str, impossible: bool) -> None:
    text = "The film was made in Paris by a poor actor."
    entries = [
        {"id": "a", "question": "Where?", "answers": [{"text": "Paris", "answer_start": text.index("Paris")}]},
        {"id": "b", "question": "When?", "answers": [], "is_impossible": True},
    ]
    paragraphs = [{"context": text, "qas": entries[: 1 + impossible]}]
    Path(path).write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory, small_run, decoder_run, bart_run, xlnet_run) -> Path:
    """The files that the page takes for granted: four pretrained runs, text, and the published files of every task."""
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "experiments").symlink_to(ROOT / "experiments")
    (folder / "runs").mkdir()
    (folder / "runs" / "bert").symlink_to(small_run)
    (folder / "runs" / "gpt").symlink_to(decoder_run)
    (folder / "runs" / "bart").symlink_to(bart_run)
    (folder / "runs" / "xlnet").symlink_to(xlnet_run)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in ("GLUE/MRPC", "GLUE/MNLI", "SWAG"):
            Path(name).mkdir(parents=True)
        for name in ("train.tsv", "dev.tsv", "new.tsv"):
            table(name, "sentence|label", "a film {n}|l{n}")
        Path("new.txt").write_text("a fine film\na poor plot\n")
        for name in ("train.tsv", "dev.tsv"):
            table(f"GLUE/MRPC/{name}", "Quality|#1 ID|#2 ID|#1 String|#2 String", "{n}|1|2|a film {n}|a plot")
        for name in ("train.tsv", "dev_matched.tsv", "dev_mismatched.tsv"):
            table(f"GLUE/MNLI/{name}", "index|sentence1|sentence2|gold_label", "7|a film|a plot {n}|l{n}")
        table("GLUE/MNLI/test_matched.tsv", "index|sentence1|sentence2", "7|a film|a plot {n}")
        for name in ("train.jsonl", "dev.jsonl"):
            rows = [{"question": "a film", "options": ["a", "b", "c"], "answer": number % 3} for number in range(8)]
            Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        for name in ("train.csv", "val.csv"):
            names = "sent1|sent2|ending0|ending1|ending2|ending3|label"
            table(f"SWAG/{name}", names, "A film.|It|was a|was b|was c|was d|{n}", ",")
        for name in ("train", "dev"):
            words = "1\tfilms\tfilm\tNOUN" + "\t_" * 6 + "\n2\twas\tbe\tVERB" + "\t_" * 6 + "\n\n"
            Path(f"en_ewt-ud-{name}.conllu").write_text("# text\n" + words * 8)
            Path(f"{name}.conll").write_text("Paris\tB-LOC\nwas\tO\n\n" * 8)
            questions(f"{name}-v1.1.json", False)
            questions(f"{name}-v2.0.json", True)
        questions("questions.json", True)
        for name in ("scifact", "nfcorpus"):
            Path(name, "qrels").mkdir(parents=True)
            passages = [{"_id": f"d{number}", "title": "", "text": f"a film {number}"} for number in range(8)]
            Path(name, "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in passages))
            Path(name, "queries.jsonl").write_text('{"_id": "1", "text": "a plot"}\n')
            for split in ("train", "test"):
                table(f"{name}/qrels/{split}.tsv", "query-id|corpus-id|score", "1|d{n}|{n}")
        for name in ("triples.tsv", "triples_dev.tsv"):
            table(name, "premise|entailment|contradiction", "a film {n}|a plot {n}|an actor")
        Path("sts").mkdir()
        table("sts/dev.tsv", "sentence1|sentence2|score", "a film {n}|a plot|{n}.5")
        for pairs in ("multi30k_en_de", "few_pairs"):
            Path(pairs).mkdir()
        for name in ("train", "val"):
            for language, text in (("en", "a man runs"), ("de", "ein Mann rennt")):
                lines = f"{text}\n".encode() * 8
                Path(f"multi30k_en_de/{name}.{language}.gz").write_bytes(gzip.compress(lines))
                Path(f"few_pairs/{name}.{language}").write_bytes(lines)
        Path("new.en").write_text("a man\n")
        for name in ("train", "dev", "new"):
            rows = [{"dialogue": f"a film {number}", "summary": "a plot"} for number in range(8)]
            Path(f"{name}.dialogues.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        Path("wikipedia").mkdir()
        Path("wikipedia/article.txt").write_text("A town on a river. It has a church and a school.\n" * 8)
        Path("reviews").mkdir()
        for name in ("train", "dev", "new"):
            rows = [{"text": "a film whose plot nobody follows", "label": f"l{number % 2}"} for number in range(8)]
            Path(f"reviews/{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        mixed = {
            "tatoeba_en_zh": ["train.tsv.gz", "dev.tsv.gz"],
            "subjectivity": ["train.tsv.gz", "dev.tsv.gz"],
            "dialogsum": ["train.jsonl", "dev.jsonl"],
        }
        rows = {
            "tatoeba_en_zh": "a man\t一\tsomebody\n" * 8,
            "subjectivity": "label\tsentence\nobjective\ta man\nsubjective\ta plot\n",
            "dialogsum": json.dumps({"dialogue": "#Person1#: a man", "summary": "a man"}) + "\n",
        }
        Path("data").mkdir()
        Path("data/multi30k_en_de").symlink_to(folder / "multi30k_en_de")
        for name, files in mixed.items():
            Path("data", name).mkdir()
            for file in files:
                contents = rows[name].encode()
                Path("data", name, file).write_bytes(gzip.compress(contents) if file.endswith(".gz") else contents)
    return folder


def saving(run, workdir, source, *, tokenizer, initial, evaluation, continued=None) -> None:
    """In place of the training loop."""
    mesh = meshes.make(Mesh(), jax.devices()[:1])
    (phase,) = run.resolved_phases
    program = programs.build(run, phase, mesh, vocabulary=source.vocabulary, shapes=source.batch)
    state = program.initialize(run.training.seed, replaced=initial.replaced)
    for name in ("experiment.json", "tokenizer"):  # which the command has written for the loop
        storage.remove(workdir / name)
    params, collections = jax.device_get((initial.from_sampled(state.params), state.collections))
    checkpoints.save_parameters(workdir, params, run, tokenizer=tokenizer, collections=collections)
    raise Reached


# tests/test_docs.py parses these commands: pytest -m nightly tests/finetuning/test_docs.py
@pytest.mark.nightly
@pytest.mark.parametrize("number", range(len(COMMANDS)), ids=lambda number: "-".join(COMMANDS[number][1:3]))
def test_command(number: int, folder: Path, monkeypatch, capsys) -> None:
    program, verb, *arguments = COMMANDS[number]
    assert program == "plmjax"
    monkeypatch.chdir(folder)
    monkeypatch.setattr(loop, "train", saving)
    if verb in ("pretrain", "finetune"):
        more = next((options for name, options in OF_EXPERIMENTS.items() if name in arguments[0]), "")
        with pytest.raises(Reached):
            cli.run([verb, *arguments, *(SHORTER if verb == "finetune" else PRETRAINED), *more.split()])
        return
    cli.run([verb, *arguments, *(SHORTER if verb == "plan" else [])])
    if "--output" in arguments:
        assert Path(arguments[arguments.index("--output") + 1]).stat().st_size > 0
    else:
        assert capsys.readouterr().out


def test_the_task_of_a_mixture() -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    before, call = program.split("TextTask(", 1)
    names: dict = {}
    exec(f"{before}task = TextTask({call}", names)
    assert Mixture(tasks=(names["task"],)).single_task(names["task"]).words == ("0=no", "1=yes")
