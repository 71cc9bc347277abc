"""Documents of random words for the tests of preparation."""

import numpy as np

WORDS = "the a river stone walks sings old green under over bridge city child reads slowly never again".split()


def document(seed: int, sentences: int = 12) -> str:
    """Sentences of random words, a line each."""
    draws = np.random.default_rng(seed)
    return "\n".join(" ".join(draws.choice(WORDS, draws.integers(4, 12))).capitalize() + "." for _ in range(sentences))


CLEAN = ("c4_short_lines", "exact_duplicates", "three_sentence_spans", "c4_end_marks", "near_duplicates")
"""Rules of a cleaning in several stages."""
