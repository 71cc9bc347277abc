"""One row a system: all that the suite in tests/systems must know of it. Adding a system is adding its row.

A row names small models of odd sizes, what they are compared with, the numbers that were published, and a run so small
that a step takes milliseconds. Properties of one system alone are tested in a file of its own in tests/models.
"""

from collections.abc import Callable

from plmjax.experiment import Experiment
from tests.families import (
    decoders,
    encoder_decoders,
    encoders,
    hashes,
    long_texts,
    memories,
    modern,
    permutations,
    recurrent,
    rotations,
    students,
    taggers,
    word_vectors,
)
from tests.families.family import Family
from tests.third_party import experiments
from tests.third_party.source import ChainSource, LabelledSource, UntypedSource

FAMILIES: dict[str, Family] = {
    "nnlm": word_vectors.NNLM_ROW,
    "word2vec": word_vectors.WORD2VEC_ROW,
    "glove": word_vectors.GLOVE_ROW,
    "awd_lstm": recurrent.AWD_LSTM_ROW,
    "cove": recurrent.COVE_ROW,
    "elmo": recurrent.ELMO_ROW,
    "taglm": taggers.TAGLM_ROW,
    "cvt": taggers.CVT_ROW,
    "bert": encoders.BERT_ROW,
    "roberta": encoders.ROBERTA_ROW,
    "albert": encoders.ALBERT_ROW,
    "electra": encoders.ELECTRA_ROW,
    "modernbert": modern.MODERNBERT_ROW,
    "modernbert_decoder": rotations.DECODER_ROW,
    "eurobert": rotations.EUROBERT_ROW,
    "neobert": rotations.NEOBERT_ROW,
    "deberta": modern.DEBERTA_ROW,
    "distilbert": students.DISTILBERT_ROW,
    "mobilebert": students.MOBILEBERT_ROW,
    "ib_bert": students.IB_BERT_ROW,
    "longformer": long_texts.LONGFORMER_ROW,
    "longformer_decoder": long_texts.DECODER_ROW,
    "gpt": decoders.GPT_ROW,
    "gpt2": decoders.GPT2_ROW,
    "xlnet": permutations.XLNET_ROW,
    "transformer_xl": memories.TXL_ROW,
    "adaptive_span": memories.SPAN_ROW,
    "reformer": hashes.REFORMER_ROW,
    "transformer": encoder_decoders.TRANSFORMER_ROW,
    "bart": encoder_decoders.BART_ROW,
    "led": long_texts.LED_ROW,
    "t5": encoder_decoders.T5_ROW,
    "lite_transformer": encoder_decoders.LITE_ROW,
    "lite_transformer_decoder": encoder_decoders.LITE_DECODER_ROW,
}

REPRESENTATIVES = (
    "bert", "gpt2", "t5", "nnlm", "word2vec", "glove", "awd_lstm", "elmo", "longformer", "xlnet", "transformer_xl",
    "reformer", "lite_transformer_decoder",
)  # fmt: skip
"""A system for each kind of layers. The others are made of the same ones: a mistake in a layer fails one of these every
time, and all that have it in the nightly tests. Every system's first head equals its reference every time."""

IN_TRANSFORMERS = {name: family for name, family in FAMILIES.items() if family.adapter is not None}
"""Those of them that transformers has."""

STEPS: dict[str, tuple[Callable[[], Experiment], type[ChainSource]]] = {
    **{name: (family.step, family.source) for name, family in FAMILIES.items()},
    "classification": (experiments.classification, LabelledSource),
    "recurrent": (experiments.recurrent, ChainSource),
    "ulmfit": (experiments.ulmfit, UntypedSource),
    "hierarchical_softmax": (experiments.hierarchical_softmax, ChainSource),
}
"""Name -> (its experiment, where its batches come from): what every step must do is asked of all of them."""
