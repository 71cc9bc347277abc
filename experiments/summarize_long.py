"""Summaries of long texts by an LED that begins as a BART (Beltagy et al. 2020, arXiv 2004.05150, section 7).

    plmjax import bart-large/ runs/bart_large
    plmjax finetune experiments/summarize_long.py --from runs/bart_large --workdir runs/led \
        --data.train train.jsonl --data.validation validation.jsonl --data.source article --data.target abstract

    plmjax plan experiments/summarize_long.py --from runs/bart_large --topology v5e:4x4 \
        --data.train train.jsonl --data.validation validation.jsonl --data.source article --data.target abstract

The layers of a BART, whose 1,024 positions are repeated sixteen times, with windows of 1,024 tokens in the encoder. The
first token of a source is global. A source has up to 16,384 tokens, a target up to 512.

    zcat dialogsum.dev.jsonl.gz | head -n 450 > train.jsonl
    zcat dialogsum.dev.jsonl.gz | tail -n 50 > validation.jsonl
    plmjax finetune experiments/summarize_long.py:tiny --from runs/bart_tiny --workdir runs/led_summaries \
        --data.train train.jsonl --data.validation validation.jsonl

Result of these commands from a bart_tiny that was pretrained for 1,000 steps on Wikipedia (4.78 nats a target), on the
50 dialogues after 2, 4 and 6 epochs: ROUGE-L 19.9, 18.8 and 20.3, and 3.66, 3.55 and 3.52 nats per token. In the end
ROUGE-1 is 25.3 and ROUGE-2 2.1 (rouge-score 0.1.2, mean F1 of stemmed words; one seed). Three minutes of processor time
for the 338 steps and four evaluations. The BART itself, which reads 128 tokens of a dialogue, has ROUGE-1 23.5, ROUGE-2
2.6, ROUGE-L 20.1 and 3.54 nats per token (`summarize_dialogues.py:tiny --finetuning.epochs 6 --data.pack 1`): so small
a model has learned the style of summaries, and gains little by the rest of a dialogue.

Plan of `large` for v5e:4x4 (libtpu 0.0.52, jax 0.10.2), two rows on each device, estimated, not measured: a step of
2,583 ms (872 to 925 refined, roofline 363 ms, bound by the HBM), MFU 10 % (27 to 28 refined), 4.2 GiB of the 16 of a
device. It reads any two files of texts:

    plmjax plan experiments/summarize_long.py:large --topology v5e:4x4 --data.train train.jsonl \
        --data.validation validation.jsonl --data.source dialogue --data.target summary

Result to expect: LED-Large reaches ROUGE-1 46.6, ROUGE-2 19.6 and ROUGE-L 41.8 on arXiv with sources of 16,384 tokens
(table 11). This run was not made.

Deviation: the paper gives neither the rate nor the number of steps; these are BART's for summaries, as in
summarize_dialogues.
"""

import dataclasses

from plmjax.experiment import Checkpoint, Experiment, Finetuning, Tokenizer, Training, WeightMapping
from plmjax.finetuning.tasks.text_generation import Summarization
from plmjax.finetuning.tasks.text_pairs import TextPairs
from plmjax.models.longformer.encoder_decoder import LedConfig
from plmjax.runs.weight_mappings.longformer import LedFromBart
from plmjax.training.optimizers import AdamW


def experiment() -> Experiment:
    """A published BART, 10 epochs; generates the `abstract` of an `article`."""
    return Experiment(
        model=None,
        objective=Summarization(
            label_smoothing=0.1,
            beams=4,
            length_penalty=1.0,
            length_normalization="tokens",
            max_new_tokens=511,
            no_repeat_ngram_size=3,
        ),
        data=TextPairs(
            source="article",
            target="abstract",
            sequence_length=16_384,
            target_length=512,
            cut_sources=True,
            cut_targets=True,
        ),
        optimizer=AdamW(learning_rate=3e-5, clip_norm=0.1),
        training=Training(steps=0, batch_size=32, log_every=50, remat="full"),
        finetuning=Finetuning(epochs=10.0, warmup=0.025, evaluations=0.5, dropout=0.1),
        weight_mapping=LedFromBart(),
        checkpoint=Checkpoint(every=0, keep=2, best="-eval/rougeL", prefer="best"),
    )


def large() -> Experiment:
    """An LED-Large of random parameters, to plan the run without a checkpoint; the texts train its tokenizer."""
    return dataclasses.replace(
        experiment(),
        model=LedConfig.large(),
        tokenizer=Tokenizer(kind="byte-bpe", vocab_size=4096, lowercase=False),
        weight_mapping=WeightMapping(),
    )


def tiny() -> Experiment:
    """A BART as small as bart_tiny, 6 epochs; dialogues of up to 512 tokens, with windows of 64."""
    run = experiment()
    return dataclasses.replace(
        run,
        objective=dataclasses.replace(run.objective, beams=6, min_new_tokens=10, max_new_tokens=60),
        data=dataclasses.replace(run.data, source="dialogue", target="summary", sequence_length=512, target_length=128),
        optimizer=dataclasses.replace(run.optimizer, learning_rate=1e-3),
        training=dataclasses.replace(run.training, batch_size=8, remat="none"),
        finetuning=dataclasses.replace(run.finetuning, epochs=6.0),
        weight_mapping=LedFromBart(length=512, attention_window=(64,), max_global_tokens=64),
    )
