"""The names of all experiments of the checkout, as commands take them."""

from plmjax.experiment.catalogue import functions
from tests.paths import ROOT

EXPERIMENTS = [
    f"experiments/{file.name}:{name}"
    for file in sorted((ROOT / "experiments").glob("*.py"))
    for name in functions(file)
]
