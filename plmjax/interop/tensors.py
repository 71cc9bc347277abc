"""The tensors of a checkpoint: the common result of all readers of other libraries' files."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

Shape = tuple[int, ...]
FLOATS = ("float16", "bfloat16", "float32", "float64")
"""Types whose values are the parameters themselves. Quantized types need scales that are stored elsewhere."""


@dataclasses.dataclass(frozen=True)
class Tensors:
    """The tensors of a checkpoint, read one at a time.

    origin: the file or folder, for messages. shapes: name -> shape. dtypes: name -> "float32", "int8", ...
    read: name -> array of that shape; bfloat16 may come as float32.
    words: the vocabulary, if the file contains one: word i belongs to row i of the tensors.
    """

    origin: str
    shapes: Mapping[str, Shape]
    dtypes: Mapping[str, str]
    read: Callable[[str], np.ndarray]
    words: Sequence[str] = ()

    def rename(self, names: Mapping[str, str]) -> "Tensors":
        """Return the tensors under new names. names: new name -> name of a tensor. Other tensors are left out."""
        shapes, dtypes = ({new: known[old] for new, old in names.items()} for known in (self.shapes, self.dtypes))
        return dataclasses.replace(self, shapes=shapes, dtypes=dtypes, read=lambda name: self.read(names[name]))

    def transpose(self, names: frozenset[str]) -> "Tensors":
        """Return the same tensors, with reversed axes if their names are in `names`."""
        shapes = {name: tuple(shape[:: -1 if name in names else 1]) for name, shape in self.shapes.items()}

        def read(name: str) -> np.ndarray:
            return self.read(name).T if name in names else self.read(name)

        return dataclasses.replace(self, shapes=shapes, read=read)
