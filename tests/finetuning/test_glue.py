"""GLUE's nine tasks, from tiny files with the headers of those that GLUE hands out."""

import dataclasses

import pytest

from plmjax.experiment import load, override
from plmjax.models.bert import BertConfig
from plmjax.runs import epochs

FILES = {
    "cola": ("", [["gj04", "1", "", 'Friends won\'t buy this "analysis.'], ["gj04", "0", "*", "They drank the pub."]]),
    "mrpc": ("Quality|#1 ID|#2 ID|#1 String|#2 String",
             [["1", "702876", "702977", "He said \"no\" .", "He refused ."], ["0", "1", "2", "A .", "B ."]]),
    "stsb": ("index genre filename year old_index source1 source2 sentence1 sentence2 score",
             [["0", "main-captions", "MSRvid", "2012test", "01", "none", "none", "A plane.", "An air plane.", "5.000"],
              ["1", "main-captions", "MSRvid", "2012test", "0004", "none", "none", "A man.", "A cat.", "0.25"]]),
    "qqp": ("id qid1 qid2 question1 question2 is_duplicate",
            [["1", "2", "3", "How?", "In what way?", "1"], ["4", "5", "6", "Why?", "", "0"], ["torn", "Who?", "0"]]),
    "mnli": ("index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse "
             "sentence2_parse sentence1 sentence2 label1 gold_label",
             [["0", "1", "1n", "fiction", "(", "(", "(", "(", "One.", "Two.", label, label]
              for label in ("neutral", "entailment", "contradiction")]),
}  # fmt: skip
DEV_OF_MNLI = (
    "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse "
    "sentence1 sentence2 label1 label2 label3 label4 label5 gold_label"
)
FOUND = {
    "cola": ([("Friends won't buy this \"analysis.",), ("They drank the pub.",)], ["1", "0"]),
    "mrpc": ([('He said "no" .', "He refused ."), ("A .", "B .")], ["1", "0"]),
    "stsb": ([("A plane.", "An air plane."), ("A man.", "A cat.")], ["5.000", "0.25"]),
    "qqp": ([("How?", "In what way?"), ("Why?", "")], ["1", "0"]),
    "mnli": ([("One.", "Two.")] * 3, ["neutral", "entailment", "contradiction"]),
}
OFFICIAL = {"cola": "matthews", "mrpc": "f1", "stsb": "spearman", "qqp": "f1"}  # accuracy elsewhere


def table(path, header: list[str], rows: list[list[str]], mark: str = "") -> None:
    text = "".join("\t".join(row) + "\n" for row in ([header] if header else []) + rows)
    path.write_text(mark + text, encoding="utf-8")


@pytest.mark.parametrize("name", FILES)
def test_reads_and_resolves_the_official_files(tmp_path, name):
    header, rows = FILES[name]
    columns = header.split("|" if "|" in header else None)
    mark = "\ufeff" if name == "mrpc" else ""  # its files begin with the mark of UTF-8
    table(tmp_path / "train.tsv", columns, rows, mark)
    if name == "mnli":
        rows = [[*row[:10], *[row[-1]] * 5, row[-1]] for row in rows]
        table(tmp_path / "dev_matched.tsv", DEV_OF_MNLI.split(), rows)
    else:
        table(tmp_path / "dev.tsv", columns, rows, mark)
    run = override(load(f"experiments/finetune_glue.py:{name}"), ["--data.folder", str(tmp_path)])
    for split in ("train", "validation"):
        examples = run.data.read(split)
        assert (examples.texts, examples.labels) == FOUND[name]
    objective = run.objective.fit_labels(run.data.read("train"))
    assert objective.numbers(examples).shape == (len(examples),)
    assert run.checkpoint.best == f"-eval/{OFFICIAL.get(name, 'accuracy')}" and run.checkpoint.prefer == "best"
    assert run.checkpoint.best.removeprefix("-eval/") in objective.metric_names
    resolved = epochs.in_steps(dataclasses.replace(run, model=BertConfig.tiny()), 400)
    epoch = 400 // run.training.batch_size
    assert resolved.training.steps == 3 * epoch and resolved.optimizer.schedule.warmup_steps == round(0.3 * epoch)
    assert resolved.training.evaluate_every == resolved.checkpoint.every == epoch
