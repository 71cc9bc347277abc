"""A tokenizer: text to ids and back, its files, and the properties of its vocabulary that a training step needs."""

import contextlib
import functools
import hashlib
import itertools
import json
import re
import secrets
import string
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.tokenizers.kinds import LAST, OTHERS, ROLES, SENTINEL, XLNET_SPECIAL, byte_alphabet
from plmjax.data.tokenizers.word_cache import WordCache, components
from plmjax.errors import UserError, nearest, quoted
from plmjax.files import json_text, storage

if TYPE_CHECKING:  # code that needs no tokenizer runs without the library
    import tokenizers

_SURROGATES = re.compile("[\ud800-\udfff]")


@contextlib.contextmanager
def _explain_failures(texts: Iterable[str], alphabet: str) -> Iterator[None]:
    """Convert an error of the tokenizers library during encoding into a UserError.

    The library's pattern engine aborts with a Rust panic, which is not an Exception.

    alphabet: the bytes of a tokenizer of bytes, each as the character of that number; "" for another kind.
    """
    try:
        yield
    except (UserError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        for text in texts:
            if _SURROGATES.search(text):  # an invalid UTF-8 byte of an option also becomes one
                raise UserError(
                    f"Expected text, found half of a surrogate pair, which is no character, in {quoted(text)}; leave "
                    f"it out."
                ) from None
        for character in itertools.chain.from_iterable(texts) if alphabet else ():
            if not all(byte in alphabet for byte in character.encode().decode("latin-1")):
                raise UserError(
                    f"Expected text of the {len(alphabet)} bytes that the tokenizer was trained on, found "
                    f"{quoted(character)}; leave it out, or take a tokenizer of another kind."
                ) from None
        reason = json_text.reason(error)
        raise UserError(
            f"Expected a tokenizer that encodes every text, found that it cannot encode one of these ({reason}); train "
            f"or take another tokenizer."
        ) from error


class Tokenizer:
    """Converts text to ids and back. Made by `train` and `load`.

    The name of a special token with a role in a text, such as [SEP], <extra_id_0> or <|endoftext|>, is plain text and
    never gives its id, as in the published tokenizers of BERT, GPT-2 and SentencePiece. `with_parsed_special` returns a
    tokenizer that parses such names. Special tokens without a role, such as added entity markers, are always parsed,
    because they have no other use.

    Deviation: transformers reads the name of any special token in any text.
    """

    def __init__(
        self,
        engine: "tokenizers.Tokenizer",
        files: dict[str, bytes],
        special: dict[str, str],
        read: frozenset[int] = frozenset(),
    ):
        """Create a tokenizer from a tokenizers.Tokenizer.

        Args:
            engine: the tokenizer of the library.
            files: other files of the tokenizer, name -> content.
            special: role -> token.
            read: ids of special tokens with a role that are parsed from their names in a text; those without a role
                always are.
        """
        self._engine = engine
        self._files = files
        self._special = special
        description = json.loads(engine.to_str())
        self.kind = _kind(description)
        # Later steps (padding, truncation, special tokens around a text) do not change the ids.
        determining = {k: description[k] for k in ("added_tokens", "normalizer", "pre_tokenizer", "model")}
        if self.kind == "sentencepiece-unigram":  # scores are float32; their decimal form is not read back exactly
            rounded = [(piece, float(np.float32(score))) for piece, score in description["model"]["vocab"]]
            determining["model"] = description["model"] | {"vocab": rounded}
        self.fingerprint = hashlib.sha256(json.dumps(determining, sort_keys=True).encode()).hexdigest()
        self.vocabulary = vocabulary_of(engine, self.kind, special)
        placed = {engine.token_to_id(token) for token in special.values()} | {*self.vocabulary.sentinels}
        self._read = frozenset(self.vocabulary.special) - placed | read
        hidden = {engine.id_to_token(index) for index in self.vocabulary.special if index not in self._read}
        self._hidden = frozenset(token for token in hidden if len(token) > 1)  # a character is a part of any text
        self._reader, visible = _hide_tokens(engine, description, self._hidden)
        self._cache = WordCache(self._reader, visible)
        bytes_of = byte_alphabet()
        known = [token for token in engine.get_vocab() if token in bytes_of] if self.kind == "byte" else []
        self._alphabet = "".join(chr(bytes_of[token]) for token in known)

    @property
    def special(self) -> Mapping[str, str]:
        """Role (pad, unk, cls, sep, mask, bos, eos, ...) -> special token, for the roles that exist."""
        return self._special

    def with_parsed_special(self, special: Iterable[int] | None = None) -> "Tokenizer":
        """Return the same tokenizer, but with special tokens parsed from their names in a text.

        special: ids of these tokens; None parses all, as transformers does.
        """
        read = frozenset(self.vocabulary.special if special is None else special)
        return self if read <= self._read else Tokenizer(self._engine, self._files, self._special, self._read | read)

    def with_parsed_names(self, names: Iterable[str]) -> "Tokenizer":
        """Return the same tokenizer, but with the special tokens of these names parsed in a text.

        Raises:
            UserError: a name in --special_names that no special token has, or whose token is never parsed.
        """
        if not (names := list(names)):
            return self
        special, everything = self.vocabulary.special, self.with_parsed_special()
        ids = zip(self.tokens(special), special, strict=True)
        known = {name: number for name, number in ids if number in everything.encode(name)}
        check_names(names, known)
        return self.with_parsed_special(known[name] for name in names)

    @property
    def names_read(self) -> Mapping[int, str]:
        """Id -> name of each special token that is parsed in a text."""
        return {number: self._engine.id_to_token(number) for number in sorted(self._read)}

    def names_in(self, texts: Iterable[str]) -> Counter[str]:
        """Count the names of special tokens in texts that are not parsed as these tokens."""
        if self._names is None:
            return Counter()
        return Counter(itertools.chain.from_iterable(map(self._names.findall, texts)))

    @functools.cached_property
    def _names(self) -> re.Pattern | None:
        """Pattern of the names of special tokens that are read as other tokens in a text.

        WikiText's <unk> is not one of them, because it is read as itself, the unknown word.
        """
        read = zip(self._hidden, self.encode_batch([*self._hidden]), strict=True)
        names = sorted((token for token, ids in read if ids != [self._engine.token_to_id(token)]), key=len)
        return re.compile("|".join(map(re.escape, reversed(names)))) if names else None

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, without the special tokens that a model needs around it."""
        return self.encode_arrays([text])[0].tolist()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text."""
        ids, lengths = self.encode_arrays(texts)
        ids, ends = ids.tolist(), np.cumsum(lengths).tolist()
        return [ids[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def encode_arrays(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of all texts, concatenated, int32 [N], and the number of ids of each text, int32 [texts]."""
        with _explain_failures(texts, self._alphabet):
            return self._cache.encode(texts)

    def normalize(self, text: str) -> str:
        """Return the text as the vocabulary spells it, for example in lower case."""
        return self._engine.normalizer.normalize_str(text) if self._engine.normalizer else text

    def encode_words(self, sentences: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        """Return the ids of every word of every sentence, each encoded as after a space.

        Every word has at least one id: a word that normalization removes completely, such as a lone control character,
        becomes the unknown token.
        """
        space = " " if self.kind == "byte-bpe" else ""
        pieces = iter(self.encode_batch([space + word for words in sentences for word in words]))
        return [[next(pieces) or [max(self.vocabulary.unknown, 0)] for _ in words] for words in sentences]

    def encode_spans(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return for each text its ids, int32 [N], and the character span of each id, int32 [N 2]: first, last + 1.

        Characters that normalization drops, such as combining marks, belong to the token before them.
        """
        with _explain_failures(texts, self._alphabet):
            encodings = self._reader.encode_batch(list(texts), add_special_tokens=False)
        return [
            (np.array(one.ids, np.int32), _with_dropped(text, np.array(one.offsets, np.int32).reshape(-1, 2)))
            for text, one in zip(texts, encodings, strict=True)
        ]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`, without special tokens."""
        return self._engine.decode([int(i) for i in ids], skip_special_tokens=True)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the token of every id."""
        return [self._engine.id_to_token(int(i)) for i in ids]

    def with_special(self, roles: Sequence[str]) -> "Tokenizer":
        """Return the same tokenizer with a special token for each of these roles, after all others."""
        import tokenizers

        added = {role: ROLES[role][0] for role in roles}
        engine = tokenizers.Tokenizer.from_str(self._engine.to_str())
        engine.add_special_tokens([tokenizers.AddedToken(one, normalized=False) for one in added.values()])
        return Tokenizer(engine, self._files, self._special | added, self._read)

    def __reduce__(self):
        return _restore, (self._engine.to_str(), self._files, self._special, self._read)

    def save(self, directory: str | Path) -> None:
        """Write tokenizer.json, tokenizer_config.json and the kind's own files (vocab.txt, ...) to `directory`."""
        directory = storage.path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in self._files.items():
            storage.write(directory / name, content)
        storage.write(directory / LAST, self._engine.to_str(pretty=True))


def check_names(names: Iterable[str], known: Collection[str]) -> None:
    """Raise UserError for a name in --special_names that is not the name of a special token.

    known: the names of all special tokens.
    """
    for name in names:
        if name not in known:
            raise UserError(
                f"Expected names of special tokens of the tokenizer in --special_names, found {quoted(name)}; "
                f"{nearest(name, known)}"
            )


def _with_dropped(text: str, spans: np.ndarray) -> np.ndarray:
    """Extend the spans [N 2] of a text's tokens by the characters, other than white space, that no token covers.

    They belong to the token that ends before them; after white space, to the token that begins after them.
    """
    covered = np.zeros(len(text) + 1, np.int64)
    np.add.at(covered, spans[:, 0], 1)
    np.add.at(covered, spans[:, 1], -1)
    uncovered = np.flatnonzero(np.cumsum(covered)[:-1] == 0)
    dropped = np.array([place for place in uncovered.tolist() if not text[place].isspace()], np.int64)
    whole = spans.copy()
    for run in np.split(dropped, np.flatnonzero(np.diff(dropped) > 1) + 1) if len(dropped) else ():
        before, behind = spans[:, 1] == run[0], spans[:, 0] == run[-1] + 1
        whole[before, 1] = run[-1] + 1
        if not before.any():
            whole[behind, 0] = run[0]
    return whole


def _restore(description: str, files: dict[str, bytes], special: dict[str, str], read: frozenset[int]) -> Tokenizer:
    """Return a tokenizer from a pickle, for the processes that prepare a dataset."""
    import tokenizers

    return Tokenizer(tokenizers.Tokenizer.from_str(description), files, special, read)


def _hide_tokens(engine: "tokenizers.Tokenizer", description: dict, hidden: Collection[str]) -> tuple[Any, dict]:
    """Return an engine that gives the same ids but never the ids of hidden tokens, and its description.

    The hidden tokens keep their ids under random names, which no text has. Removing them from the added tokens is not
    enough: a normalizer turns <PAD> into <pad>, which is one of SentencePiece's pieces. The returned description has no
    hidden tokens among its added tokens.
    """
    import tokenizers

    if not hidden:
        return engine, description
    names = {token: f"{token}{secrets.token_hex(8)}" for token in hidden}
    options = {name: value for name, value in description["model"].items() if value is not None}
    kind, vocabulary, merges = options.pop("type"), options.pop("vocab"), options.pop("merges", None)
    if isinstance(vocabulary, dict):
        vocabulary = {names.get(token, token): index for token, index in vocabulary.items()}
    else:
        vocabulary = [(names.get(piece, piece), score) for piece, score in vocabulary]
    if "unk_token" in options:
        options["unk_token"] = names.get(options["unk_token"], options["unk_token"])
    if merges is not None:
        start = len(options.get("continuing_subword_prefix", ""))
        options["merges"] = [
            (first, second) for first, second in merges if hidden.isdisjoint((first, second, first + second[start:]))
        ]
    # Built from its parts: scores are not read back exactly from JSON, and a pattern of many words is read slowly.
    reader = tokenizers.Tokenizer(getattr(tokenizers.models, kind)(vocabulary, **options))
    reader.normalizer, reader.pre_tokenizer = engine.normalizer, engine.pre_tokenizer
    steps = components(description, "normalizer")
    marks = {step["content"].strip() for step in steps if step["type"] == "Replace"} & hidden
    if marks:  # a line end is the word <eos> in WikiText
        spelling = json.dumps({"type": "Sequence", "normalizers": steps})
        for mark in marks:
            spelling = spelling.replace(mark, names[mark])
        normalizer = tokenizers.normalizers.Sequence([])
        normalizer.__setstate__(spelling.encode())
        reader.normalizer = normalizer
    added = [
        token | {"content": names.get(token["content"], token["content"])} for token in description["added_tokens"]
    ]
    fields = [{name: value for name, value in token.items() if name != "id"} for token in added]
    reader.add_tokens([tokenizers.AddedToken(**one) for one in fields])
    visible = description | {"added_tokens": [token for token in added if token["content"] not in names.values()]}
    return reader, visible


def _kind(description: dict) -> str:
    model = description["model"]["type"]
    kinds = {part["type"] for part in components(description, "pre_tokenizer")}
    if model == "BPE":
        return "byte-bpe" if "ByteLevel" in kinds else "sentencepiece-bpe" if "Metaspace" in kinds else "bpe"
    if model == "WordLevel":
        if "ByteLevel" in kinds:
            return "byte"
        return "char" if kinds == {"Split"} else "whitespace" if kinds == {"WhitespaceSplit"} else "word"
    return {"WordPiece": "wordpiece", "Unigram": "sentencepiece-unigram"}[model]


def vocabulary_of(engine, kind: str, special: dict[str, str]) -> Vocabulary:
    """Return the properties of a tokenizer's tokens. special: role -> special token."""
    # Padded tables of published models may contain ids that the vocabulary lacks, so size is the largest id plus one.
    table = engine.get_vocab(with_added_tokens=True)
    size = max(table.values()) + 1
    tokens = [""] * size
    for token, index in table.items():
        tokens[index] = token
    ids = {role: table.get(token, -1) for role, token in special.items()}
    excluded = {i for i in ids.values() if i >= 0}
    excluded |= {i for i, token in engine.get_added_tokens_decoder().items() if token.special}
    starts = {"byte-bpe": "Ġ", "sentencepiece-unigram": "▁", "sentencepiece-bpe": "▁"}
    if kind == "wordpiece":
        continuation = np.array([token.startswith("##") for token in tokens])
    elif kind in starts:
        # A single punctuation mark is not a part of the word before it (ALBERT's and XLNet's
        # create_pretraining_data.py).
        marks = set(string.punctuation) if kind.startswith("sentencepiece") else set()
        continuation = np.array([not token.startswith(starts[kind]) and token not in marks for token in tokens])
        continuation[sorted(excluded)] = False
    else:  # An end-of-word suffix or a single character does not tell if the token continues a word.
        continuation = np.zeros(size, bool) if kind in ("word", "whitespace") else None
    return Vocabulary(
        size=size,
        pad=ids.get("pad", -1),
        unknown=ids.get("unk", -1),
        cls=ids.get("cls", -1),
        sep=ids.get("sep", -1),
        mask=ids.get("mask", -1),
        begin=ids.get("bos", -1),
        end=ids.get("eos", -1),
        special=tuple(sorted(excluded)),
        continuation=continuation,
        others={role: ids[role] for role in OTHERS if ids.get(role, -1) >= 0},
        sentinels=_sentinels(table),
        full_stop=table.get(".</w>", table.get(".", -1)),
        bytes=kind == "byte",
    )


def _sentinels(table: Mapping[str, int]) -> tuple[int, ...]:
    """Return the ids of the sentinels 0, 1, ..., as long as each id is one less than the id before it."""
    first = table.get(SENTINEL.format(number=0), -1)
    found = (table.get(SENTINEL.format(number=number), -1) for number in itertools.count())
    counted = itertools.takewhile(lambda pair: pair[0] == first - pair[1] >= 0, zip(found, itertools.count()))
    return tuple(index for index, _ in counted)


def special_tokens(config: dict, engine) -> dict[str, str]:
    """Return a dict from role to special token: the configured names, or else the usual names in the vocabulary.

    In a vocabulary of the words between white space, usual names may be words of its text, so only added tokens are
    used.
    """
    from tokenizers import pre_tokenizers

    table = engine.get_vocab(with_added_tokens=True)
    of_text = isinstance(engine.pre_tokenizer, pre_tokenizers.WhitespaceSplit)
    known = {token.content for token in engine.get_added_tokens_decoder().values()} if of_text else table
    special = {}
    for role, usual in ROLES.items():
        named = config.get(f"{role}_token")
        named = named["content"] if isinstance(named, dict) else named
        if role == "sep" and "cls" not in special:
            usual = ()  # </s> is T5's end of a text
        token = named if named in table else next((token for token in usual if token in known), None)
        if token is not None:
            special[role] = token
    return special


def surround(engine, special: dict[str, str]) -> None:
    """Make the saved tokenizer.json put the special tokens around a text, as a model's own tokenizer does.

    T5's end token ends each text. XLNet's [CLS] is the last token. Tokenizers without such tokens are left unchanged.
    """
    from tokenizers.processors import TemplateProcessing

    if "cls" in special and "sep" in special:
        cls, sep = special["cls"], special["sep"]
        single, pair, used = f"{cls} $A {sep}", f"{cls} $A {sep} $B:1 {sep}:1", (cls, sep)
        if cls == XLNET_SPECIAL["cls"]:
            single, pair = f"$A {sep} {cls}:2", f"$A {sep} $B:1 {sep}:1 {cls}:2"
    elif engine.token_to_id(SENTINEL.format(number=0)) is not None and "eos" in special:
        end = special["eos"]
        single, pair, used = f"$A {end}", f"$A {end} $B {end}", (end,)
    else:
        return
    tokens = [(token, engine.token_to_id(token)) for token in used]
    engine.post_processor = TemplateProcessing(single=single, pair=pair, special_tokens=tokens)
