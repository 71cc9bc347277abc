"""Named sizes in the class of a config."""

import dataclasses

from plmjax.contracts.sizes import Size
from plmjax.models.bert import BertConfig


@dataclasses.dataclass(frozen=True)
class Config:
    """Two numbers."""

    width: int = 1
    depth: int = 2

    wide = Size("Wider.", width=10)


def test_a_size_makes_the_config_and_arguments_override_it() -> None:
    assert Config.wide() == Config(10, 2) and Config.wide(width=3, depth=4) == Config(3, 4)
    assert Config(5, 5).wide() == Config(10, 2)
    assert [field.name for field in dataclasses.fields(Config)] == ["width", "depth"]
    assert type(BertConfig.base()) is BertConfig and "110,106,428 parameters" in BertConfig.base.__doc__
