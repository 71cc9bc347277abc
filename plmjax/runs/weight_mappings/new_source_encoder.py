"""Translation into BART's language: the first of two stages adds a new encoder below it (Lewis et al. 2019, 3.4)."""

import dataclasses
from typing import Any

from plmjax.errors import UserError
from plmjax.experiment import WeightMapping
from plmjax.models.bart.bart import BartConfig
from plmjax.models.bart.translation import BartTranslationConfig


@dataclasses.dataclass(frozen=True)
class NewSourceEncoder(WeightMapping):
    """The checkpoint's BART with a source encoder below it, whose parameters are initialized from the seed."""

    layers: int = 6
    """Number of layers of the source encoder."""

    def model(self, origin: Any) -> Any:
        """Return a model of the same sizes, with the layers of the source encoder.

        Raises:
            UserError: the checkpoint's model is not a BART, or has a source encoder already.
        """
        if type(origin) is not BartConfig:
            raise UserError(
                f"Expected a BART without a source encoder, found {type(origin).__name__}; start from a BART, or "
                f"continue a run that has a source encoder with an experiment of the second stage."
            )
        return BartTranslationConfig.before(origin, self.layers)
