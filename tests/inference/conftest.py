"""The language model of these tests in transformers."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.optional import torch, transformers

Oracle = Callable[[Sequence[int]], np.ndarray]


@pytest.fixture(scope="session")
def oracle(decoder_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    """Tokens -> log-probabilities of the token after each, float64 [T V], of `decoder_run` in transformers."""

    from plmjax.exchange.run_directories import export_checkpoint

    folder = tmp_path_factory.mktemp("exported")
    export_checkpoint(decoder_run, folder)
    model = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()

    def log_probabilities(tokens: Sequence[int]) -> np.ndarray:
        with torch.no_grad():
            return torch.log_softmax(model(torch.tensor([list(tokens)])).logits[0].double(), -1).numpy()

    return log_probabilities
