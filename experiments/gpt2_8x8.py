"""GPT-2 with its published settings (Radford et al. 2019), on an 8x8 slice of 64 chips.

    plmjax pretrain experiments/gpt2_8x8.py --data.input WEB_PAGES
    plmjax pretrain experiments/gpt2_8x8.py:xl --data.input WEB_PAGES
    plmjax plan experiments/gpt2_8x8.py:xl --topology v3:8x8

Published: the four sizes, batches of 512 rows of 1,024 tokens, byte-level BPE of 50,257 tokens (sections 2.2 and 2.3).
The user provides the text; the paper used 40 GB of web pages to which Reddit linked.

Deviation: learning rates were tuned by hand and never published. These are GPT-3's for its models of the same sizes
(Brown et al., arXiv 2005.14165, table 2.1): 6e-4, 3e-4, 2.5e-4 and 2e-4.
Deviation: the number of steps is unpublished too; 100,000 steps are 52 billion tokens. Warm-up, cosine, Adam, its decay
and dropout 0.1 are GPT's (Radford et al. 2018, section 4.1).
Deviation: a tokenizer is trained on the text, whose token between documents is 0. With the published vocabulary in
`--tokenizer.path` add `--model.bos_token_id 50256 --model.eos_token_id 50256`.

Plans for v3:8x8 (libtpu 0.0.52, that of `xl` 0.0.42.1; jax 0.10.2), estimated, not measured. Memory is of the 16 GiB
of a core. No mesh was published; the chosen one, data 128, divides only the batch. 128 cores do not divide the 1,600
features of `xl`, so each keeps most of its parameters whole.

    size     ms a step       refined, ms   roofline    MFU   refined MFU   GiB   hours   chip-hours
    small          201        161 to 169         92   28 %    34 to 35 %   1.9     5.6          358
    medium         589        482 to 502        255   27 %    32 to 33 %   1.6    16.4        1,048
    large        1,346    1,048 to 1,084        472   26 %    32 to 33 %   3.3    37.4        2,394
    xl           2,180    1,990 to 2,049        825   31 %    33 to 34 %  13.6    60.6        3,876

Result to expect: perplexities of 37.5, 26.4, 22.1 and 17.5 on WikiText-103, which was not trained on (table 3 of the
paper). None of these runs was made.
"""

import dataclasses

from plmjax.data.layouts import Chunks
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.gpt2 import Gpt2Config
from plmjax.objectives.next_token import NextToken
from plmjax.training.optimizers import AdamW
from plmjax.training.optimizers.schedules import Cosine

_END = {"bos_token_id": 0, "eos_token_id": 0}


def experiment() -> Experiment:
    """124 million parameters."""
    return Experiment(
        model=Gpt2Config.small(**_END),
        objective=NextToken(),
        tokenizer=Tokenizer(kind="gpt2-bpe", vocab_size=50257),
        data=Data(layout=Chunks(), sequence_length=1024, held_out=0.005),
        optimizer=_adam(6e-4),
        training=Training(steps=100_000, batch_size=512, log_every=100, evaluate_every=5_000, evaluation_batches=20),
        checkpoint=Checkpoint(every=5_000),
    )


def medium() -> Experiment:
    """355 million parameters. The backward pass recomputes the activations of a layer, as in `large` and `xl`."""
    return _larger(Gpt2Config.medium(**_END), 3e-4)


def large() -> Experiment:
    """774 million parameters."""
    return _larger(Gpt2Config.large(**_END), 2.5e-4)


def xl() -> Experiment:
    """1,558 million parameters."""
    return _larger(Gpt2Config.xl(**_END), 2e-4)


def _adam(learning_rate: float) -> AdamW:
    return AdamW(learning_rate=learning_rate, schedule=Cosine(warmup_steps=2_000), epsilon=1e-8, weight_decay=0.01)


def _larger(model: Gpt2Config, learning_rate: float) -> Experiment:
    run = experiment()
    training = dataclasses.replace(run.training, remat="full")
    return dataclasses.replace(run, model=model, optimizer=_adam(learning_rate), training=training)
