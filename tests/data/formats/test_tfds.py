"""Datasets of TensorFlow Datasets, from disk."""

from collections.abc import Callable
from pathlib import Path

import pytest

from plmjax.data import formats
from plmjax.data.formats import records
from tests.data.mistakes import refused


@pytest.fixture
def stored(tmp_path: Path) -> Callable[..., None]:
    """Stores a dataset of two examples and one of each column, by name, in the folder of the test."""
    import tensorflow as tf
    import tensorflow_datasets as datasets

    kinds = {True: datasets.features.Text(), False: datasets.features.Scalar(tf.int64)}

    def store(name: str, **columns: list) -> None:
        train, test = (
            tf.data.Dataset.from_tensor_slices({key: column[:count] for key, column in columns.items()})
            for count in (2, 1)
        )
        datasets.dataset_builders.store_as_tfds_dataset(
            name, "1.0.0", data_dir=tmp_path, split_datasets={"train": train, "test": test},
            features=datasets.features.FeaturesDict(
                {key: kinds[isinstance(column[0], str | bytes)] for key, column in columns.items()}
            ),
        )  # fmt: skip

    return store


TEXTS = ["One.\nTwo.", "Three é."]


def test_tfds(stored, tmp_path):
    """The text of every split of a dataset on disk. Its only text is its documents, unless a key is named."""
    stored("only", body=TEXTS)
    assert len(list(formats.documents([tmp_path], format="tfds:only"))) == 3
    stored("letters", body=TEXTS, text=TEXTS)
    found = sorted((d.place, formats.prose(d)) for d in formats.documents([tmp_path], format="tfds:letters"))
    places = [f"tfds:letters/{name}" for name in ("test example 0", "train example 0", "train example 1")]
    assert [place for place, _ in found] == places
    assert sorted(paragraphs for _, paragraphs in found[1:]) == [["One.", "Two."], ["Three é."]]
    stored("pairs", left=TEXTS, right=TEXTS, label=[2, 1])
    said = "'text' .. 'pairs' .. left, right .. --text_key"
    refused(lambda: formats.documents([tmp_path], format="tfds:pairs"), said)
    assert len(list(formats.documents([tmp_path], format="tfds:pairs", text_key="right"))) == 3
    refused(lambda: formats.documents([tmp_path], format="tfds:no_such_corpus"), "no_such_corpus")
    stored("latin", text=[b"caf\xe9", b"caf\xe9"])
    refused(lambda: formats.documents([tmp_path], format="tfds:latin"), "example 0 of latin/ .. offset 3")
    parts = records.Parts({"source": "left", "target": "right"}, ("label",))  # numbers stay with their texts
    source = formats.Input((str(tmp_path),), "tfds:pairs", parts=parts)
    for size, count in ((1, 3), (10**6, 2)):
        ranges = source.ranges(size)
        found = [one for part in ranges for one in source.documents(part)]
        assert len(ranges) == count and len(found) == 3
        for one in found:
            streams, label = formats.streams_of(one, parts), formats.fields_of(one, parts)[0]
            assert streams["source"] == streams["target"] == (["One.", "Two."] if label == 2 else ["Three é."])
