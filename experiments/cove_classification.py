"""CoVe on tasks: the biattentive network on [GloVe ; CoVe], and on GloVe only.

    plmjax finetune experiments/cove_classification.py --from runs/cove_multi30k --data.folder subjectivity
    plmjax finetune experiments/cove_classification.py:vectors --from runs/cove_multi30k --data.folder subjectivity
    plmjax finetune experiments/cove_classification.py:snli --from runs/cove_multi30k --data.folder snli
    plmjax finetune experiments/cove_classification.py:snli_vectors --from runs/cove_multi30k --data.folder snli

The run of experiments/cove_multi30k.py has both kinds of vectors, which are frozen. As published (McCann et al. 2017)
except for the size: Adam with a rate of 0.001.

Result of three seeds, accuracy in percent on the validation file after the best of three epochs, with the three epochs
of translation that are recorded in experiments/cove_multi30k.py, and with the encoder before its training:

    seed                                            0      1      2    mean
    [GloVe ; CoVe] (as above)                    85.3   83.6   85.2    84.7
    the same with an untrained encoder           85.0   83.0   81.1    83.0
    GloVe alone (`vectors`)                      82.4   81.8   80.7    81.6

The standard error of a number is 1.2. CoVe is above the vectors alone with every seed, by 1.8 to 4.5 points. Its gain
over the untrained encoder, 0.3, 0.6 and 4.1 points, is not significant: about half of its gain comes from what an
LSTM with random parameters tells of the order of words. The untrained encoder is a run of cove_multi30k.py without
training:

    plmjax finetune experiments/cove_multi30k.py --from vectors.txt --tokenizer.path words/ \
        --data.folder multi30k_en_de --finetuning.epochs 0 --training.steps 1 --optimizer.learning_rate 1e-9

A run takes one and a half to two minutes of one core of an AMD EPYC. SNLI was not measured after the network got its
batch normalization.
"""

import dataclasses

from plmjax.experiment import Checkpoint, Experiment, Finetuning, Training
from plmjax.finetuning.tasks.sentences import Sentences, SequenceClassification
from plmjax.runs.weight_mappings.biattentive_classifier import BiattentiveClassifier
from plmjax.training.optimizers import AdamW
from plmjax.training.optimizers.schedules import Constant


def experiment() -> Experiment:
    """Subjectivity, from vectors and CoVe; LSTMs of size 64."""
    return Experiment(
        model=None,
        objective=SequenceClassification(),
        data=Sentences(train="train.tsv.gz", validation="dev.tsv.gz", text="sentence", sequence_length=48),
        optimizer=AdamW(learning_rate=1e-3, schedule=Constant(), weight_decay=0.0, clip_norm=5.0, frozen=("encoder",)),
        training=Training(steps=0, batch_size=64, log_every=50),
        finetuning=Finetuning(epochs=3.0, evaluations=1.0),
        weight_mapping=BiattentiveClassifier(size=64),
        checkpoint=Checkpoint(every=0, keep=1, best="-eval/accuracy", prefer="best"),
    )


def vectors() -> Experiment:
    """The same without CoVe."""
    run = experiment()
    return dataclasses.replace(run, weight_mapping=dataclasses.replace(run.weight_mapping, contextual=False))


def snli() -> Experiment:
    """Entailment, contradiction or neither of a premise and a hypothesis (Bowman et al. 2015)."""
    run = experiment()
    pairs = {"train": "train.tsv", "validation": "dev.tsv", "text": "premise", "text_pair": "hypothesis"}
    return dataclasses.replace(run, data=dataclasses.replace(run.data, **pairs))


def snli_vectors() -> Experiment:
    """The same without CoVe."""
    return dataclasses.replace(snli(), weight_mapping=vectors().weight_mapping)
