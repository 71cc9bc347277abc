"""The embedded corpus: prose of documentation strings, the same every time."""

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

Raises
------
LinAlgError
    If the matrix is singular, which is a sentence of a dropped section.

Notes:
  The matrix is not copied. An example of a literal block follows here::

    solve(a, b) is code and has no place in a corpus.

Examples
--------
>>> solve([[1]], [2])
This line of output is not prose either, surely it is not.
"""


def test_prose_of_a_documentation_string():
    assert documentation.prose(DOCSTRING) == [
        "Solve a linear system of equations.",
        "The solution is computed with numpy.linalg.solve and a scipy.linalg.lu factorisation, see for details of it.",
        "The square matrix that holds the coefficients of the system.",
        "The matrix is not copied. An example of a literal block follows here:",
    ]


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

class Outer:
    """A class makes a document of its own every time, if it has two hundred characters with those of its methods."""

    def method(self):
        """A method belongs to the class it stands in, and so does what it says of itself in this second sentence."""

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


def test_a_module_is_parsed_into_itself_and_its_classes(corpus, monkeypatch):
    """None of fewer than 200 characters, and no paragraph twice; a source without prose or of Python 2 has none."""
    files = {"broken.py": '"""Broken source is passed over in silence."""\nprint "python 2"', "plain.py": "x = 1\n"}
    found = corpus(files | {"__init__.py": "", "dens.py": SOURCE})
    assert [(name, len(text)) for name, text in found] == [("foxes.dens", 2), ("foxes.dens.Outer", 2)]
    assert found[1][1][1].startswith("A method belongs to the class it stands in, and")
    monkeypatch.setattr(documentation.os, "cpu_count", lambda: 2)  # many files are read in order by two processes
    text = "The module with the number {0} says what it does with all {0} of its foxes, and with their dens. " * 3
    files = {f"m{number:03}.py": f'"""{text.format(number).strip()}"""' for number in range(130)}
    assert [name for name, _ in corpus(files)][2:] == [f"foxes.{name[:-3]}" for name in files]
