"""Translation of picture captions (Multi30k) by a BART: into another language, or from one by a new source encoder.

All parameters of bart_tiny are trained to translate English to German, from its checkpoint, or from random parameters
with the same sizes and tokenizer:

    plmjax finetune experiments/translate_bart.py --from runs/bart_tiny --workdir runs/to_german --data.folder multi30k
    plmjax finetune experiments/translate_bart.py --from random --like runs/bart_tiny \
        --workdir runs/to_german_from_random --data.folder multi30k
    plmjax evaluate runs/to_german --data multi30k/test_2016_flickr.en.gz

Translation into the language of its pretraining, as published: by a new encoder and in two stages:

    plmjax finetune experiments/translate_bart.py:new_source --from runs/bart_tiny --workdir runs/to_english_first \
        --data.folder multi30k
    plmjax finetune experiments/translate_bart.py:all_parameters --from runs/to_english_first \
        --workdir runs/to_english --data.folder multi30k
    plmjax evaluate runs/to_english --data multi30k/test_2016_flickr.de.gz

Result of English to German on test_2016_flickr after one epoch, 1,079 steps of 2,048 tokens: from bart_tiny, which was
pretrained on Wikipedia, BLEU 20.0, chrF 45.8 and 1.61 nats per token; from random parameters BLEU 16.8, chrF 42.2 and
1.77 (nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0; one seed). 9 minutes of processor time each, with an
evaluation.

Result of German to English in two stages, one epoch and a quarter of one (1,079 and 270 steps), on the same test file
(one seed): BLEU 11.4, chrF 28.4 and 3.65 nats per token after the first, 15.2, 33.4 and 3.03 after the second; on the
validation file 10.5 and 14.5 BLEU. 9 and 4 minutes of processor time, each with an evaluation. The captions are fluent,
but not yet right: a man who wears a red life jacket becomes "A man wearing a park of a red park is sitting in a boat."

An English tokenizer splits German into small pieces: 35 tokens per caption. One of the 29,000 captions is longer than
the 128 positions, and is truncated (the runs from English to German left it out).
"""

import dataclasses

from plmjax.experiment import Checkpoint, Experiment, Finetuning, Training
from plmjax.finetuning.tasks.text_generation import Translation
from plmjax.finetuning.tasks.text_pairs import TextPairs
from plmjax.models.bart.translation import FROZEN_AT_FIRST
from plmjax.runs.weight_mappings.new_source_encoder import NewSourceEncoder
from plmjax.training.optimizers import AdamW


def experiment() -> Experiment:
    """English to German by a BART as small as bart_tiny, all parameters, one epoch."""
    return Experiment(
        model=None,
        objective=Translation(
            label_smoothing=0.1, length_penalty=1.0, length_normalization="tokens", max_new_tokens=100
        ),
        data=TextPairs(
            train="train.en.gz",
            validation="val.en.gz",
            source="en",
            target="de",
            sequence_length=128,
            target_length=128,
            pack=12,
            cut_targets=True,
        ),
        optimizer=AdamW(learning_rate=1e-3),
        training=Training(steps=0, batch_size=8, log_every=50),
        finetuning=Finetuning(epochs=1.0, warmup=0.1),
        checkpoint=Checkpoint(every=0),
    )


def new_source() -> Experiment:
    """German to English, the first stage: a source encoder of two layers, and the parts of BART next to it."""
    run = experiment()
    german = {"train": "train.de.gz", "validation": "val.de.gz", "source": "de", "target": "en"}
    return dataclasses.replace(
        run,
        data=dataclasses.replace(run.data, **german, cut_sources=True),
        optimizer=dataclasses.replace(run.optimizer, frozen=FROZEN_AT_FIRST),
        weight_mapping=NewSourceEncoder(layers=2),
    )


def all_parameters() -> Experiment:
    """German to English, the second stage: all parameters, for a quarter of an epoch."""
    run = new_source()
    return dataclasses.replace(
        run,
        optimizer=AdamW(learning_rate=2e-4),
        finetuning=dataclasses.replace(run.finetuning, epochs=0.25),
        weight_mapping=experiment().weight_mapping,
    )
