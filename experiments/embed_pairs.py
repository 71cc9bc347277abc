r"""Vectors of texts for retrieval: any encoder, trained on queries and their passages, or on the lines of a text.

    plmjax finetune experiments/embed_pairs.py --from runs/bert --workdir runs/search --data.train scifact \
        --data.validation scifact --data.split test

`:triples` trains with a hard negative for each query, on premises of SNLI with the sentence that follows from each, and
the one that contradicts it (Gao et al. 2021, section 4). A tenth of the premises is held out:

    zcat snli/dev.tsv.gz | awk -F'\t' 'NR > 1 { text[$1, $3] = $2; if (!seen[$1]++) premise[++n] = $1 }
        BEGIN { head = "premise\tentailment\tcontradiction"; print head > "train.tsv"; print head > "dev.tsv" }
        END { for (i = 1; i <= n; i++) { p = premise[i]; e = text[p, "entailment"]; c = text[p, "contradiction"]
              if (e != "" && c != "") print p "\t" e "\t" c > (i % 10 ? "train.tsv" : "dev.tsv") } }'
    plmjax finetune experiments/embed_pairs.py:triples --from runs/bert --workdir runs/triples \
        --data.train train.tsv --data.validation dev.tsv

`:lines` trains on the lines of a text, of which two dropout masks make a pair, and is evaluated on the same searches;
`:simcse` is evaluated on STS-B:

    zcat multi30k_en_de/train.en.gz > captions.txt
    plmjax finetune experiments/embed_pairs.py:lines --from runs/bert --workdir runs/lines \
        --data.train captions.txt --data.validation dev.tsv
    plmjax finetune experiments/embed_pairs.py:simcse --from runs/bert --workdir runs/simcse \
        --data.train captions.txt --data.validation sts/dev.tsv

Result of `:triples` and `:lines` on the 285 held-out premises, which search the sentences of their file, at most 570.
runs/bert is bert_tiny on Wikipedia (`plmjax pretrain bert_tiny --data.input wikipedia_en/train --data.format
wikiextractor --data.sequence_length 128 --training.batch_size 8`). One seed; 1.6 to 2 minutes of processor time a run.

                                                       nDCG@10   MRR@10   recall@100
    bert, means over the tokens, not trained             25.5      23.2       59.6
    triples, after 1, 2 and 3 epochs                     50.3, 56.8 and 58.3
    triples, the last                                    58.3      53.2       92.6
    triples, random start (--from random --like)         57.3      52.4       93.0
    triples, --objective.sizes 128 64 32 16              55.2      50.6       89.5
    bert, [CLS], not trained                             11.9       9.8       41.4
    lines, [CLS], one epoch of 29,000 captions           16.5      14.4       49.5

The first 16 features of the vectors alone have 26.0 nDCG@10 after `triples`, and 32.8 with the sizes; the first 64 have
51.1 and 52.0. This pretraining, of four million tokens, is worth one point. The lines improve [CLS], but not to the
level of the untrained mean; their learning rate was not tuned.
"""

import dataclasses

from plmjax.experiment import Checkpoint, Experiment, Finetuning, Training
from plmjax.finetuning.tasks.contrastive import Contrastive
from plmjax.finetuning.tasks.retrieval import Retrieval
from plmjax.training.optimizers import AdamW
from plmjax.training.optimizers.schedules import Linear


def experiment() -> Experiment:
    """Pairs of a folder of BEIR or of columns, 64 a step, with the prefixes of E5 (Wang et al. 2022, section 4)."""
    return Experiment(
        model=None,
        objective=Contrastive(),
        data=Retrieval(sequence_length=128, query_prefix="query: ", passage_prefix="passage: "),
        optimizer=AdamW(learning_rate=2e-5, schedule=Linear()),
        training=Training(steps=0, batch_size=64, log_every=50),
        finetuning=Finetuning(epochs=3.0, warmup=0.1, evaluations=1.0),
        checkpoint=Checkpoint(every=0, keep=1, best="-eval/ndcg@10", prefer="best"),
    )


def triples() -> Experiment:
    """Premise, entailment and contradiction, for a model much smaller than BERT-Base."""
    run = experiment()
    return dataclasses.replace(
        run,
        data=Retrieval(sequence_length=64, query="premise", positive="entailment", negatives=("contradiction",)),
        optimizer=dataclasses.replace(run.optimizer, learning_rate=5e-4),
    )


def lines() -> Experiment:
    """Lines of a text as their own passages (unsupervised SimCSE), evaluated on the searches of `triples`."""
    run = triples()
    return dataclasses.replace(
        run,
        objective=Contrastive(pooling="cls"),
        data=dataclasses.replace(run.data, sequence_length=32),
        optimizer=dataclasses.replace(run.optimizer, learning_rate=1e-4),
        finetuning=Finetuning(epochs=1.0, warmup=0.1, evaluations=4.0, dropout=0.1),
    )


def simcse() -> Experiment:
    """Lines of a text, evaluated on STS-B: one epoch of 64 a step at 3e-5, the vector of [CLS] (ibid., appendix A)."""
    run = lines()
    return dataclasses.replace(
        run,
        data=Retrieval(sequence_length=32, query="sentence1", positive="sentence2", score="score"),
        optimizer=dataclasses.replace(run.optimizer, learning_rate=3e-5),
        finetuning=Finetuning(epochs=1.0, evaluations=4.0, dropout=0.1),
        checkpoint=dataclasses.replace(run.checkpoint, best="-eval/spearman"),
    )
