"""The embedded corpus: prose of documentation strings, the same every time."""

import subprocess
import sys

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


PROSE = [
    "Solve a linear system of equations.",
    "The solution is computed with numpy.linalg.solve and a scipy.linalg.lu factorisation, see for details of it.",
    "The square matrix that holds the coefficients of the system.",
    "Values on the right-hand side of each of the equations.",
    "Solution of the system, of the same shape as the right-hand side.",
    "The matrix is not copied. An example of a literal block follows here:",
]
GOOGLE = """Reads a file.

Args:
  path: The place of the file that is going to be read.
  limit (int): How many bytes of the file are read at most.
"""


def test_prose_of_a_documentation_string():
    assert documentation.prose(DOCSTRING) == PROSE
    assert documentation.prose(GOOGLE) == [
        "The place of the file that is going to be read.",
        "How many bytes of the file are read at most.",
    ]


def test_a_section_that_is_left_out_ends_at_the_next_title():
    summary, kept = "A summary of what is done by it.", "The sentence of a section that is kept in the corpus."
    dropped = "The sentence of a section that is left out of it."
    for title in ("Returns:", "Notes\n-----"):
        text = f"{summary}\n\nRaises:\n  {dropped}\n\n{title}\n  {kept}\n\nExamples:\n  {dropped}\n"
        assert documentation.prose(text) == [summary, kept]


def test_a_sentence_has_thirty_characters_and_five_words_and_a_document_two_hundred(corpus):
    assert documentation.prose("Alpha bravo charlie delta ech.")
    for text in ("Alpha bravo charlie delta ec.", "Alphabravo charlie delta echoes."):
        assert not documentation.prose(text)
    text = "One fox of them all digs a den. " + "It sleeps in there by day and hunts at night, too. " * 9
    for length in (199, 200):
        assert bool(corpus({"__init__.py": f'"""{text[: length - 1]}."""'})) == (length == 200)


SOURCE = '''
"""This module would fail if somebody imported it, and its text is as long as that of a document has to be."""
raise SystemExit

def function():
    """A function belongs to the module it stands in, which has two hundred characters with this one and the next."""

def another():
    """%s"""

class Outer:
    """A class makes a document of its own every time, if it has two hundred characters with those of its methods."""

    def method(self):
        """A method belongs to the class it stands in, and so does what it says of itself in this second sentence."""

    class Inner:
        """A class inside a class has a document too, if it is long enough, which this one is with the sentences that
        follow. It goes on with a second sentence, and with a third one. Then it comes to its end at last."""

class Short:
    """A class whose documentation is too short to be one."""

class Copy:
    """A class makes a document of its own every time, if it has two hundred characters with those of its methods."""

    def method(self):
        """A method belongs to the class it stands in, and so does what it says of itself in this second sentence."""
'''


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """Makes the corpus of a library of some files: name -> contents. The standard library is empty."""

    def make(files: dict[str, str]) -> list[tuple[str, list[str]]]:
        (tmp_path / "stdlib").mkdir(exist_ok=True)
        (tmp_path / "foxes").mkdir(exist_ok=True)
        for name, contents in files.items():
            (tmp_path / "foxes" / name).write_text(contents)
        monkeypatch.setattr(documentation.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path / "stdlib")})
        monkeypatch.setattr(documentation, "LIBRARIES", ("foxes",))
        monkeypatch.syspath_prepend(tmp_path)
        found = documentation.documents.__wrapped__()
        return [(name, text.split("\n")) for name, text in found]

    return make


def test_a_module_is_parsed_into_itself_and_its_classes(corpus):
    """None of fewer than 200 characters, and no paragraph twice; a source without prose or of Python 2 has none."""
    files = {"broken.py": '"""Broken source is passed over in silence."""\nprint "python 2"', "plain.py": "x = 1\n"}
    module = "The function after it says no more than this one, so that nothing is left to say."
    found = corpus(files | {"__init__.py": "", "dens.py": SOURCE % module})
    assert [(name, len(text)) for name, text in found] == [
        ("foxes.dens", 3),
        ("foxes.dens.Outer", 2),
        ("foxes.dens.Outer.Inner", 1),
    ]
    assert found[0][1][2] == module and found[1][1][1].startswith("A method belongs to the class it stands in, and")


def test_many_files_are_read_in_order(corpus, monkeypatch):
    """By two processes."""
    monkeypatch.setattr(documentation.os, "cpu_count", lambda: 2)
    text = "The module with the number {0} says what it does with all {0} of its foxes, and with their dens. " * 3
    files = {f"m{number:03}.py": f'"""{text.format(number).strip()}"""' for number in range(130)}
    assert [name for name, _ in corpus(files | {"__init__.py": ""})] == [f"foxes.{name[:-3]}" for name in files]


def test_sources_name_versions():
    (source,) = documentation.sources()
    assert source == documentation.sources()[0]
    assert "numpy" in source["path"] and "Python 3." in source["path"]
    assert source["bytes"] > 10_000_000 and len(source["digest"]) == 64


@pytest.mark.nightly  # 9 s for the files of every installed library; what is read of one, the tests above prove
def test_the_corpus_is_megabytes_of_distinct_prose_and_imports_nothing():
    code = """
import sys
if __name__ == "__main__":
    from plmjax.data.formats import documentation
    documents = documentation.documents()
    imported = {"scipy", "sklearn", "matplotlib", "optax", "flax"} & set(sys.modules)
    paragraphs = [line for _, text in documents for line in text.splitlines()]
    print(len(documents), sum(map(len, paragraphs)), len(paragraphs) - len(set(paragraphs)), len(imported))
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    documents, characters, repeated, imported = map(int, out.split())
    assert documents > 1000 and characters > 2_000_000 and repeated == imported == 0
