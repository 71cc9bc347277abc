"""A small Transformer that translates captions of pictures from English to German, from random parameters.

    plmjax finetune experiments/translate_multi30k.py --from random --data.folder multi30k_en_de
    plmjax evaluate runs/translate_multi30k --data multi30k_en_de/test_2016_flickr.en.gz
    plmjax predict runs/translate_multi30k --input captions.txt

With --from and a run of any encoder-decoder, such as an imported Marian, that model is trained instead of this one.

Multi30k (Elliott et al. 2016) has 29,000 pairs of sentences of 13 words; its files are plain text, one sentence a line:
train.en.gz and train.de.gz, val.en.gz and val.de.gz. The tokenizer is trained on both sides of the train files.

As published (Vaswani et al. 2017) except for the size: one embedding table for both languages, label smoothing of 0.1,
Adam with the inverse square root of the step, beam search with 4 beams and alpha 0.6. The size is that of
Transformer-Tiny (Wu et al., ACL 2021, arXiv 2105.14462) with three layers on each side instead of four.

Up to 12 pairs share a row of 128 tokens on each side, so that a step of 8 rows has at most 1,024 tokens of source and
1,024 of target.

Result of the eight epochs, 3,827 steps: BLEU 8.4, 19.8, 26.0, 29.3, 31.5, 32.4, 34.5 and 35.0 on the validation file,
and 34.5 on test_2016_flickr (chrF 58.7; nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0). A step takes 0.6 s
on two free cores of an AMD EPYC, 40 minutes in total, and an evaluation 25 s. The run was stopped and resumed several
times, and other programs ran at the same time.

The Lite Transformer of `lite` has as many multiplications for a pair of captions, 2.0 million for each token, the
output layer included:

    plmjax finetune experiments/translate_multi30k.py:lite --from random --data.folder multi30k_en_de

Result of its first two epochs, 956 steps: BLEU 13.2 and 25.6 on the validation file (chrF 33.7 and 49.0), where the
Transformer has 8.4 and 19.8. This is one seed. The run was stopped there, after eight minutes of processor time on a
machine that many other programs used.
"""

import dataclasses

from plmjax.experiment import Checkpoint, Experiment, Finetuning, Tokenizer, Training
from plmjax.finetuning.tasks.text_generation import Translation
from plmjax.finetuning.tasks.text_pairs import TextPairs
from plmjax.models.lite_transformer.lite_transformer import LiteTransformerConfig, flattened
from plmjax.models.transformer import TransformerConfig
from plmjax.training.optimizers import AdamW
from plmjax.training.optimizers.schedules import InverseSquareRoot


def experiment() -> Experiment:
    """Three layers of width 128 on each side, 8 epochs."""
    return Experiment(
        model=TransformerConfig.tiny(
            vocab_size=8000,
            max_position_embeddings=128,
            encoder_layers=3,
            decoder_layers=3,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=256,
            decoder_ffn_dim=256,
            pad_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=2,
        ),
        objective=Translation(label_smoothing=0.1, max_new_tokens=64),
        tokenizer=Tokenizer(kind="byte-bpe", vocab_size=8000),
        data=TextPairs(
            train="train.en.gz",
            validation="val.en.gz",
            source="en",
            target="de",
            sequence_length=128,
            target_length=128,
            pack=12,
        ),
        optimizer=AdamW(
            learning_rate=2e-3,
            schedule=InverseSquareRoot(warmup_steps=800),
            beta2=0.98,
            epsilon=1e-9,
            weight_decay=0.0,
            clip_norm=0.0,
        ),
        training=Training(steps=0, batch_size=8, log_every=100),
        finetuning=Finetuning(epochs=8.0, evaluations=1.0),
        checkpoint=Checkpoint(every=0, keep=5, best="-eval/bleu"),
    )


def lite() -> Experiment:
    """A Lite Transformer of three layers of width 152, otherwise the same."""
    model = LiteTransformerConfig.tiny(
        vocab_size=8000,
        max_position_embeddings=128,
        encoder_layers=3,
        decoder_layers=3,
        encoder_kernel_sizes=(3, 7, 15),
        decoder_kernel_sizes=(3, 7, 15),
        pad_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=2,
        **flattened(152),
    )
    return dataclasses.replace(experiment(), model=model)
