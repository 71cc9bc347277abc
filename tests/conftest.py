"""Eight simulated CPU devices for every test, set before JAX is imported."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TPU_SKIP_MDS_QUERY"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8 " + os.environ.get("XLA_FLAGS", "")

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real text beside the checkout; tests that need it are skipped where it is absent."""
    if not SHARED.is_dir():
        pytest.skip(f"needs the text collection at {SHARED}")
    return SHARED
