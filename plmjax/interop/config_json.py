"""Import and export of a model's config in the form of transformers' config.json."""

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import flax.linen as nn

from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError, quoted

Config = TypeVar("Config", bound=ModelConfig)

LARGEST = 2**31
"""The bound of every size, id and rate. They must also be finite: Python reads NaN and Infinity from JSON too."""

DEEPEST = 4096
"""The maximum number of layers. Published models have at most 64. If layers share parameters, no tensor limits it."""
SMALL = 1 << 16
"""Integers up to this value are accepted for tensors of any size: positions without a table, ids, distances."""


def read(
    found: Mapping[str, Any], kind: type[Config], defaults: Mapping[str, Any], required: Mapping[str, Any]
) -> Config:
    """Return the config for the content of a config.json. Missing settings have transformers' defaults.

    defaults: transformers' defaults that differ from those of `kind`.
    required: transformers settings that change the computation, with the one value that the model implements.

    Raises UserError for a setting that the model does not implement and for a value of another type.
    """
    for name, value in required.items():
        if name in found and (found[name] or None) != (value or None):
            system = kind.__name__.removesuffix("Config").upper()
            raise UserError(
                f"Expected {name} = {quoted(value)} in the config, which is all that this {system} implements, found "
                f"{quoted(found[name])}; take another checkpoint."
            )
    fields = dict(defaults)
    for field in dataclasses.fields(kind):
        value = found.get(field.name)
        if value is None:
            if field.name in found and types.NoneType in typing.get_args(field.type):
                fields[field.name] = None
            continue
        of = field.type  # for a field of type float | None, the next lines take float
        if isinstance(of, types.UnionType):
            of = next(iter(typing.get_args(of)))
        kinds = {bool: (bool,), int: (int,), float: (int, float), str: (str,)}
        if of not in kinds:  # sizes of compressed layers, which transformers does not have
            continue
        if type(value) not in kinds[of]:
            raise UserError(f"Expected {of.__name__} as the config's {field.name}, found {quoted(value)}; correct it.")
        if of is not str and not abs(value) < LARGEST:
            raise UserError(
                f"Expected a finite number below 2**31 as the config's {field.name}, found {quoted(value)}; correct it."
            )
        fields[field.name] = of(value)
    return kind(**fields)


def check_sizes(config: ModelConfig, numbers: int) -> None:
    """Check the integers of a config against its tensors, before lists or arrays of such sizes are created.

    numbers: the number of values in all tensors.

    Raises:
        UserError: the config has more layers than `DEEPEST`, or another integer above both `numbers` and `SMALL`.
    """
    for field in dataclasses.fields(config):
        value, largest = getattr(config, field.name), max(numbers, SMALL)
        if field.name == config.field_names.get("depth"):
            largest = DEEPEST
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, int) and one > largest:
                raise UserError(
                    f"Expected at most {largest:,} as the config's {field.name}, for tensors of {numbers:,} numbers, "
                    f"found {quoted(one)}; take the config of these tensors."
                )


def ids_of_tokenizer(config: ModelConfig, vocabulary: Vocabulary) -> dict[str, int | None]:
    """Return the tokenizer's begin and end ids for the fields of a config that still have the published ids.

    The fields are bos_token_id and eos_token_id, which training does not compare with the tokenizer. A field is left
    out if the config sets it, if it names the end of a generated text, or if its id begins or ends texts in the
    tokenizer as well. It is None if the tokenizer has no such token.
    """
    own = {
        "bos_token_id": (vocabulary.begin, vocabulary.cls, vocabulary.document_end),
        "eos_token_id": (vocabulary.end, vocabulary.sep, vocabulary.document_end),
    }
    found: dict[str, int | None] = {}
    for field in dataclasses.fields(config):
        name, value = field.name, getattr(config, field.name)
        ids = () if name == config.field_names.get("end_token") else own.get(name, ())
        if ids and value == field.default and value is not None and value not in ids:
            token = next((one for one in ids if one >= 0), None)
            if token is not None or types.NoneType in typing.get_args(field.type):
                found[name] = token
    return found


def write(model: nn.Module, labels: Sequence[str], model_type: str) -> dict[str, Any]:
    """Return the settings with which transformers builds the same model.

    Raises:
        UserError: attention is limited to a window, which transformers' class does not implement.
    """
    if model.config.windows:
        raise UserError(
            f"Expected a model whose tokens see their whole row, as transformers' {model_type} has it, found a window "
            f"of {model.config.attention_window} tokens; export a Longformer instead."
        )
    config = dataclasses.asdict(model.config) | {"model_type": model_type, "tie_word_embeddings": True}
    if hasattr(model, "num_labels"):
        labels = labels or [f"LABEL_{label}" for label in range(model.num_labels)]
        config["id2label"] = {str(label): name for label, name in enumerate(labels)}
        config["label2id"] = {name: label for label, name in enumerate(labels)}
    return config


def check_implied(config: ModelConfig, implied: Mapping[str, Any], owner: str) -> None:
    """Raise UserError if a field has another value than a class of another library implies.

    implied: field -> the only value of the class, for fields that it has no setting for.
    owner: the name of the class for the message.
    """
    for name, value in implied.items():
        if getattr(config, name) != value:
            raise UserError(
                f"Expected --model.{name} {value}, which is all that {owner} has, found {getattr(config, name)}; take "
                f"plmjax itself for this model."
            )
