"""Longformer fine-tuned on documents (Beltagy et al. 2020, section 6), from any Longformer.

plmjax finetune experiments/finetune_longformer.py --from runs/longformer --workdir runs/reviews \
    --data.train train.tsv --data.validation dev.tsv --data.text review --data.label sentiment

The global tokens are those of the task: <s> of a text, the question of a text with answers, and the question and the
choice of multiple choice. The global projections begin as copies of the local ones, as the masked language model does
not train them (allenai/longformer scripts/convert_model_to_long.ipynb). Rows hold one example each.

Deviation: the paper searches learning rates and epochs by task; one of its choices is here.
"""

import dataclasses

from plmjax.experiment import Checkpoint, Experiment, Finetuning, Training
from plmjax.finetuning.tasks.choices import Choices, MultipleChoice
from plmjax.finetuning.tasks.questions import Questions, SpanExtraction
from plmjax.finetuning.tasks.sentences import Sentences, SequenceClassification
from plmjax.finetuning.tasks.tagging import Tagging, TokenTagging
from plmjax.runs.weight_mappings.longformer import GlobalFromLocal
from plmjax.training.optimizers import AdamW


def experiment() -> Experiment:
    """One label per text, as IMDB: 15 epochs of 32 texts a step at 3e-5, up to 4,096 tokens each."""
    return Experiment(
        model=None,
        objective=SequenceClassification(),
        data=Sentences(sequence_length=4096),
        optimizer=AdamW(learning_rate=3e-5),
        training=Training(steps=0, batch_size=32, log_every=50),
        finetuning=Finetuning(epochs=15.0, warmup=0.1, evaluations=1.0),
        weight_mapping=GlobalFromLocal(),
        checkpoint=Checkpoint(every=0, keep=1, best="-eval/accuracy", prefer="best"),
    )


def questions() -> Experiment:
    """Answers in documents, as TriviaQA: 4 epochs of 32 windows a step at 3e-5."""
    run = experiment()
    return dataclasses.replace(
        run,
        objective=SpanExtraction(),
        data=Questions(sequence_length=4096, stride=2048),
        finetuning=dataclasses.replace(run.finetuning, epochs=4.0),
        checkpoint=dataclasses.replace(run.checkpoint, best="-eval/f1"),
    )


def choices() -> Experiment:
    """Choices of a question about documents: 15 epochs of 32 questions a step at 3e-5."""
    run = experiment()
    return dataclasses.replace(run, objective=MultipleChoice(), data=Choices(sequence_length=4096))


def words() -> Experiment:
    """Labels of words in documents, without global tokens: 15 epochs of 32 texts a step at 3e-5."""
    run = experiment()
    return dataclasses.replace(
        run,
        objective=TokenTagging(),
        data=Tagging(sequence_length=4096),
        checkpoint=Checkpoint(every=0),
    )
