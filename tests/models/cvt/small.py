"""A small encoder of cross-view training with a tagger, a parser and a translation, for tests."""

import functools

import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.finetuning.cross_view.cross_view import CrossViewLearning
from plmjax.finetuning.cross_view.tasks import CrossViewParsing, CrossViewTagging
from plmjax.finetuning.cross_view.translation import CrossViewTranslation
from plmjax.interop.conversion import parameter_shapes
from plmjax.models.cvt.cvt import CvtConfig
from plmjax.training.gradients.looked_up_rows import nest
from tests.families.taggers import CVT_SIZES

SIZES = CVT_SIZES | {"vocab_size": 20}
CONFIG = CvtConfig(**SIZES, dropout=0.0, unlabelled_dropout=0.0, attention_dropout=0.0)
OBJECTIVE = CrossViewLearning(
    tasks=(
        CrossViewTagging(name="tags", labels=("a", "b", "c")),
        CrossViewParsing(name="trees", relations=("r", "s")),
        CrossViewTranslation(name="texts", target_words=("x", "y", "z"), beams=1, max_new_tokens=3),
    )
)
MODULE = OBJECTIVE.module(CONFIG, Execution())


def inputs(sentences: list[list[int]], length: int) -> dict[str, np.ndarray]:
    """Rows of packed sentences of so many words each, different ones at every place, with translations as long."""
    random, shape = np.random.default_rng(0), (len(sentences), length)
    segments = np.zeros(shape, np.int32)
    for row, lengths in zip(segments, sentences, strict=True):
        row[: sum(lengths)] = np.repeat(np.arange(len(lengths)) + 1, lengths)
    ids, characters = random.integers(1, 20, shape), random.integers(1, 262, (*shape, 7), np.int32)
    words = {"input_ids": ids.astype(np.int32), "characters": characters, "segment_ids": segments}
    targets = random.integers(0, 5, shape).astype(np.int32)
    return words | {"decoder_input_ids": targets, "decoder_segment_ids": segments.copy()}


@functools.cache
def parameters() -> dict:
    """Parameters, far from their initial values; what scores are divided by is not near 0."""
    random = np.random.default_rng(1)
    shapes = parameter_shapes(MODULE, inputs([[3]], 3))
    means = {name: 1.5 * name.endswith("/scale") for name in shapes}
    flat = {name: random.normal(means[name], 0.4, shape).astype(np.float32) for name, shape in shapes.items()}
    flat["classifier/texts/primary/words_bias"][0] += 0.7  # so that some translations end early
    return nest(flat)
