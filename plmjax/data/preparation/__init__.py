"""Raw text to a prepared dataset, once: read, clean, split into sentences, tokenize, write.

The input is cut into units (`units`). Plain functions convert a unit, each into files of its own (`conversion`,
`files`), and `run` concatenates these files to a dataset in the order of the units. So the dataset does not depend on
the process that converts a unit: `pool` uses the cores of this machine, `beam` a cluster. A preparation that was
stopped keeps its finished units. Memory holds a few batches of documents for any size of the input.
"""

from plmjax.data.preparation.conversion import split_of
from plmjax.data.preparation.run import prepare

__all__ = ["prepare", "split_of"]
