"""A ULMFiT model that starts from an AWD-LSTM, with other dropout rates."""

import dataclasses
from typing import Any

from plmjax.errors import UserError
from plmjax.experiment import WeightMapping
from plmjax.models.awd_lstm import AwdLstmConfig
from plmjax.models.ulmfit import UlmfitConfig


@dataclasses.dataclass(frozen=True)
class AwdLstmDropouts(WeightMapping):
    """The checkpoint's AWD-LSTM as a ULMFiT model with other dropout rates; the defaults are those of its classifier.

    Source: fastai text/models/awdlstm.py, `awd_lstm_clas_config`. fastai multiplies all rates by `drop_mult`.
    """

    embedding: float = 0.05
    """Dropout of whole tokens of the vocabulary."""
    input: float = 0.4
    """Dropout of the first layer's input."""
    weight: float = 0.5
    """Dropout of the recurrent weights."""
    hidden: float = 0.3
    """Dropout of the other layers' inputs."""
    output: float = 0.4
    """Dropout of the last layer's output, or of its pooled values."""

    def model(self, origin: Any) -> UlmfitConfig:
        """Return a model of the same sizes.

        Raises:
            UserError: the checkpoint's model is not an AWD-LSTM.
        """
        if not isinstance(origin, AwdLstmConfig):
            raise UserError(f"Expected an AWD-LSTM, found {type(origin).__name__}; name another checkpoint in --from.")
        rates = {f"{place}_dropout": rate for place, rate in dataclasses.asdict(self).items()}
        return dataclasses.replace(UlmfitConfig.above(origin), **rates)
