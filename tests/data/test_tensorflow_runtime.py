"""TensorFlow beside libraries that it does not get on with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT

LOAD = "from plmjax.data import tensorflow_runtime; tensorflow_runtime.tensorflow()"


@pytest.mark.parametrize("with_triton", [True, False])
def test_triton_is_loaded_before_tensorflow_where_it_is_installed(tmp_path: Path, with_triton: bool) -> None:
    files = {"tensorflow/__init__.py": "from tensorflow import config\nprint('tensorflow')\n"}
    files["tensorflow/config.py"] = "def set_visible_devices(devices, kind):\n    pass\n"
    broken = "raise ImportError('no Triton here')\n"
    files |= {"triton/__init__.py": "", "triton/_C/__init__.py": ""}
    files["triton/_C/libtriton.py"] = "print('triton')\n" if with_triton else broken
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    command = [sys.executable, "-c", LOAD]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == (["triton", "tensorflow"] if with_triton else ["tensorflow"])
