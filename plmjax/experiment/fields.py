"""The options of an experiment: one for each field of its dataclasses, with a type and a description."""

import ast
import dataclasses
import functools
import inspect
import textwrap
import typing
from collections.abc import Iterator
from typing import Any

from plmjax.experiment.settings import Experiment

PLAIN = (bool, int, float, str, type(None))


@dataclasses.dataclass(frozen=True)
class Option:
    """An option of an experiment.

    name: dotted name of the field, such as optimizer.schedule.warmup_steps.
    owner: class of the object that has the field.
    value: value of the field in the experiment.
    """

    name: str
    owner: type
    value: Any

    @property
    def group(self) -> str:
        """The dotted name of the dataclass in the experiment: `name` without its last part."""
        return self.name.rpartition(".")[0]

    @property
    def kind(self) -> Any:
        """The declared type of the field, or the type of its value if it is declared as Any."""
        declared = _kinds(self.owner)[self.name.rpartition(".")[2]]
        return type(self.value) if declared is Any else declared

    @property
    def text(self) -> str:
        """The documentation of the field, on one line; empty for an undocumented field of a user's class."""
        return _texts(self.owner).get(self.name.rpartition(".")[2], "")


def of(value: Any, prefix: str = "") -> Iterator[Option]:
    """Yield the options of an experiment, or of one of its dataclasses. prefix: dotted name of the dataclass and a dot.

    A part that is None, such as the compression of a run without one, has no option, because no value could set it.
    """
    for field in dataclasses.fields(value):
        name, found = f"{prefix}{field.name}", getattr(value, field.name)
        if dataclasses.is_dataclass(found):
            yield from of(found, f"{name}.")
        elif isinstance(found, tuple) and any(map(dataclasses.is_dataclass, found)):
            for index, item in enumerate(found):
                yield from of(item, f"{name}.{index}.")
        elif _is_plain(_kinds(type(value))[field.name]):
            yield Option(name, type(value), found)


def _is_plain(kind: Any) -> bool:
    """Return whether every value of a type can be given on the command line: it contains no dataclass."""
    if typing.get_origin(kind) is typing.Literal or kind is Any:
        return True
    members = [member for member in typing.get_args(kind) if member is not ...]
    return all(map(_is_plain, members)) if members else kind in PLAIN


@functools.cache
def _kinds(cls: type) -> dict[str, Any]:
    """Return a dict from field to declared type."""
    return typing.get_type_hints(cls, include_extras=True)


@functools.cache
def _texts(cls: type) -> dict[str, str]:
    """Return a dict from field to documentation on one line, of a class and its bases."""
    found: dict[str, str] = {}
    for one in reversed(cls.__mro__):
        if dataclasses.is_dataclass(one):
            (declared,) = ast.parse(textwrap.dedent(inspect.getsource(one))).body
            for node, after in zip(declared.body, declared.body[1:], strict=False):
                match node, after:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                        found[name] = " ".join(text.split())
    return found


def summary(experiment: Experiment, group: str) -> str:
    """Return the summary of the dataclass that a group of options belongs to, on one line."""
    value: Any = experiment
    for part in filter(None, group.split(".")):
        value = value[int(part)] if isinstance(value, tuple) else getattr(value, part)
    return " ".join((inspect.getdoc(type(value)) or "").partition("\n\n")[0].split())
