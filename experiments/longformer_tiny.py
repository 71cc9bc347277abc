"""A Longformer small enough for a laptop, continued from a RoBERTa on the documentation of the Python libraries.

    plmjax pretrain experiments/roberta_tiny.py --model.max_position_embeddings 34 --workdir runs/roberta_32
    plmjax pretrain experiments/longformer_tiny.py --from runs/roberta_32 --workdir runs/longformer_tiny
    plmjax pretrain experiments/longformer_tiny.py --workdir runs/longformer_from_random

Rows of 512 tokens instead of 32, windows of 64 tokens; the 32 positions of the RoBERTa are repeated 16 times.

Result: held-out loss 5.32 nats per target after 500 steps (5.45, 5.37, 5.33 and 5.32 after 100 to 400), unigram entropy
of the same targets 6.66; 21 % of the masked tokens are predicted correctly. The first batch lost 5.88, before any step.
The RoBERTa lost 4.53 on its own rows of 32 tokens: here equal positions are 32 tokens apart, within one window, and 500
steps do not make up for it. The published window is as long as the RoBERTa's rows. 4,000 to 6,000 tokens per second on
two cores that other programs used, seven minutes.
"""

from plmjax.data.layouts import FullSentences
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.longformer.longformer import LongformerConfig
from plmjax.objectives.roberta import RobertaPretraining
from plmjax.runs.weight_mappings.longformer import LongformerFromRoberta
from plmjax.training.optimizers import AdamW
from plmjax.training.optimizers.schedules import Polynomial


def experiment() -> Experiment:
    """Two layers of width 128, 500 steps of 4,096 tokens."""
    return Experiment(
        model=LongformerConfig.tiny(
            vocab_size=4096,
            num_attention_heads=4,
            initializer_range=0.05,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        ),
        objective=RobertaPretraining(),
        tokenizer=Tokenizer(kind="byte-bpe", vocab_size=4096, lowercase=False),
        data=Data(layout=FullSentences(), format="documentation", sequence_length=512, held_out=0.05),
        optimizer=AdamW(learning_rate=5e-4, schedule=Polynomial(warmup_steps=50, power=3.0), beta2=0.98, clip_norm=0.0),
        training=Training(steps=500, batch_size=8, log_every=50, evaluate_every=100, evaluation_batches=20),
        weight_mapping=LongformerFromRoberta(length=512, attention_window=(64,), max_global_tokens=64),
        checkpoint=Checkpoint(every=100, keep=2, best="eval/loss"),
    )
