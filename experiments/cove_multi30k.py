"""CoVe's translation model, which translates captions of pictures from English to German, on vectors of GloVe.

    plmjax tokenizer train --kind word --vocab_size 10000 --lowercase False --output words/ \
        --input multi30k_en_de/train.en.gz multi30k_en_de/train.de.gz TEXTS_OF_LATER_TASKS
    plmjax pretrain experiments/glove_tiny.py --tokenizer.path words/ --model.vocab_size 10000 --data.input my_text/
    plmjax export runs/glove_tiny vectors.txt --vectors glove
    plmjax finetune experiments/cove_multi30k.py --from vectors.txt --tokenizer.path words/ \
        --data.folder multi30k_en_de
    plmjax evaluate runs/cove_multi30k --data multi30k_en_de/test_2016_flickr.en.gz

As published (McCann et al. 2017) except for the size: the vectors of the source are frozen, gradient descent has no
momentum and a rate that is halved when the held-out loss rises, gradients are clipped, dropout is 0.2, texts are
generated greedily.

Deviation: the released loss is the sum over the words of a sentence and the mean over sentences, here it is the mean
over words. A sentence has 13 words, so a rate of 1 there is 13 here, and gradients that are clipped at 5 there are
clipped at 5 / 13 here.

Result of the three epochs, 1,359 steps, from vectors of 1,500 steps of GloVe on ten files of Wikipedia, with the texts
of subjectivity and SNLI among those of the tokenizer: 3.72, 3.03 and 2.42 nats per word of the validation file, and at
the end BLEU 12.8 and chrF 31.4. "A man sleeping in a green room on a couch." is then "Ein Mann in einem roten Hemd auf
einem Stuhl.": the loss was still falling. Fourteen minutes of one core of an AMD EPYC that other programs used too.
A second run, with other words of the tokenizer (vocabulary of the translations, subjectivity and SNLI) and 27 % of the
tokens of Wikipedia unknown, had 3.76, 3.01 and 2.47 nats and BLEU 13.6; experiments/cove_classification.py reads it.
AdamW with a rate of 3e-3 was slower: 4.83 nats per word of the training file after 250 steps, where descent had 4.51.
"""

from plmjax.experiment import Checkpoint, Experiment, Finetuning, Tokenizer, Training
from plmjax.finetuning.tasks.text_generation import Translation
from plmjax.finetuning.tasks.text_pairs import TextPairs
from plmjax.models.cove.cove import CoveConfig
from plmjax.training.optimizers import StochasticGradientDescent
from plmjax.training.optimizers.schedules import Plateau


def experiment() -> Experiment:
    """LSTMs of size 64 in each direction of the encoder, and 128 in the decoder."""
    return Experiment(
        model=CoveConfig.tiny(vocab_size=10_000),
        objective=Translation(beams=1, max_new_tokens=32),
        tokenizer=Tokenizer(kind="word", vocab_size=10_000, lowercase=False),
        data=TextPairs(
            train="train.en.gz",
            validation="val.en.gz",
            source="en",
            target="de",
            sequence_length=24,
            target_length=24,
            cut_sources=True,
            cut_targets=True,
        ),
        optimizer=StochasticGradientDescent(
            learning_rate=13.0,
            schedule=Plateau(reduction=0.5, patience=0),
            clip_norm=0.4,
            frozen=("cove/words",),
        ),
        training=Training(steps=0, batch_size=64, log_every=50),
        finetuning=Finetuning(epochs=3.0, evaluations=1.0),
        checkpoint=Checkpoint(every=0, keep=2),
    )
