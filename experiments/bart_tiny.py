"""A BART small enough for a laptop, on text that every machine has: the documentation of its Python libraries.

plmjax pretrain experiments/bart_tiny.py
plmjax pretrain experiments/bart_tiny.py --workdir runs/mine --data.input my_text/
"""

from plmjax.data.layouts import FullSentences
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.bart import BartConfig
from plmjax.objectives.denoising import Denoising
from plmjax.training.optimizers import AdamW
from plmjax.training.schedules import Linear


def experiment() -> Experiment:
    """Two layers of 128 features on each side, 2,000 steps of 1,024 tokens."""
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    return Experiment(
        model=BartConfig.tiny(vocab_size=4096, max_position_embeddings=128, init_std=0.05, dropout=0.0, **heads),
        objective=Denoising(),
        tokenizer=Tokenizer(kind="byte-bpe", vocab_size=4096, lowercase=False),
        data=Data(layout=FullSentences(), format="documentation", sequence_length=64, held_out=0.05),
        optimizer=AdamW(
            learning_rate=1e-3, schedule=Linear(warmup_steps=200), beta2=0.98, clip_norm=0.1, decay_exclude=()
        ),
        training=Training(steps=2000, batch_size=16, log_every=100, evaluate_every=500, evaluation_batches=50),
        checkpoint=Checkpoint(every=500, keep=2, best="eval/loss"),
    )
