"""The tokenizer of a transformers folder, with the token ids of plmjax and the model's special tokens around a text.

A tokenizer may add the special tokens of another model. A tokenizer trained for BERT writes [CLS] A [SEP], but a
translation Transformer reads A [SEP]. The written folder has the model's special tokens.
"""

import contextlib
import json
import logging
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from plmjax.contracts.template import TEXT_ALONE, TEXTS, Template, TokenRow
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.tokenizers.kinds import OTHERS
from plmjax.errors import UserError, listed, quoted
from plmjax.files import json_text, storage
from plmjax.interop import notices

log = logging.getLogger(__name__)

SETTINGS = "tokenizer_config.json"
ENGINE = "tokenizer.json"

CLASS = "PreTrainedTokenizerFast"
"""The class of transformers that uses tokenizer.json as it is. The class of a system builds the tokenizer again from
its vocabulary, with its own special tokens and often its own normalizer.
"""

REBUILDING = ("add_bos_token", "add_eos_token")
"""Settings with which transformers ignores the layout in tokenizer.json and makes its own."""

SAMPLES = (
    "The quick brown fox jumps over the lazy dog.",
    "In 1984 naïve Zoë paid € 3,50 – “twice”!",
    "  Two  spaces, a tab\tand a full stop .",
    "Er sagt: 日本語 (e-mail@example.org), 'un-be-lievable'.",
)
"""Texts whose ids are compared, each by itself and as a pair with the next one."""
AROUND = "The {0} fox{0}jumps, {0}!"
"""Text around a token that must not be split. The token's flags decide how spaces and words beside it are read."""
OWN = 64
"""Number of words of the vocabulary in the texts made from it. Unknown words would show no difference."""
ROLES = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")
"""Roles of special tokens that transformers has too."""
FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")

Layout = Callable[..., tuple[Sequence[int], Sequence[int]]]
"""One text or two -> ids and token types of their row."""


class Reader(NamedTuple):
    """A tokenizer of another library.

    layout: function that makes rows. words: token -> id. added: id -> token that is not split, with its flags.
    special: role -> token. plain: function from a text to its ids, without special tokens around it.
    """

    layout: Layout
    words: Mapping[str, int]
    added: Mapping[int, Any]
    special: Mapping[str, str]
    plain: Callable[[str], Sequence[int]]


def write(tokenizer: Any, template: Template, longest: int | None, directory: Path) -> None:
    """Write the files of a tokenizer whose layout of texts is the template.

    tokenizer: a plmjax.data.tokenizers.Tokenizer.
    longest: maximum number of tokens in the model's rows. transformers truncates a text there unless the tokenizer has
        another limit. None: there is no limit.

    Raises:
        UserError: the tokenizer lacks a special token of the template.
    """
    import tokenizers

    template.check(tokenizer.vocabulary)
    files = _files(tokenizer)
    engine = tokenizers.Tokenizer.from_str(files[ENGINE].decode("utf-8"))
    if _other_rows(tokenizer, template, _reader(engine).layout):
        engine.post_processor = _processor(template, tokenizer.vocabulary, engine)
        files[ENGINE] = engine.to_str(pretty=True).encode("utf-8")
    settings = {name: value for name, value in json_text.parse(files[SETTINGS]).items() if name not in REBUILDING}
    lengths = {} if longest is None else {"model_max_length": longest}
    settings = lengths | {"clean_up_tokenization_spaces": False} | settings
    named = {role: token for role, token in tokenizer.special.items() if role not in OTHERS}
    settings |= {f"{role}_token": _token_form(token, engine) for role, token in named.items()}
    types = ["token_type_ids"] if template.typed else []
    settings |= {"tokenizer_class": CLASS, "model_input_names": ["input_ids", *types, "attention_mask"]}
    files[SETTINGS] = (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode("utf-8")
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        storage.write(directory / name, content)


def rows_with(vocabulary: Vocabulary, template: Template) -> Template:
    """Return the template, without special tokens if the tokenizer lacks one of them.

    The template of an imported head may name such a token. No command of plmjax makes rows for such a model.
    """
    missing = template.missing(vocabulary)
    if missing:
        log.warning("The tokenizer has no token for %s: texts are written without special tokens.", ", ".join(missing))
    return TEXT_ALONE if missing else template


def compare(tokenizer: Any, template: Template, directory: str | Path) -> int:
    """Compare a folder's tokenizer with that of plmjax. Return the number of texts and pairs.

    The comparison is of the rows of texts and pairs, the vocabulary, the special tokens, the tokens that are not split
    and their flags, and the ids of texts that contain each of these. transformers opens the folder's tokenizer, or the
    tokenizers library if transformers is not installed.

    Raises:
        UserError: something differs, or the folder does not open.
    """
    with open_reader(directory) as reader:
        if difference := _difference(tokenizer, template, reader):
            raise UserError(f"Expected {directory} to give the rows of this model's texts, found {difference}.")
    return 2 * len(SAMPLES)


def difference(tokenizer: Any, template: Template, directory: str | Path) -> str:
    """Compare as `compare` does, for a folder from another writer. Return the first difference in words, or ""."""
    with open_reader(directory) as reader:
        return _difference(tokenizer, template, reader)


@contextlib.contextmanager
def open_reader(directory: str | Path) -> Iterator[Reader]:
    """Open the tokenizer of a folder, with transformers if it is installed."""
    import tokenizers

    try:
        import transformers
    except ImportError:
        yield _reader(tokenizers.Tokenizer.from_file(str(Path(directory) / ENGINE)))
        return
    with notices.none_from(transformers):
        with _explain_failures(directory):
            theirs = transformers.AutoTokenizer.from_pretrained(str(directory))

        def encode(*texts: str, **options: Any) -> Mapping[str, Any]:
            with _explain_failures(directory):
                return theirs(*texts, **options)

        def layout(*texts: str) -> tuple[Sequence[int], Sequence[int]]:
            row = encode(*texts, return_token_type_ids=True)
            return row["input_ids"], row["token_type_ids"]

        def plain(text: str) -> Sequence[int]:  # each call chooses whether special tokens in a text are split
            return encode(text, add_special_tokens=False, split_special_tokens=False)["input_ids"]

        named = {role: getattr(theirs, f"{role}_token") for role in ROLES}
        special = {role: token for role, token in named.items() if token is not None}
        yield Reader(layout, theirs.get_vocab(), theirs.added_tokens_decoder, special, plain)


@contextlib.contextmanager
def _explain_failures(directory: str | Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of any type: each class checks its arguments
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"Expected transformers to open the tokenizer in {directory}, found: {reason}; correct its files."
        ) from error


def row(tokenizer: Any, template: Template, *texts: str) -> TokenRow:
    """Return the row that plmjax makes from one text or two.

    The names of special tokens in a text are parsed, as in transformers.
    """
    return template.lay_out(tokenizer.with_parsed_special().encode_batch(texts), tokenizer.vocabulary)


def _difference(tokenizer: Any, template: Template, reader: Reader) -> str:
    return _other_rows(tokenizer, template, reader.layout) or _other_tokens(tokenizer, reader)


def _other_rows(tokenizer: Any, template: Template, layout: Layout) -> str:
    pairs = zip(SAMPLES, (*SAMPLES[1:], SAMPLES[0]), strict=True)
    for texts in [*((text,) for text in SAMPLES), *pairs]:
        ours, (ids, types) = row(tokenizer, template, *texts), layout(*texts)
        what = "a pair" if len(texts) == 2 else "a text"
        if list(ids) != ours.tokens:
            return f"ids of {what} that differ ({_excerpt(ids, ours.tokens)} of {quoted(texts[0])})"
        if template.typed and list(types) != ours.token_types:
            return f"token types of {what} that differ ({_excerpt(types, ours.token_types)} of {quoted(texts[0])})"
    return ""


def _other_tokens(tokenizer: Any, reader: Reader) -> str:
    """Return the first difference in the tokens themselves.

    An added token of the other library may be a plain word here if it is a special token of one id: between spaces both
    read it alike, and it is not compared further. Roles are not compared if the other library lacks them, or if they
    are only inferred from the name of a token.
    """
    ours = _reader(_engine_of(tokenizer))
    tokens = (ours.words.keys() | reader.words.keys()) - {""}  # the empty token of an empty line occurs in no text
    for token in sorted(tokens, key=lambda one: (ours.words.get(one, -1), one)):
        if ours.words.get(token) != reader.words.get(token):
            there, here = (f"id {words[token]}" if token in words else "no id" for words in (reader.words, ours.words))
            return f"a vocabulary that differs ({there} for {here} of the token {quoted(token)})"
    for text in _vocabulary_texts(ours.words):
        ids, expected = reader.plain(text), ours.plain(text)
        if list(ids) != list(expected):
            return f"ids of a text that differ ({_excerpt(ids, expected)} of {quoted(text)})"
    named = set(tokenizer.special.values())
    for number, token in sorted(reader.added.items()):
        if number not in ours.added and (token.content not in named or list(ours.plain(token.content)) != [number]):
            return f"an added token that differs ({quoted(token.content)} is split here)"
    for number, token in sorted(ours.added.items()):
        if number not in reader.added:
            return f"an added token that differs ({quoted(token.content)} is split there)"
        flags = [flag for flag in FLAGS if getattr(token, flag) != getattr(reader.added[number], flag)]
        if flags:
            return f"an added token that differs ({listed(flags)} of {quoted(token.content)})"
        text = AROUND.format(token.content)
        ids, expected = reader.plain(text), ours.plain(text)
        if list(ids) != list(expected):
            return f"ids of a text that differ ({_excerpt(ids, expected)} of {quoted(text)})"
    for role, token in reader.special.items():
        if tokenizer.special.get(role, token) != token:
            return f"special tokens that differ ({quoted(token)} for {quoted(tokenizer.special[role])} as {role}_token)"
    return ""


def _vocabulary_texts(words: Mapping[str, int]) -> list[str]:
    """Return texts of words of a vocabulary: unchanged, uppercase, lowercase, and with an accent."""
    letters = sorted(filter(None, (token.strip("#Ġ▁").removesuffix("</w>") for token in words)))
    chosen = [word for word in letters if word.isalpha()]
    chosen = chosen[:: math.ceil(len(chosen) / OWN) or 1]
    plain, accented = " ".join(chosen), " ".join(f"{word}\u0301" for word in chosen)
    return [plain, plain.upper(), plain.lower(), accented]


def _excerpt(found: Sequence[int], expected: Sequence[int]) -> str:
    """Return up to six numbers of both sequences, from one position before their first difference."""
    same = next((place for place, pair in enumerate(zip(found, expected)) if pair[0] != pair[1]), 0)  # noqa: B905
    first = max(0, same - 1)
    return f"{list(found)[first : first + 6]} for {list(expected)[first : first + 6]} from token {first + 1} on"


def _reader(engine: Any) -> Reader:
    def layout(*texts: str) -> tuple[Sequence[int], Sequence[int]]:
        encoding = engine.encode(*texts)
        return encoding.ids, encoding.type_ids

    def plain(text: str) -> Sequence[int]:
        return engine.encode(text, add_special_tokens=False).ids

    return Reader(layout, engine.get_vocab(), engine.get_added_tokens_decoder(), {}, plain)


def _files(tokenizer: Any) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer.save(scratch)
        return {file.name: file.read_bytes() for file in Path(scratch).iterdir()}


def _engine_of(tokenizer: Any) -> Any:
    import tokenizers

    return tokenizers.Tokenizer.from_str(_files(tokenizer)[ENGINE].decode("utf-8"))


def _processor(template: Template, vocabulary: Vocabulary, engine: Any) -> Any:
    from tokenizers.processors import TemplateProcessing

    tokens = {role: engine.id_to_token(vocabulary.id_of(role)) for role in template.roles}
    names = tokens | {text: f"${text}" for text in TEXTS}
    single, pair = ([f"{names[name]}:{kind}" for name, kind in template.parts(texts)] for texts in (1, 2))
    ids = [(token, engine.token_to_id(token)) for token in dict.fromkeys(tokens.values())]
    return TemplateProcessing(single=single, pair=pair, special_tokens=ids)


def _token_form(token: str, engine: Any) -> str | dict[str, Any]:
    """Return the form of a special token in settings.

    With the name alone, transformers would not strip the space before the token.
    """
    known = engine.get_added_tokens_decoder().get(engine.token_to_id(token))
    if known is None or not (known.lstrip or known.rstrip or known.single_word):
        return token
    kept = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
    return {"__type": "AddedToken"} | {name: getattr(known, name) for name in kept}
