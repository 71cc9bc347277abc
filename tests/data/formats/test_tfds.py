"""Datasets of TensorFlow Datasets, from disk."""

from types import SimpleNamespace

import pytest

from plmjax.data import formats
from plmjax.data.formats import records, tfds
from plmjax.errors import UserError


def test_tfds(tmp_path):
    """The text of every split of a dataset on disk."""
    import tensorflow as tf
    import tensorflow_datasets as datasets

    def store(name, numbers=(), **features):
        examples = {key: ["One.\nTwo.", "Three é."] for key in features} | dict(numbers)
        train, test = (
            tf.data.Dataset.from_tensor_slices({key: column[:count] for key, column in examples.items()})
            for count in (2, 1)
        )
        datasets.dataset_builders.store_as_tfds_dataset(
            name,
            "1.0.0",
            data_dir=tmp_path,
            split_datasets={"train": train, "test": test},
            features=datasets.features.FeaturesDict(features),
        )

    text = datasets.features.Text()
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
    parts = records.Parts({"source": "left", "target": "right"})
    for document in formats.documents([tmp_path], "tfds:pairs", parts=parts):
        streams = formats.streams_of(document, parts)
        assert streams["source"] == streams["target"] and streams["source"] in (["One.", "Two."], ["Three é."])
    numbers = {"label": [2, 1]}
    store("scored", numbers, content=text, document=text, other=text, label=datasets.features.Scalar(tf.int64))
    parts = records.Parts({"text": "other"}, ("label",))
    found = list(formats.documents([tmp_path], "tfds:scored", parts=parts))
    of_text = {"One.": [2.0], "Three é.": [1.0]}
    assert all(formats.fields_of(one, parts) == of_text[formats.streams_of(one, parts)["text"][0]] for one in found)
    # A range has its own examples, under the same names.
    source = formats.Input((str(tmp_path),), "tfds:scored", parts=parts)
    in_ranges = [document for part in source.ranges(1) for document in source.documents(part)]
    assert len(in_ranges) == 3 and sorted(in_ranges) == sorted(found)
    assert len(list(formats.documents([tmp_path], "tfds:scored"))) == 3  # of several usual names, the first
    with pytest.raises(UserError, match="text named 'body' in the TFDS dataset 'scored', found content, document, ot"):
        list(formats.documents([tmp_path], "tfds:scored", text_key="body"))
    with pytest.raises(UserError, match="no_such_corpus"):
        list(formats.documents([tmp_path], "tfds:no_such_corpus"))


def test_the_only_text_of_a_dataset_is_its_documents():
    """Unless another key is named, and after the usual names."""
    import tensorflow_datasets as datasets

    text = datasets.features.Text()
    for features, key, expected in (
        ({"body": text}, "text", "body"),
        ({"title": text, "article": text}, "text", "article"),
        ({"title": text, "text": text}, "title", "title"),
    ):
        assert tfds._text_feature("letters", features, key) == expected
    with pytest.raises(UserError, match="named 'title' in the TFDS dataset 'letters', found body"):
        tfds._text_feature("letters", {"body": text}, "title")


def test_a_dataset_has_one_folder_and_text_in_utf8(monkeypatch):
    with pytest.raises(UserError, match="at most one --input with tfds:letters, the folder of its data, found 2"):
        list(formats.documents(["a", "b"], "tfds:letters"))
    examples = [{"text": b"One."}, {"text": b"caf\xe9"}]
    builder = SimpleNamespace(
        info=SimpleNamespace(features={}, splits={"train": SimpleNamespace(num_examples=2)}),
        as_dataset=lambda split: examples,
    )
    library = SimpleNamespace(
        core=SimpleNamespace(ReadInstruction=lambda split, **bounds: (split, bounds)), as_numpy=iter
    )
    monkeypatch.setattr(tfds.tensorflow_runtime, "tensorflow_datasets", lambda: library)
    monkeypatch.setattr(tfds, "_builder", lambda name, inputs: builder)
    monkeypatch.setattr(tfds, "_text_feature", lambda name, features, key: key)
    with pytest.raises(UserError, match=r"UTF-8 text in example 1 of letters/train, found a byte .* offset 3;"):
        list(formats.documents([], "tfds:letters"))
