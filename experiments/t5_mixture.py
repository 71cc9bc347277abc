"""One small T5 for translation, subjectivity and summaries of conversations, selected by the prefix of a text.

    plmjax finetune experiments/t5_mixture.py --from random --data.folder data
    plmjax evaluate runs/t5_mixture
    plmjax evaluate runs/t5_mixture --data multi30k=data/multi30k_en_de/test_2016_flickr.en.gz
    plmjax predict runs/t5_mixture --data.only multi30k --input captions.txt

The tasks are Multi30k (captions in German), Tatoeba (sentences in Chinese), the subjectivity corpus, and DialogSum, of
whose development file the first 450 conversations are train.jsonl and the last 50 dev.jsonl. Their 61,208 examples are
sampled in proportion to their number: 47 % captions, 39 % sentences, 13 % labels, 0.7 % summaries.

As T5 (Raffel et al. 2020) except for the size: prefixes, Adafactor with a relative step of 0.01, z-loss. Texts are
generated greedily. The tokenizer is trained on the texts of all tasks and encodes every byte, because T5's own
tokenizer has no Chinese. A T5 that was pretrained on English keeps its model and tokenizer, and learns the other tasks:

    plmjax finetune experiments/t5_mixture.py --from runs/t5_tiny --data.only multi30k subjectivity dialogsum

Result of the two epochs, 1,618 steps in 24 minutes of processor time; `plmjax evaluate` prints of the validation files

    multi30k       BLEU 19.0, chrF 41.3 (tok:13a); after 1,362 steps 17.6 and 43.2, after 809, an epoch, 13.1 and 33.8
    tatoeba        BLEU 6.7, chrF 8.6 (tok:zh); 4.5 and 7.2; 1.0 and 4.3
    subjectivity   84.0 % of the labels, of which 52 % are the same; 87.8; 85.6
    dialogsum      ROUGE-2 2.3, ROUGE-1 13.2, ROUGE-L 11.9; 1.2, 11.0 and 9.8; 1.3, 10.9 and 9.3

and 28.0 as the mean of the first of each; of test_2016_flickr BLEU 21.2, chrF 43.7. 450 conversations are too few to
learn summaries: the same sentence for all of them has ROUGE-L 17.9 (`summarize_dialogues.py`).

Deviation: there is no dropout, as in t5_tiny.
"""

from plmjax.experiment import Checkpoint, Experiment, Finetuning, Tokenizer, Training
from plmjax.finetuning.metrics.text_metrics import BleuAndChrf, ExactMatch, Rouge
from plmjax.finetuning.tasks.mixture import MixedTextGeneration, Mixture, TextTask
from plmjax.models.t5 import T5Config
from plmjax.training.optimizers import Adafactor

MULTI30K = TextTask(
    name="multi30k",
    train="multi30k_en_de/train.en.gz",
    validation="multi30k_en_de/val.en.gz",
    source="en",
    target="de",
    prefix="translate English to German: ",
)
TATOEBA = TextTask(
    name="tatoeba",
    train="tatoeba_en_zh/train.tsv.gz",
    validation="tatoeba_en_zh/dev.tsv.gz",
    source="en",
    target="zh",
    columns=("en", "zh", "attribution"),
    prefix="translate English to Chinese: ",
    judge=BleuAndChrf(tokenize="zh"),
)
SUBJECTIVITY = TextTask(
    name="subjectivity",
    train="subjectivity/train.tsv.gz",
    validation="subjectivity/dev.tsv.gz",
    source="sentence",
    target="label",
    prefix="subjectivity sentence: ",
    judge=ExactMatch(),
)
DIALOGSUM = TextTask(
    name="dialogsum",
    train="dialogsum/train.jsonl",
    validation="dialogsum/dev.jsonl",
    source="dialogue",
    target="summary",
    prefix="summarize: ",
    cut_sources=True,
    judge=Rouge(),
)


def experiment() -> Experiment:
    """Two layers of width 128 in each stack, 2 epochs."""
    return Experiment(
        model=T5Config.tiny(
            vocab_size=8000, dropout_rate=0.0, pad_token_id=1, eos_token_id=2, decoder_start_token_id=1
        ),
        objective=MixedTextGeneration(z_loss=1e-4, beams=1, max_new_tokens=64),
        tokenizer=Tokenizer(kind="byte-bpe", vocab_size=8000),
        data=Mixture(
            tasks=(MULTI30K, TATOEBA, SUBJECTIVITY, DIALOGSUM), sequence_length=256, target_length=160, pack=16
        ),
        optimizer=Adafactor(),
        training=Training(steps=0, batch_size=8, log_every=50),
        finetuning=Finetuning(epochs=2.0, evaluations=1.0),
        checkpoint=Checkpoint(every=0, keep=2, best="-eval/mean", prefer="best"),
    )
