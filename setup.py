"""Package metadata of plmjax; `pip install .` is the core, the extras are named below."""

import sys
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

if sys.version_info < (3, 11):  # noqa: UP036 - an older pip looks for every requirement before it reads python_requires
    found = ".".join(map(str, sys.version_info[:2]))
    sys.exit(f"Expected Python 3.11 or later for plmjax, found {found} at {sys.executable}; install with a newer one.")

CORE = [
    "jax>=0.10",
    "flax>=0.12",
    "optax>=0.2.8",
    "orbax-checkpoint>=0.12",
    "chex>=0.1.92",
    "sentencepiece>=0.2.1",
    # Python 3.14 gets a release candidate, 3.15 has none yet: runs from prepared datasets do without.
    "tensorflow-cpu>=2.21; python_version < '3.15' and platform_system == 'Linux' and platform_machine == 'x86_64'",
    "tensorflow>=2.21; python_version < '3.15' and (platform_system != 'Linux' or platform_machine != 'x86_64')",
    "tensorflow-datasets>=4.9.10",
    "importlib_resources>=6",  # tensorflow-datasets uses it to build a dataset and does not declare it
    "google-crc32c>=1.8",
    "pyarrow>=20",  # reads Parquet and Zstandard; tensorflow-datasets needs it too
    "tokenizers>=0.23",
    "safetensors>=0.8",
    "sentencex>=1.0.32",
    "tyro>=1.0.17",
    "rich>=15",
    "matplotlib>=3.11",
    "tensorboard>=2.21",
    "scikit-learn>=1.9",
    "scipy>=1.17",
    "seqeval>=1.2.2",
    "sacrebleu>=2.6",
    "rouge-score>=0.1.2",
]
BEAM = ["apache-beam>=2.77"]  # wants an older protobuf and NumPy than the rest: constraints/beam.txt
BUCKETS = ["gcsfs>=2026.10", "google-cloud-storage>=3.4"]  # the second is what Orbax removes checkpoints with
CLEAN = ["py3langid>=0.4", "rensa>=0.5"]  # languages of documents, and MinHash for near duplicates
DOCS = [
    "mkdocs-material>=9.8",
    "mkdocstrings[python]>=1.0.8",
    "nbconvert>=7.17",
    "ruff>=0.17",  # formats signatures
]
HDF5 = ["h5py>=3.14"]
WANDB = ["wandb>=0.31"]
SENTENCES = ["sentence-transformers>=6", "transformers>=5.23"]  # bring torch
COMPILER = ["jax[tpu]>=0.10"]  # the libtpu of this JAX: a plan is made by the compiler that the run will have
SUBMISSION = ["google-cloud-tpu>=1.28", *BUCKETS, "PyYAML>=6", "packaging>=25"]
EXTRAS = {
    "beam": BEAM,
    "clean": CLEAN,
    "docs": DOCS,
    "gcs": BUCKETS,
    "gpu": ["jax[cuda12]>=0.10"],
    "hdf5": HDF5,
    # For the tests that compare with torch, or with a model of transformers.
    "parity": ["torch==2.13.0", "sentence-transformers==6.2.0"],
    "plan": COMPILER,
    "sentences": SENTENCES,
    "wandb": WANDB,
    "tpu": [*COMPILER, *SUBMISSION],
    "test": [
        *SUBMISSION,
        *CLEAN,
        *HDF5,
        *WANDB,
        *COMPILER,
        "gensim>=4.4",
        "griffelib>=2.4",  # reads docstrings as the site does
        "pytest>=9",
        "pytest-xdist>=3.8",
        "pytest-timeout>=2.4",
        "ruff>=0.17",
        "setuptools-scm>=10",  # builds of the package are tested without a registry
        "transformers>=5.23",
    ],
}


class BuildWithExperiments(build_py):
    """Puts the files of experiments/ into the package plmjax.experiments, where an installation finds them."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        found = super().find_package_modules(package, package_dir)
        if package == "plmjax.experiments":
            files = sorted(Path("experiments").glob("*.py"))
            found += [(package, file.stem, str(file)) for file in files]
        return found


setup(
    name="plmjax",
    description="Pretrained language models in JAX and Flax on TPUs",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    if Path(__file__).with_name("README.md").exists()
    else "",
    long_description_content_type="text/markdown",
    packages=find_packages(include=["plmjax", "plmjax.*", "tpu"]),
    package_data={"plmjax.report": ["published_figures/*.json"], "tpu": ["*.sh"]},
    cmdclass={"build_py": BuildWithExperiments},
    license_expression="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    install_requires=CORE,
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["plmjax=plmjax.__main__:main"]},
)
