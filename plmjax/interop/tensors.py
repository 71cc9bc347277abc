"""The tensors of a checkpoint: what every reader of another library's files gives."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

Shape = tuple[int, ...]
FLOATS = ("float16", "bfloat16", "float32", "float64")
"""Types whose numbers are the parameters themselves; quantized types need scales that are stored elsewhere."""


@dataclasses.dataclass(frozen=True)
class Tensors:
    """The tensors of a checkpoint, read one at a time.

    origin: the file or folder, for messages. shapes: name -> shape. dtypes: name -> "float32", "int8", ...
    read: name -> array of that shape; bfloat16 may come as float32.
    words: the vocabulary, where the file brings one: word i belongs to row i of the tensors.
    """

    origin: str
    shapes: Mapping[str, Shape]
    dtypes: Mapping[str, str]
    read: Callable[[str], np.ndarray]
    words: Sequence[str] = ()

    def renamed(self, names: Mapping[str, str]) -> "Tensors":
        """The tensors whose name now is a value of `names`, under its key; the others are left out."""
        shapes, dtypes = ({new: known[old] for new, old in names.items()} for known in (self.shapes, self.dtypes))
        return dataclasses.replace(self, shapes=shapes, dtypes=dtypes, read=lambda name: self.read(names[name]))

    def transposed(self, names: frozenset[str]) -> "Tensors":
        """The same tensors, those of these names with their axes in reverse order."""
        shapes = {name: tuple(shape[:: -1 if name in names else 1]) for name, shape in self.shapes.items()}

        def read(name: str) -> np.ndarray:
            return self.read(name).T if name in names else self.read(name)

        return dataclasses.replace(self, shapes=shapes, read=read)
