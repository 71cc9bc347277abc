"""Ettin of 17 million parameters, as an encoder and as a decoder, on a 4x4 slice (Weller et al., arXiv 2507.11412).

    plmjax pretrain experiments/ettin_17m_4x4.py:encoder --data.input TEXT --workdir runs/encoder
    plmjax pretrain experiments/ettin_17m_4x4.py:decoder --data.input TEXT --workdir runs/decoder
    plmjax plan experiments/ettin_17m_4x4.py:encoder --topology v5e:4x4
    plmjax plan experiments/ettin_17m_4x4.py:decoder --topology v6e:4x4

Both read the same rows of the same batches in the same order, since their data and seeds are the same. Only the mask
and the objective differ: the encoder restores 30 % of the tokens, the decoder predicts each from those before it. Then
each goes on as the other from every parameter that it has (Ettin's cross-training):

    plmjax pretrain experiments/ettin_17m_4x4.py:decoder_from_encoder --from runs/encoder --data.input TEXT
    plmjax pretrain experiments/ettin_17m_4x4.py:encoder_from_decoder --from runs/decoder --data.input TEXT

Recipe: batches of 4,608 rows of 1,024 tokens; StableAdamW (0.9, 0.98, 1e-6) at 3e-3, warm-up and a constant rate, decay
of 3e-4 a step; theta 10,000 in all layers. The cross-training is a tenth of it, at 4e-4.

Plans (libtpu 0.0.42.1, jax 0.10.2), estimated, not measured; the hours follow the refined ms a step:

    run       slice     ms a step    roofline, ms   MFU          GiB          hours        chip-hours
    encoder   v5e:4x4   493 to 540            369   16 to 18 %   8.9 of 16    1.5 to 1.6   23 to 25
    encoder   v6e:4x4   292 to 328            204   6 %          8.9 of 32    0.9 to 1.0   14 to 15
    decoder   v5e:4x4   711 to 770            561   22 to 23 %   3.8 of 16    2.1 to 2.3   34 to 36
    decoder   v6e:4x4   410 to 454            309   8 to 9 %     3.8 of 32    1.2 to 1.3   19 to 21

The HBM bounds them all: a layer of 256 features multiplies little for each value that it moves. The decoder scores
every token of a row, the encoder the 30 % that are masked. One core compiles a plan in a quarter of an hour.

Result to expect: in the paper an encoder is better in classification than a decoder of its size, and a decoder that
goes on as an encoder does not reach it. These runs were not made.

Deviation: 50 billion tokens, of the 1,700 billion of the paper, with a warm-up of 1 billion in place of 4, and 1 - sqrt
in the last tenth, which the paper has in phases of their own. Those phases, with rows of 8,000 tokens and theta 160,000
and with fewer masks, and the growth of the batches at the beginning are left out.
Deviation: rows are consecutive tokens of the joined documents; the paper has a document in each row, cut or padded.
Deviation: the cross-training reads 5 billion tokens of the paper's 50, and its rate decays in the last fifth.
"""

import dataclasses

from plmjax.data.layouts import Chunks
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.modernbert.decoder import ModernBertDecoderConfig
from plmjax.models.modernbert.modernbert import ModernBertConfig
from plmjax.objectives.next_token import NextToken
from plmjax.objectives.roberta import RobertaPretraining
from plmjax.runs.weight_mappings.ettin import DecoderFromEncoder, EncoderFromDecoder
from plmjax.training.optimizers import StableAdamW
from plmjax.training.optimizers.schedules import WarmupStableDecay

THETAS = {"global_rope_theta": 10_000.0, "local_rope_theta": 10_000.0}
IDS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
"""Ids of a tokenizer that is trained on the text."""


def encoder() -> Experiment:
    """Masked tokens, 10,600 steps of 4.7 million tokens."""
    return Experiment(
        model=ModernBertConfig.ettin_17m(**THETAS, **IDS),
        objective=RobertaPretraining(rate=0.3),
        tokenizer=Tokenizer(kind="byte-bpe", vocab_size=50_280, lowercase=False),
        data=Data(layout=Chunks(), sequence_length=1024, held_out=0.005),
        optimizer=StableAdamW(
            learning_rate=3e-3,
            weight_decay=3e-4,
            schedule=WarmupStableDecay(warmup_steps=212, decay_steps=1060, shape="one_minus_sqrt"),
        ),
        training=Training(
            steps=10_600,
            batch_size=4608,
            accumulation=8,
            log_every=50,
            evaluate_every=530,
            evaluation_batches=2,
        ),
        checkpoint=Checkpoint(every=1060),
    )


def decoder() -> Experiment:
    """The next token, in the same batches."""
    return dataclasses.replace(
        encoder(), model=ModernBertDecoderConfig.ettin_17m(**THETAS, **IDS), objective=NextToken()
    )


def decoder_from_encoder() -> Experiment:
    """A decoder that goes on from the encoder, 1,060 steps."""
    return _crossed(decoder(), DecoderFromEncoder())


def encoder_from_decoder() -> Experiment:
    """An encoder that goes on from the decoder, 1,060 steps."""
    return _crossed(encoder(), EncoderFromDecoder())


def _crossed(run: Experiment, start: DecoderFromEncoder | EncoderFromDecoder) -> Experiment:
    """Return a tenth of a run from the other's checkpoint, at a lower rate."""
    schedule = WarmupStableDecay(warmup_steps=21, decay_steps=212, shape="one_minus_sqrt")
    return dataclasses.replace(
        run,
        model=None,
        weight_mapping=start,
        optimizer=dataclasses.replace(run.optimizer, learning_rate=4e-4, schedule=schedule),
        training=dataclasses.replace(run.training, steps=1060),
    )
