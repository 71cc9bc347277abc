"""JSON lines: the key of the text."""

import pytest

from plmjax.data import formats
from plmjax.errors import UserError
from tests.data.formats.samples import read

JSON_LINES = b'{"body": "One.\\nTwo.", "id": 1}\n{"body": "Three."}\n'


def test_the_key_of_the_text_is_an_option(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(JSON_LINES)
    found = [formats.prose(d) for d in formats.documents([path], text_key="body")]
    assert found == [["One.", "Two."], ["Three."]]
    assert list(formats.texts([path], text_key="body")) == ["One.\nTwo.", "Three."]
    with pytest.raises(UserError, match=r"string 'text' in .*a.jsonl line 1, found the keys body, id; .*--text_key"):
        read([path])
    with pytest.raises(UserError, match=r"string 'id' in .* found the keys body, id"):
        [formats.prose(d) for d in formats.documents([path], text_key="id")]
