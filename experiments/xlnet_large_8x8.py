"""XLNet as published (Yang et al., arXiv 1906.08237, appendix A.4.1; zihangdai/xlnet), on an 8x8 slice of 64 chips.

    plmjax pretrain experiments/xlnet_large_8x8.py --data.input WIKIPEDIA BOOKS NEWS WEB_PAGES
    plmjax plan experiments/xlnet_large_8x8.py --topology v3:8x8
    plmjax plan experiments/xlnet_large_8x8.py:v5e --topology v5e:8x8

Recipe: 500,000 steps of 8,192 rows of 512 tokens, 85 of which are predicted, with a memory of 384; BERT's AdamW at 4e-4
with 40,000 steps of warm-up, then linear decay; weight decay 0.01; dropout 0.1; half of the rows read backwards. The
text is the user's own: the paper took Wikipedia, BooksCorpus, Giga5, ClueWeb 2012-B and Common Crawl.

Plans (libtpu 0.0.42.1, jax 0.10.2), estimated, not measured. Hours, s a step and the first MFU follow the compiler's
estimate. Large on v5e is bound by compute, the others by the HBM. GiB are of the 16 of a core, or of a chip of v5e:

    run          slice    s a step    refined, s  roofline, s    MFU   refined MFU   GiB   hours   chip-hours
    large        v3:8x8        12.5  11.0 to 11.4          5.1   16 %    17 to 18 %  12.2   1,743      111,536
    large, `v5e` v5e:8x8       10.1    3.8 to 4.2          1.2   12 %    30 to 33 %  13.5   1,408       90,116
    base         v3:8x8         4.5    4.0 to 4.1          1.9   14 %    15 to 16 %   6.9     626       40,049
    base         v5e:8x8        3.0    1.3 to 1.4          0.5   13 %    27 to 29 %   8.8     415       26,538

The paper trained the large one on 512 chips in 5.5 days.

Result to expect: the released XLNet-Large reaches 89.8 % on MNLI's dev set, XLNet-Base 86.8 %. None of these runs was
made.

Deviation: every step draws new orders and spans. The memory before the first row is empty; in the released code it is
zeros, which are visible. A tokenizer is trained on the text unless `--tokenizer.path` names the published spiece.model.
The rate decays to 0 and not to a thousandth. A thousandth of the documents is kept for evaluation.
"""

from plmjax.data.layouts import ContinuedPairs
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.xlnet.xlnet import XlnetConfig
from plmjax.objectives.permutation_language_model import PermutationLanguageModel
from plmjax.training.optimizers import BertAdamW
from plmjax.training.optimizers.schedules import Linear


def experiment() -> Experiment:
    """XLNet-Large, 360 million parameters."""
    return _published(XlnetConfig.large(), accumulation=16)


def v5e() -> Experiment:
    """XLNet-Large in microbatches of four rows, for chips of v5e."""
    return _published(XlnetConfig.large(), accumulation=32)


def base() -> Experiment:
    """XLNet-Base, 117 million parameters, by the same recipe."""
    return _published(XlnetConfig.base(), accumulation=8)


def _published(model: XlnetConfig, accumulation: int) -> Experiment:
    return Experiment(
        model=model,
        objective=PermutationLanguageModel(predictions=85, permutation_size=256, memory_length=384),
        tokenizer=Tokenizer(kind="xlnet-unigram", vocab_size=32000),
        data=Data(layout=ContinuedPairs(), held_out=0.001, sequence_length=512),
        optimizer=BertAdamW(learning_rate=4e-4, schedule=Linear(warmup_steps=40_000)),
        training=Training(
            steps=500_000,
            batch_size=8192,
            accumulation=accumulation,
            log_every=100,
            evaluate_every=5_000,
            evaluation_batches=20,
        ),
        checkpoint=Checkpoint(every=10_000),
    )
