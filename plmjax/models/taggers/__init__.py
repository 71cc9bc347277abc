"""Taggers of words, above recurrent layers or language models."""
