"""An ELECTRA small enough for a laptop, on text that every machine has: the documentation of its Python libraries.

    plmjax pretrain experiments/electra_tiny.py

Result: seven minutes of processor time, on two cores that others were using too. The generator's held-out loss is 5.30
nats a target, the unigram entropy of the same targets 6.31. Of the tokens that the discriminator is shown 81.1 % are
the original ones; it is right about 81.7 % (of the fakes it finds 6.0 %, and is right in 67.6 % of what it calls one),
and loses 0.445 nats a token, where knowing the share of fakes alone loses 0.484. With a generator half as wide that
predicts 15 % of the tokens, the generator reached 5.09 (entropy 6.29) and the discriminator 0.308 (0.322).

Deviation: weights are drawn with a standard deviation of 0.05, not 0.02, and nothing is dropped out, as in bert_small.
The generator predicts a quarter of the tokens, as the published Large's does, so that there are fakes to learn from.
"""

from plmjax.data.layouts import Segments
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.electra import ElectraConfig
from plmjax.objectives.electra import ElectraPretraining
from plmjax.training.optimizers import BertAdamW
from plmjax.training.optimizers.schedules import LinearTimesWarmup


def experiment() -> Experiment:
    """Two layers of 128 features beside a generator of 32, 4,000 steps of 1,024 tokens."""
    return Experiment(
        model=ElectraConfig.tiny(
            vocab_size=4096,
            num_attention_heads=4,
            generator_hidden_size=32,
            max_position_embeddings=128,
            initializer_range=0.05,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        ),
        objective=ElectraPretraining(rate=0.25),
        tokenizer=Tokenizer(kind="wordpiece", vocab_size=4096),
        data=Data(layout=Segments(), format="documentation", sequence_length=32, held_out=0.05),
        optimizer=BertAdamW(learning_rate=1e-3, schedule=LinearTimesWarmup(warmup_steps=200)),
        training=Training(steps=4000, batch_size=32, log_every=200, evaluate_every=1000, evaluation_batches=50),
        checkpoint=Checkpoint(every=1000, keep=2, best="eval/loss"),
    )
