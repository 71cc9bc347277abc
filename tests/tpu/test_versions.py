"""The versions that a submission freezes, from distributions that are installed for the test."""

import importlib.metadata
import json
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from plmjax.errors import UserError
from tpu import versions


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Installs distributions in an empty environment."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    def install(name: str, version: str, *requires: str, extras: tuple[str, ...] = (), url: str = "") -> None:
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        fields = [("Metadata-Version", "2.1"), ("Name", name), ("Version", version)]
        fields += [("Provides-Extra", extra) for extra in extras] + [("Requires-Dist", line) for line in requires]
        (folder / "METADATA").write_text("".join(f"{key}: {value}\n" for key, value in fields))
        if url:
            (folder / "direct_url.json").write_text(json.dumps({"url": url, "dir_info": {"editable": True}}))

    return install


def test_all_that_a_host_needs_is_frozen_and_nothing_else(installed) -> None:
    with pytest.raises(UserError, match=r"Expected plmjax to be installed here, .* run pip install 'plmjax\[tpu\]'"):
        versions.constraints()
    installed(
        "plmjax", "1.0", "jax>=0.10", "Some_Name", "absent", "mine", "for-macs; sys_platform == 'darwin'",
        "jax[tpu]>=0.10; extra == 'tpu'", "more; extra == 'docs'", extras=("tpu", "docs"), url="file:///here",
    )  # fmt: skip
    installed("jax", "0.10.2", "numpy", "libtpu==0.0.42.*; extra == 'tpu'", "jaxlib", extras=("tpu",))
    installed("jaxlib", "0.10.2")
    installed("libtpu", "0.0.42.1", "jax")  # a circle
    installed("numpy", "2.4.6")
    installed("some-name", "3")
    installed("mine", "0.1", "needed-by-mine", url="https://github.com/me/mine")
    installed("needed-by-mine", "5.1+cpu", "needed-by-that")
    installed("needed-by-that", "7.0rc1")
    for other in ("for-macs", "more", "unrelated"):
        installed(other, "1.0")
    lines = versions.constraints().splitlines()
    assert lines[0] == f"# The versions of the submitting machine, with Python {versions.python()}."
    assert lines[1:] == [
        "jax==0.10.2", "jaxlib==0.10.2", "libtpu==0.0.42.1", "needed-by-that==7.0rc1", "numpy==2.4.6", "some-name==3",
    ]  # fmt: skip


def test_the_versions_here_are_those_that_pip_knows() -> None:
    assert versions.python() == f"{sys.version_info.major}.{sys.version_info.minor}"
    pins = {one.name: one for one in map(Requirement, versions.constraints().splitlines()[1:])}
    assert {"jax", "jaxlib", "libtpu", "flax", "optax", "orbax-checkpoint", "numpy", "gcsfs"} <= pins.keys()
    assert "plmjax" not in pins and "pytest" not in pins
    for name, pin in pins.items():
        assert pin.specifier.contains(importlib.metadata.version(name), prereleases=True)
