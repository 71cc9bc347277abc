"""Tasks with static word vectors: the baseline of every comparison.

    plmjax pretrain experiments/word2vec_tiny.py
    plmjax finetune experiments/static_vectors.py --from runs/word2vec_tiny --data.train train.tsv \
        --data.validation dev.tsv --data.text sentence --optimizer.frozen encoder

A linear layer reads the mean of the word vectors of a text, or for tagging the vector of each word. The vectors are
those of any run with a table of tokens, such as word2vec's; `--optimizer.frozen encoder` freezes them; without it they
are trained too.

Result in percent, mean and deviation of three seeds, the best of one evaluation per epoch, with skip-gram vectors of
4,000 steps for 8,192 words of documentation (`python benchmarks/static_vectors.py runs/word2vec_tiny DATA`; a run takes
12 to 22 seconds of one core). SNLI is its published development file, of which a tenth of the premises is held out as
in benchmarks/comparison.py; chance is a third.

                                  frozen        trained
    subjectivity, accuracy        76.3 +- 0.2   85.5 +- 0.3
    movie_reviews, accuracy       67.8 +- 0.6   84.8 +- 0.6
    snli, accuracy                50.4 +- 0.3   53.7 +- 0.2
    UD English EWT, accuracy      73.2 +- 0.0   78.6 +- 0.0
    WNUT-17, F1                    0.0 +- 0.0    0.9 +- 0.0
    squad, F1                      4.9 +- 0.1    6.2 +- 0.2
"""

import dataclasses

from plmjax.experiment import Checkpoint, Experiment, Finetuning, Training
from plmjax.finetuning.tasks.choices import Choices, MultipleChoice
from plmjax.finetuning.tasks.questions import Questions, SpanExtraction
from plmjax.finetuning.tasks.sentences import Sentences, SequenceClassification
from plmjax.finetuning.tasks.tagging import Tagging, TokenTagging
from plmjax.runs.weight_mappings.token_embeddings import FromTokenEmbeddings
from plmjax.training.optimizers import AdamW


def experiment() -> Experiment:
    """One label per text: ten epochs, with a learning rate for a linear layer."""
    return Experiment(
        model=None,
        objective=SequenceClassification(),
        data=Sentences(sequence_length=128, pack=16),
        optimizer=AdamW(learning_rate=1e-2, weight_decay=0.0),
        training=Training(steps=0, batch_size=8, log_every=50),
        finetuning=Finetuning(epochs=10.0, evaluations=1.0),
        weight_mapping=FromTokenEmbeddings(),
        checkpoint=Checkpoint(every=0, keep=1, best="-eval/accuracy", prefer="best"),
    )


def reviews() -> Experiment:
    """Positive or negative, a review of some 750 words, one to a row (Pang and Lee 2004)."""
    run = experiment()
    return dataclasses.replace(run, data=dataclasses.replace(run.data, sequence_length=1024, pack=1))


def snli() -> Experiment:
    """Entailment, contradiction or neither of a premise and a hypothesis (Bowman et al. 2015)."""
    run = experiment()
    return dataclasses.replace(run, data=dataclasses.replace(run.data, text="premise", text_pair="hypothesis"))


def choices() -> Experiment:
    """Multiple choice of endings or answers."""
    run = experiment()
    return dataclasses.replace(run, objective=MultipleChoice(), data=Choices(sequence_length=64, pack=2))


def parts_of_speech() -> Experiment:
    """Universal parts of speech, from CoNLL-U files."""
    data = Tagging(label="upos", sequence_length=128, pack=16)
    return dataclasses.replace(experiment(), objective=TokenTagging(), data=data)


def entities() -> Experiment:
    """Named entities in IOB2, evaluated by the F1 of whole entities."""
    run = parts_of_speech()
    return dataclasses.replace(
        run,
        objective=TokenTagging(entities=True),
        data=dataclasses.replace(run.data, label="tag", scheme="IOB2"),
        checkpoint=dataclasses.replace(run.checkpoint, best="-eval/f1"),
    )


def questions() -> Experiment:
    """The span of a text that answers a question (SQuAD), from word vectors that do not depend on the question."""
    run = experiment()
    return dataclasses.replace(
        run,
        objective=SpanExtraction(),
        data=Questions(sequence_length=384, stride=128, pack=4),
        finetuning=dataclasses.replace(run.finetuning, epochs=3.0),
        checkpoint=dataclasses.replace(run.checkpoint, best="-eval/f1"),
    )
