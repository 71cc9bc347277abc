"""Turns raw text into a prepared dataset, once: reads, cleans, splits into sentences, tokenizes and writes it.

The input is cut into units (`units`). Plain functions convert each unit into files of its own (`conversion`,
`files`), and `run` joins these files in one dataset, in the order of the units. So the dataset does not depend on the
process that converts a unit: `pool` uses the cores of this machine, `beam` a cluster. A preparation that was stopped
keeps its finished units. Memory holds a few batches of documents for any size of the input.
"""

from plmjax.data.preparation.conversion import split_of
from plmjax.data.preparation.run import prepare

__all__ = ["prepare", "split_of"]
