"""A document a line."""

from plmjax.data import formats
from plmjax.data.formats import cutting


def test_a_document_a_line(tmp_path, monkeypatch):
    monkeypatch.setattr(cutting, "LONGEST_DOCUMENT", 100)
    long = " ".join(f"word{n}" for n in range(40))
    (tmp_path / "a.txt").write_text(f"One. And more.\n\nTwo.\n{long}\n")
    found = [d.text for d in formats.documents([tmp_path / "a.txt"], "lines")]
    assert found[:2] == ["One. And more.", "Two."] and " ".join(found[2:]) == long and len(found) > 4
