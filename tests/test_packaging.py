"""What the package says of itself: its dependencies and the versions that go together, its licence, its changes."""

import re
import runpy
from pathlib import Path

import pytest
import setuptools
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import plmjax

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> dict:
    """The arguments of setup.py's call."""
    found: dict = {}
    monkeypatch.setattr(setuptools, "setup", found.update)
    runpy.run_path(str(ROOT / "setup.py"))
    return found


def test_the_constraints_cover_every_dependency_with_a_version_in_its_range(declared: dict) -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert all(name == canonicalize_name(name) for name in pinned) and list(pinned) == sorted(pinned)
    extras = [line for group in declared["extras_require"].values() for line in group]
    for line in [*declared["install_requires"], *extras]:
        requirement = Requirement(line)
        name = canonicalize_name(requirement.name)
        if name != "libtpu":  # the file says why
            assert requirement.specifier.contains(pinned[name], prereleases=True), line


def test_the_licence_is_the_one_declared(declared: dict) -> None:
    assert declared["license_expression"] == "Apache-2.0"
    for name in declared["license_files"]:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert text.split()[:4] == ["Apache", "License", "Version", "2.0,"] and "END OF TERMS AND CONDITIONS" in text


def test_the_changes_of_this_version_are_listed(declared: dict) -> None:
    assert declared["version"] == plmjax.__version__
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert headings[-1] == "0.1.0" and plmjax.__version__ in headings
