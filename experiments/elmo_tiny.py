"""ELMo on text that every machine has: the documentation of its Python libraries.

    plmjax pretrain experiments/elmo_tiny.py

Result: a held-out loss of 5.15 nats per word after 600 steps, over all 8,192 words of the vocabulary (forward 5.22,
backward 5.07; 5.65 after 200 steps), unigram entropy 6.13: a margin of 0.98. 21 % and 24 % of the words are predicted
correctly. The run was stopped at step 243 and was resumed from its checkpoint. Up to 2,900 tokens per second, of both
directions together, on one core of an AMD EPYC that many other programs used too. On 3 million words of Wikipedia 4,000
steps take 7 minutes of a core and reach 4.72 nats (forward 4.78, backward 4.66), unigram entropy 5.92.

As released except for the size, for words truncated to 24 characters, and for the number of sampled words.
Adagrad is the released rule (see experiments/elmo_8x8.py).
"""

from plmjax.data.layouts import BidirectionalStreams
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.elmo import ElmoConfig
from plmjax.objectives.bidirectional_language_model import BidirectionalLanguageModel
from plmjax.training.optimizers import Adagrad


def experiment() -> Experiment:
    """Two layers of 128 cells in each direction, 600 steps of 32 rows of 20 words in each direction."""
    return Experiment(
        model=ElmoConfig.tiny(),
        objective=BidirectionalLanguageModel(negatives=512),
        tokenizer=Tokenizer(kind="word", vocab_size=8192, lowercase=False),
        data=Data(layout=BidirectionalStreams(), format="documentation", sequence_length=20, held_out=0.05),
        optimizer=Adagrad(learning_rate=0.2, initial_accumulator=1 / 400, epsilon=0.0, clip_norm=0.5),
        training=Training(steps=600, batch_size=32, log_every=100, evaluate_every=200, evaluation_batches=20),
        checkpoint=Checkpoint(every=200, keep=2),
    )
