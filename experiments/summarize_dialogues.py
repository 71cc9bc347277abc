"""Summaries of dialogues by any encoder-decoder: DialogSum, and any file with a column for each text.

    zcat dialogsum.dev.jsonl.gz | head -n 450 > train.jsonl
    zcat dialogsum.dev.jsonl.gz | tail -n 50 > validation.jsonl
    plmjax finetune experiments/summarize_dialogues.py:tiny --from runs/bart_tiny --workdir runs/summaries \\
        --data.train train.jsonl --data.validation validation.jsonl
    plmjax predict runs/summaries --input new.jsonl

Texts that are too long for a row are truncated, and their number is printed. A model with more positions can read
longer texts: `--data.sequence_length 1024` for BART-Base.

Result of these commands from bart_tiny, which was pretrained on Wikipedia, on the 50 dialogues after 2, 4, 6, 8 and 10
epochs: ROUGE-L 19.0, 20.5, 20.7, 20.1 and 20.8, and 3.50, 3.43, 3.43, 3.46 and 3.46 nats per token. In the end ROUGE-1
is 26.1 and ROUGE-2 3.6 (rouge-score 0.1.2, mean F1 of stemmed words; one seed). 6 minutes of processor time for the 562
steps and six evaluations.

From random parameters (`--from random --like runs/bart_tiny`) the best of those evaluations, after 8 epochs, has
ROUGE-1 24.9, ROUGE-2 3.9, ROUGE-L 20.7 and 3.76 nats per token.

The model has learned the style of summaries and some topic words of a dialogue, but little of its content: "#Person1#
and #Person2# talk about the audience of the movies." For the same sentence "#Person1# and #Person2# talk about it." for
every dialogue, `plmjax.finetuning.metrics.text_metrics.Rouge` gives 21.4, 3.1 and 17.9 (ROUGE-1, ROUGE-2 and ROUGE-L).

Training as BART's authors fine-tuned on XSum, whose summaries are of one sentence too (fairseq examples/bart): label
smoothing of 0.1, AdamW at 3e-5 with a warm-up of 2.5 % and linear decay, gradients clipped at 0.1, dropout of 0.1.
Texts are generated as by BART's authors too: 6 beams, scores divided by the number of tokens, 10 to 60 tokens, no
repeated sequence of three tokens.
"""

import dataclasses

from plmjax.experiment import Checkpoint, Experiment, Finetuning, Training
from plmjax.finetuning.tasks.text_generation import Summarization
from plmjax.finetuning.tasks.text_pairs import TextPairs
from plmjax.training.optimizers import AdamW


def experiment() -> Experiment:
    """A published model, 10 epochs; generates the `summary` of a `dialogue`."""
    return Experiment(
        model=None,
        objective=Summarization(
            label_smoothing=0.1,
            beams=6,
            length_penalty=1.0,
            length_normalization="tokens",
            min_new_tokens=10,
            max_new_tokens=60,
            no_repeat_ngram_size=3,
        ),
        data=TextPairs(
            source="dialogue",
            target="summary",
            sequence_length=128,
            target_length=128,
            pack=4,
            cut_sources=True,
            cut_targets=True,
        ),
        optimizer=AdamW(learning_rate=3e-5, clip_norm=0.1),
        training=Training(steps=0, batch_size=8, log_every=50),
        finetuning=Finetuning(epochs=10.0, warmup=0.025, evaluations=0.5, dropout=0.1),
        checkpoint=Checkpoint(every=0, keep=2, best="-eval/rougeL", prefer="best"),
    )


def tiny() -> Experiment:
    """A model as small as bart_tiny or t5_tiny, which needs a larger learning rate."""
    run = experiment()
    return dataclasses.replace(run, optimizer=dataclasses.replace(run.optimizer, learning_rate=1e-3))
