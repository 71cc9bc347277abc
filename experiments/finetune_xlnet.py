"""XLNet fine-tuned as its authors do it (Yang et al., arXiv 1906.08237, table 8), from any XLNet.

plmjax finetune experiments/finetune_xlnet.py --from runs/xlnet --workdir runs/mnli --data.train train.tsv \
    --data.validation dev.tsv --data.text sentence1 --data.text_pair sentence2 --data.label gold_label

Rows are A [SEP] [CLS] or A [SEP] B [SEP] [CLS], without a memory, padded on the left, and an example each, as in the
release. [CLS], the last token, is read by a dense layer with tanh, then by the labels.

Recipe: 10,000 steps of 128 pairs at 2e-5 for MNLI, 12,000 of 32 rows at 2e-5 for RACE, 8,000 of 48 windows at 3e-5
for SQuAD 2.0; 1,000 steps of warm-up, linear decay, weight decay 0.01 for RACE and SQuAD, dropout 0.1. With files of
other sizes the numbers of steps become epochs: `--finetuning.epochs` and `--finetuning.warmup`.

Deviation: the rates of SQuAD decrease by 0.75 for each layer towards the bottom, as the paper has it. The released code
multiplies the gradients by these factors after they are clipped, and not the rates; Adam divides them out again.
As in the release, a rule with weight decay does not correct the bias of its moments, and one without weight decay does.
"""

import dataclasses

from plmjax.experiment import Checkpoint, Experiment, Finetuning, Training
from plmjax.finetuning.tasks.answer_search import AnswerSearch
from plmjax.finetuning.tasks.choices import Choices, MultipleChoice
from plmjax.finetuning.tasks.questions import Questions
from plmjax.finetuning.tasks.sentences import Regression, Sentences, SequenceClassification
from plmjax.finetuning.tasks.tagging import Tagging, TokenTagging
from plmjax.training.optimizers import AdamW, BertAdamW


def experiment() -> Experiment:
    """One label per text or pair, as MNLI: three epochs of 128 pairs a step at 2e-5, without weight decay."""
    return Experiment(
        model=None,
        objective=SequenceClassification(),
        data=Sentences(sequence_length=128),
        optimizer=AdamW(learning_rate=2e-5, weight_decay=0.0),
        training=Training(steps=0, batch_size=128, log_every=50),
        finetuning=Finetuning(epochs=3.0, warmup=0.1, evaluations=1.0),
        checkpoint=Checkpoint(every=0),
    )


def regression() -> Experiment:
    """One number per text or pair, as STS-B: 128 pairs a step at 5e-5 (zihangdai/xlnet README)."""
    return dataclasses.replace(
        experiment(), objective=Regression(), optimizer=AdamW(learning_rate=5e-5, weight_decay=0.0)
    )


def choices() -> Experiment:
    """Questions with choices, as RACE: rows of 512 tokens, 32 choices (8 questions) a step at 2e-5."""
    return _decayed(MultipleChoice(), Choices(sequence_length=512), batch_size=8, rate=2e-5, epochs=4.0)


def words() -> Experiment:
    """Labels of words, which the paper does not have: three epochs of 32 sentences a step at 3e-5."""
    return _decayed(TokenTagging(), Tagging(sequence_length=128), batch_size=32, rate=3e-5, epochs=3.0)


def squad_v2() -> Experiment:
    """SQuAD 2.0: rows of 512 tokens, 48 windows a step at 3e-5, lower rates for lower layers, about three epochs.

    The best epoch is that of the best F1 over all thresholds; plmjax predict takes the one found as
    `--objective.null_threshold`.
    """
    data = Questions(sequence_length=512, stride=128)
    run = _decayed(AnswerSearch(impossible=True, answer_length=64), data, batch_size=48, rate=3e-5, epochs=3.0)
    return dataclasses.replace(
        run,
        optimizer=dataclasses.replace(run.optimizer, layer_decay=0.75),
        checkpoint=Checkpoint(every=0, keep=1, best="-eval/best_f1", prefer="best"),
    )


def _decayed(
    objective: MultipleChoice | TokenTagging | AnswerSearch,
    data: Choices | Tagging | Questions,
    batch_size: int,
    *,
    rate: float,
    epochs: float,
) -> Experiment:
    run = experiment()
    return dataclasses.replace(
        run,
        objective=objective,
        data=data,
        optimizer=BertAdamW(learning_rate=rate),
        training=dataclasses.replace(run.training, batch_size=batch_size),
        finetuning=dataclasses.replace(run.finetuning, epochs=epochs),
    )
