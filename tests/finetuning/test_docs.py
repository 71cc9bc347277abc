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


def table(names: str, row: str, delimiter: str = "\t") -> str:
    """Eight rows, {n} in which is 0 or 1."""
    rows = [names, *(row.format(n=number % 2) for number in range(8))]
    return "\n".join(line.replace("|", delimiter) for line in rows) + "\n"


def lines(*rows: dict) -> str:
    """Eight rows of JSON, of as many that are given in turn."""
    return "".join(json.dumps(rows[number % len(rows)]) + "\n" for number in range(8))


def questions(impossible: bool) -> str:
    text = "The film was made in Paris by a poor actor."
    entries = [
        {"id": "a", "question": "Where?", "answers": [{"text": "Paris", "answer_start": text.index("Paris")}]},
        {"id": "b", "question": "When?", "answers": [], "is_impossible": True},
    ]
    paragraphs = [{"context": text, "qas": entries[: 1 + impossible]}]
    return json.dumps({"data": [{"paragraphs": paragraphs}]})


WORDS = "# text\n" + ("1\tfilms\tfilm\tNOUN" + "\t_" * 6 + "\n2\twas\tbe\tVERB" + "\t_" * 6 + "\n\n") * 8
REVIEWS = [{"text": "a film whose plot nobody follows", "label": f"l{number}"} for number in range(2)]
OPTIONS = [{"question": "a film", "options": ["a", "b", "c"], "answer": number} for number in range(3)]
MRPC = table("Quality|#1 ID|#2 ID|#1 String|#2 String", "{n}|1|2|a film {n}|a plot")
MNLI = table("index|sentence1|sentence2|gold_label", "7|a film|a plot {n}|l{n}")
SWAG = "sent1|sent2|ending0|ending1|ending2|ending3|label"
FILES = {
    "{train,dev,new}.tsv": table("sentence|label", "a film {n}|l{n}"),
    "new.txt": "a fine film\na poor plot\n",
    "GLUE/MRPC/{train,dev}.tsv": MRPC,
    "GLUE/MNLI/{train,dev_matched,dev_mismatched}.tsv": MNLI,
    "GLUE/MNLI/test_matched.tsv": table("index|sentence1|sentence2", "7|a film|a plot {n}"),
    "{train,dev}.jsonl": lines(*OPTIONS),
    "SWAG/{train,val}.csv": table(SWAG, "A film.|It|was a|was b|was c|was d|{n}", ","),
    "en_ewt-ud-{train,dev}.conllu": WORDS,
    "{train,dev}.conll": "Paris\tB-LOC\nwas\tO\n\n" * 8,
    "{train,dev}-v1.1.json": questions(False),
    "{train,dev}-v2.0.json": questions(True),
    "questions.json": questions(True),
    "{scifact,nfcorpus}/corpus.jsonl": "".join(
        json.dumps({"_id": f"d{number}", "title": "", "text": f"a film {number}"}) + "\n" for number in range(8)
    ),
    "{scifact,nfcorpus}/queries.jsonl": '{"_id": "1", "text": "a plot"}\n',
    "{scifact,nfcorpus}/qrels/train.tsv": table("query-id|corpus-id|score", "1|d{n}|{n}"),
    "{scifact,nfcorpus}/qrels/test.tsv": table("query-id|corpus-id|score", "1|d{n}|{n}"),
    "{triples,triples_dev}.tsv": table("premise|entailment|contradiction", "a film {n}|a plot {n}|an actor"),
    "sts/dev.tsv": table("sentence1|sentence2|score", "a film {n}|a plot|{n}.5"),
    "multi30k_en_de/{train,val}.en.gz": "a man runs\n" * 8,
    "multi30k_en_de/{train,val}.de.gz": "ein Mann rennt\n" * 8,
    "few_pairs/{train,val}.en": "a man runs\n" * 8,
    "few_pairs/{train,val}.de": "ein Mann rennt\n" * 8,
    "new.en": "a man\n",
    "{train,dev,new}.dialogues.jsonl": lines({"dialogue": "a film", "summary": "a plot"}),
    "wikipedia/article.txt": "A town on a river. It has a church and a school.\n" * 8,
    "reviews/{train,dev,new}.jsonl": lines(*REVIEWS),
    "data/tatoeba_en_zh/{train,dev}.tsv.gz": "a man\t一\tsomebody\n" * 8,
    "data/subjectivity/{train,dev}.tsv.gz": "label\tsentence\nobjective\ta man\nsubjective\ta plot\n",
    "data/dialogsum/{train,dev}.jsonl": lines({"dialogue": "#Person1#: a man", "summary": "a man"}),
}
"""The published files of every task; names in braces are files alike."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory, small_run, decoder_run, bart_run, xlnet_run) -> Path:
    """What the page takes for granted: four pretrained runs, and the files."""
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "experiments").symlink_to(ROOT / "experiments")
    for name, run in (("bert", small_run), ("gpt", decoder_run), ("bart", bart_run), ("xlnet", xlnet_run)):
        (folder / "runs").mkdir(exist_ok=True)
        (folder / "runs" / name).symlink_to(run)
    for pattern, text in FILES.items():
        before, _, rest = pattern.partition("{")
        names, _, after = rest.partition("}")
        for name in names.split(","):
            path = folder / f"{before}{name}{after}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    (folder / "data" / "multi30k_en_de").symlink_to(folder / "multi30k_en_de")
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
