"""Tokenizers: trained on text or loaded from published files, and saved as files that transformers can open.

Every kind runs on the tokenizers library, so that transformers gives the same ids. The SentencePiece library trains its
own kinds; the tokenizers library then reads these models.
"""

from plmjax.data.tokenizers.kinds import KINDS, LAST
from plmjax.data.tokenizers.loading import load
from plmjax.data.tokenizers.tokenizer import Tokenizer
from plmjax.data.tokenizers.training import check, from_words, sample, special_vocabulary, train

__all__ = ["KINDS", "LAST", "Tokenizer", "check", "from_words", "load", "sample", "special_vocabulary", "train"]
