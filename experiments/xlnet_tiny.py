"""An XLNet small enough for a laptop, on text that every machine has: the documentation of its Python libraries.

    plmjax pretrain experiments/xlnet_tiny.py
    plmjax pretrain experiments/xlnet_tiny.py --workdir runs/mine --data.input my_text/

Result: held-out loss 4.23 nats per target, unigram entropy of the same targets 6.32; 29 % of the predictions are right.
At 6,000 to 11,000 tokens per second on a core that other programs used too, the run takes ten minutes.
Deviation: weights are initialized with a standard deviation of 0.05, not 0.02, and there is no dropout, as in
bert_tiny.
"""

from plmjax.data.layouts import ContinuedPairs
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.xlnet.xlnet import XlnetConfig
from plmjax.objectives.permutation_language_model import PermutationLanguageModel
from plmjax.training.optimizers import BertAdamW
from plmjax.training.optimizers.schedules import Linear


def experiment() -> Experiment:
    """Two layers of width 128 and a memory of 48 tokens, 4,000 steps of 1,024 tokens."""
    return Experiment(
        model=XlnetConfig.tiny(
            vocab_size=4096, n_head=4, d_inner=512, initializer_range=0.05, dropout=0.0, summary_last_dropout=0.0
        ),
        objective=PermutationLanguageModel(memory_length=48),
        tokenizer=Tokenizer(kind="xlnet-unigram", vocab_size=4096),
        data=Data(layout=ContinuedPairs(), format="documentation", sequence_length=64, held_out=0.05),
        optimizer=BertAdamW(learning_rate=1e-3, schedule=Linear(warmup_steps=200)),
        training=Training(steps=4000, batch_size=16, log_every=200, evaluate_every=1000, evaluation_batches=50),
        checkpoint=Checkpoint(every=1000, keep=2, best="eval/loss"),
    )
