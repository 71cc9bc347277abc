"""Datasets of TensorFlow Datasets, from disk."""

import pytest

from plmjax.data import formats
from plmjax.errors import UserError


def test_tfds(tmp_path):
    """The text of every split of a dataset on disk."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    def store(name, **features):
        examples = {key: ["One.\nTwo.", "Three é."] for key in features}
        train, test = (
            tf.data.Dataset.from_tensor_slices({key: column[:count] for key, column in examples.items()})
            for count in (2, 1)
        )
        tfds.dataset_builders.store_as_tfds_dataset(
            name,
            "1.0.0",
            data_dir=tmp_path,
            split_datasets={"train": train, "test": test},
            features=tfds.features.FeaturesDict(features),
        )

    text = tfds.features.Text()
    store("letters", body=text, text=text)
    found = sorted((d.place, formats.prose(d)) for d in formats.documents([tmp_path], "tfds:letters"))
    assert [place.removeprefix("tfds:letters/") for place, _ in found] == [
        "test example 0",
        "train example 0",
        "train example 1",
    ]
    assert sorted(paragraphs for _, paragraphs in found[1:]) == [["One.", "Two."], ["Three é."]]
    store("pairs", left=text, right=text)
    with pytest.raises(
        UserError, match=r"text named 'text' in the TFDS dataset 'pairs', found left, right; name .*--text_key"
    ):
        list(formats.documents([tmp_path], "tfds:pairs"))
    assert len(list(formats.documents([tmp_path], "tfds:pairs", text_key="right"))) == 3
    with pytest.raises(UserError, match="no_such_corpus"):
        list(formats.documents([tmp_path], "tfds:no_such_corpus"))
