"""What the package says of itself: its dependencies and the versions that go together, its licence, its changes."""

import importlib.metadata
import re
import runpy

import pytest
import setuptools
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import plmjax
from tests.paths import ROOT


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> dict:
    """The arguments of setup.py's call."""
    found: dict = {}
    monkeypatch.setattr(setuptools, "setup", found.update)
    runpy.run_path(str(ROOT / "setup.py"))
    return found


PYTHONS = ("3.11", "3.12", "3.13")


def pinned(python: str) -> dict[str, str]:
    """Name -> version of the packages that the tests passed with on a Python."""
    lines = (ROOT / "constraints" / f"python-{python}.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in rows}


@pytest.mark.parametrize("python", PYTHONS)
def test_the_constraints_cover_every_dependency_with_a_version_in_its_range(python: str, declared: dict) -> None:
    versions = pinned(python)
    place = {"platform_system": "Linux", "platform_machine": "x86_64", "python_version": python}
    extras = [line for name, group in declared["extras_require"].items() for line in group if name != "parity"]
    for requirement in map(Requirement, [*declared["install_requires"], *extras]):
        if requirement.marker is None or requirement.marker.evaluate(place):
            version = versions[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version, prereleases=True), requirement
    pins = [pin for line in declared["extras_require"]["parity"] for pin in Requirement(line).specifier]
    assert pins and all(pin.operator == "==" for pin in pins)


def test_a_plan_is_made_by_the_compiler_that_jax_names_for_a_run(declared: dict) -> None:
    """So that `tpu` and `plan` can be installed together, whatever the Python and its newest JAX."""
    of_jax = [Requirement(line) for line in importlib.metadata.requires("jax")]
    (named,) = {pin.version.removesuffix(".*") for one in of_jax if one.name == "libtpu" for pin in one.specifier}
    for extra in ("plan", "test", "tpu"):
        found = [Requirement(line) for line in declared["extras_require"][extra]]
        assert [one.name for one in found if "tpu" in one.extras] == ["jax"], extra
        assert all(one.specifier.contains(named) for one in found if one.name == "libtpu"), extra
    page = (ROOT / "docs" / "tpu.md").read_text(encoding="utf-8")
    for versions in map(pinned, PYTHONS):
        if versions["jax"] == importlib.metadata.version("jax"):
            assert versions["libtpu"].startswith(f"{named}.")
        (major, minor, patch) = versions["libtpu"].split(".")[:3]
        assert f"libtpu {major}.{minor}.{patch} for JAX" in page


def test_pythons_without_torch_can_run_the_tests(declared: dict) -> None:
    """Its builds for a GPU, which pip takes by default, have several GB, and only comparisons need it."""
    groups = declared["extras_require"]
    having = {name for name, group in groups.items() for line in group if Requirement(line).name == "torch"}
    assert having == {"parity"} and not any(Requirement(line).name == "torch" for line in declared["install_requires"])


def test_the_licence_is_the_one_declared(declared: dict) -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert declared["license_expression"] == citation["license"] == "Apache-2.0"
    for name in declared["license_files"]:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert text.split()[:4] == ["Apache", "License", "Version", "2.0,"] and "END OF TERMS AND CONDITIONS" in text


def test_the_changes_of_this_version_are_listed(declared: dict) -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert declared["version"] == plmjax.__version__ == citation["version"]
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert headings[-1] == "0.1.0" and plmjax.__version__ in headings
