"""A T5 small enough for a laptop, on text that every machine has: the documentation of its Python libraries.

    plmjax pretrain experiments/t5_tiny.py
    plmjax pretrain experiments/t5_tiny.py --workdir runs/mine --data.input my_text/

Result on 39 MB of Wikipedia (`--data.input wikipedia_en/train --data.format wikiextractor`): held-out loss of the
hidden text 6.72, 6.38, 6.23 and 6.11 nats per token after 500, 1,000, 1,500 and 2,000 steps, unigram entropy of the
same tokens 6.63: a margin of 0.52 nats. 11 minutes of processor time, without the preparation of the text and the first
41 steps, which an earlier command made; 28 minutes of wall time on a core that other programs used too.

The margin is small because few tokens are asked: 19 of the 128 in a row, 608,000 in the run. BERT of this size has
about 0.7 nats after 737,000 (experiments/comparison.py, 15 % in 4,800 steps). Sentinels count in neither number, but a
masked token here also tells that its span goes on. For 19 tokens in 6 spans, of which all C(18, 5) divisions are
equally likely, this costs a model that knows everything else 0.20 nats a token.

For the documentation only half of a run is recorded: 6.36 after 500 and 6.05 after 1,000 steps, unigram entropy 6.42.

As published except for the size: version 1.0, spans of 3 tokens that hide 15 % of a row, whose sources and targets have
no padding; a cased unigram vocabulary with 100 sentinels; Adafactor with T5's own schedule, z-loss.

Deviation: there is no dropout, as in bert_small.
"""

from plmjax.data.layouts import Chunks
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.t5 import T5Config
from plmjax.objectives.text_to_text.span_corruption import SpanCorruption
from plmjax.training.optimizers import Adafactor


def experiment() -> Experiment:
    """Two layers of width 128 in each stack, 2,000 steps of 2,048 tokens."""
    return Experiment(
        model=T5Config.tiny(vocab_size=4096, dropout_rate=0.0),
        objective=SpanCorruption(z_loss=1e-4),
        tokenizer=Tokenizer(kind="t5-unigram", vocab_size=4096),
        data=Data(layout=Chunks(), format="documentation", sequence_length=128, held_out=0.05),
        optimizer=Adafactor(),
        training=Training(steps=2000, batch_size=16, log_every=100, evaluate_every=500, evaluation_batches=50),
        checkpoint=Checkpoint(every=1000, keep=2, best="eval/loss"),
    )
