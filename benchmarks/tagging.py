"""Taggers with random vectors, word vectors, language models as features, and fine-tuned BERT: one table, seed by seed.

    python benchmarks/tagging.py --pos ud_english_ewt --entities wnut17 --workdir runs/tagging \
        --word2vec runs/word2vec --glove runs/glove --elmo runs/elmo --bert runs/bert

Each option names a checkpoint. A row without a checkpoint is left out. The runs are those of experiments/taglm.py and,
for BERT, of experiments/comparison.py. They stay in the folder of --workdir, where a stopped command resumes. Parts of
speech are scored by the accuracy of words, entities by the F1 of whole entities, in percent, at the best of the
evaluations after each epoch.
"""

import argparse
import dataclasses
import json
import logging
from pathlib import Path

from plmjax import experiment as experiments
from plmjax.experiment import Experiment
from plmjax.runs.seeds import finetune_seeds

ROWS = (
    ("drawn vectors", "word2vec", "taglm:words"),
    ("word2vec", "word2vec", "taglm:words"),
    ("GloVe", "glove", "taglm:words"),
    ("TagLM", "elmo", "taglm:experiment"),
    ("ELMo, features", "elmo", "taglm:elmo"),
    ("BERT, fine-tuned", "bert", "comparison:pos"),
)
"""Row of the table, the option with its checkpoint, the experiment with parts of speech."""
ENTITIES = {"comparison:pos": "comparison:wnut17"}
"""Experiment with entities, where it differs from taglm:entities in more than the model."""
FILES = {
    "pos": ("en_ewt-ud-train.conllu.gz", "en_ewt-ud-dev.conllu.gz", "eval/accuracy"),
    "entities": ("wnut17train.conll.gz", "emerging.dev.conll.gz", "eval/f1"),
}
"""Task -> its files for training and for evaluation, and the metric."""


def experiment(reference: str, task: str) -> Experiment:
    """Return the run of a row on a task."""
    if task == "pos" or reference in ENTITIES:
        return experiments.load(reference if task == "pos" else ENTITIES[reference])
    run, entities = experiments.load(reference), experiments.load("taglm:entities")
    return dataclasses.replace(
        run,
        objective=dataclasses.replace(run.objective, entities=True),
        data=entities.data,
        finetuning=entities.finetuning,
        checkpoint=entities.checkpoint,
    )


def score(name: str, checkpoint: Path, reference: str, *, task: str, options: argparse.Namespace) -> str:
    """Return the mean and, for several seeds, the deviation of a row on a task, in percent."""
    workdir = options.workdir / f"{name.split(',')[0].replace(' ', '_')}_{task}"
    train, validation, metric = FILES[task]
    record = workdir / "seeds.json"
    if not record.exists():
        run = experiment(reference, task)
        data = dataclasses.replace(run.data, folder=str(getattr(options, task)), train=train, validation=validation)
        drawn = name.startswith("drawn")
        origin, like = ("random", checkpoint) if drawn else (checkpoint, None)
        finetune_seeds(dataclasses.replace(run, data=data), origin, workdir, options.seeds, like=like)
    found = json.loads(record.read_text(encoding="utf-8"))
    deviation = f" ± {100 * found['deviation'][metric]:.1f}" if len(found["seeds"]) > 1 else ""
    return f"{100 * found['mean'][metric]:.1f}{deviation}"


def main() -> None:
    """Make the missing runs, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in dict.fromkeys(option for _, option, _ in ROWS):
        parser.add_argument(f"--{name}", type=Path, help="checkpoint")
    for task in FILES:
        parser.add_argument(f"--{task}", type=Path, required=True, help="folder of its files")
    parser.add_argument("--workdir", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    lines = [f"{'':<18}{'UD English EWT, accuracy':>26}{'WNUT-17, F1':>16}"]
    for name, option, reference in ROWS:
        checkpoint = getattr(options, option)
        if checkpoint is not None:
            pos, entities = (score(name, checkpoint, reference, task=task, options=options) for task in FILES)
            lines.append(f"{name:<18}{pos:>26}{entities:>16}")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
