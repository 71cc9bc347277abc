"""Lite Transformer's language model for a laptop, on the documentation of the Python libraries, by bytes.

    plmjax pretrain experiments/lite_transformer_tiny.py

Result: held-out loss 1.73 nats a byte after 1,000 steps (2.12, 1.86 and 1.76 after 250, 500 and 750), unigram entropy
of the same bytes 3.14.

As released except for the size: dynamic convolutions that grow from layer to layer, norms before the sublayers, a
feed-forward network as wide as the rest.

Deviation: there is no dropout, as in gpt2_tiny. Adam takes the place of Nesterov's accelerated gradient, with a
learning rate chosen for this model.
"""

from plmjax.data.layouts import Chunks
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.lite_transformer.decoder import LiteTransformerDecoderConfig
from plmjax.objectives.next_token import NextToken
from plmjax.training.optimizers import AdamW
from plmjax.training.optimizers.schedules import Cosine


def experiment() -> Experiment:
    """Two layers of width 128 with kernels of 7 and 15 bytes, 1,000 steps of 8 rows of 128 bytes."""
    return Experiment(
        model=LiteTransformerDecoderConfig.tiny(vocab_size=257, max_position_embeddings=128, eos_token_id=0),
        objective=NextToken(),
        tokenizer=Tokenizer(kind="gpt2-bpe", vocab_size=257),
        data=Data(layout=Chunks(), format="documentation", sequence_length=128, held_out=0.05),
        optimizer=AdamW(learning_rate=2e-3, schedule=Cosine(warmup_steps=100), weight_decay=0.01),
        training=Training(steps=1000, batch_size=8, log_every=50, evaluate_every=250, evaluation_batches=50),
        checkpoint=Checkpoint(every=1000, keep=2, best="eval/loss"),
    )
