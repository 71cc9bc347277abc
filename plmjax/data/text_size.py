"""The size of a raw text, independent of the tokenizer. Divide nats by it to compare tokenizers."""

import dataclasses
import os
from collections.abc import Sequence

from plmjax.data import formats


@dataclasses.dataclass(frozen=True)
class TextSize:
    """Size of the lines of a text's documents, each with its line end. Markup and blank lines are not counted.

    For a published corpus everything is counted, as in its paper. bytes: in UTF-8. words: strings between white space;
    in WikiText line ends count as words too.
    """

    bytes: int = 0
    characters: int = 0
    words: int = 0


def measure(
    inputs: Sequence[str | os.PathLike], format: str = "auto", text_key: str = "text", split: str = ""
) -> TextSize:
    """Return the size of the text that `prepare` reads from these inputs.

    split: the only split of a published corpus to measure.

    Raises:
        UserError: an input is missing, empty, binary, truncated, not UTF-8 or not of its format.
    """
    counts = [0, 0, 0]
    for document in formats.documents(inputs, format=format, text_key=text_key, split=split):
        if formats.is_exact(format):
            counts = [sum(both) for both in zip(counts, formats.CORPORA[format].size(document.text), strict=True)]
            continue
        for line in formats.prose(document):
            counts[0] += len(line.encode("utf-8", "surrogatepass")) + 1
            counts[1] += len(line) + 1
            counts[2] += len(line.split())
    return TextSize(*counts)
