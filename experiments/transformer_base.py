"""The Transformer as published (Vaswani et al. 2017, section 5), English to German, on a 2x2 slice of 4 chips.

    plmjax pretrain experiments/transformer_base.py --data.format tsv --data.streams source=en target=de \\
        --data.input WMT14
    plmjax pretrain experiments/transformer_base.py:big --data.path DATASET
    plmjax plan experiments/transformer_base.py --topology v3:2x2

Recipe: 100,000 steps, big 300,000, of about 25,000 tokens of the source and as many of the target; Adam (0.9, 0.98,
1e-9) whose rate is D^-0.5 min(s^-0.5, s 4000^-1.5) at step s, no weight decay and no clipping; dropout 0.1, big 0.3;
label smoothing 0.1; one vocabulary of 37,000 pieces for both languages. A checkpoint is kept for every ten minutes of
the paper's 8 P100, 5 of base and 20 of big; their average was evaluated in the paper. The user provides the text; the
paper used the 4.5 million pairs of WMT 2014.

Plans for v3:2x2 (libtpu 0.0.52, jax 0.10.2), estimated, not measured: base, a step of 64 ms (48 to 52 refined, roofline
28 ms), MFU 32 % (39 to 43 refined), 1.3 GiB of the 16 of a core, 1.8 hours and 7 chip-hours for the whole run; big, a
step of 137 ms (118 to 124 refined, roofline 68 ms), MFU 50 % (55 to 58 refined), 2.5 GiB, 11.4 hours and 46 chip-hours.

Result to expect: 27.3 BLEU on newstest2014, big 28.4, by beam search with 4 beams and a length penalty of 0.6 (table
2 of the paper). Neither run was made.

Deviations: pairs are packed into 200 rows of 128 tokens a side, so batches have one shape and almost no padding, and
longer texts are truncated; the paper fills batches with pairs of about the same length. Pieces are SentencePiece's of
byte pairs. Activations are bfloat16 over float32 parameters; half a percent of the pairs is held out for evaluation.
"""

import dataclasses

from plmjax.data.layouts import PairedStreams
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.transformer import TransformerConfig
from plmjax.objectives.sequence_to_sequence import SequenceToSequence
from plmjax.training.optimizers import AdamW
from plmjax.training.optimizers.schedules import InverseSquareRoot

_WARMUP = 4_000


def experiment() -> Experiment:
    """63 million parameters on 4 chips."""
    model = TransformerConfig.base()
    return Experiment(
        model=model,
        objective=SequenceToSequence(label_smoothing=0.1),
        tokenizer=Tokenizer(kind="sentencepiece-bpe", vocab_size=37_000, lowercase=False),
        data=Data(layout=PairedStreams(start="end", pack=8), sequence_length=128, held_out=0.005),
        optimizer=_adam(model),
        training=Training(steps=100_000, batch_size=200, log_every=100, evaluate_every=2_000, evaluation_batches=20),
        checkpoint=Checkpoint(every=1_500, keep=5),
    )


def big() -> Experiment:
    """214 million parameters, with the dropout for English to German."""
    run, model = experiment(), TransformerConfig.big()
    training, checkpoint = dataclasses.replace(run.training, steps=300_000), Checkpoint(every=600, keep=20)
    return dataclasses.replace(run, model=model, optimizer=_adam(model), training=training, checkpoint=checkpoint)


def _adam(model: TransformerConfig) -> AdamW:
    """Return Adam with the rate of the paper's equation 3 at the end of the warm-up as its peak."""
    return AdamW(
        learning_rate=(model.d_model * _WARMUP) ** -0.5,
        schedule=InverseSquareRoot(warmup_steps=_WARMUP),
        beta2=0.98,
        epsilon=1e-9,
        weight_decay=0.0,
        clip_norm=0.0,
    )
