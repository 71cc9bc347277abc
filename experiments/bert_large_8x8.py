"""BERT-Large as published (Devlin et al., arXiv 1810.04805, appendix A.2), on an 8x8 slice of 64 chips.

    plmjax pretrain experiments/bert_large_8x8.py --data.input WIKIPEDIA BOOKS
    plmjax plan experiments/bert_large_8x8.py --topology v3:8x8

Recipe: batch 256, 1,000,000 steps, 90 % of them at length 128 and the rest at 512; BERT's AdamW at 1e-4 with 10,000
steps of warm-up, then linear decay; weight decay 0.01; dropout 0.1; 15 % of the tokens are predicted, and the next
sentence. The user provides the text; the paper used English Wikipedia (2,500M words) and BooksCorpus (800M words).

Plan for v3:8x8 (libtpu 0.0.52, jax 0.10.2), at lengths 128 and 512, estimated, not measured:
a step of 50.1 and 110.6 ms (roofline 12 and 41 ms), MFU 16% and 30%, 1.1 and 1.7 GiB of the
16 of a core; 16 hours and 999 chip-hours for the whole run.
The paper trained it in 4 days on 16 Cloud TPUs (64 chips).

Result to expect: the released BERT-Large reaches 86.7 % on MNLI's matched test set (table 1 of the paper). This run was
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
    """336 million parameters on 64 chips."""
    return Experiment(
        model=BertConfig.large(),
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
    BERT-Large in this way.

    Microbatches of 8,192 tokens on each of 64 devices, one at length 128 (docs/notes/tpu_step.md, "Microbatches").
    """
    run = experiment()
    short, long = run.phases
    return dataclasses.replace(
        run,
        optimizer=Lamb(learning_rate=5e-3 / 2**1.5, schedule=Linear(warmup_steps=3_125)),
        training=dataclasses.replace(run.training, steps=125_000, batch_size=4096, evaluate_every=2_500),
        checkpoint=Checkpoint(every=6_250),
        phases=(short, dataclasses.replace(long, accumulation=4)),
    )


def mlperf_256() -> Experiment:
    """MLPerf's BERT-Large at batch 256: rows of 512 tokens, from the benchmark's checkpoint.

        plmjax import MLPERF_CHECKPOINT runs/mlperf_start
        plmjax pretrain experiments/bert_large_8x8.py:mlperf_256 --from runs/mlperf_start --data.input WIKIPEDIA
        plmjax report RUN --against mlperf_bert

    Published: accuracy 0.720 on held-out Wikipedia after 2.553 +- 0.224 million rows (20 seeds), from 0.34085 at step 0
    (mlcommons/training retired_benchmarks/bert, mlcommons/logging rcps_bert.json, bert_ref_256). The folder to import
    has the checkpoint of 28,252 steps under the names bert_config.json, vocab.txt and bert_model.ckpt.*. The learning
    rate decays over 13,700 steps, so the run has as many. Evaluations are 25,088 rows apart, as those of the reference.

    Plan for v5e:4x4 (libtpu 0.0.42.1, jax 0.10.2), estimated, not measured: a step of 260 ms (127 to 134 refined,
    roofline 83), MFU 32 % (62 to 65), 8.0 of 16 GiB; one hour and 16 chip-hours for all steps.

    Deviation: the reference evaluates the 10,000 rows of a file; here the first 9,984 held-out pairs are evaluated.
    """
    run = experiment()
    return dataclasses.replace(
        run,
        objective=BertPretraining(max_predictions=76, masking="static"),
        data=dataclasses.replace(run.data, sequence_length=512),
        optimizer=Lamb(learning_rate=3.5e-4, correct_bias=True),
        training=dataclasses.replace(
            run.training, steps=13_700, evaluate_every=98, evaluation_batch_size=256, evaluation_batches=39
        ),
        checkpoint=Checkpoint(every=980),
        phases=(),
    )


def mlperf_4096() -> Experiment:
    """The same at batch 4,096: 0.720 after 2.843 +- 0.120 million rows (bert_ref_4096, 20 seeds).

    855 steps, 24,576 rows from an evaluation to the next one; four microbatches of 8,192 tokens on each of 64 devices.

    Plan for v5e:8x8 (libtpu 0.0.42.1, jax 0.10.2), estimated, not measured: a step of 1,032 ms (496 to 527 refined,
    roofline 331), MFU 32 % (63 to 67), 8.0 of 16 GiB; 8 chip-hours for all steps, 16 at the compiler's bound.
    """
    run = mlperf_256()
    return dataclasses.replace(
        run,
        optimizer=dataclasses.replace(run.optimizer, learning_rate=2.4e-3, beta1=0.66, beta2=0.998),
        training=dataclasses.replace(
            run.training, steps=855, batch_size=4096, accumulation=4, log_every=3, evaluate_every=6
        ),
        checkpoint=Checkpoint(every=60),
    )
