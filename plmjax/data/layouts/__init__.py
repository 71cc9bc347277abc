"""Layouts cut rows from a prepared dataset. One file per layout: settings, shapes of a batch, rows.

Importing this package needs only numpy and jax. A dataset is opened when `Layout.rows` is called.
"""

from plmjax.data.layouts.bidirectional_streams import BidirectionalStreams
from plmjax.data.layouts.chunks import Chunks
from plmjax.data.layouts.contiguous_streams import ContiguousStreams
from plmjax.data.layouts.continued_pairs import ContinuedPairs
from plmjax.data.layouts.cooccurrences import Cooccurrences
from plmjax.data.layouts.documents import Documents
from plmjax.data.layouts.full_sentences import FullSentences
from plmjax.data.layouts.layout import Fields, Layout, LayoutRows, Shapes
from plmjax.data.layouts.paired_streams import PairedStreams
from plmjax.data.layouts.segments import SingleSegment
from plmjax.data.layouts.sentence_order import SentenceOrder
from plmjax.data.layouts.sentence_pairs import SentencePairs
from plmjax.data.layouts.windows import Windows

__all__ = [
    "BidirectionalStreams",
    "Chunks",
    "ContiguousStreams",
    "ContinuedPairs",
    "Cooccurrences",
    "Documents",
    "Fields",
    "FullSentences",
    "Layout",
    "LayoutRows",
    "PairedStreams",
    "SentenceOrder",
    "SentencePairs",
    "Shapes",
    "SingleSegment",
    "Windows",
]
