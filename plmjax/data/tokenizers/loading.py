"""Load a tokenizer folder or a published vocabulary."""

import json
from pathlib import Path

from plmjax import json_text, storage
from plmjax.data.tokenizers import engines, spelling
from plmjax.data.tokenizers.tokenizer import Tokenizer, special_tokens, surround
from plmjax.errors import UserError, in_file, quoted


def load(path: str | Path, model_type: str = "") -> Tokenizer:
    """Load a tokenizer folder or a published vocabulary file.

    A folder holds tokenizer.json, vocab.txt, vocab.json with merges.txt, or spiece.model. The first of these that
    exists is read. Options come from its tokenizer_config.json. A vocab.txt without options has the
    spelling of its tokens (`spelling.of_pieces`). A spiece.model without a tokenizer class is normalized as the
    model_type of the config.json beside it requires, or else `model_type`. Without any of these it is treated as
    ALBERT's, with accents dropped and case folded, if it holds [CLS], [SEP] and no capital letters; else it is used as
    it is.

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
    config = _json(folder / "tokenizer_config.json")
    if "spiece.model" in forms and not config.get("tokenizer_class"):
        model = _json(folder / "config.json")
        model_type = model.get("tokenizer_class") or model.get("model_type") or model_type
    engine, names = _read(forms, config, model_type)
    special = special_tokens(config, engine)
    if names != ["tokenizer.json"]:
        _add_special(engine, config, special)
        surround(engine, special)
    engine.no_padding()
    engine.no_truncation()
    files = {name: file.read_bytes() for name, file in forms.items() if name != "tokenizer.json"}
    if not config or (names == ["spiece.model"] and not config.get("tokenizer_class")):
        tokens = {f"{role}_token": token for role, token in special.items()}
        config = tokens | config | {"tokenizer_class": "PreTrainedTokenizerFast"}  # this class uses tokenizer.json
    files["tokenizer_config.json"] = (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()
    tokenizer = Tokenizer(engine, files, special)
    if tokenizer.kind != "byte":  # which may lack any byte
        tokenizer.encode("A tokenizer that cannot encode, such as one with an odd pattern, is found at once.")
    return tokenizer


def _json(file: Path) -> dict:
    """Return the contents of a JSON file of options; empty if there is no file."""
    return json_text.read_object(file, "options of a tokenizer", "download it again") if file.is_file() else {}


def _forms(path: Path) -> dict[str, Path]:
    """Return a dict from name in a tokenizer folder to file, for every form of the tokenizer at `path`."""
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
    """Return the engine of the first form that exists, and the names of the files it was read from."""
    from tokenizers import Tokenizer, models

    if "tokenizer.json" in forms:
        _check_ids(forms["tokenizer.json"])
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
            lowercase=config.get("do_lower_case", not spelling.cased(tokens)),
            strip_accents=config.get("strip_accents"),
            chinese=config.get("tokenize_chinese_chars", True),
        )
        if not config.keys() & {"do_lower_case", "strip_accents", "tokenize_chinese_chars"}:
            engine.normalizer = spelling.of_pieces(tokens)
        return engine, ["vocab.txt"]
    if "merges.txt" in forms:
        files = [str(forms[name]) for name in ("vocab.json", "merges.txt")]
        table = json_text.read_object(forms["vocab.json"], "tokens and their ids", "fetch it again")
        _check_table(table, forms["vocab.json"])
        if "</w>\n" in forms["merges.txt"].read_text(encoding="utf-8"):
            if "<unk>" not in table:
                raise UserError(
                    f"Expected <unk> in a vocabulary of words' pieces, found none in {forms['vocab.json']}; add it, or "
                    f"take the file that belongs to these merges."
                )
            return engines.bpe(models.BPE.from_file(*files, end_of_word_suffix="</w>", unk_token="<unk>"), True), [
                *files
            ]
        prefix_space = config.get("add_prefix_space", False)
        return engines.byte_bpe(models.BPE.from_file(*files), prefix_space, lowercase=False), [*files]
    with in_file(forms["spiece.model"].parent / "tokenizer_config.json"):
        return engines.sentencepiece(forms["spiece.model"].read_bytes(), config, model_type), ["spiece.model"]


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


def _add_special(engine, config: dict, special: dict[str, str]) -> None:
    """Make the tokenizer recognize special tokens in a text, with the space before them if the configuration requires
    it.
    """
    from tokenizers import AddedToken

    table = engine.get_vocab()
    listed = config.get("added_tokens_decoder", {})
    for _, token in sorted(listed.items(), key=lambda item: int(item[0])):
        engine.add_tokens([AddedToken(**token)])
    tokens = sorted(set(special.values()) - {t["content"] for t in listed.values()}, key=table.get)
    stripping = {t["content"] for t in config.values() if isinstance(t, dict) and t.get("lstrip")}
    engine.add_special_tokens([AddedToken(t, lstrip=t in stripping, normalized=False, special=True) for t in tokens])
