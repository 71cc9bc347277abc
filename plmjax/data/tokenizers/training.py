"""Train a tokenizer on text."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.tokenizers import engines, spelling
from plmjax.data.tokenizers.kinds import (
    BYTE_LEVEL,
    BYTES,
    CASED,
    COUNTED,
    KINDS,
    SENTENCEPIECE,
    SENTINEL,
    SENTINELS,
    byte_alphabet,
)
from plmjax.data.tokenizers.tokenizer import Tokenizer, check_names, special_tokens, surround, vocabulary_of
from plmjax.data.tokenizers.word_splitter import word_splitter
from plmjax.errors import UserError, nearest, quoted

CLASSES = {
    "wordpiece": "BertTokenizer",
    "byte-bpe": "RobertaTokenizer",
    "gpt2-bpe": "GPT2Tokenizer",
    "t5-unigram": "T5Tokenizer",
    "xlnet-unigram": "XLNetTokenizer",
}
"""Kind -> class of transformers that rebuilds the tokenizer from its files."""
SAMPLE = 64 * 2**20


def sample(kind: str) -> int | None:
    """Return the number of bytes of text on which to train a kind; None for all text, for the kinds of `COUNTED`.

    More text hardly changes the other kinds.
    """
    return None if kind in COUNTED else SAMPLE


def train(
    kind: str, vocab_size: int, texts: Iterable[str], directory: str | Path, *, lowercase: bool | None = None
) -> Tokenizer:
    """Train a tokenizer of `vocab_size` tokens (with special tokens) on `texts` and save it to `directory`.

    The same texts give the same tokenizer. They are held in memory, so pass a `sample` of them (`formats.texts`);
    a kind of `COUNTED` reads them one by one. `lowercase` also strips the accents of Latin, Greek and Cyrillic in the
    kinds that split words as BERT does (wordpiece, bpe, word). None lowercases all kinds that are not in `CASED`.

    Deviation: BERT's published tokenizer strips the marks of all scripts, which takes Korean, Hindi and Japanese apart
    (`spelling.lowercase_and_strip`).

    Raises:
        UserError: an unknown kind, no text, or a vocabulary too large or too small for the text.
    """
    from tokenizers import models, pre_tokenizers, trainers

    check(kind, vocab_size)
    special = KINDS[kind]
    lowercase = kind not in CASED if lowercase is None else lowercase
    texts = (text for text in texts if text and not text.isspace())
    first = next(texts, None)
    if first is None:
        raise UserError("Expected text to train a tokenizer on, found none; give --input files that hold some.")
    files, texts = {}, chain([first], texts)
    if kind in COUNTED:
        engine = _train_by_counts(kind, vocab_size, texts, lowercase)
        return _finish(engine, kind, lowercase, directory=directory, files=files)
    texts = list(texts)
    if kind in SENTENCEPIECE:
        files["spiece.model"] = _train_sentencepiece(kind, vocab_size, texts, lowercase)
        engine = engines.sentencepiece(files["spiece.model"], {"tokenizer_class": CLASSES.get(kind, "")})
    elif kind in ("wordpiece", "bpe"):
        engine = _train_word_merges(kind, vocab_size, texts, lowercase)
    else:
        tokens = list(dict.fromkeys(special.values()))
        options = {"vocab_size": vocab_size, "special_tokens": tokens, "show_progress": False}
        if kind in BYTE_LEVEL:
            engine = engines.byte_bpe(models.BPE(), prefix_space=False, lowercase=lowercase)
            trainer = trainers.BpeTrainer(initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), **options)
        else:
            engine = (
                engines.word(spelling.training_normalizer(lowercase)) if kind == "word" else engines.char(lowercase)
            )
            trainer = trainers.WordLevelTrainer(**options)
        engine.train_from_iterator(texts, trainer)
    return _finish(engine, kind, lowercase, directory=directory, files=files)


def from_words(words: Sequence[str], directory: str | Path) -> Tokenizer:
    """Create a tokenizer of the special tokens and these words, most frequent first, and save it to `directory`.

    The words determine its normalizer (`spelling.word_normalizer`) and its splitter (`word_splitter`). It lowercases
    unless more than one word in a hundred has a capital letter.
    """
    lowercase = not spelling.is_cased(words)
    normalizer = spelling.word_normalizer(words, lowercase)
    splitter = word_splitter([word for word in words if word == word.lower()] if lowercase else words)
    tokens = dict.fromkeys([*KINDS["word"].values(), *words])
    engine = engines.word(normalizer, splitter, {token: number for number, token in enumerate(tokens)})
    return _finish(engine, "word", lowercase, directory=directory, files={})


def _finish(engine, kind: str, lowercase: bool, *, directory: str | Path, files: dict[str, bytes]) -> Tokenizer:
    """Return the tokenizer of an engine with a vocabulary, and save it.

    files: files besides the usual ones of the kind.
    """
    from tokenizers import AddedToken

    special = KINDS[kind]
    # The space before a word is part of its token, so <mask> replaces both.
    stripping = {special["mask"]} if kind == "byte-bpe" else set()
    added = [] if kind in COUNTED else dict.fromkeys(special.values())
    engine.add_special_tokens([AddedToken(t, lstrip=t in stripping, special=True, normalized=False) for t in added])
    surround(engine, special)
    tokenizer = Tokenizer(engine, files | _native_files(engine, kind, lowercase, special), _roles(engine, kind))
    tokenizer.save(directory)
    return tokenizer


def _roles(engine, kind: str) -> dict[str, str]:
    return special_tokens({f"{role}_token": token for role, token in KINDS[kind].items()}, engine)


def special_vocabulary(kind: str) -> Vocabulary:
    """Return the special tokens that a tokenizer of a kind will have, before it is trained, without other tokens.

    They are its first tokens, except that the unknown word of `whitespace` has its place among the other words.
    """
    from tokenizers import Tokenizer, models

    names = [KINDS[kind]["eos"]] if kind == "whitespace" else KINDS[kind].values()
    table = {token: number for number, token in enumerate(dict.fromkeys(names))}
    engine = Tokenizer(models.WordLevel(table or {"": 0}, unk_token=""))
    return vocabulary_of(engine, "word", _roles(engine, kind))


def check(kind: str, vocab_size: int, special_names: Sequence[str] = ()) -> None:
    """Raise UserError for an unknown kind of tokenizer, a vocabulary too small for it, or names that it will lack.

    special_names: names of special tokens to read in a text.
    """
    if kind not in KINDS:
        raise UserError(f"Expected a kind of tokenizer, found {quoted(kind)}; {nearest(kind, KINDS)}")
    names = {*KINDS[kind].values()}
    names |= {SENTINEL.format(number=number) for number in range(SENTINELS if kind == "t5-unigram" else 0)}
    check_names(special_names, names)
    special = len(names)
    least = special + (BYTES if kind in BYTE_LEVEL else 2)
    if vocab_size < least:
        rest = f"{BYTES} bytes" if kind in BYTE_LEVEL else "2 of the text"
        raise UserError(
            f"Expected a vocabulary of at least {least} tokens for {kind}, {special} special ones and {rest}, "
            f"found {vocab_size}; raise --vocab_size."
        )


def _train_by_counts(kind: str, vocab_size: int, texts: Iterable[str], lowercase: bool):
    """Return the engine of a kind of `COUNTED`, with the symbols of these texts: the most frequent first.

    Equally frequent words are in the order of their first occurrence, and equally frequent bytes in ascending order.
    """
    from tokenizers import models

    engine = engines.whitespace(lowercase) if kind == "whitespace" else engines.byte(lowercase)
    if lowercase:
        texts = map(engine.normalizer.normalize_str, texts)
    if kind == "whitespace":
        counts = Counter()
        for text in texts:
            counts.update(text.split())
        end, unknown = KINDS[kind].values()
        del counts[end]  # a line end has the first id, for any count
        words = [word for word, _ in counts.most_common(vocab_size - 1)]
        words = words if unknown in words else [unknown, *words[: vocab_size - 2]]
        table = {word: number for number, word in enumerate([end, *words])}
        engine.model = models.WordLevel(table, unk_token=unknown)
        return engine
    occurrences = sum(np.bincount(np.frombuffer(text.encode(), np.uint8), minlength=BYTES) for text in texts)
    found = np.argsort(-occurrences, kind="stable")[: np.count_nonzero(occurrences)]
    if len(found) > vocab_size:
        raise UserError(
            f"Expected a vocabulary of at least {len(found)} tokens for {kind}, the bytes of this text, found "
            f"{vocab_size}; raise --vocab_size."
        )
    names = {number: character for character, number in byte_alphabet().items()}
    engine.model = models.WordLevel({names[number]: place for place, number in enumerate(found.tolist())})
    return engine


def _train_word_merges(kind: str, vocab_size: int, texts: list[str], lowercase: bool):
    """Train merges inside words. Marks distinguish parts of a word: ## inside it (wordpiece) or </w> at its end (bpe).

    The library numbers `##x` and `x</w>` in the order of a hash table with a random seed, and breaks ties between
    merges by number. To get the same result twice, these tokens are found here and passed as the first tokens.
    """
    from tokenizers import models, trainers

    special = list(KINDS[kind].values())
    if kind == "wordpiece":
        engine = engines.wordpiece({"[UNK]": 0}, lowercase=False)
    else:
        engine = engines.bpe(models.BPE(unk_token="[UNK]", end_of_word_suffix="</w>"), lowercase=False)
    engine.normalizer = normalizer = spelling.training_normalizer(lowercase)
    chunks = Counter(chain.from_iterable(engine.normalizer.normalize_str(text).split() for text in texts))
    characters: Counter[str] = Counter()
    marked: set[str] = set()
    for chunk, count in chunks.items():
        for word, _ in engine.pre_tokenizer.pre_tokenize_str(chunk):
            for character in word:
                characters[character] += count
            marked.update(word[1:] if kind == "wordpiece" else word[-1])
    # Chinese needs thousands of characters, but they must not fill an English vocabulary.
    limit = min(max(1000, vocab_size // 2), (vocab_size - len(special)) // 2)
    alphabet = sorted(sorted(characters, key=lambda c: (-characters[c], c))[:limit])
    first = special + [f"##{c}" if kind == "wordpiece" else f"{c}</w>" for c in alphabet if c in marked]
    options = {"initial_alphabet": alphabet, "limit_alphabet": len(alphabet), "special_tokens": first}
    options |= {"vocab_size": vocab_size, "show_progress": False}
    if kind == "wordpiece":
        engine.train_from_iterator(texts, trainers.WordPieceTrainer(**options))
        trained = engines.wordpiece(engine.get_vocab(), lowercase=False)
        trained.normalizer = normalizer
        return trained
    engine.train_from_iterator(texts, trainers.BpeTrainer(end_of_word_suffix="</w>", **options))
    model = json.loads(engine.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    trained = engines.bpe(models.BPE(model["vocab"], merges, unk_token="[UNK]", end_of_word_suffix="</w>"), False)
    trained.normalizer = normalizer
    return trained


def _train_sentencepiece(kind: str, vocab_size: int, texts: list[str], lowercase: bool) -> bytes:
    import io

    import sentencepiece

    model, special, sentinels = io.BytesIO(), KINDS[kind], SENTINELS if kind == "t5-unigram" else 0
    own = ("pad", "unk", "bos", "eos")
    numbers = {f"{role}_id": number for number, role in enumerate(special) if role in own}
    # SentencePiece silently skips lines above its limit of 4192 bytes, so texts are split into shorter pieces.
    pieces = (piece for text in texts for piece in re.findall(r"\S.{0,900}(?=\s|$)|\S{1,1000}", text))
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=pieces,
            model_writer=model,
            model_type=kind.partition("-")[2],
            vocab_size=vocab_size - sentinels,
            character_coverage=0.9995,
            normalization_rule_name="nmt_nfkc_cf" if lowercase else "nmt_nfkc",
            hard_vocab_limit=False,
            num_threads=1,  # expectation-maximization sums floats in the order of its threads
            control_symbols=[token for role, token in special.items() if role not in own],
            minloglevel=2,
            **{"bos_id": -1, "eos_id": -1} | numbers,
        )
    except RuntimeError as error:
        if characters := re.search(r"smaller than required_chars\D*\d+ vs (\d+)", str(error)):
            raise UserError(
                f"Expected a vocabulary of at least {int(characters[1]) + sentinels} tokens for {kind}, the special "
                f"ones and the characters of this text, found {vocab_size}; raise --vocab_size."
            ) from error
        reason = " ".join(str(error).split())
        raise UserError(
            f"Expected SentencePiece to train {vocab_size} tokens on this text, found that it cannot ({reason}); ask "
            "for fewer, or give more text."
        ) from error
    return model.getvalue()


def _native_files(engine, kind: str, lowercase: bool, special: dict[str, str]) -> dict[str, bytes]:
    """Return the files of the kind's published form, and the tokenizer_config.json for them."""
    files, own_class = {}, CLASSES.get(kind)
    if kind == "wordpiece":
        table = engine.get_vocab(with_added_tokens=True)
        files["vocab.txt"] = "".join(f"{token}\n" for token in sorted(table, key=table.get)).encode()
    elif kind in (*BYTE_LEVEL, "bpe"):
        model = json.loads(engine.to_str())["model"]
        files["vocab.json"] = json.dumps(model["vocab"], ensure_ascii=False).encode()
        files["merges.txt"] = "".join(["#version: 0.2\n", *(f"{a} {b}\n" for a, b in model["merges"])]).encode()
    config = {f"{role}_token": token for role, token in special.items()}
    # These classes rebuild normalization from their options. None has an option for plmjax's lower case.
    if kind == "wordpiece" and not lowercase:
        config |= {"do_lower_case": False, "strip_accents": None, "tokenize_chinese_chars": True}
    if kind == "byte-bpe":
        mask = {"content": special["mask"], "lstrip": True, "normalized": False, "rstrip": False, "single_word": False}
        config["mask_token"] = {"__type": "AddedToken", "special": True} | mask
    if kind in ("wordpiece", *BYTE_LEVEL) and lowercase:
        own_class = None
    if kind == "t5-unigram":
        config |= {"extra_ids": SENTINELS}
    config["tokenizer_class"] = own_class or "PreTrainedTokenizerFast"
    files["tokenizer_config.json"] = (json.dumps(config, indent=2) + "\n").encode()
    return files
