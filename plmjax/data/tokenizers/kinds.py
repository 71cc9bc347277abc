"""The kinds of tokenizers, and the names of special tokens in published vocabularies."""

BERT_SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
ROBERTA_SPECIAL = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
_GPT2_END = "<|endoftext|>"
GPT2_SPECIAL = {"unk": _GPT2_END, "bos": _GPT2_END, "eos": _GPT2_END}
ALBERT_SPECIAL = {"pad": "<pad>", "unk": "<unk>", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
T5_SPECIAL = {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}
XLNET_SPECIAL = {
    "unk": "<unk>",
    "bos": "<s>",
    "eos": "</s>",
    "cls": "<cls>",
    "sep": "<sep>",
    "pad": "<pad>",
    "mask": "<mask>",
    "between": "<eod>",
    "paragraph_end": "<eop>",
}
KINDS = {
    "wordpiece": BERT_SPECIAL,
    "byte-bpe": ROBERTA_SPECIAL,
    "gpt2-bpe": GPT2_SPECIAL,
    "bpe": BERT_SPECIAL,
    "sentencepiece-unigram": ALBERT_SPECIAL,
    "sentencepiece-bpe": ALBERT_SPECIAL,
    "t5-unigram": T5_SPECIAL,
    "xlnet-unigram": XLNET_SPECIAL,
    "word": BERT_SPECIAL,
    "char": BERT_SPECIAL,
    "whitespace": {"eos": "<eos>", "unk": "<unk>"},
    "byte": {},
}
SENTENCEPIECE = ("sentencepiece-unigram", "sentencepiece-bpe", "t5-unigram", "xlnet-unigram")
"""Kinds that are trained by SentencePiece."""
BYTE_LEVEL = ("byte-bpe", "gpt2-bpe")
"""Kinds that merge bytes: RoBERTa's, and GPT-2's, whose only special token separates documents."""
COUNTED = ("whitespace", "byte")
"""Kinds whose vocabulary has the symbols of the whole training text, the most frequent first. `whitespace` has the
words between white space, with `<eos>` for a line end, as Transformer-XL reads WikiText; `byte` has the bytes that
occur, as Transformer-XL reads enwik8. Their special tokens are words like others.
"""
CASED = (*BYTE_LEVEL, *COUNTED, "t5-unigram", "xlnet-unigram")
"""Kinds whose published tokenizers keep upper case (GPT-2, RoBERTa, Transformer-XL, T5, XLNet). The other kinds have an
uncased form, which is the default in training.
"""
BYTES = 256
SENTINELS = 100
"""Number of T5's sentinel tokens, which replace masked spans and follow all pieces."""
SENTINEL = "<extra_id_{number}>"
"""Name of a sentinel in T5. Number 0 is the last id, 1 the one before it, ..."""
# Names of each role in published vocabularies, in order of preference.
ROLES = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>", "<|endoftext|>"),
    "cls": ("[CLS]", "<cls>", "<s>"),
    "sep": ("[SEP]", "<sep>", "</s>"),
    "mask": ("[MASK]", "<mask>"),
    "bos": ("<s>", "[BOS]", "[CLS]", "<|endoftext|>"),
    "eos": ("</s>", "[EOS]", "[SEP]", "<|endoftext|>", "<eos>"),
    # openai/finetune-transformer-lm train.py
    "start": ("_start_",),
    "delimiter": ("_delimiter_",),
    "extract": ("_classify_",),
    # zihangdai/xlnet data_utils.py
    "between": ("<eod>",),
    "paragraph_end": ("<eop>",),
}
OTHERS = ("start", "delimiter", "extract", "between", "paragraph_end")
"""Roles that exist in few systems (`Vocabulary.others`)."""


def byte_alphabet() -> dict[str, int]:
    """Return a dict from character to byte of byte-level vocabularies (openai/gpt-2 src/encoder.py)."""
    themselves = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(BYTES) if byte not in themselves]
    return {chr(byte): byte for byte in themselves} | {chr(BYTES + place): byte for place, byte in enumerate(others)}


LAST = "tokenizer.json"
"""File that is written last into a tokenizer's folder. A folder without it was never finished."""
