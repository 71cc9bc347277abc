"""Cross-view training: taggers, a parser and a translation that also learn from unlabelled sentences.

    plmjax pretrain experiments/word2vec_tiny.py
    plmjax finetune experiments/cvt.py --from runs/word2vec_tiny --workdir runs/cvt --data.folder finetune \
        --data.unlabelled sentences.txt

finetune/ud_english_ewt and finetune/wnut17 have the treebank and the named entities; `--data.tasks.0.train` names
another file. A line of sentences.txt is a sentence, its words separated by white space. Words are initialized with the
vectors of the checkpoint, such as word2vec's or those of `plmjax import glove.6B.300d.txt`.

`experiment` learns parts of speech, `entities` named entities, `parsing` dependency trees, and `joint` all three with
one encoder.

Result of seed 0, trees of the English web treebank, from skip-gram vectors of documentation, with the labels of all
12,544 sentences (`parsing`, `--data.unlabelled none --finetuning.epochs 3`, 5.5 minutes of processor time): after 210,
420 and 630 steps 8.0, 39.8 and 54.5 % of the words of the development file are attached to the right head in the right
relation, and 8.0, 45.1 and 61.2 % to the right head.

Result of seed 0 of `joint`, with all labels, and 8,000 sentences of subjectivity without theirs, after 700 of 900 steps
(`--finetuning.epochs 0 --training.steps 900`): 18.9 % of parts of speech, 0.0 F1 of entities, 8.0 % of words attached
to the right head in the right relation. So 350 labelled steps, each for one of three tasks, and as many unlabelled
steps are too few: the evaluated mean of the parameters is over about 500 steps. The current parameters continue to
improve: in the last 50 steps 52.4 % of parts of speech and 10.9 % of attachments in labelled batches were right, and
17.3 % and 5.1 % until step 250.

Result of seed 0, parts of speech of the English web treebank, from skip-gram vectors of documentation, with the labels
of 500 of its 12,544 sentences: 86.5 % of the words of its development file after 825 steps on these alone
(`--data.unlabelled none`), 86.6 % after as many steps on them and 825 on the other sentences without their labels. So
there is no gain: 1,650 steps are few compared with the 200,000 of the paper. After 495 and 990 steps the numbers were
83.2 % and 79.4 %. Options: `--finetuning.epochs 100 --finetuning.evaluations 0.1`.

With every 125th sentence, 101 with labels and 12,443 without, seed 0, from the words of ulmfit:general
(`--finetuning.epochs 0 --finetuning.evaluations 0 --training.steps 500 --training.evaluate_every 125 --checkpoint.every
125`, all 17 labels in `--objective.tasks.0.labels`), after as many steps of all:

    steps                                    125    250    375    500
    with labels only                        61.5   76.0   78.1   79.0
    every second one without labels           -    70.5     -    77.4

So steps without labels are worth something: after 125 labelled steps 70.5 % with them and 61.5 % without, after 250
77.4 and 76.0 %. A part of this is the mean of the parameters, which is over twice as many steps. But as many further
labelled steps are worth more in so short a run, even if they repeat 101 sentences. The auxiliary modules do learn:
`view_nats`, the sum over all five, falls from 13.4 to 7.8 per word. 2 minutes of processor time for the second row.

Longer runs of the same do gain. After 500 labelled steps the 101 sentences have no more to give, the others have
(`--training.steps 2000` with labels only and 4000 with both, in which every second step is labelled):

    labelled steps                           500   1000   1500   2000
    with labels only                        79.0   79.6   79.5   79.4
    as many without labels too              80.2   80.4   81.1   81.8

So 2.4 points are gained, on 25,000 words and with one seed. 4.5 and 11 minutes of processor time.

Result of seed 0 of `translation`, from skip-gram vectors of the captions, with the translations of 4,000 of the 29,000
sentences: after 600 steps on these alone 4.05 nats per word of the first 500 of the validation file, BLEU 2.3 and chrF
23.5; after as many and 600 on the other sentences 4.34 nats, BLEU 0.6 and chrF 14.3. So the early translations of the
primary decoder do not help the other decoders, nor the embeddings and the LSTM that they share. 2.5 and 14 minutes of
processor time of an Intel Xeon. Options: `--weight_mapping.tagger.dropout 0.2 --optimizer.average_fraction 0.01
--objective.tasks.0.max_new_tokens 24`, steps 600 and 1,200.

As published: momentum of 0.9 at a rate of 0.5, clipped to 1, and the exponential mean of the parameters is evaluated.
The warm-up is shorter here and the model smaller; `published` has the sizes of the paper.
"""

import dataclasses

from plmjax.experiment import Checkpoint, Experiment, Finetuning, Training
from plmjax.finetuning.cross_view.cross_view import (
    CrossViewLearning,
    ParsingTask,
    TaggingTask,
    TasksWithText,
    TranslationTask,
)
from plmjax.finetuning.cross_view.tasks import CrossViewParsing, CrossViewTagging, CrossViewTask
from plmjax.finetuning.cross_view.translation import CrossViewTranslation
from plmjax.finetuning.tasks.joint import NamedTask
from plmjax.models.cvt.cvt import CvtConfig
from plmjax.runs.weight_mappings.tagger import FromWordVectors
from plmjax.training.optimizers import StochasticGradientDescent
from plmjax.training.optimizers.schedules import InverseRootTime

SMALL = CvtConfig(
    filter_count=25, character_dim=25, first_size=200, second_size=100, projection_size=100, parser_size=32
)
TREEBANK = {
    "train": "ud_english_ewt/en_ewt-ud-train.conllu.gz",
    "validation": "ud_english_ewt/en_ewt-ud-dev.conllu.gz",
}
WNUT = {"train": "wnut17/wnut17train.conll.gz", "validation": "wnut17/emerging.dev.conll.gz"}
POS = TaggingTask(name="pos", label="upos", **TREEBANK), CrossViewTagging(name="pos")
ENTITIES = TaggingTask(name="entities", scheme="IOB2", **WNUT), CrossViewTagging(name="entities", entities=True)
PARSING = ParsingTask(name="parsing", **TREEBANK), CrossViewParsing(name="parsing")
TRANSLATION = (
    TranslationTask(
        name="translation",
        train="multi30k_en_de/train.en.gz",
        validation="multi30k_en_de/val.en.gz",
        source="en",
        target="de",
        cut_sources=True,
        cut_targets=True,
    ),
    CrossViewTranslation(name="translation"),
)


def experiment() -> Experiment:
    """Universal parts of speech."""
    return _learning(POS)


def entities() -> Experiment:
    """Named entities, evaluated by the F1 of whole entities."""
    return _learning(ENTITIES)


def parsing() -> Experiment:
    """Dependency trees of Universal Dependencies, evaluated by labelled attachments."""
    return _in_short_rows(_learning(PARSING))


def joint() -> Experiment:
    """All three together, evaluated by the mean of accuracy, F1 and labelled attachments."""
    return _in_short_rows(_learning(POS, ENTITIES, PARSING))


def translation() -> Experiment:
    """Captions of pictures from English to German, evaluated by BLEU."""
    return _in_short_rows(_learning(TRANSLATION))


def joint_with_translation() -> Experiment:
    """All four together; the paper leaves translation out of joint training."""
    return _in_short_rows(_learning(POS, ENTITIES, PARSING, TRANSLATION))


def published() -> Experiment:
    """The three of `joint` with the sizes and the warm-up of the released code, 64 sentences a step, one to a row."""
    run = joint()
    return dataclasses.replace(
        run,
        data=dataclasses.replace(run.data, sequence_length=100, pack=1),
        optimizer=dataclasses.replace(run.optimizer, schedule=InverseRootTime(warmup_steps=5_000)),
        training=dataclasses.replace(run.training, steps=200_000, batch_size=64),
        finetuning=dataclasses.replace(run.finetuning, epochs=0.0),
        weight_mapping=FromWordVectors(CvtConfig()),
    )


def _learning(*tasks: tuple[NamedTask, CrossViewTask]) -> Experiment:
    return Experiment(
        model=None,
        objective=CrossViewLearning(tasks=tuple(modules for _, modules in tasks)),
        data=TasksWithText(tasks=tuple(task for task, _ in tasks), sequence_length=128, pack=16),
        optimizer=StochasticGradientDescent(
            learning_rate=0.5,
            schedule=InverseRootTime(warmup_steps=200),
            momentum=0.9,
            clip_norm=1.0,
            averaging="always",
            average_fraction=0.002,
        ),
        training=Training(steps=0, batch_size=8, log_every=50),
        finetuning=Finetuning(epochs=2.0, evaluations=1.0),
        weight_mapping=FromWordVectors(SMALL),
        checkpoint=Checkpoint(every=0, keep=1, best="-eval/mean", prefer="best"),
    )


def _in_short_rows(run: Experiment) -> Experiment:
    """Return the experiment with the same number of words per step, in rows of half the length.

    A parser scores all pairs of words in a row, as the attention of a translation does.
    """
    target_length = 64 if any(isinstance(task, TranslationTask) for task in run.data.tasks) else 0
    return dataclasses.replace(
        run,
        data=dataclasses.replace(run.data, sequence_length=64, pack=8, target_length=target_length),
        training=dataclasses.replace(run.training, batch_size=16),
    )
