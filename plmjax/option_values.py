"""Reading and printing of option values: `--workdir PATH ... (default: none)` in every --help.

tyro itself prints an optional value as `{None}|PATH` and an empty list as `[INT [INT ...]]`, without a clear default.
"""

import dataclasses
import types
import typing
from typing import Any

from tyro.conf import UseAppendAction
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

NONE = "none"
"""Text in the help for a default of None. It is also the value that sets None."""
EMPTY = "empty"
"""Text in the help for a default of an empty list or an empty text. A value of this word is ordinary text."""
WORDS_FOR_NONE = (NONE, str(None))
"""Values that set None: the word of the help, and Python's own."""
PLAIN = ConstructorRegistry()
"""Rules for values that apply to tyro.cli within `with PLAIN:`."""


def _of(annotation: Any, info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """Return the specification of a type whose values are one word; None for types of several words or options."""
    found = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(annotation, info.markers))
    return found if isinstance(found, PrimitiveConstructorSpec) and found.nargs == 1 else None


@PLAIN.primitive_rule
def _text(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    if info.type is not str:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="TEXT",
        instance_from_str=lambda words: words[0],
        is_instance=lambda value: isinstance(value, str),
        str_from_instance=lambda value: [value or EMPTY],
    )


def _nothing(words: list[str]) -> None:
    if words[0] not in WORDS_FOR_NONE:
        raise ValueError(f"expected {NONE}")


@PLAIN.primitive_rule
def _absent(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    if info.type is not types.NoneType:  # such as the model of a fine-tuning run, which the checkpoint has
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=NONE,
        instance_from_str=_nothing,
        is_instance=lambda value: value is None,
        str_from_instance=lambda value: [NONE],
    )


@PLAIN.primitive_rule
def _optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    if typing.get_origin(info.type) not in (typing.Union, types.UnionType):
        return None
    kinds = [kind for kind in typing.get_args(info.type) if kind is not types.NoneType]
    own = _of(kinds[0], info) if len(kinds) == 1 else None
    if own is None:
        return None
    optional = dataclasses.replace(
        own,
        is_instance=lambda value: value is None or own.is_instance(value),
        str_from_instance=lambda value: [NONE] if value is None else own.str_from_instance(value),
    )
    if kinds[0] not in (bool, int, float):  # a text or a path may be one of the words for None
        return optional
    return dataclasses.replace(
        optional,
        metavar=f"{own.metavar}|{NONE}",
        instance_from_str=lambda words: None if words[0] in WORDS_FOR_NONE else own.instance_from_str(words),
        choices=own.choices and (*own.choices, *WORDS_FOR_NONE),
    )


@PLAIN.primitive_rule
def _several(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    arguments = typing.get_args(info.type)
    if typing.get_origin(info.type) is not tuple or arguments[1:] != (...,) or UseAppendAction in info.markers:
        return None
    own = _of(arguments[0], info)
    return own and PrimitiveConstructorSpec(
        nargs="*",
        metavar=f"{own.metavar} ...",
        instance_from_str=lambda words: tuple(own.instance_from_str([word]) for word in words),
        is_instance=lambda values: isinstance(values, tuple) and all(map(own.is_instance, values)),
        str_from_instance=lambda values: [word for value in values for word in own.str_from_instance(value)] or [EMPTY],
    )
