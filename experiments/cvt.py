"""Cross-view training: a tagger that learns from sentences without labels too.

    plmjax pretrain experiments/word2vec_tiny.py
    plmjax finetune experiments/cvt.py --from runs/word2vec_tiny --data.train en_ewt-ud-train.conllu \
        --data.validation en_ewt-ud-dev.conllu --data.unlabelled sentences.txt --workdir runs/cvt

A line of sentences.txt is a sentence, its words separated by white space. `entities` finds named entities. Words begin
with the vectors of the checkpoint, such as word2vec's or those of `plmjax import glove.6B.300d.txt`.

Result of seed 0, parts of speech of the English web treebank, from skip-gram vectors of documentation, with the labels
of 500 of its 12,544 sentences: 86.5 % of the words of its development file after 825 steps on these alone
(`--data.unlabelled none`), 86.6 % after as many steps on them and 825 on the other sentences without their labels. So
nothing is gained: 1,650 steps are few beside the 200,000 of the paper. Halfway, after 495 and 990 steps, they were
83.2 % and 79.4 %. Options: `--finetuning.epochs 100 --finetuning.evaluations 0.1`.

As published: momentum of 0.9 at a rate of 0.5, clipped to 1, and the exponential mean of the parameters is judged. The
warm-up is shorter here and the model smaller; `published` has the sizes of the paper.
"""

import dataclasses

from plmjax.experiment import Checkpoint, Experiment, Finetuning, Training
from plmjax.finetuning.cross_view import CrossViewTagging, TaggingWithText
from plmjax.finetuning.from_parts import FromWordVectors
from plmjax.models.cvt import CvtConfig
from plmjax.training.optimizers import StochasticGradientDescent
from plmjax.training.schedules import InverseRootTime

SMALL = {"filter_count": 25, "character_dim": 25, "first_size": 200, "second_size": 100, "projection_size": 100}


def experiment() -> Experiment:
    """Universal parts of speech."""
    return Experiment(
        model=None,
        objective=CrossViewTagging(),
        data=TaggingWithText(label="upos", sequence_length=128, pack=16),
        optimizer=StochasticGradientDescent(
            learning_rate=0.5,
            schedule=InverseRootTime(warmup_steps=200),
            momentum=0.9,
            clip_norm=1.0,
            averaging="always",
            average_share=0.002,
        ),
        training=Training(steps=0, batch_size=8, log_every=50),
        finetuning=Finetuning(epochs=2.0, evaluations=1.0),
        start=FromWordVectors(CvtConfig(**SMALL)),
        checkpoint=Checkpoint(every=0, keep=1, best="-eval/accuracy", prefer="best"),
    )


def entities() -> Experiment:
    """Named entities in IOB2, judged by the F1 of whole entities."""
    run = experiment()
    return dataclasses.replace(
        run,
        objective=dataclasses.replace(run.objective, entities=True),
        data=dataclasses.replace(run.data, label="tag", scheme="IOB2"),
        checkpoint=dataclasses.replace(run.checkpoint, best="-eval/f1"),
    )


def published() -> Experiment:
    """The sizes and the warm-up of the released code, 64 sentences a step, one to a row."""
    run = experiment()
    return dataclasses.replace(
        run,
        data=dataclasses.replace(run.data, sequence_length=100, pack=1),
        optimizer=dataclasses.replace(run.optimizer, schedule=InverseRootTime(warmup_steps=5_000)),
        training=dataclasses.replace(run.training, steps=200_000, batch_size=64),
        finetuning=dataclasses.replace(run.finetuning, epochs=0.0),
        start=FromWordVectors(CvtConfig()),
    )
