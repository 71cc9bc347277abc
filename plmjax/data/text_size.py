"""How long a text is as it was written, whatever tokenizer reads it: what nats are divided by to compare tokenizers."""

import dataclasses
import os
from collections.abc import Sequence

from plmjax.data import formats


@dataclasses.dataclass(frozen=True)
class TextSize:
    """The lines of a text's documents, each with its end; markup and blank lines are not counted.

    bytes: in UTF-8. words: what stands between white space.
    """

    bytes: int = 0
    characters: int = 0
    words: int = 0


def measure(inputs: Sequence[str | os.PathLike], format: str = "auto", text_key: str = "text") -> TextSize:
    """The size of the text that `prepare` reads from these inputs.

    Raises:
      UserError: an input that is missing, empty, binary, truncated, not UTF-8 or not of its format.
    """
    counts = [0, 0, 0]
    for document in formats.documents(inputs, format, text_key=text_key):
        for line in formats.prose(document):
            counts[0] += len(line.encode("utf-8", "surrogatepass")) + 1
            counts[1] += len(line) + 1
            counts[2] += len(line.split())
    return TextSize(*counts)
