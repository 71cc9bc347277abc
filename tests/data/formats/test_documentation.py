"""The embedded corpus: prose of documentation strings, the same every time."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from plmjax.data.formats import documentation

DOCSTRING = """
Solve a linear system of equations.

The solution is computed with `numpy.linalg.solve` and a
:func:`~scipy.linalg.lu` factorisation, see [1]_ for **details** of it.

.. versionadded:: 1.2
   This note is a directive and is not running text at all.

Parameters
----------
a : (M, M) array_like
    The square matrix that holds the coefficients of the system.
b, c : array_like, optional
    Values on the right-hand side of each of the equations.

Returns
-------
x : ndarray
    Solution of the system, of the same shape as the right-hand side.

Raises
------
LinAlgError
    If the matrix is singular, which is a sentence of a dropped section.

Notes
-----
The matrix is not copied. An example of a literal block follows here::

    solve(a, b) is code and has no place in a corpus.

Examples
--------
>>> solve([[1]], [2])
This line of output is not prose either, surely it is not.
"""

GOOGLE = """Reads a file.

Args:
  path: The place of the file that is going to be read.
  limit (int): How many bytes of the file are read at most.

Returns:
  The text of the file after it has been decoded.
"""


def test_numpy_style():
    assert documentation.prose(DOCSTRING) == [
        "Solve a linear system of equations.",
        "The solution is computed with numpy.linalg.solve and a scipy.linalg.lu factorisation, see for details of it.",
        "The square matrix that holds the coefficients of the system.",
        "Values on the right-hand side of each of the equations.",
        "Solution of the system, of the same shape as the right-hand side.",
        "The matrix is not copied. An example of a literal block follows here:",
    ]


def test_a_section_that_is_left_out_ends_at_the_next_title():
    kept = "The sentence of a section that is kept in the corpus."
    dropped = "The sentence of a section that is left out of it."
    for title in ("Returns:", "Notes\n-----"):
        text = f"Raises:\n  {dropped}\n\n{title}\n  {kept}\n\nExamples:\n  {dropped}\n"
        assert documentation.prose(f"A summary of what is done by it.\n\n{text}") == [
            "A summary of what is done by it.",
            kept,
        ]


@pytest.mark.parametrize(
    ("text", "is_prose"),
    [
        ("Alpha bravo charlie delta ech.", True),
        ("Alpha bravo charlie delta ec.", False),
        ("Alphabravo charlie delta echoes.", False),
    ],
)
def test_a_sentence_has_thirty_characters_and_five_words(text, is_prose):
    assert bool(documentation.prose(text)) == is_prose


def test_a_document_has_two_hundred_characters(monkeypatch):
    """Its paragraphs are in no file before it."""
    monkeypatch.setattr(documentation, "_files", lambda: iter([(f"m{n}", Path(f"{n}")) for n in range(3)]))
    texts = {
        "0": ["a" * 100, "b" * 100],
        "1": ["a" * 100, "c" * 99, "d" * 100, "c" * 99],
        "2": ["b" * 100, "e" * 199, "a" * 100],
    }
    monkeypatch.setattr(documentation, "_read_all", lambda paths: [[("", texts[str(path)])] for path in paths])
    documents = documentation.documents.__wrapped__()
    assert [(name, len(text)) for name, text in documents] == [("m0", 201)]


def test_google_style():
    assert documentation.prose(GOOGLE) == [
        "The place of the file that is going to be read.",
        "How many bytes of the file are read at most.",
        "The text of the file after it has been decoded.",
    ]


def test_a_module_is_parsed_into_itself_and_its_classes(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(
        textwrap.dedent(
            '''
            """This module would fail if somebody imported it."""
            raise SystemExit

            def function():
                """A function belongs to the module it stands in."""

            class Outer:
                """A class makes a document of its own every time."""

                def method(self):
                    """A method belongs to the class it stands in."""

                class Inner:
                    """A class inside a class has a document too."""
            '''
        )
    )
    assert documentation._read(path) == [
        ("", ["This module would fail if somebody imported it.", "A function belongs to the module it stands in."]),
        ("Outer", ["A class makes a document of its own every time.", "A method belongs to the class it stands in."]),
        ("Outer.Inner", ["A class inside a class has a document too."]),
    ]
    path.write_text('"""Broken source is passed over in silence."""\nprint "python 2"')
    assert documentation._read(path) == []


@pytest.mark.nightly  # 9 s for the files of every installed library; what is read of one, the tests above prove
def test_the_corpus_is_megabytes_of_distinct_prose_and_imports_nothing():
    code = """
import sys
if __name__ == "__main__":
    from plmjax.data.formats import documentation
    documents = documentation.documents()
    imported = {"scipy", "sklearn", "matplotlib", "optax", "flax"} & set(sys.modules)
    paragraphs = [line for _, text in documents for line in text.split("\\\\n")]
    print(len(documents), sum(map(len, paragraphs)), len(paragraphs) - len(set(paragraphs)), len(imported))
"""
    script = [sys.executable, "-c", code.replace("\\\\n", "\\n")]
    out = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    documents, characters, repeated, imported = map(int, out.split())
    assert documents > 1000 and characters > 2_000_000 and repeated == imported == 0


def test_sources_name_versions_and_change_with_the_files():
    (source,) = documentation.sources()
    assert source == documentation.sources()[0]
    assert "numpy" in source["path"] and "Python 3." in source["path"]
    assert source["bytes"] > 10_000_000 and len(source["digest"]) == 64


def test_files_are_read_in_order_by_several_processes(monkeypatch):
    class Workers:
        def __init__(self, processes, *arguments, **options):
            asked.append(processes)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

        def results(self, function, parts):
            return (function(*part) for part in parts)

    asked = []
    monkeypatch.setattr(documentation, "Workers", Workers)
    monkeypatch.setattr(documentation, "_read", lambda path: [(path.name, [])])
    monkeypatch.setattr(documentation.os, "cpu_count", lambda: 8)
    for count, processes in ((127, []), (128, [2]), (201, [3])):
        asked.clear()
        found = list(documentation._read_all([Path(str(number)) for number in range(count)]))
        assert found == [[(str(number), [])] for number in range(count)] and asked == processes


def test_output_ends_at_a_blank_line_and_a_line_of_words_belongs_to_its_paragraph():
    text = """>>> solve([[1]], [2])
This line of output is not prose either, surely it is not.

The sum of the values in all
rows of the matrix and of the
vector is what is computed here.
"""
    assert documentation.prose(text) == [
        "The sum of the values in all rows of the matrix and of the vector is what is computed here."
    ]


def test_a_source_without_documentation_has_none(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    assert documentation._read(tmp_path / "a.py") == []
