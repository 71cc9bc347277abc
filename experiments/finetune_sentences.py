"""Fine-tuning on single sentences or pairs, from any tsv, csv or jsonl file with named columns.

plmjax finetune experiments/finetune_sentences.py --from runs/bert_tiny --data.train train.tsv \
    --data.validation dev.tsv --data.text sentence --data.label label

The model and the tokenizer are those of the checkpoint. `--optimizer.frozen encoder` trains only the new head.

Up to 16 examples share a row of 128 tokens, and a step has 8 rows: some 36 pairs of SNLI (27 tokens each), some 34
sentences of the subjectivity corpus (30 tokens each). For longer texts, raise `training.batch_size`.
"""

import dataclasses

from plmjax.experiment import Checkpoint, Experiment, Finetuning, Training
from plmjax.finetuning.tasks.label_sets import LabelSets, MultiLabelClassification
from plmjax.finetuning.tasks.sentences import Regression, Sentences, SequenceClassification
from plmjax.training.optimizers import BertAdamW


def experiment() -> Experiment:
    """One label per row, three epochs of about 32 per step, as BERT's authors fine-tune (section 4.1, appendix A.3)."""
    return Experiment(
        model=None,
        objective=SequenceClassification(),
        data=Sentences(sequence_length=128, pack=16),
        optimizer=BertAdamW(learning_rate=5e-5),
        training=Training(steps=0, batch_size=8, log_every=50),
        finetuning=Finetuning(epochs=3.0, warmup=0.1),
        checkpoint=Checkpoint(every=0),
    )


def regression() -> Experiment:
    """One number per row."""
    return dataclasses.replace(experiment(), objective=Regression())


def label_sets() -> Experiment:
    """Any number of labels per row: a list in a jsonl file, else separated by `--data.separator` in their cell."""
    run = experiment()
    fields = {field.name: getattr(run.data, field.name) for field in dataclasses.fields(run.data)}
    return dataclasses.replace(run, objective=MultiLabelClassification(), data=LabelSets(**fields))


def subjectivity() -> Experiment:
    """Subjective or objective, a sentence of a film review or of a plot summary (Pang and Lee 2004).

    Models much smaller than BERT-Base need a larger learning rate than that of its authors.
    """
    run = experiment()
    return dataclasses.replace(
        run,
        data=dataclasses.replace(run.data, text="sentence", label="label"),
        optimizer=dataclasses.replace(run.optimizer, learning_rate=2e-4),
    )


def snli() -> Experiment:
    """Entailment, contradiction or neither of a premise and a hypothesis (Bowman et al. 2015)."""
    run = experiment()
    return dataclasses.replace(
        run,
        data=dataclasses.replace(run.data, text="premise", text_pair="hypothesis", label="label"),
        optimizer=dataclasses.replace(run.optimizer, learning_rate=2e-4),
    )
