"""Datasets in a bucket that are larger than the allowed disk space: read in pieces while a run trains on them.

A piece is a record of a prepared dataset: whole documents, some million tokens (`store.PIECE_TOKENS`). Its range in the
object and its checksum are in the manifest. A run copies the held-out text once. In the background it reads the pieces
of the training text for the current and the next window, and removes pieces that are used up.

    order.py     the rows of a step: pieces are permuted, and rows are shuffled within a window of pieces; the lanes of
                 a batch, which different hosts may read
    ranges.py    one range of an object, verified, with retries
    dataset.py   the dataset, and one piece of it as a dataset from which a layout cuts rows
    reader.py    the pieces of the next steps on the disk, within the limit
    source.py    batches for the training loop
"""

from plmjax.data.remote.dataset import RemoteDataset, open_dataset
from plmjax.data.remote.order import LaneOrder, TwoLevelOrder
from plmjax.data.remote.sizes import parse_bytes
from plmjax.data.remote.source import PieceRows, RemoteBatches, RemoteSource, check_layout, source

__all__ = [
    "LaneOrder",
    "PieceRows",
    "RemoteBatches",
    "RemoteDataset",
    "RemoteSource",
    "TwoLevelOrder",
    "check_layout",
    "open_dataset",
    "parse_bytes",
    "source",
]
