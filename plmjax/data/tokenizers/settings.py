"""The files beside a vocabulary: class and options of its tokenizer, its special and its added tokens.

transformers before version 5 wrote special_tokens_map.json and added_tokens.json. These two files are read only if
tokenizer_config.json has no added_tokens_decoder, and then special_tokens_map.json overrides tokenizer_config.json.
`read` does the same as transformers and returns all settings in the form of tokenizer_config.json.
"""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from plmjax.errors import UserError, listed, quoted
from plmjax.files import json_text

if TYPE_CHECKING:
    import tokenizers

log = logging.getLogger(__name__)

CONFIG = "tokenizer_config.json"
MAP = "special_tokens_map.json"
ADDED = "added_tokens.json"
DECODER = "added_tokens_decoder"

ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Roles in the order in which transformers adds tokens that a vocabulary lacks."""
EXTRA = ("extra_special_tokens", "additional_special_tokens")
"""Lists of further special tokens. The second name is the older one, which is read if the first has none."""
OWN = "model_specific_special_tokens"
"""Table of special tokens with names of the model's own, such as image_token, as transformers 5 writes it."""
SWITCHES = ("add_prefix_space", "do_lower_case", "keep_accents", "strip_accents", "tokenize_chinese_chars")
FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "do_basic_tokenize": (True,),
    "do_subword_tokenize": (True,),
    "do_word_tokenize": (True,),
    "never_split": ([],),
    "sp_model_kwargs": ({},),
    "split_by_punct": (False,),
    "subword_tokenizer_type": ("wordpiece",),
    "word_tokenizer_type": ("basic",),
}
"""Unsupported option that changes ids -> values, besides None, with which it has no effect."""


class Settings(NamedTuple):
    """The settings of a tokenizer folder.

    options: content of tokenizer_config.json and of the two older files, without options that are null.
    tokens: tokens that must not be split in a text, in the order in which they are added, each with its id in the
        files or -1. A special token that is named twice occurs once.
    older: true if the older files were read.
    """

    options: dict[str, Any]
    tokens: "list[tuple[tokenizers.AddedToken, int]]"
    older: bool


def read(folder: Path) -> Settings:
    """Return the settings of a folder.

    Raises:
        UserError: a file is not JSON.
        ValueError: a value has another form than in transformers; the message names the file.
    """
    options = read_json(folder / CONFIG)
    older = DECODER not in options and any((folder / name).is_file() for name in (MAP, ADDED))
    origin = dict.fromkeys(options, CONFIG)
    if older:
        found = read_json(folder / MAP)
        options |= {name: _special(value) for name, value in found.items() if value is not None}
        origin |= dict.fromkeys(found, MAP)
    for name in SWITCHES:
        if options.get(name) is None:
            options.pop(name, None)
        else:
            json_text.check(options[name], bool, f"{name} in {origin[name]}")
    named = list(_special_tokens(options, origin))
    numbered = _tokens_by_id(options.get(DECODER) or {})
    if older:  # transformers 5 does not count additional_special_tokens of the older file as special here
        counted = {name: value for name, value in options.items() if (name, origin[name]) != (EXTRA[1], MAP)}
        special = {token.content for token in _special_tokens(counted, origin)}
        numbered |= _tokens_of_older_file(read_json(folder / ADDED), special)
    tokens = {token.content: (token, number) for number, token in sorted(numbered.items())}
    for token in named:
        tokens.setdefault(token.content, (token, -1))
    return Settings(options, list(tokens.values()), older)


def read_json(file: Path) -> dict[str, Any]:
    """Return the contents of a JSON file of options; empty if there is no file."""
    return json_text.read_object(file, "options of a tokenizer", "download it again") if file.is_file() else {}


def add_tokens(engine: "tokenizers.Tokenizer", tokens: "list[tuple[tokenizers.AddedToken, int]]", folder: Path) -> None:
    """Add tokens to an engine, so that it finds them in a text.

    In a vocabulary of words, a special token remains a word, which must stand between spaces in a text.

    Raises:
        UserError: the library gives a token another id than the files do.
    """
    added = {token.content for token in engine.get_added_tokens_decoder().values()}
    for token, number in tokens:
        known = engine.token_to_id(token.content)
        if number < 0 and known is not None and (token.content in added or _is_word(engine, token, known)):
            continue
        engine.add_tokens([token])
        found = engine.token_to_id(token.content)
        if found is None or (number >= 0 and found != number):
            raise UserError(
                f"Expected added tokens with the ids that follow the vocabulary, found {quoted(token.content)} with "
                f"the id {number} instead of {found} in the files of {folder}; correct its id."
            )
    if tokens and len(set(engine.get_vocab().values())) != engine.get_vocab_size():
        raise UserError(
            f"Expected a vocabulary whose ids have no gap below its added tokens, found one id for two tokens in the "
            f"files of {folder}; remove tokens that occur twice in the vocabulary."
        )


def warn(options: Mapping[str, Any], file: Path) -> None:
    """Log one line about options that change ids and are not supported."""
    lacking = [
        name for name, neutral in NEUTRAL.items() if options.get(name) is not None and options[name] not in neutral
    ]
    if lacking:
        shown = listed(f"{name} = {quoted(options[name])}" for name in lacking)
        log.warning(
            "%s has options that plmjax does not support and leaves out, so that ids may differ: %s.", file, shown
        )


def decoder(engine: "tokenizers.Tokenizer") -> dict[str, dict[str, Any]]:
    """Return the added tokens of a tokenizer as tokenizer_config.json lists them."""
    return {
        str(number): {"content": token.content} | {flag: getattr(token, flag) for flag in FLAGS}
        for number, token in sorted(engine.get_added_tokens_decoder().items())
    }


def _special(value: Any) -> Any:
    """Convert a value of special_tokens_map.json to the form of tokenizer_config.json."""
    is_token = isinstance(value, dict) and "content" in value
    return {"__type": "AddedToken"} | value | {"special": True} if is_token else value


def _special_tokens(options: Mapping[str, Any], origin: Mapping[str, str]) -> "Iterator[tokenizers.AddedToken]":
    """Yield the special tokens with a role, then those without one."""
    others = [name for name in options if name.endswith("_token") and name not in ROLES]
    for name in (*ROLES, *others):
        value = options.get(name)
        if isinstance(value, str | dict) or (name in ROLES and value is not None):
            token = _token(value, f"{name} in {origin[name]}")
            token.special = True
            yield token
    for name in filter(options.get, (OWN, EXTRA[0] if options.get(EXTRA[0]) else EXTRA[1])):
        extra = options[name]
        json_text.check(extra, ([object], {str: object}), f"{name} in {origin[name]}")
        table = isinstance(extra, dict)
        for value in extra.values() if table else extra:
            token = _token(value, f"{name} in {origin[name]}")
            token.special = token.special or table
            yield token


def _token(value: Any, place: str) -> "tokenizers.AddedToken":
    """Return a token from its JSON: only its text if it is special, or an object with its text and flags."""
    from tokenizers import AddedToken

    json_text.check(value, (str, {"content": str}), place)
    if isinstance(value, str):
        value = {"content": value, "special": True}
    flags = {name: flag for name, flag in value.items() if name in FLAGS}
    json_text.check(flags, {str: bool}, place)
    if not value["content"]:
        raise ValueError(f"{place} is empty")
    return AddedToken(value["content"], **flags)


def _tokens_by_id(listed_tokens: Any) -> "dict[int, tokenizers.AddedToken]":
    place = f"{DECODER} of {CONFIG}"
    json_text.check(listed_tokens, {str: {"content": str}}, place)
    if wrong := [number for number in listed_tokens if not number.isdecimal()]:
        raise ValueError(f"{place} has {quoted(wrong[0])}, which is no id")
    return {int(number): _token(token, place) for number, token in listed_tokens.items()}


def _tokens_of_older_file(numbers: dict[str, Any], special: set[str]) -> "dict[int, tokenizers.AddedToken]":
    """Return the tokens of added_tokens.json, id -> token. Tokens that are not special match the normalized text."""
    json_text.check(numbers, {str: json_text.COUNT}, ADDED)
    return {
        number: _token({"content": content, "special": content in special, "normalized": content not in special}, ADDED)
        for content, number in numbers.items()
    }


def _is_word(engine: "tokenizers.Tokenizer", token: "tokenizers.AddedToken", number: int) -> bool:
    """Return whether a WordLevel vocabulary reads the token as its word `number` anyway, and the token has no flags.

    The flags are lstrip, rstrip and single_word.
    """
    from tokenizers import models

    plain = not (token.lstrip or token.rstrip or token.single_word) and isinstance(engine.model, models.WordLevel)
    return plain and engine.encode(token.content, add_special_tokens=False).ids == [number]
