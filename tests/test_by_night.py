"""The table of tests that run by night."""

import pytest

from tests import by_night


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_night, "BY_NIGHT", {"a/b.py": ("test_one", "test_two[1]")})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a/b.py::test_one", True),
        ("a/b.py::test_one[2]", True),
        ("a/b.py::test_two[1]", True),
        ("a/b.py::test_two[2]", False),
        ("a/b.py::test_one_more", False),
        ("b.py::test_one", False),
    ],
)
def test_a_function_names_all_of_its_cases(name: str, expected: bool) -> None:
    assert by_night.runs_by_night(name) is expected


def test_a_name_of_no_test_is_found() -> None:
    """conftest.py asks whenever all tests are collected."""
    assert by_night.unknown(["a/b.py::test_one[1]", "a/b.py::test_two[1]"]) == []
    assert by_night.unknown(["a/b.py::test_one", "a/b.py::test_two[2]"]) == ["a/b.py::test_two[1]"]
