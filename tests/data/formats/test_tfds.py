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
    """The text of every split of a dataset on disk."""
    stored("letters", body=TEXTS, text=TEXTS)
    found = sorted((d.place, formats.prose(d)) for d in formats.documents([tmp_path], format="tfds:letters"))
    places = [f"tfds:letters/{name}" for name in ("test example 0", "train example 0", "train example 1")]
    assert [place for place, _ in found] == places
    assert sorted(paragraphs for _, paragraphs in found[1:]) == [["One.", "Two."], ["Three é."]]
    stored("pairs", left=TEXTS, right=TEXTS)
    refused(
        lambda: formats.documents([tmp_path], format="tfds:pairs"), "'text' .. 'pairs' .. left, right .. --text_key"
    )
    assert len(list(formats.documents([tmp_path], format="tfds:pairs", text_key="right"))) == 3
    parts = records.Parts({"source": "left", "target": "right"})
    for document in formats.documents([tmp_path], format="tfds:pairs", parts=parts):
        streams = formats.streams_of(document, parts)
        assert streams["source"] == streams["target"] and streams["source"] in (["One.", "Two."], ["Three é."])
    refused(lambda: formats.documents([tmp_path], format="tfds:no_such_corpus"), "no_such_corpus")
    stored("latin", text=[b"caf\xe9", b"caf\xe9"])
    refused(lambda: formats.documents([tmp_path], format="tfds:latin"), "example 0 of latin/ .. offset 3")


def test_numbers_stay_with_their_texts_and_ranges_have_their_own_examples(stored, tmp_path):
    stored("scored", content=TEXTS, document=TEXTS, other=TEXTS, label=[2, 1])
    parts = records.Parts({"text": "other"}, ("label",))
    found = list(formats.documents([tmp_path], format="tfds:scored", parts=parts))
    of_text = {"One.": [2.0], "Three é.": [1.0]}
    assert all(formats.fields_of(one, parts) == of_text[formats.streams_of(one, parts)["text"][0]] for one in found)
    source = formats.Input((str(tmp_path),), "tfds:scored", parts=parts)
    for size, count in ((1, 3), (10**6, 2)):
        ranges = source.ranges(size)
        in_ranges = [document for part in ranges for document in source.documents(part)]
        assert len(ranges) == count and len(in_ranges) == 3 and sorted(in_ranges) == sorted(found)


def test_the_only_text_of_a_dataset_is_its_documents(stored, tmp_path):
    """Unless another key is named, and after the usual names."""
    for number, (names, key, expected) in enumerate((
        (("body",), "text", "body"),
        (("title", "article"), "text", "article"),
        (("content", "document", "other"), "text", "document"),
        (("title", "text"), "title", "title"),
    )):  # fmt: skip
        stored(f"letters{number}", **{name: [f"Of {name}."] * 2 for name in names})
        documents = list(formats.documents([tmp_path], format=f"tfds:letters{number}", text_key=key))
        assert {document.text for document in documents} == {f"Of {expected}."}
    refused(lambda: formats.documents([tmp_path], format="tfds:letters3", text_key="no"), "'no' .. text, title")
