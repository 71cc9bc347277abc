"""The prepared dataset on disk: a TFDS folder with token offsets, and a manifest that is written last.

    DIRECTORY/
      corpus-train.tfrecord-00000 ...   records of some million tokens of whole documents (tf.train.Example)
      dataset_info.json, features.json  for `tfds.builder_from_directory(DIRECTORY)`
      train.STREAM.sentences.npy        int64 [sentences + 1], first token of every sentence; likewise for validation
      train.STREAM.documents.npy        int64 [documents + 1], first sentence of every document
      train.fields.NAME.npy             float64 [documents], one number for every document
      unigram.STREAM.npy                int64 [V], occurrences of each token in the stream's train split
      tokenizer/                        the tokenizer's own files
      manifest.json                     written last: sizes, checksums, offsets of the payloads, counts, sources;
                                        the range of every record in its file, with its checksum
      checked/HOSTNAME.json             files whose checksums a machine has verified (`checksums`)

A dataset holds one stream, `text`, or several streams of the same documents, such as `source` and `target`. A record
has three byte features for every stream: STREAM/tokens (uint16, or int32 where the vocabulary needs it),
STREAM/sentence_lengths (int32, tokens of each sentence) and STREAM/document_lengths (int32, sentences of each
document); and for every number that documents have, fields/NAME (float64). All are little-endian. The reader maps
tokens where they lie inside the record, so any token is read without the others, and reading needs no TensorFlow.
"""

from plmjax.data.store.manifest import (
    LENGTHS,
    MANIFEST,
    RECORD,
    SPLITS,
    TEXT,
    TFDS_METADATA,
    all_files,
    check_names,
    field_file,
    offset_files,
    token_dtype,
)
from plmjax.data.store.reader import Dataset, Split, local_copy, open_dataset, read_manifest
from plmjax.data.store.writer import ShardWriter, Tokens, finish, unigram

__all__ = [
    "LENGTHS",
    "MANIFEST",
    "RECORD",
    "SPLITS",
    "TEXT",
    "TFDS_METADATA",
    "Dataset",
    "ShardWriter",
    "Split",
    "Tokens",
    "all_files",
    "check_names",
    "field_file",
    "finish",
    "local_copy",
    "offset_files",
    "open_dataset",
    "read_manifest",
    "token_dtype",
    "unigram",
]
