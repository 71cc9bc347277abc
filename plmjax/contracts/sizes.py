"""Named sizes of a system: the published models, as attributes of the class of its configs.

A class declares a size with its fields, and a call of the attribute returns a config:

    class BertConfig(EncoderConfig):
        base = Size("BERT-Base: 110,106,428 parameters.", hidden_size=768, ...)

    BertConfig.base(vocab_size=8192)
"""

from collections.abc import Callable
from typing import Any


class Size:
    """A named size of a config class. The attribute is a function that returns a config with the fields of the size.

    Arguments of the function override the fields.
    """

    def __init__(self, about: str, **fields: Any) -> None:
        """Store the fields.

        about: the docstring of the size: its name and its number of parameters.
        """
        self.about, self.fields = about, fields

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, config: Any, owner: type) -> Callable[..., Any]:
        """Return the function that makes the config."""

        def sized(**overrides: Any) -> Any:
            return owner(**(self.fields | overrides))

        sized.__doc__, sized.__name__, sized.__qualname__ = self.about, self.name, f"{owner.__name__}.{self.name}"
        return sized
