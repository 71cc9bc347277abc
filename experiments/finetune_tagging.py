"""A label for every word: parts of speech from CoNLL-U files, named entities from CoNLL columns.

plmjax finetune experiments/finetune_tagging.py --from runs/bert --data.train en_ewt-ud-train.conllu \
    --data.validation en_ewt-ud-dev.conllu --workdir runs/pos

plmjax finetune experiments/finetune_tagging.py:entities --from runs/bert --data.train train.conll \
    --data.validation dev.conll --workdir runs/ner

Up to 16 sentences share a row of 128 tokens: the 8 rows of a step have some 48 of the English web treebank (21 tokens
each) and some 32 of WNUT-17 (32 tokens each).
"""

import dataclasses

from plmjax.experiment import Checkpoint, Experiment, Finetuning, Training
from plmjax.finetuning.tasks.tagging import Tagging, TokenTagging
from plmjax.training.optimizers import BertAdamW


def experiment() -> Experiment:
    """Universal parts of speech, with the settings of BERT's authors for named entities (section 5.3)."""
    return Experiment(
        model=None,
        objective=TokenTagging(),
        data=Tagging(label="upos", sequence_length=128, pack=16),
        optimizer=BertAdamW(learning_rate=5e-5),
        training=Training(steps=0, batch_size=8, log_every=50),
        finetuning=Finetuning(epochs=3.0, warmup=0.1),
        checkpoint=Checkpoint(every=0),
    )


def entities() -> Experiment:
    """Named entities in IOB2, evaluated by the F1 of whole entities after every epoch; the best epoch is kept."""
    run = experiment()
    return dataclasses.replace(
        run,
        objective=TokenTagging(entities=True),
        data=dataclasses.replace(run.data, label="tag", scheme="IOB2"),
        finetuning=dataclasses.replace(run.finetuning, evaluations=1.0),
        checkpoint=Checkpoint(every=0, keep=1, best="-eval/f1", prefer="best"),
    )
