"""The format `tfds:NAME`: the examples of a dataset of TensorFlow Datasets."""

import itertools
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

from plmjax.data import tensorflow_runtime
from plmjax.data.formats import records
from plmjax.data.formats.cutting import split_long
from plmjax.data.formats.document import Document
from plmjax.errors import UserError, listed, quoted


def _builder(name: str, inputs: Sequence[str | os.PathLike]) -> Any:
    """Return the builder of a dataset, after TFDS has downloaded and prepared the data if they are missing."""
    tfds = tensorflow_runtime.tensorflow_datasets()

    if len(inputs) > 1:
        raise UserError(f"Expected at most one --input with tfds:{name}, the folder of its data, found {len(inputs)}.")
    try:
        builder = tfds.builder(name, data_dir=os.fspath(inputs[0]) if inputs else None)
        builder.download_and_prepare()
    except Exception as error:  # unknown name, no network, no licence, ...: TFDS has a class for each
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"Expected TFDS to provide the dataset {quoted(name)}, found that it cannot: {reason}"
        ) from error
    return builder


def ranges(name: str, inputs: Sequence[str | os.PathLike], size: int) -> list[tuple[str, int, int]]:
    """Return (split, first example, example after the last one) of ranges of about `size` bytes of a dataset.

    Raises:
        UserError: two folders are named, or TFDS cannot provide the dataset.
    """
    found = []
    for split, info in _builder(name, inputs).info.splits.items():
        count = max(1, -(-info.num_bytes // size))
        cuts = [info.num_examples * index // count for index in range(count + 1)]
        found += [(split, begin, end) for begin, end in itertools.pairwise(cuts) if begin < end]
    return found


def documents(
    name: str,
    inputs: Sequence[str | os.PathLike],
    key: str,
    *,
    parts: records.Parts | None,
    part: tuple[str, int, int] | None = None,
) -> Iterator[Document]:
    """Yield the examples of a dataset; `inputs` may name the folder of its data.

    part: one of `ranges`; None reads all splits.

    Raises:
        UserError: two folders are named, TFDS cannot provide the dataset, or the dataset lacks the text.
    """
    tfds = tensorflow_runtime.tensorflow_datasets()

    builder = _builder(name, inputs)
    features = [_text_feature(name, builder.info.features, one) for one in (parts.streams.values() if parts else [key])]
    whole_splits = [(split, 0, info.num_examples) for split, info in builder.info.splits.items()]
    for split, begin, end in [part] if part else whole_splits:
        read = tfds.core.ReadInstruction(split, from_=begin, to=end, unit="abs")
        for index, example in enumerate(tfds.as_numpy(builder.as_dataset(split=read)), begin):
            try:
                found = {feature: example[feature].decode("utf-8") for feature in features}
            except UnicodeDecodeError as error:
                raise UserError(
                    f"Expected UTF-8 text in example {index} of {name}/{split}, found a byte that is not at "
                    f"offset {error.start}; prepare another copy of it."
                ) from error
            place = f"tfds:{name}/{split} example {index}"
            if parts:
                found |= {field: example[field].item() for field in parts.fields if field in example}
                yield Document("jsonl", place, json.dumps(found, ensure_ascii=False))
                continue
            for _, text in split_long(place, found.values()):
                yield Document("text", place, text)


def _text_feature(name: str, features, key: str) -> str:
    """Return the feature of a dataset that contains its documents.

    It is the feature `key`. Without one, the key "text" means one with a usual name, or the only text feature.
    """
    tfds = tensorflow_runtime.tensorflow_datasets()

    # Sorted: a dataset read from disk lists its features in another order in every process.
    strings = sorted(key for key, value in features.items() if isinstance(value, tfds.features.Text))
    usual = [name for name in ("text", "article", "document", "content") if name in strings]
    if key in strings:
        return key
    if key == "text" and (usual or len(strings) == 1):
        return (usual or strings)[0]
    raise UserError(
        f"Expected one feature of text named {quoted(key)} in the TFDS dataset {quoted(name)}, found "
        f"{listed(strings)}; name the one that is meant in --text_key."
    )
