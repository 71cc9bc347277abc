"""Sinusoids of positions and of distances (Vaswani et al., arXiv 1706.03762, section 3.5)."""

import numpy as np


def sinusoids(positions: np.ndarray, features: int) -> np.ndarray:
    """Return float32 [... D] for positions or distances [...]: sin(p / 10000^(2i/D)) for each i, then the cosines."""
    angles = np.asarray(positions)[..., None] / 10000 ** (np.arange(0, features, 2) / features)
    return np.concatenate([np.sin(angles), np.cos(angles[..., : features // 2])], axis=-1).astype(np.float32)
