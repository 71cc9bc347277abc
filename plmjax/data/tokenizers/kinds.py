"""The kinds of tokenizers, and the names that published vocabularies give their special tokens."""

BERT_SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
ROBERTA_SPECIAL = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
_GPT2_END = "<|endoftext|>"
GPT2_SPECIAL = {"unk": _GPT2_END, "bos": _GPT2_END, "eos": _GPT2_END}
ALBERT_SPECIAL = {"pad": "<pad>", "unk": "<unk>", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
T5_SPECIAL = {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}
KINDS = {
    "wordpiece": BERT_SPECIAL,
    "byte-bpe": ROBERTA_SPECIAL,
    "gpt2-bpe": GPT2_SPECIAL,
    "bpe": BERT_SPECIAL,
    "sentencepiece-unigram": ALBERT_SPECIAL,
    "sentencepiece-bpe": ALBERT_SPECIAL,
    "t5-unigram": T5_SPECIAL,
    "word": BERT_SPECIAL,
    "char": BERT_SPECIAL,
}
SENTENCEPIECE = ("sentencepiece-unigram", "sentencepiece-bpe", "t5-unigram")
"""Kinds that SentencePiece trains."""
BYTE_LEVEL = ("byte-bpe", "gpt2-bpe")
"""Kinds that merge bytes: RoBERTa's, and the one of GPT-2, whose only special token stands between documents."""
CASED = (*BYTE_LEVEL, "t5-unigram")
"""Kinds whose published tokenizers keep upper case (GPT-2, RoBERTa, T5); those of the others have an uncased form,
which is trained unless it is said otherwise."""
BYTES = 256
SENTINELS = 100
"""Tokens for hidden spans of a text that T5's tokenizer has behind its pieces."""
SENTINEL = "<extra_id_{number}>"
"""How T5 names them; number 0 is the last id, 1 the one before it, ..."""
# The names published vocabularies give a role, in order of preference.
ROLES = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>", "<|endoftext|>"),
    "cls": ("[CLS]", "<cls>", "<s>"),
    "sep": ("[SEP]", "<sep>", "</s>"),
    "mask": ("[MASK]", "<mask>"),
    "bos": ("<s>", "[BOS]", "[CLS]", "<|endoftext|>"),
    "eos": ("</s>", "[EOS]", "[SEP]", "<|endoftext|>"),
    # openai/finetune-transformer-lm train.py
    "start": ("_start_",),
    "delimiter": ("_delimiter_",),
    "extract": ("_classify_",),
}
OTHERS = ("start", "delimiter", "extract")
"""Roles that few systems have (`Vocabulary.others`)."""

LAST = "tokenizer.json"
"""Written last into a tokenizer's folder: one without it was never finished."""
