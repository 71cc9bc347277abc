"""Taggers that read characters and words: TagLM, ELMo's vectors as features, and the same without a language model.

    plmjax pretrain experiments/elmo_tiny.py
    plmjax finetune experiments/taglm.py --from runs/elmo_tiny --data.train en_ewt-ud-train.conllu \
        --data.validation en_ewt-ud-dev.conllu --workdir runs/taglm

`experiment` and `entities` are TagLM, `elmo` has mixes of all layers beside the input and the output, `words` has no
language model: it is initialized with the vectors of word2vec or GloVe (--from runs/word2vec_tiny), or at random
(--from random --like runs/word2vec_tiny). Both can be trained on named entities with the options `--data.label tag
--data.scheme IOB2 --objective.entities True --checkpoint.best=-eval/f1`.

Result in percent, mean and deviation of three seeds, the best of one evaluation per epoch: one epoch of parts of
speech, four of entities. The thirty runs took 29 minutes of one core of an AMD EPYC, compilation included. The vectors
of words and the language models are those of experiments/word2vec_tiny.py, glove_tiny.py and elmo_tiny.py, from 3.1
million words of Wikipedia and one vocabulary of 8,192 words; ELMo's 4,000 steps took 6.9 minutes, to 4.72 nats per
held-out word, unigram entropy 5.92.

    python benchmarks/tagging.py --pos ud_english_ewt --entities wnut17 --workdir runs/tagging --seeds 0 1 2 \
        --word2vec runs/word2vec --glove runs/glove --elmo runs/elmo

                        UD English EWT, accuracy     WNUT-17, F1
    drawn vectors                     88.9 ± 0.2       2.0 ± 0.9
    word2vec                          90.0 ± 0.1       5.8 ± 1.8
    GloVe                             89.6 ± 0.3       5.5 ± 0.6
    TagLM                             90.6 ± 0.1      16.3 ± 1.8
    ELMo, features                    90.2 ± 0.1      10.6 ± 1.4

A BERT of about the same size, pretrained for 14 minutes and fine-tuned for as many epochs, has 85.6 ± 0.1 and 10.4 ±
1.2 (docs/comparison.md). Features are better than fine-tuning here, but not only because of their pretraining: this
tagger reads characters, and with random vectors it is already better on parts of speech, where BERT from random
parameters has 76.9. For entities the language models make the difference, most of all at the second layer, as in TagLM.
The learned mixes prefer the first LSTM layer: 0.42 of the weight at the input and 0.39 at the output for parts of
speech, 0.37 and 0.41 for entities, of seed 0. The language models are unchanged, bit for bit.

Deviation: a linear decay from three times the paper's rate, as the runs are short; LSTMs of 100 instead of 200.
"""

import dataclasses

from plmjax.experiment import Checkpoint, Experiment, Finetuning, Training
from plmjax.finetuning.tasks.crf_tagging import CrfTagging
from plmjax.finetuning.tasks.tagging import Tagging
from plmjax.models.taggers.elmo_tagger import ElmoTaggerConfig
from plmjax.models.taggers.tagger import TaggerConfig
from plmjax.models.taglm import TaglmConfig
from plmjax.runs.weight_mappings.tagger import FromLanguageModel, FromWordVectors
from plmjax.training.optimizers import AdamW


def experiment() -> Experiment:
    """TagLM for universal parts of speech, one epoch: Adam clipped to 5, at three times the paper's rate."""
    return Experiment(
        model=None,
        objective=CrfTagging(),
        data=Tagging(label="upos", sequence_length=64, pack=16),
        optimizer=AdamW(learning_rate=3e-3, weight_decay=0.0, clip_norm=5.0, frozen=("encoder/language_model",)),
        training=Training(steps=0, batch_size=8, log_every=50),
        finetuning=Finetuning(epochs=1.0, evaluations=1.0),
        weight_mapping=FromLanguageModel(TaglmConfig(hidden_size=100)),
        checkpoint=Checkpoint(every=0, keep=1, best="-eval/accuracy", prefer="best"),
    )


def entities() -> Experiment:
    """TagLM for named entities in IOB2, evaluated by the F1 of whole entities; four epochs."""
    run = experiment()
    return dataclasses.replace(
        run,
        objective=dataclasses.replace(run.objective, entities=True),
        data=dataclasses.replace(run.data, label="tag", scheme="IOB2"),
        finetuning=dataclasses.replace(run.finetuning, epochs=4.0),
        checkpoint=dataclasses.replace(run.checkpoint, best="-eval/f1"),
    )


def elmo() -> Experiment:
    """ELMo's vectors at the input and the output of the tagger, for universal parts of speech."""
    run = experiment()
    return dataclasses.replace(
        run,
        objective=dataclasses.replace(run.objective, mix_penalty=1e-3),
        weight_mapping=FromLanguageModel(ElmoTaggerConfig(hidden_size=100)),
    )


def words() -> Experiment:
    """The tagger without a language model, for universal parts of speech."""
    run = experiment()
    return dataclasses.replace(
        run,
        optimizer=dataclasses.replace(run.optimizer, frozen=()),
        weight_mapping=FromWordVectors(TaggerConfig(hidden_size=100)),
    )
