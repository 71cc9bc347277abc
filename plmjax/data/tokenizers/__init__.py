"""Tokenizers: trained on text or loaded from published files, and saved as the files transformers opens.

Every kind runs on the tokenizers library, so that transformers gives the same ids by construction; the SentencePiece
library trains its own kinds, whose models are then read into the same engine.
"""

from plmjax.data.tokenizers.kinds import KINDS, LAST
from plmjax.data.tokenizers.loading import load
from plmjax.data.tokenizers.tokenizer import Tokenizer
from plmjax.data.tokenizers.training import check, of_words, train

__all__ = ["KINDS", "LAST", "Tokenizer", "check", "load", "of_words", "train"]
