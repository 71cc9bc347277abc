"""The metadata of the package: its dependencies and the versions that go together, its licence, its version."""

import dataclasses
import importlib.metadata
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import setuptools
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from plmjax import libraries
from tests.paths import ROOT


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> dict:
    """The arguments of setup.py's call."""
    found: dict = {}
    monkeypatch.setattr(setuptools, "setup", found.update)
    runpy.run_path(str(ROOT / "setup.py"))
    return found


PYTHONS = ("3.11", "3.12", "3.13")


def pinned(python: str, file: str = "") -> dict[str, str]:
    """Name -> version of the packages that the tests passed with on a Python."""
    lines = (ROOT / "constraints" / (file or f"python-{python}.txt")).read_text(encoding="utf-8").splitlines()
    rows = [Requirement(line) for line in lines if not line.startswith("#")]
    rows = [row for row in rows if row.marker is None or row.marker.evaluate({"python_version": python})]
    assert len({canonicalize_name(row.name) for row in rows}) == len(rows)
    return {canonicalize_name(row.name): str(row.specifier).removeprefix("==") for row in rows}


@pytest.mark.parametrize("python", PYTHONS)
def test_the_constraints_cover_every_dependency_with_a_version_in_its_range(python: str, declared: dict) -> None:
    versions = pinned(python)
    place = {"platform_system": "Linux", "platform_machine": "x86_64", "python_version": python}
    apart = ("parity", "beam")
    extras = [line for name, group in declared["extras_require"].items() for line in group if name not in apart]
    for requirement in map(Requirement, [*declared["install_requires"], *extras]):
        if requirement.marker is None or requirement.marker.evaluate(place):
            version = versions[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version, prereleases=True), requirement
    pins = [pin for line in declared["extras_require"]["parity"] for pin in Requirement(line).specifier]
    assert pins and all(pin.operator == "==" for pin in pins)


@pytest.mark.parametrize("python", PYTHONS)
def test_apache_beam_has_versions_of_its_own_on_every_python(python: str, declared: dict) -> None:
    """It wants an older protobuf and NumPy than the other constraints name."""
    versions, extras = pinned(python, "beam.txt"), declared["extras_require"]
    place = {"platform_system": "Linux", "platform_machine": "x86_64", "python_version": python}
    for line in [*declared["install_requires"], *extras["beam"], *extras["clean"], *extras["gcs"]]:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate(place):
            version = versions[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version, prereleases=True), requirement
    assert int(versions["protobuf"].split(".")[0]) < 7 <= int(pinned(python)["protobuf"].split(".")[0])


def test_a_plan_is_made_by_the_compiler_that_jax_names_for_a_run(declared: dict) -> None:
    """So that `tpu` and `plan` can be installed together, whatever the Python and its newest JAX."""
    of_jax = [Requirement(line) for line in importlib.metadata.requires("jax")]
    (named,) = {pin.version.removesuffix(".*") for one in of_jax if one.name == "libtpu" for pin in one.specifier}
    for extra in ("plan", "test", "tpu"):
        found = [Requirement(line) for line in declared["extras_require"][extra]]
        assert [one.name for one in found if "tpu" in one.extras] == ["jax"], extra
        assert all(one.specifier.contains(named) for one in found if one.name == "libtpu"), extra
    page = (ROOT / "docs" / "reference" / "tpu.md").read_text(encoding="utf-8")
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


def test_the_last_release_has_one_name() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert headings[0] == "Unreleased" and headings[-1] == "0.1.0"
    assert list(map(Version, headings[1:])) == sorted(map(Version, headings[1:]), reverse=True)
    assert citation["version"] == headings[1]
    git = ["git", "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"]
    if (ROOT / ".git").exists() and (tag := subprocess.run(git, cwd=ROOT, capture_output=True, text=True).stdout):
        assert tag.strip() == f"v{headings[1]}"


def test_the_version_is_that_of_the_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", {"plmjax": "1.2.3"}.get)
    assert runpy.run_path(libraries.__file__)["VERSION"] == "1.2.3"

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools_scm"]
    assert runpy.run_path(libraries.__file__)["VERSION"] == settings["fallback_version"] == "0.0.dev0"


@dataclasses.dataclass(frozen=True)
class Checkout:
    """A git repository of the files that make the package, without most of the package."""

    root: Path

    def git(self, *arguments: str) -> str:
        """Return the output of git."""
        who = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        return subprocess.run(
            ["git", *who, *arguments], cwd=self.root, capture_output=True, text=True, check=True
        ).stdout.strip()

    def commit(self) -> str:
        """Commits all files; the commit that git names."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "A change")
        return self.git("rev-parse", "--short=7", "HEAD")

    def archive(self, folder: Path) -> Path:
        """The files of the last commit without the repository, as a download of the sources has them."""
        folder.mkdir()
        self.git("archive", "--output", str(folder / "sources.tar"), "HEAD")
        shutil.unpack_archive(folder / "sources.tar", folder)
        return folder


def version_of(folder: Path) -> str:
    """The version that the build of a folder gives the package."""
    return setup_py(folder, "--version").splitlines()[-1]


def setup_py(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-W", "ignore", "setup.py", "--quiet", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, env=BUILD).stdout


BUILD = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONWARNINGS")}
"""The environment of a build: the packages of the checkout that is tested are not those of the one that is built."""


DATA = ("plmjax/report/__init__.py", "plmjax/report/published_figures/bert.json")
"""A package with files that are no modules, and one of these."""


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    pytest.importorskip("setuptools_scm", reason="needs setuptools-scm, which the extra `test` installs")
    made = Checkout(tmp_path / "checkout")
    for name in (".gitattributes", ".git_archival.txt", "LICENSE", "README.md", "pyproject.toml", "setup.py"):
        made.root.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, made.root / name)
    for name in ("plmjax/__init__.py", "plmjax/experiments/__init__.py", "experiments/bert_tiny.py", *DATA):
        (made.root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, made.root / name)
    made.git("init", "--quiet", "--initial-branch", "main")
    return made


def test_a_version_comes_from_the_tag(checkout: Checkout, tmp_path: Path) -> None:
    first = checkout.commit()
    assert version_of(checkout.root).startswith(f"0.0.0.dev1+g{first}")  # as in a clone without tags
    checkout.git("tag", "v0.3.1")
    assert version_of(checkout.root) == version_of(checkout.archive(tmp_path / "tagged")) == "0.3.1"
    (checkout.root / "plmjax" / "__init__.py").write_text('"""Changed."""')
    assert version_of(checkout.root).startswith(f"0.4.0.dev0+g{first}")
    second = checkout.commit()
    for folder in (checkout.root, checkout.archive(tmp_path / "later")):
        assert version_of(folder).startswith(f"0.4.0.dev1+g{second}")


def test_sources_without_a_repository_are_installed_with_their_version(checkout: Checkout, tmp_path: Path) -> None:
    checkout.commit()
    checkout.git("tag", "v0.3.1")
    setup_py(checkout.root, "sdist")
    shutil.unpack_archive(checkout.root / "dist" / "plmjax-0.3.1.tar.gz", tmp_path)
    sources = tmp_path / "plmjax-0.3.1"
    assert version_of(sources) == "0.3.1"
    setup_py(sources, "bdist_wheel")
    with zipfile.ZipFile(sources / "dist" / "plmjax-0.3.1-py3-none-any.whl") as wheel:
        assert {"plmjax/__init__.py", "plmjax/experiments/bert_tiny.py", *DATA} <= set(wheel.namelist())
    copy = tmp_path / "copy"
    shutil.copytree(checkout.root, copy, ignore=shutil.ignore_patterns(".git", "*.egg-info", "dist"))
    assert version_of(copy) == "0.0.dev0"
