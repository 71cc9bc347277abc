"""Tokenizers: trained on text or loaded from published files, and saved as the files transformers opens.

Every kind runs on the tokenizers library, so that transformers gives the same ids by construction; the SentencePiece
library trains its own two kinds, whose models are then read into the same engine.
"""

import hashlib
import json
import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from plmjax import storage
from plmjax.data import engines
from plmjax.data.word_cache import WordCache, components
from plmjax.errors import UserError, nearest, quoted
from plmjax.vocabulary import Vocabulary

BERT_SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
ROBERTA_SPECIAL = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
_GPT2_END = "<|endoftext|>"
GPT2_SPECIAL = {"unk": _GPT2_END, "bos": _GPT2_END, "eos": _GPT2_END}
ALBERT_SPECIAL = {"pad": "<pad>", "unk": "<unk>", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
KINDS = {
    "wordpiece": BERT_SPECIAL,
    "byte-bpe": ROBERTA_SPECIAL,
    "gpt2-bpe": GPT2_SPECIAL,
    "bpe": BERT_SPECIAL,
    "sentencepiece-unigram": ALBERT_SPECIAL,
    "sentencepiece-bpe": ALBERT_SPECIAL,
    "word": BERT_SPECIAL,
    "char": BERT_SPECIAL,
}
BYTE_LEVEL = ("byte-bpe", "gpt2-bpe")
"""Kinds that merge bytes: RoBERTa's, and the one of GPT-2, whose only special token stands between documents."""
CASED = BYTE_LEVEL
"""Kinds whose published tokenizers keep upper case (GPT-2, RoBERTa); those of the others have an uncased form, which is
trained unless it is said otherwise."""
BYTES = 256
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


class Tokenizer:
    """Text to ids and back. Made by `train` and `load`."""

    def __init__(self, engine, files: dict[str, bytes], special: dict[str, str]):
        """`engine` is a tokenizers.Tokenizer, `files` its other forms by name, `special` role -> token."""
        self._engine = engine
        self._files = files
        self._special = special
        description = json.loads(engine.to_str())
        self.kind = _kind(description)
        # What follows the ids up (padding, truncation, special tokens around a text) does not determine them.
        determining = {k: description[k] for k in ("added_tokens", "normalizer", "pre_tokenizer", "model")}
        if self.kind == "sentencepiece-unigram":  # scores are float32; their decimal form is not read back exactly
            determining["model"]["vocab"] = [
                (piece, float(np.float32(score))) for piece, score in determining["model"]["vocab"]
            ]
        self.fingerprint = hashlib.sha256(json.dumps(determining, sort_keys=True).encode()).hexdigest()
        self.vocabulary = _vocabulary(engine, self.kind, special)
        self._cache = WordCache(engine, description)

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, without the special tokens that a model wants around it."""
        return self.encode_arrays([text])[0].tolist()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text."""
        ids, lengths = self.encode_arrays(texts)
        ids, ends = ids.tolist(), np.cumsum(lengths).tolist()
        return [ids[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def encode_arrays(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of all texts back to back, int32 [N], and how many each has, int32 [texts]."""
        return self._cache.encode(texts)

    def encode_words(self, sentences: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        """Ids of every word of every sentence, each as it is spelt after a space; at least one a word.

        A word of which nothing is left, such as a lone control character, is the unknown token.
        """
        space = " " if self.kind == "byte-bpe" else ""
        pieces = iter(self.encode_batch([space + word for words in sentences for word in words]))
        return [[next(pieces) or [max(self.vocabulary.unknown, 0)] for _ in words] for words in sentences]

    def encode_spans(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of each text its ids, int32 [N], and the characters each stands for, int32 [N 2]: first, last + 1."""
        encodings = self._engine.encode_batch(list(texts), add_special_tokens=False)
        return [(np.array(one.ids, np.int32), np.array(one.offsets, np.int32).reshape(-1, 2)) for one in encodings]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, special tokens left out."""
        return self._engine.decode([int(i) for i in ids], skip_special_tokens=True)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The token of every id."""
        return [self._engine.id_to_token(int(i)) for i in ids]

    def with_special(self, roles: Sequence[str]) -> "Tokenizer":
        """The same tokenizer with a special token for each of these roles, behind all others."""
        import tokenizers

        added = {role: ROLES[role][0] for role in roles}
        engine = tokenizers.Tokenizer.from_str(self._engine.to_str())
        engine.add_special_tokens([tokenizers.AddedToken(one, normalized=False) for one in added.values()])
        return Tokenizer(engine, self._files, self._special | added)

    def __reduce__(self):
        return _restore, (self._engine.to_str(), self._files, self._special)

    def save(self, directory: str | Path) -> None:
        """Writes tokenizer.json, tokenizer_config.json and the kind's own files (vocab.txt, ...) to `directory`."""
        directory = storage.path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in self._files.items():
            storage.write(directory / name, content)
        storage.write(directory / LAST, self._engine.to_str(pretty=True))


def _restore(description: str, files: dict[str, bytes], special: dict[str, str]) -> Tokenizer:
    """A tokenizer out of a pickle, for the processes that prepare a dataset."""
    import tokenizers

    return Tokenizer(tokenizers.Tokenizer.from_str(description), files, special)


def _kind(description: dict) -> str:
    model = description["model"]["type"]
    kinds = {part["type"] for part in components(description, "pre_tokenizer")}
    if model == "BPE":
        return "byte-bpe" if "ByteLevel" in kinds else "sentencepiece-bpe" if "Metaspace" in kinds else "bpe"
    if model == "WordLevel":
        return "char" if kinds == {"Split"} else "word"
    return {"WordPiece": "wordpiece", "Unigram": "sentencepiece-unigram"}[model]


def _vocabulary(engine, kind: str, special: dict[str, str]) -> Vocabulary:
    # Padded tables of published models may name ids the vocabulary lacks, so size is the largest id plus one.
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
        # A lone mark is no part of the word before it, as in ALBERT's and XLNet's create_pretraining_data.py.
        marks = set(string.punctuation) if kind.startswith("sentencepiece") else set()
        continuation = np.array([not token.startswith(starts[kind]) and token not in marks for token in tokens])
        continuation[sorted(excluded)] = False
    else:  # An end-of-word suffix or a lone character does not tell whether the token goes on a word.
        continuation = np.zeros(size, bool) if kind == "word" else None
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
        full_stop=table.get(".</w>", table.get(".", -1)),
    )


# ---------------------------------------------------------------------------------------------------- training


def train(
    kind: str, vocab_size: int, texts: Iterable[str], directory: str | Path, *, lowercase: bool | None = None
) -> Tokenizer:
    """Trains a tokenizer of `vocab_size` tokens (special ones included) on `texts` and saves it to `directory`.

    The same texts give the same tokenizer. They are held in memory: hand over a sample (`formats.texts`).
    `lowercase` also strips accents in the kinds that split words as BERT does (wordpiece, bpe, word); None lower-cases
    what `CASED` does not name.

    Raises:
      UserError: an unknown kind, no text, or a vocabulary too large or too small for the text.
    """
    from tokenizers import AddedToken, models, pre_tokenizers, trainers

    check(kind, vocab_size)
    special = KINDS[kind]
    lowercase = kind not in CASED if lowercase is None else lowercase
    texts = [text for text in texts if text and not text.isspace()]
    if not texts:
        raise UserError("Expected text to train a tokenizer on, found none; give --input files that hold some.")
    files = {}
    if kind.startswith("sentencepiece"):
        files["spiece.model"] = _train_sentencepiece(kind.removeprefix("sentencepiece-"), vocab_size, texts, lowercase)
        engine = engines.sentencepiece(files["spiece.model"], {})
    elif kind in ("wordpiece", "bpe"):
        engine = _train_word_merges(kind, vocab_size, texts, lowercase)
    else:
        tokens = list(dict.fromkeys(special.values()))
        options = {"vocab_size": vocab_size, "special_tokens": tokens, "show_progress": False}
        if kind in BYTE_LEVEL:
            engine = engines.byte_bpe(models.BPE(), prefix_space=False, lowercase=lowercase)
            trainer = trainers.BpeTrainer(initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), **options)
        else:
            engine = engines.word(lowercase) if kind == "word" else engines.char(lowercase)
            trainer = trainers.WordLevelTrainer(**options)
        engine.train_from_iterator(texts, trainer)
    # The space before a word is part of its token, so <mask> takes the place of both.
    stripping = {special["mask"]} if kind == "byte-bpe" else set()
    engine.add_special_tokens(
        [AddedToken(t, lstrip=t in stripping, special=True, normalized=False) for t in dict.fromkeys(special.values())]
    )
    if "cls" in special:
        _surround(engine, special)
    tokenizer = Tokenizer(engine, files | _native_files(engine, kind, lowercase, special), _special({}, engine))
    tokenizer.save(directory)
    return tokenizer


def check(kind: str, vocab_size: int) -> None:
    """Raises UserError for an unknown kind of tokenizer, or a vocabulary too small for it."""
    if kind not in KINDS:
        raise UserError(f"Expected a kind of tokenizer, found {quoted(kind)}; {nearest(kind, KINDS)}")
    special = len(set(KINDS[kind].values()))
    least = special + (BYTES if kind in BYTE_LEVEL else 2)
    if vocab_size < least:
        rest = f"{BYTES} bytes" if kind in BYTE_LEVEL else "2 of the text"
        raise UserError(
            f"Expected a vocabulary of at least {least} tokens for {kind}, {special} special ones and {rest}, "
            f"found {vocab_size}; ask for more."
        )


def _train_word_merges(kind: str, vocab_size: int, texts: list[str], lowercase: bool):
    """Merges inside words, their beginnings told from the rest: by ## (wordpiece) or by </w> at their ends (bpe).

    The library numbers `##x` and `x</w>` in the order of a hash table with a random seed, and breaks ties between
    merges by number; to train the same twice they are counted here and given as tokens that come first.
    """
    from tokenizers import models, trainers

    special = list(KINDS[kind].values())
    if kind == "wordpiece":
        engine = engines.wordpiece({"[UNK]": 0}, lowercase=lowercase)
    else:
        engine = engines.bpe(models.BPE(unk_token="[UNK]", end_of_word_suffix="</w>"), lowercase)
    chunks = Counter(chain.from_iterable(engine.normalizer.normalize_str(text).split() for text in texts))
    characters: Counter[str] = Counter()
    marked: set[str] = set()
    for chunk, count in chunks.items():
        for word, _ in engine.pre_tokenizer.pre_tokenize_str(chunk):
            for character in word:
                characters[character] += count
            marked.update(word[1:] if kind == "wordpiece" else word[-1])
    # Chinese needs thousands of characters; English must not drown in them.
    limit = min(max(1000, vocab_size // 2), (vocab_size - len(special)) // 2)
    alphabet = sorted(sorted(characters, key=lambda c: (-characters[c], c))[:limit])
    first = special + [f"##{c}" if kind == "wordpiece" else f"{c}</w>" for c in alphabet if c in marked]
    options = {"initial_alphabet": alphabet, "limit_alphabet": len(alphabet), "special_tokens": first}
    options |= {"vocab_size": vocab_size, "show_progress": False}
    if kind == "wordpiece":
        engine.train_from_iterator(texts, trainers.WordPieceTrainer(**options))
        return engines.wordpiece(engine.get_vocab(), lowercase=lowercase)
    engine.train_from_iterator(texts, trainers.BpeTrainer(end_of_word_suffix="</w>", **options))
    model = json.loads(engine.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    return engines.bpe(models.BPE(model["vocab"], merges, unk_token="[UNK]", end_of_word_suffix="</w>"), lowercase)


def _train_sentencepiece(model_type: str, vocab_size: int, texts: list[str], lowercase: bool) -> bytes:
    import io

    import sentencepiece

    model = io.BytesIO()
    # SentencePiece silently skips what is longer than its limit of 4192 bytes, so texts come in pieces below it.
    pieces = (piece for text in texts for piece in re.findall(r"\S.{0,900}(?=\s|$)|\S{1,1000}", text))
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=pieces,
            model_writer=model,
            model_type=model_type,
            vocab_size=vocab_size,
            character_coverage=0.9995,
            normalization_rule_name="nmt_nfkc_cf" if lowercase else "nmt_nfkc",
            hard_vocab_limit=False,
            num_threads=1,  # the expectation-maximisation sums floats in the order of its threads
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            control_symbols=[ALBERT_SPECIAL[role] for role in ("cls", "sep", "mask")],
            minloglevel=2,
        )
    except RuntimeError as error:
        if characters := re.search(r"smaller than required_chars\D*\d+ vs (\d+)", str(error)):
            raise UserError(
                f"Expected a vocabulary of at least {characters[1]} tokens for sentencepiece-{model_type}, the special "
                f"ones and the characters of this text, found {vocab_size}; ask for more."
            ) from error
        reason = " ".join(str(error).split())
        raise UserError(
            f"Expected SentencePiece to train {vocab_size} tokens on this text, found that it cannot ({reason}); ask "
            "for fewer, or give more text."
        ) from error
    return model.getvalue()


def _native_files(engine, kind: str, lowercase: bool, special: dict[str, str]) -> dict[str, bytes]:
    """The kind's published file form and the tokenizer_config.json that goes with it."""
    classes = {"wordpiece": "BertTokenizer", "byte-bpe": "RobertaTokenizer", "gpt2-bpe": "GPT2Tokenizer"}
    files = {}
    if kind == "wordpiece":
        table = engine.get_vocab(with_added_tokens=True)
        files["vocab.txt"] = "".join(f"{token}\n" for token in sorted(table, key=table.get)).encode()
    elif kind in (*BYTE_LEVEL, "bpe"):
        model = json.loads(engine.to_str())["model"]
        files["vocab.json"] = json.dumps(model["vocab"], ensure_ascii=False).encode()
        files["merges.txt"] = "".join(["#version: 0.2\n", *(f"{a} {b}\n" for a, b in model["merges"])]).encode()
    config = {f"{role}_token": token for role, token in special.items()}
    # Classes of their own rebuild normalisation from their options; RoBERTa's and GPT-2's have none for lower case.
    if kind == "wordpiece":
        config |= {"do_lower_case": lowercase, "strip_accents": None, "tokenize_chinese_chars": True}
    if kind == "byte-bpe":
        mask = {"content": special["mask"], "lstrip": True, "normalized": False, "rstrip": False, "single_word": False}
        config["mask_token"] = {"__type": "AddedToken", "special": True} | mask
    if kind in BYTE_LEVEL and lowercase:
        classes = {}
    config["tokenizer_class"] = classes.get(kind, "PreTrainedTokenizerFast")
    files["tokenizer_config.json"] = (json.dumps(config, indent=2) + "\n").encode()
    return files


def _surround(engine, special: dict[str, str]) -> None:
    """Has the saved tokenizer.json put the special tokens around a text, as a model's own tokenizer would."""
    from tokenizers.processors import TemplateProcessing

    cls, sep = special["cls"], special["sep"]
    engine.post_processor = TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(token, engine.token_to_id(token)) for token in (cls, sep)],
    )


# ----------------------------------------------------------------------------------------------------- loading


def load(path: str | Path, model_type: str = "") -> Tokenizer:
    """Loads a tokenizer folder or a published vocabulary file.

    A folder holds tokenizer.json, vocab.txt, vocab.json with merges.txt, or spiece.model, the first of them that is
    there; options come from its tokenizer_config.json. A vocab.txt without one is taken as uncased unless more than
    one token in a hundred has a capital letter. A spiece.model whose tokenizer class is not named is spelt as the
    model_type of the config.json beside it says, or else `model_type`; alone it is taken as ALBERT's, accents dropped
    and case folded, where it holds [CLS], [SEP] and no capital letters, else as it stands.

    Raises:
      UserError: nothing there, or files that are not a vocabulary.
    """
    with storage.local(storage.path(path)) as folder:
        return _load(folder, model_type)


def _load(path: Path, model_type: str) -> Tokenizer:
    forms = _forms(path)
    try:
        return _tokenizer(path if path.is_dir() else path.parent, forms, model_type)
    except UserError:
        raise
    except Exception as error:  # the tokenizers library raises bare Exception, odd files of options any kind
        reason = " ".join(f"{type(error).__name__}: {error}".split()).removeprefix("Exception: ")
        raise UserError(
            f"Expected a vocabulary at {path}, found files that do not read as one ({reason}); fetch them again."
        ) from error


def _tokenizer(folder: Path, forms: dict[str, Path], model_type: str) -> Tokenizer:
    config = _json(folder / "tokenizer_config.json")
    if "spiece.model" in forms and not config.get("tokenizer_class"):
        model = _json(folder / "config.json")
        model_type = model.get("tokenizer_class") or model.get("model_type") or model_type
    engine, names = _read(forms, config, model_type)
    special = _special(config, engine)
    if names != ["tokenizer.json"]:
        _add_special(engine, config, special)
        if "cls" in special and "sep" in special:
            _surround(engine, special)
    engine.no_padding()
    engine.no_truncation()
    files = {name: file.read_bytes() for name, file in forms.items() if name != "tokenizer.json"}
    if not config or (names == ["spiece.model"] and not config.get("tokenizer_class")):
        tokens = {f"{role}_token": token for role, token in special.items()}
        config = tokens | config | {"tokenizer_class": "PreTrainedTokenizerFast"}  # which keeps to tokenizer.json
    files["tokenizer_config.json"] = (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()
    return Tokenizer(engine, files, special)


def _json(file: Path) -> dict:
    """What a file of options holds; empty if there is no file."""
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise UserError(f"Expected JSON in {file}, found text that is not ({error}); download it again.") from error
    if not isinstance(found, dict):
        raise UserError(f"Expected a JSON object in {file}, found a {type(found).__name__}; download it again.")
    return found


def _forms(path: Path) -> dict[str, Path]:
    """Name in a tokenizer folder -> file, of every form of the tokenizer that is at `path`."""
    if not path.exists():
        raise UserError(f"Expected a tokenizer folder or vocabulary file at {path}, found nothing; check the path.")
    names = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "spiece.model")
    if path.is_dir():
        forms = {name: path / name for name in names if (path / name).is_file()}
    elif path.name in ("vocab.json", "merges.txt"):
        forms = {name: path.parent / name for name in ("vocab.json", "merges.txt") if (path.parent / name).is_file()}
    else:
        name = {".txt": "vocab.txt", ".model": "spiece.model", ".json": "tokenizer.json"}.get(path.suffix)
        forms = {name: path} if name else {}
    if not forms or forms.keys() in ({"vocab.json"}, {"merges.txt"}):
        raise UserError(
            f"Expected tokenizer.json, vocab.txt, vocab.json with merges.txt, or spiece.model at {path}, "
            f"found {', '.join(forms) or 'none of them'}; name a folder that holds one."
        )
    return forms


def _read(forms: dict[str, Path], config: dict, model_type: str):
    """The engine of the first form there is, and the names of the files it was read from."""
    from tokenizers import Tokenizer, models

    if "tokenizer.json" in forms:
        return Tokenizer.from_file(str(forms["tokenizer.json"])), ["tokenizer.json"]
    if "vocab.txt" in forms:
        tokens = forms["vocab.txt"].read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")
        table = {token: index for index, token in enumerate(tokens)}
        if "[UNK]" not in table:
            raise UserError(
                f"Expected a WordPiece vocabulary, one token per line with [UNK] among them, found no [UNK] in "
                f"{forms['vocab.txt']}; check the file."
            )
        engine = engines.wordpiece(
            table,
            lowercase=config.get("do_lower_case", not engines.cased(tokens)),
            strip_accents=config.get("strip_accents"),
            chinese=config.get("tokenize_chinese_chars", True),
        )
        return engine, ["vocab.txt"]
    if "merges.txt" in forms:
        files = [str(forms[name]) for name in ("vocab.json", "merges.txt")]
        if "</w>\n" in forms["merges.txt"].read_text(encoding="utf-8"):
            return engines.bpe(models.BPE.from_file(*files, end_of_word_suffix="</w>", unk_token="<unk>"), True), [
                *files
            ]
        prefix_space = config.get("add_prefix_space", False)
        return engines.byte_bpe(models.BPE.from_file(*files), prefix_space, lowercase=False), [*files]
    return engines.sentencepiece(forms["spiece.model"].read_bytes(), config, model_type), ["spiece.model"]


def _special(config: dict, engine) -> dict[str, str]:
    """Role -> special token: what the configuration names, else the usual names that the vocabulary has."""
    table = engine.get_vocab(with_added_tokens=True)
    special = {}
    for role, usual in ROLES.items():
        named = config.get(f"{role}_token")
        named = named["content"] if isinstance(named, dict) else named
        token = named if named in table else next((token for token in usual if token in table), None)
        if token is not None:
            special[role] = token
    return special


def _add_special(engine, config: dict, special: dict[str, str]) -> None:
    """Has special tokens recognised in a text, with the space before them where the configuration says so."""
    from tokenizers import AddedToken

    table = engine.get_vocab()
    listed = config.get("added_tokens_decoder", {})
    for _, token in sorted(listed.items(), key=lambda item: int(item[0])):
        engine.add_tokens([AddedToken(**token)])
    tokens = sorted(set(special.values()) - {t["content"] for t in listed.values()}, key=table.get)
    stripping = {t["content"] for t in config.values() if isinstance(t, dict) and t.get("lstrip")}
    engine.add_special_tokens([AddedToken(t, lstrip=t in stripping, normalized=False, special=True) for t in tokens])
