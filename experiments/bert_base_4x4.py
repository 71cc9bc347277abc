"""BERT-Base as published (Devlin et al., arXiv 1810.04805, appendix A.2), on a 4x4 slice of 16 chips.

    plmjax pretrain experiments/bert_base_4x4.py --data.input WIKIPEDIA BOOKS
    plmjax plan experiments/bert_base_4x4.py --topology v2:4x4

Recipe: batch 256, 1,000,000 steps, 90 % of them at length 128 and the rest at 512; BERT's AdamW at 1e-4 with 10,000
steps of warm-up, then linear decay; weight decay 0.01; dropout 0.1; 15 % of the tokens are predicted, and the next
sentence. The user provides the text; the paper used English Wikipedia (2,500M words) and BooksCorpus (800M words).

Plan for v2:4x4 (libtpu 0.0.52, jax 0.10.2), at lengths 128 and 512, estimated, not measured:
a step of 50 and 202 ms (roofline 24 and 105 ms), MFU 49% and 52%, 0.6 and 1.7 GiB of the
8 of a core; 18 hours and 289 chip-hours for the whole run.
The paper trained it in 4 days on 4 Cloud TPUs (16 chips).

Result to expect: the released BERT-Base reaches 84.6 % on MNLI's matched test set (table 1 of the paper). This run was
planned, but not made.

Deviations from the released code: every step samples other tokens to predict, where the released code samples them ten
times in advance (`--objective.masking static` samples them once); activations are bfloat16 over float32 parameters; a
tokenizer is trained on the text unless `--tokenizer.path` names the published vocabulary; half a percent of the
documents is held out for evaluation.
"""

import dataclasses

from plmjax.data.layouts import SentencePairs
from plmjax.experiment import Checkpoint, Data, Experiment, Phase, Tokenizer, Training
from plmjax.models.bert import BertConfig
from plmjax.objectives.bert import BertPretraining
from plmjax.training.optimizers import BertAdamW, Lamb
from plmjax.training.optimizers.schedules import Linear


def experiment() -> Experiment:
    """110 million parameters on 16 chips."""
    return Experiment(
        model=BertConfig.base(),
        objective=BertPretraining(),
        tokenizer=Tokenizer(kind="wordpiece", vocab_size=30522),
        data=Data(layout=SentencePairs(), held_out=0.005),
        optimizer=BertAdamW(learning_rate=1e-4, schedule=Linear(warmup_steps=10_000)),
        training=Training(
            steps=1_000_000, batch_size=256, log_every=100, evaluate_every=10_000, evaluation_batches=100
        ),
        checkpoint=Checkpoint(every=50_000),
        phases=(Phase(fraction=0.9, sequence_length=128), Phase(fraction=0.1, sequence_length=512)),
    )


def lamb_4096() -> Experiment:
    """The recipe of the LAMB paper with sixteen times the batch, so a step computes more per communication.

    Settings of You et al. (ICLR 2020, arXiv 1904.00962), table 4, at batch 4,096: the learning rate of 32,768 times the
    root of the batches' ratio; 125,000 steps read as many rows as the paper's runs with other batches. The paper trains
    BERT-Large in this way; Base has the same settings.

    Microbatches of 8,192 tokens on each of 16 devices: larger ones are slower, because their stored arrays do not stay
    on the chip (docs/notes/tpu_step.md, "Microbatches").
    """
    run = experiment()
    short, long = run.phases
    return dataclasses.replace(
        run,
        optimizer=Lamb(learning_rate=5e-3 / 2**1.5, schedule=Linear(warmup_steps=3_125)),
        training=dataclasses.replace(run.training, steps=125_000, batch_size=4096, evaluate_every=2_500),
        checkpoint=Checkpoint(every=6_250),
        phases=(dataclasses.replace(short, accumulation=4), dataclasses.replace(long, accumulation=16)),
    )
