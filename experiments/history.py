"""The systems before BERT and beside it, of the size of experiments/comparison.py, and the same tasks for them.

    python benchmarks/history.py DATA

pretrains these systems and those of experiments/comparison.py with the same FLOPs on the same Wikipedia articles, and
compares them on a classification of sentences, of pairs and of words (docs/history.md). Each function is one run:

    plmjax pretrain experiments/history.py:nnlm --workdir runs/nnlm --data.input WIKIPEDIA
    plmjax finetune experiments/history.py:words_snli --from runs/nnlm --workdir runs/nnlm_snli \
        --data.train train.tsv --data.validation dev.tsv

NNLM, word2vec, GloVe, ULMFiT and ELMo read whole words, the 8,192 most frequent ones, and ELMo their characters. BART
and T5 have two layers of width 128 on each side, and 4,096 pieces of words.

Every system is used as its paper uses it: the vectors of words by a linear layer, the language models of ELMo and
TagLM as frozen features of a tagger, ULMFiT with a head whose layers are unfrozen one after the other, BART with a
head, and T5 with the label as its text. The sizes and the learning rates are those of the tiny experiments.

Deviation: ULMFiT has no second language model, of the texts of the task: all systems read the same words.
Deviation: ELMo reads pairs and sentences with a network of its own for each task, which is not here.
"""

import dataclasses
from typing import Any

from plmjax.data.layouts import BidirectionalStreams, Chunks, Cooccurrences, FullSentences, Layout, Windows
from plmjax.experiment import Checkpoint, Data, Experiment, Finetuning, Phase, Tokenizer, Training, WeightMapping
from plmjax.finetuning.metrics.text_metrics import ExactMatch
from plmjax.finetuning.tasks.crf_tagging import CrfTagging
from plmjax.finetuning.tasks.mixture import MixedTextGeneration, Mixture, TextTask
from plmjax.finetuning.tasks.sentences import Sentences, SequenceClassification
from plmjax.finetuning.tasks.tagging import Tagging, TokenTagging
from plmjax.finetuning.tasks.task import Task, TaskObjective
from plmjax.models.bart.bart import BartConfig
from plmjax.models.elmo import ElmoConfig
from plmjax.models.glove import GloveConfig
from plmjax.models.nnlm import NnlmConfig
from plmjax.models.t5 import T5Config
from plmjax.models.taggers.elmo_tagger import ElmoTaggerConfig
from plmjax.models.taglm import TaglmConfig
from plmjax.models.ulmfit import UlmfitConfig
from plmjax.models.word2vec import SkipGram, Word2VecConfig
from plmjax.objectives.awd_lstm import AwdLstmPretraining
from plmjax.objectives.bidirectional_language_model import BidirectionalLanguageModel
from plmjax.objectives.denoising import Denoising
from plmjax.objectives.negative_sampling import NegativeSampling
from plmjax.objectives.next_token import NextToken
from plmjax.objectives.objective import Objective
from plmjax.objectives.text_to_text.span_corruption import SpanCorruption
from plmjax.objectives.weighted_least_squares import WeightedLeastSquares
from plmjax.runs.weight_mappings.awd_lstm_dropouts import AwdLstmDropouts
from plmjax.runs.weight_mappings.tagger import FromLanguageModel
from plmjax.runs.weight_mappings.token_embeddings import FromTokenEmbeddings
from plmjax.training.optimizers import (
    Adafactor,
    Adagrad,
    AdamW,
    GloveAdagrad,
    StochasticGradientDescent,
)
from plmjax.training.optimizers.schedules import InverseTime, Linear, SlantedTriangular

WORDS = 8192
PIECES = 4096
DROPOUTS = {"embedding": 0.02, "input": 0.1, "weight": 0.1, "hidden": 0.1, "output": 0.1}
ULMFIT_ADAM = AdamW(schedule=SlantedTriangular(), beta1=0.7, beta2=0.99, weight_decay=0.0)
LONGER = (
    Phase(fraction=0.7, sequence_length=64, batch_size=16),
    Phase(fraction=0.3, sequence_length=128, batch_size=8),
)


def _pretraining(
    model: Any,
    objective: Objective,
    tokenizer: Tokenizer,
    *,
    layout: Layout,
    optimizer: Any,
    rows: tuple[int, int],
    phases: tuple[Phase, ...] = (),
    held_out: float = 0.01,
) -> Experiment:
    """Return a run of `rows`, the number of rows of a step and the tokens of each."""
    return Experiment(
        model=model,
        objective=objective,
        tokenizer=tokenizer,
        data=Data(layout=layout, sequence_length=rows[1], held_out=held_out),
        optimizer=optimizer,
        training=Training(steps=10_000, batch_size=rows[0], log_every=100, evaluate_every=2500, evaluation_batches=50),
        checkpoint=Checkpoint(every=2500, keep=1),
        phases=phases,
    )


def nnlm() -> Experiment:
    """The next word from the four words before it."""
    model = NnlmConfig.brown(vocab_size=WORDS)
    rule = StochasticGradientDescent(
        learning_rate=3.0, schedule=InverseTime(decay=1e-3), weight_decay=1e-5, decay_exclude=("bias",), clip_norm=0.0
    )
    # Each row repeats the words that its first prediction is made from.
    return _pretraining(
        model, NextToken(), _words(), layout=Chunks(overlap=model.order - 2), optimizer=rule, rows=(8, 35)
    )


def word2vec() -> Experiment:
    """Skip-gram with negative sampling."""
    rule = StochasticGradientDescent(learning_rate=0.025, schedule=Linear(), clip_norm=0.0)
    model = Word2VecConfig.tiny(vocab_size=WORDS)
    return _pretraining(
        model, NegativeSampling(architecture=SkipGram()), _words(), layout=Chunks(), optimizer=rule, rows=(32, 64)
    )


def glove() -> Experiment:
    """The counts of words within ten words of each other. Its tokens are cells of the counts."""
    model, objective = GloveConfig.tiny(vocab_size=WORDS), WeightedLeastSquares(x_max=10.0)
    layout = Cooccurrences(window=10, held_out=0.02)
    rule = GloveAdagrad(learning_rate=0.05)
    return _pretraining(model, objective, _words(), layout=layout, optimizer=rule, rows=(32, 256), held_out=0.0)


def elmo() -> Experiment:
    """A language model in each direction, from the characters of words."""
    return _pretraining(
        ElmoConfig.tiny(vocab_size=WORDS),
        BidirectionalLanguageModel(negatives=512),
        _words(lowercase=False),
        layout=BidirectionalStreams(),
        optimizer=Adagrad(learning_rate=0.2, initial_accumulator=1 / 400, epsilon=0.0, clip_norm=0.5),
        rows=(32, 20),
    )


def ulmfit() -> Experiment:
    """An AWD-LSTM."""
    return _pretraining(
        UlmfitConfig.tiny(vocab_size=WORDS, **{f"{place}_dropout": rate for place, rate in DROPOUTS.items()}),
        AwdLstmPretraining(),
        _words(),
        layout=Windows(overlap=20),
        optimizer=dataclasses.replace(ULMFIT_ADAM, learning_rate=5e-3),
        rows=(16, 90),
    )


def bart() -> Experiment:
    """Text with hidden spans and permuted sentences, restored as a whole."""
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    model = BartConfig.tiny(vocab_size=PIECES, max_position_embeddings=128, init_std=0.05, dropout=0.0, **heads)
    rule = AdamW(learning_rate=1e-3, schedule=Linear(warmup_steps=200), beta2=0.98, clip_norm=0.1, decay_exclude=())
    return _pretraining(
        model, Denoising(), _pieces("byte-bpe"), layout=FullSentences(), optimizer=rule, rows=(16, 64), phases=LONGER
    )


def t5() -> Experiment:
    """The hidden spans of a text alone."""
    model = T5Config.tiny(vocab_size=PIECES, dropout_rate=0.0)
    objective = SpanCorruption(z_loss=1e-4)
    return _pretraining(
        model, objective, _pieces("t5-unigram"), layout=Chunks(), optimizer=Adafactor(), rows=(16, 64), phases=LONGER
    )


def _words(lowercase: bool = True) -> Tokenizer:
    return Tokenizer(kind="word", vocab_size=WORDS, lowercase=lowercase)


def _pieces(kind: str) -> Tokenizer:
    return Tokenizer(kind=kind, vocab_size=PIECES, lowercase=True)


def _task(task: Task, objective: TaskObjective, optimizer: Any, finetuning: Finetuning, **more: Any) -> Experiment:
    """Return a run whose best evaluation by the accuracy counts, with `more` settings."""
    run = Experiment(
        model=None,
        objective=objective,
        data=task,
        optimizer=optimizer,
        training=Training(steps=0, batch_size=8, log_every=50),
        finetuning=finetuning,
        checkpoint=Checkpoint(every=0, keep=1, minutes=0, best="-eval/accuracy", prefer="best"),
    )
    return dataclasses.replace(run, **more)


SENTENCE = {"text": "sentence"}
PAIR = {"text": "premise", "text_pair": "hypothesis"}


def _by_words(task: Task, objective: TaskObjective) -> Experiment:
    rule = AdamW(learning_rate=1e-2, weight_decay=0.0)
    finetuning = Finetuning(epochs=10.0, evaluations=1.0)
    rows = dataclasses.replace(task, sequence_length=128, pack=16)
    return _task(rows, objective, rule, finetuning, weight_mapping=FromTokenEmbeddings())


def words_subjectivity() -> Experiment:
    """Subjective or objective, from the mean of the vectors of the words, which are trained too."""
    return _by_words(Sentences(**SENTENCE), SequenceClassification())


def words_snli() -> Experiment:
    """Entailment, contradiction or neither, from the means of premise and hypothesis."""
    return _by_words(Sentences(**PAIR), SequenceClassification())


def words_pos() -> Experiment:
    """Parts of speech, from the vector of each word."""
    return _by_words(Tagging(label="upos"), TokenTagging())


def _tagger(mapping: WeightMapping, mix_penalty: float = 0.0) -> Experiment:
    rule = AdamW(learning_rate=3e-3, weight_decay=0.0, clip_norm=5.0, frozen=("encoder/language_model",))
    task = Tagging(label="upos", sequence_length=64, pack=16)
    objective = CrfTagging(mix_penalty=mix_penalty)
    return _task(task, objective, rule, Finetuning(epochs=1.0, evaluations=1.0), weight_mapping=mapping)


def taglm_pos() -> Experiment:
    """Parts of speech, with the last states of both language models in the middle of a tagger."""
    return _tagger(FromLanguageModel(TaglmConfig(hidden_size=100)))


def elmo_pos() -> Experiment:
    """Parts of speech, with mixes of all layers of the language models at the input and the output of the tagger."""
    return _tagger(FromLanguageModel(ElmoTaggerConfig(hidden_size=100)), mix_penalty=1e-3)


def _classifier(columns: dict[str, str], epochs: float) -> Experiment:
    rule = dataclasses.replace(ULMFIT_ADAM, learning_rate=1e-2, layer_decay=1 / 2.6)
    return _task(
        Sentences(sequence_length=128, **columns),
        SequenceClassification(),
        rule,
        Finetuning(epochs=epochs, unfreeze=1.0, evaluations=1.0),
        weight_mapping=AwdLstmDropouts(**DROPOUTS | {"output": 0.4}),
        training=Training(steps=0, batch_size=32, log_every=50),
    )


def ulmfit_subjectivity() -> Experiment:
    """Subjective or objective, by an AWD-LSTM whose layers are unfrozen from the top."""
    return _classifier(SENTENCE, epochs=4.0)


def ulmfit_snli() -> Experiment:
    """Entailment, contradiction or neither, from premise and hypothesis in one row."""
    return _classifier(PAIR, epochs=4.0)


def _in_words(task: TextTask, epochs: float) -> Experiment:
    return _task(
        Mixture(tasks=(task,), sequence_length=128, target_length=32, pack=16),
        MixedTextGeneration(z_loss=1e-4, beams=1, max_new_tokens=8),
        Adafactor(),
        Finetuning(epochs=epochs, evaluations=1.0),
        checkpoint=Checkpoint(every=0, keep=1, minutes=0, best="-eval/mean", prefer="best"),
    )


def t5_subjectivity() -> Experiment:
    """Subjective or objective, as the text that the model writes."""
    columns = {"source": "sentence", "target": "label", "prefix": "subjectivity sentence: "}
    return _in_words(TextTask(name="subjectivity", judge=ExactMatch(), cut_sources=True, **columns), epochs=4.0)


def t5_snli() -> Experiment:
    """Entailment, contradiction or neither, as a text. The column `pair` has premise and hypothesis, each named."""
    columns = {"source": "pair", "target": "label", "prefix": "snli "}
    return _in_words(TextTask(name="snli", judge=ExactMatch(), cut_sources=True, **columns), epochs=3.0)
