"""The nine tasks of GLUE (Wang et al., arXiv 1804.07461), with the files and columns of GLUE.

plmjax finetune experiments/finetune_glue.py:mrpc --from runs/bert --data.folder GLUE/MRPC --workdir runs/mrpc

Three epochs, a warm-up of a tenth and 128 tokens, as BERT's authors fine-tune (Devlin et al. 2019, section 4.1); they
choose among learning rates of 5e-5, 4e-5, 3e-5 and 2e-5 on the validation file. Every epoch is evaluated by the task's
own metric, and the best checkpoint is used. Evaluate MNLI's other validation file afterwards:

plmjax evaluate runs/mnli --data GLUE/MNLI/dev_mismatched.tsv

Rows hold several examples. `training.batch_size` counts rows. They hold about the 32 examples of the paper, for the
mean lengths of these texts with an English WordPiece vocabulary.
"""

from plmjax.experiment import Checkpoint, Experiment, Finetuning, Training
from plmjax.finetuning.tasks.sentences import Regression, SentenceObjective, Sentences, SequenceClassification
from plmjax.training.optimizers import BertAdamW


def _task(
    data: Sentences, best: str, batch_size: int = 8, objective: SentenceObjective = SequenceClassification()
) -> Experiment:
    return Experiment(
        model=None,
        objective=objective,
        data=data,
        optimizer=BertAdamW(learning_rate=3e-5),
        training=Training(steps=0, batch_size=batch_size, log_every=50),
        finetuning=Finetuning(epochs=3.0, warmup=0.1, evaluations=1.0),
        checkpoint=Checkpoint(every=0, keep=1, best=best, prefer="best"),
    )


def _files(text: str, text_pair: str = "", label: str = "label", **options: object) -> Sentences:
    settings = {"validation": "dev.tsv", "pack": 8} | options
    return Sentences(train="train.tsv", text=text, text_pair=text_pair, label=label, **settings)


def cola() -> Experiment:
    """Acceptability of English sentences: Matthews correlation. Files without a header; sentences of some 10 tokens."""
    columns = ("source", "acceptable", "mark", "sentence")
    data = _files("sentence", label="acceptable", columns=columns, sequence_length=64, pack=4)
    return _task(data, "-eval/matthews")


def sst2() -> Experiment:
    """Sentiment of phrases in film reviews: accuracy. Phrases of some 12 tokens."""
    return _task(_files("sentence", sequence_length=64, pack=4), "-eval/accuracy")


def mrpc() -> Experiment:
    """Paraphrases in news: F1. Pairs of some 50 tokens."""
    return _task(_files("#1 String", "#2 String", "Quality"), "-eval/f1", batch_size=16)


def stsb() -> Experiment:
    """Similarity of two sentences, from 0 to 5: Spearman correlation. Pairs of some 30 tokens."""
    return _task(_files("sentence1", "sentence2", "score"), "-eval/spearman", objective=Regression(limits=(0.0, 5.0)))


def qqp() -> Experiment:
    """Questions with the same meaning: F1. Pairs of some 30 tokens.

    Line breaks within questions split a few rows of the train file; these rows are too short and are skipped.
    """
    return _task(_files("question1", "question2", "is_duplicate", skip_bad_rows=True), "-eval/f1")


def mnli() -> Experiment:
    """Entailment, contradiction or neither of a premise and a hypothesis: accuracy. Pairs of some 40 tokens."""
    return _task(_files("sentence1", "sentence2", "gold_label", validation="dev_matched.tsv"), "-eval/accuracy")


def qnli() -> Experiment:
    """Sentences that contain the answer to a question: accuracy. Pairs of some 50 tokens."""
    return _task(_files("question", "sentence"), "-eval/accuracy", batch_size=16)


def rte() -> Experiment:
    """Entailment of the second text by the first: accuracy. Pairs of some 70 tokens."""
    return _task(_files("sentence1", "sentence2"), "-eval/accuracy", batch_size=16)


def wnli() -> Experiment:
    """Referent of the pronoun in the first sentence, named in the second: accuracy. Pairs of some 40 tokens.

    BERT's authors leave this task out, because few models are better than the constant answer no.
    """
    return _task(_files("sentence1", "sentence2"), "-eval/accuracy")
