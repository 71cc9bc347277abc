"""Parts of an experiment whose class an option chooses by name."""

from typing import ClassVar


class Choice:
    """A part of an experiment whose class is chosen by name on the command line: `--optimizer lamb`."""

    name: ClassVar[str] = ""
    """Name of the class on the command line; empty for a base class."""

    @classmethod
    def choices(cls) -> dict[str, type["Choice"]]:
        """Return a dict from name to class for all classes that can replace this one."""
        (family,) = (base for base in cls.__mro__ if Choice in base.__bases__)
        return {one.name: one for one in _subclasses(family) if one.name}


def _subclasses(cls: type) -> list[type]:
    return [found for one in cls.__subclasses__() for found in (one, *_subclasses(one))]
