"""ULMFiT: a language model of any text, then of the task's texts, then a classifier (Howard and Ruder 2018).

    plmjax tokenizer train --kind word --vocab_size 6144 --input wikipedia/ train.jsonl --output words
    plmjax pretrain experiments/ulmfit.py:general --tokenizer.path words --workdir runs/general --data.input wikipedia/
    plmjax pretrain experiments/ulmfit.py:task --from runs/general --workdir runs/task --data.input train.jsonl
    plmjax finetune experiments/ulmfit.py:classifier --from runs/task --workdir runs/reviews \\
        --data.train train.jsonl --data.validation dev.jsonl

The second stage reads the texts of the task, without their labels: --data.input may name other texts of their kind too.
A second classifier reads texts from the end. It makes other mistakes, so in the paper both together are better than
either:

    plmjax pretrain experiments/ulmfit.py:general_backwards --tokenizer.path words --workdir runs/general_backwards \\
        --data.input wikipedia/
    plmjax pretrain experiments/ulmfit.py:task_backwards --from runs/general_backwards --workdir runs/task_backwards \\
        --data.input train.jsonl
    plmjax finetune experiments/ulmfit.py:classifier --from runs/task_backwards --workdir runs/reviews_backwards \\
        --data.train train.jsonl --data.validation dev.jsonl
    plmjax evaluate runs/reviews --ensemble runs/reviews_backwards

As in section 3 of the paper: slanted triangular learning rates, each group of parameters with 1 / 2.6 of the rate of
the group above, one more group unfrozen every epoch, concat pooling, Adam with 0.7 and 0.99. Rates and dropouts are
fastai's.

Result of the first two stages, as `python benchmarks/ulmfit.py DATA` trains them: 5.04 nats per word after 500 steps on
eight files of Wikipedia, unigram entropy 5.72; then 4.98 after 400 steps on the 1,600 movie reviews, unigram entropy
5.81. The table of docs/results/finetuning.md has the results of the classifier.

Deviation: ULMFiT adds the task's words to the vocabulary, each with the mean of all vectors; here words that the
general model lacks remain unknown, unless --tokenizer.path names a tokenizer of both texts, as above.
Deviation: the schedule runs once over all epochs; fastai restarts it for every group that is unfrozen.
Deviation: two layers of 256 and 128 instead of three of 1,152, 1,152 and 400, and dropouts for these sizes.
"""

import dataclasses

from plmjax.data.layouts import Windows
from plmjax.experiment import Checkpoint, Data, Experiment, Finetuning, Tokenizer, Training
from plmjax.finetuning.tasks.sentences import Sentences, SequenceClassification
from plmjax.models.ulmfit import UlmfitConfig
from plmjax.objectives.awd_lstm import AwdLstmPretraining
from plmjax.runs.weight_mappings.awd_lstm_dropouts import AwdLstmDropouts
from plmjax.training.optimizers import AdamW
from plmjax.training.optimizers.schedules import SlantedTriangular

ADAM = AdamW(schedule=SlantedTriangular(), beta1=0.7, beta2=0.99, weight_decay=0.0)
DROPOUTS = {"embedding": 0.02, "input": 0.1, "weight": 0.1, "hidden": 0.1, "output": 0.1}


def general() -> Experiment:
    """The language model of any text; by default of the documentation of installed libraries."""
    return Experiment(
        model=UlmfitConfig.tiny(vocab_size=6144, **{f"{place}_dropout": rate for place, rate in DROPOUTS.items()}),
        objective=AwdLstmPretraining(),
        tokenizer=Tokenizer(kind="word", vocab_size=6144),
        data=Data(layout=Windows(overlap=20), format="documentation", sequence_length=90, held_out=0.02),
        optimizer=dataclasses.replace(ADAM, learning_rate=5e-3),
        training=Training(steps=500, batch_size=16, log_every=50, evaluate_every=250, evaluation_batches=25),
        checkpoint=Checkpoint(every=500, keep=1),
    )


def task() -> Experiment:
    """The same model on the texts of the task; each layer has 1 / 2.6 of the rate of the layer above."""
    run = general()
    return dataclasses.replace(
        run,
        model=None,
        weight_mapping=AwdLstmDropouts(**DROPOUTS),
        tokenizer=Tokenizer(),
        data=dataclasses.replace(run.data, format="auto"),
        optimizer=dataclasses.replace(ADAM, learning_rate=4e-3, layer_decay=1 / 2.6),
        training=dataclasses.replace(run.training, steps=400, evaluate_every=200),
    )


def classifier() -> Experiment:
    """A label for each text of up to 512 tokens, such as movie reviews."""
    return Experiment(
        model=None,
        objective=SequenceClassification(),
        data=Sentences(sequence_length=512),
        optimizer=dataclasses.replace(ADAM, learning_rate=1e-2, layer_decay=1 / 2.6),
        training=Training(steps=0, batch_size=16, log_every=20),
        finetuning=Finetuning(epochs=6.0, unfreeze=1.0, evaluations=1.0),
        weight_mapping=AwdLstmDropouts(**DROPOUTS | {"output": 0.4}),
        checkpoint=Checkpoint(every=0, keep=1),
    )


def general_backwards() -> Experiment:
    """The language model that reads from the end."""
    run = general()
    return dataclasses.replace(_backwards(run), model=dataclasses.replace(run.model, backwards=True))


def task_backwards() -> Experiment:
    """The same for the texts of the task."""
    return _backwards(task())


def _backwards(run: Experiment) -> Experiment:
    layout = dataclasses.replace(run.data.layout, backwards=True)
    return dataclasses.replace(run, data=dataclasses.replace(run.data, layout=layout))
