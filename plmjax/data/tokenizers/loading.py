"""Load a tokenizer folder or a published vocabulary."""

import contextlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plmjax.data.tokenizers import engines, growth, sentencepiece_check, settings, spelling
from plmjax.data.tokenizers.tokenizer import Tokenizer, special_tokens, surround
from plmjax.data.tokenizers.word_cache import components
from plmjax.errors import UserError, in_file, listed, quoted
from plmjax.files import json_text, storage

log = logging.getLogger(__name__)

GENERIC = ("", "PreTrained", "TokenizersBackend")
"""Classes that use only tokenizer.json. Names have no endings "Tokenizer" and "Fast"; "" stands for no class."""
CLASSES: dict[str, tuple[str, ...]] = {
    "vocab.txt": ("Bert", "ConvBert", "DistilBert", "Electra", "LayoutLM", "Lxmert", "MobileBert", "SqueezeBert"),
    "merges.txt": ("Bart", "GPT2", "Herbert", "LED", "Longformer", "OpenAIGPT", "Roberta"),
    "spiece.model": ("Albert", "BigBird", "DebertaV2", "Reformer", "T5", "XLNet"),
}
"""File -> classes, named as in `GENERIC`, that read it as plmjax does. Others split words by other rules, or number the
same pieces differently.
"""
OTHER_NAMES = {"spm.model": "spiece.model"}
"""File name in DeBERTa's folder -> usual file name."""
OPTIONS = {
    ("normalizer", "BertNormalizer"): {
        "do_lower_case": "lowercase",
        "strip_accents": "strip_accents",
        "tokenize_chinese_chars": "handle_chinese_chars",
    },
    ("pre_tokenizer", "ByteLevel"): {"add_prefix_space": "add_prefix_space"},
}
"""Step of tokenizer.json -> option of a class -> its name in the step."""
CASE_OF = {"Herbert": False, "OpenAIGPT": True}
"""Class -> true if it lowercases, false if not, whatever its options say."""


def load(path: str | Path, model_type: str = "") -> Tokenizer:
    """Load a tokenizer folder or a published vocabulary file.

    A folder holds tokenizer.json, vocab.txt, vocab.json with merges.txt, or spiece.model (spm.model in DeBERTa's). The
    first of these that exists is read. Options and added tokens come from the files beside it (`settings.read`). If
    they contradict a tokenizer.json they are followed, as in transformers, unless their class uses only
    tokenizer.json. The dropout of merges is left out, so that a text always has the same ids.

    A vocab.txt without options is normalized as its tokens are spelled (`spelling.wordpiece_normalizer`). A
    spiece.model without a class is normalized as the model_type of the config.json beside it requires, or else
    `model_type`. Without any of these it is treated as ALBERT's, with accents dropped and case folded, if it has [CLS],
    [SEP] and no capital letters; else it is used without further normalization.

    Raises:
        UserError: nothing is there, or the files are not a vocabulary.
    """
    with storage.local(storage.path(path)) as folder:
        return _load(folder, model_type)


def _load(path: Path, model_type: str) -> Tokenizer:
    forms = _forms(path)
    try:
        return _tokenizer(path if path.is_dir() else path.parent, forms, model_type)
    except (UserError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the tokenizers library raises bare Exception, and BaseException where Rust panics
        reason = json_text.reason(error)
        raise UserError(
            f"Expected a vocabulary at {path}, found files that do not read as one ({reason}); fetch them again."
        ) from error


def _tokenizer(folder: Path, forms: dict[str, Path], model_type: str) -> Tokenizer:
    from tokenizers import AddedToken

    beside = settings.read(folder)
    options, model = beside.options, settings.read_json(folder / "config.json")
    settings.warn(options, folder / settings.CONFIG)
    name = options.get("tokenizer_class") or model.get("tokenizer_class") or ""
    json_text.check(name, str, "tokenizer_class")
    form = _form(forms, name)
    with _in(forms[form]):
        match form:
            case "tokenizer.json":
                engine = _from_json(forms[form], options, _short(name))
            case "vocab.txt":
                engine = _from_words(forms[form], options)
            case "merges.txt":
                engine = _from_merges(forms["vocab.json"], forms[form], options, _short(name))
            case "spiece.model":
                engine = _from_pieces(forms[form], options, name or model.get("model_type") or model_type)
    settings.add_tokens(engine, beside.tokens, folder)
    special, control = special_tokens(options, engine), []
    if form == "spiece.model":
        named, control = engines.special_pieces(forms[form].read_bytes())
        options = {f"{role}_token": piece for role, piece in named.items() if role not in special} | options
        special = special_tokens(options, engine)
    if form != "tokenizer.json":
        usual = (AddedToken(token, special=True, normalized=False) for token in [*special.values(), *control])
        settings.add_tokens(engine, [(token, -1) for token in usual], folder)
        surround(engine, special)
    engine.no_padding()
    engine.no_truncation()
    files = {name: file.read_bytes() for name, file in forms.items() if name != "tokenizer.json"}
    if not options or (form == "spiece.model" and not options.get("tokenizer_class")):
        tokens = {f"{role}_token": token for role, token in special.items()}
        options = tokens | options | {"tokenizer_class": "PreTrainedTokenizerFast"}  # this class uses tokenizer.json
    if beside.older:
        options = options | {settings.DECODER: settings.decoder(engine)}
    files[settings.CONFIG] = (json.dumps(options, indent=2, ensure_ascii=False) + "\n").encode()
    tokenizer = Tokenizer(engine, files, special)
    if tokenizer.kind != "byte":  # a byte tokenizer may lack any byte
        with in_file(forms[form]):
            tokenizer.encode("A tokenizer that cannot encode, such as one with an odd pattern, is found at once.")
    return tokenizer


def _short(name: str) -> str:
    return name.removesuffix("Fast").removesuffix("Tokenizer")


def _form(forms: dict[str, Path], name: str) -> str:
    """Return the name of the file to read: tokenizer.json, or else a file that the class reads as plmjax does.

    forms: dict from file name to path. name: class name of the tokenizer; empty if the folder names none.

    Raises:
        UserError: there is no tokenizer.json, and the class makes other ids from the other files.
    """
    if "tokenizer.json" in forms:
        return "tokenizer.json"
    found = [form for form in CLASSES if form in forms]
    able = [form for form in found if _short(name) in (*GENERIC, *CLASSES[form])]
    if not able:
        known = (one for form in found for one in CLASSES[form])
        raise UserError(
            f"Expected a tokenizer_class for {listed(found)} of {listed(known)} in {forms[found[0]].parent}, found "
            f"{quoted(name)}, which makes other ids from it; save the tokenizer with transformers as a tokenizer.json."
        )
    return able[0]


@contextlib.contextmanager
def _in(file: Path) -> Iterator[None]:
    """Add the name of a file to errors of the tokenizers library."""
    try:
        yield
    except (UserError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise ValueError(f"{file.name}: {json_text.reason(error)}") from error


def _forms(path: Path) -> dict[str, Path]:
    """Return a dict from name in a tokenizer folder to file, for every form of the tokenizer at `path`."""
    if not path.exists():
        raise UserError(f"Expected a tokenizer folder or vocabulary file at {path}, found nothing; check the path.")
    names = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "spiece.model")
    if path.is_dir():
        there = {OTHER_NAMES.get(name, name): path / name for name in (*OTHER_NAMES, *names) if (path / name).is_file()}
        forms = {name: there[name] for name in names if name in there}
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


def _from_json(file: Path, options: dict[str, Any], name: str):
    """Return the engine of a tokenizer.json. name: its class, shortened."""
    from tokenizers import Tokenizer, models

    _check_ids(file)
    growth.check(file)
    engine = Tokenizer.from_file(str(file))
    merges = engine.model
    if isinstance(merges, models.BPE) and merges.dropout:
        log.warning(
            "The dropout of merges in %s (%g) is left out: a text always has the same ids.", file, merges.dropout
        )
        merges.dropout = None
    description = json_text.parse(engine.to_str())
    if name in GENERIC[1:] or not _follow(options, description, name):
        return engine
    return Tokenizer.from_str(json.dumps(description))


def _follow(options: dict[str, Any], description: dict[str, Any], name: str) -> bool:
    """Apply the options to the description of a tokenizer. Return whether it changed.

    The classes of transformers with these options build their normalizer and splitter from them. name: the class,
    shortened.
    """
    before = json.dumps(description)
    if name in CASE_OF:
        options = options | {"do_lower_case": CASE_OF[name]}
    for (place, kind), fields in OPTIONS.items():
        for step in components(description, place):
            if step["type"] == kind:
                step.update({field: options[option] for option, field in fields.items() if option in options})
    if name in ("Albert", "XLNet") and options.keys() & {"do_lower_case", "keep_accents"}:
        steps = components(description, "normalizer")
        description["normalizer"] = {"type": "Sequence", "normalizers": _respelt(steps, options)}
    return json.dumps(description) != before


def _respelt(steps: list[dict[str, Any]], options: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the steps of ALBERT's or XLNet's normalizer, without accents and in lower case as the options say."""
    kinds = [step["type"] for step in steps]
    place = next((at for at, kind in enumerate(kinds) if kind in ("NFKD", "Lowercase", "Precompiled")), len(kinds))
    spelt = [] if options.get("keep_accents", "NFKD" not in kinds) else ["NFKD", "StripAccents"]
    spelt += ["Lowercase"] if options.get("do_lower_case", "Lowercase" in kinds) else []
    rest = [step for step in steps[place:] if step["type"] not in ("NFKD", "StripAccents", "Lowercase")]
    return [*steps[:place], *({"type": kind} for kind in spelt), *rest]


def _from_words(file: Path, options: dict[str, Any]):
    """Return the engine of a vocab.txt, one token per line.

    White space at the end of a line is not part of its token. If a token occurs twice, its last id is used.

    Deviation: empty lines at the end are not tokens. To transformers they are one token, which has no embedding.
    """
    tokens = [line.rstrip() for line in file.read_text(encoding="utf-8-sig").rstrip().split("\n")]
    table = {token: index for index, token in enumerate(tokens)}
    engine = engines.wordpiece(
        table,
        lowercase=options.get("do_lower_case", not spelling.is_cased(tokens)),
        strip_accents=options.get("strip_accents"),
        chinese=options.get("tokenize_chinese_chars", True),
        unknown=_unknown(options, table, file),
    )
    if not options.keys() & {"do_lower_case", "strip_accents", "tokenize_chinese_chars"}:
        engine.normalizer = spelling.wordpiece_normalizer(tokens)
    return engine


def _unknown(options: dict[str, Any], table: dict[str, int], file: Path) -> str:
    """Return the token for unknown words: from the options, or else [UNK] or <unk>."""
    named = options.get("unk_token")
    named = named["content"] if isinstance(named, dict) else named
    found = [token for token in ([named] if named else ("[UNK]", "<unk>")) if token in table]
    if not found:
        raise UserError(
            f"Expected a token for unknown words in {file}, {quoted(named) if named else '[UNK] or <unk>'}, found no "
            f"such token; add it, or name another as unk_token in {settings.CONFIG}."
        )
    return found[0]


def _from_merges(vocabulary: Path, merges: Path, options: dict[str, Any], name: str):
    """Return the engine of a vocab.json with its merges.txt: of bytes, or of characters with </w> at the end of a word.

    name: class of the tokenizer, shortened.
    """
    from tokenizers import models, normalizers

    table = json_text.read_object(vocabulary, "tokens and their ids", "fetch it again")
    _check_table(table, vocabulary)
    lines = merges.read_text(encoding="utf-8-sig").split("\n")
    pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    if wrong := [pair for pair in pairs if len(pair) != 2]:
        raise UserError(f"Expected two tokens a line in {merges}, found {quoted(' '.join(wrong[0]))}; fetch it again.")
    if not any(second.endswith("</w>") for _, second in pairs):
        return engines.byte_bpe(models.BPE(table, pairs), options.get("add_prefix_space", False), lowercase=False)
    unknown = _unknown(options, table, vocabulary)
    engine = engines.bpe(models.BPE(table, pairs, end_of_word_suffix="</w>", unk_token=unknown), lowercase=True)
    lowercase = CASE_OF.get(name, options.get("do_lower_case", not spelling.is_cased(table)))
    engine.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase,
        strip_accents=options.get("strip_accents"),
        handle_chinese_chars=options.get("tokenize_chinese_chars", True),
    )
    return engine


def _from_pieces(file: Path, options: dict[str, Any], system: str):
    """Return the engine of a spiece.model. system: class of the tokenizer, or else the model_type."""
    content = file.read_bytes()
    with in_file(file.parent / settings.CONFIG):
        engine = engines.sentencepiece(content, options, system)
    with in_file(file):
        sentencepiece_check.check(engine, content, options, system)
    return engine


def _check_ids(file: Path) -> None:
    """Raise UserError if the ids of a tokenizer.json exceed the size of the file."""
    found = json_text.read_object(file, "a tokenizer", "fetch it again")
    model, added = found.get("model"), found.get("added_tokens") or []
    table = model.get("vocab") if isinstance(model, dict) else None
    ids = {token.get("content"): token.get("id") for token in added if isinstance(token, dict)}
    for entries in (ids, table if isinstance(table, dict) else {}):
        _check_table(entries, file)


def _check_table(table: dict, file: Path) -> None:
    """Raise UserError for an id above the number of bytes of its file.

    The library allocates a table up to the largest id.
    """
    size = file.stat().st_size
    for token, number in table.items():
        if not isinstance(number, int) or not 0 <= number <= size:
            raise UserError(
                f"Expected ids from 0 on, as many as a file of {size:,} bytes has tokens, in {file}, found "
                f"{quoted(number)} for {quoted(token)}; fetch it again."
            )
