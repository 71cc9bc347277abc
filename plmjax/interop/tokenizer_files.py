"""The tokenizer of a transformers folder, with our token ids and the model's special tokens around a text.

A tokenizer may add the special tokens of another model. A tokenizer trained for BERT writes [CLS] A [SEP], but a
translation Transformer reads A [SEP]. The written folder has the model's special tokens.
"""

import contextlib
import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from plmjax import json_text, storage
from plmjax.contracts.template import TEXT_ALONE, TEXTS, Template, TokenRow
from plmjax.data.tokenizers.kinds import OTHERS
from plmjax.errors import UserError, quoted
from plmjax.interop import notices
from plmjax.vocabulary import Vocabulary

log = logging.getLogger(__name__)

SETTINGS = "tokenizer_config.json"
ENGINE = "tokenizer.json"

CLASS = "PreTrainedTokenizerFast"
"""The class of transformers that follows tokenizer.json. The class of a system builds the tokenizer again from its
vocabulary, with special tokens and often a spelling of its own.
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

Layout = Callable[..., tuple[Sequence[int], Sequence[int]]]
"""One text or two -> ids and token types of their row."""


def write(tokenizer: Any, template: Template, longest: int | None, directory: Path) -> None:
    """Write the files of a tokenizer whose layout of texts is the template.

    tokenizer: a plmjax.data.tokenizers.Tokenizer.
    longest: maximum number of tokens in the model's rows. transformers truncates a text there unless the tokenizer has
        a length of its own. None: there is no limit.

    Raises:
        UserError: the tokenizer lacks a special token of the template.
    """
    import tokenizers

    template.check(tokenizer.vocabulary)
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer.save(scratch)
        files = {file.name: file.read_bytes() for file in Path(scratch).iterdir()}
    engine = tokenizers.Tokenizer.from_str(files[ENGINE].decode("utf-8"))
    if _difference(tokenizer, template, _engine_layout(engine)):
        engine.post_processor = _processor(template, tokenizer.vocabulary, engine)
        files[ENGINE] = engine.to_str(pretty=True).encode("utf-8")
    settings = {name: value for name, value in json_text.parse(files[SETTINGS]).items() if name not in REBUILDING}
    lengths = {} if longest is None else {"model_max_length": longest}
    settings = lengths | {"clean_up_tokenization_spaces": False} | settings
    named = {role: token for role, token in tokenizer.special.items() if role not in OTHERS}
    settings |= {f"{role}_token": _named(token, engine) for role, token in named.items()}
    types = ["token_type_ids"] if template.typed else []
    settings |= {"tokenizer_class": CLASS, "model_input_names": ["input_ids", *types, "attention_mask"]}
    files[SETTINGS] = (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode("utf-8")
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        storage.write(directory / name, content)


def rows_with(vocabulary: Vocabulary, template: Template) -> Template:
    """Return the template, without special tokens if the tokenizer lacks one of them.

    The template of an imported head may name such a token. Our own commands make no rows for such a model.
    """
    missing = template.missing(vocabulary)
    if missing:
        log.warning("The tokenizer has no token for %s: texts are written without special tokens.", ", ".join(missing))
    return TEXT_ALONE if missing else template


def compare(tokenizer: Any, template: Template, directory: str | Path) -> int:
    """Compare the rows that a folder's tokenizer makes from texts and pairs with ours. Return the number of rows.

    transformers opens the folder's tokenizer, or the library tokenizers if transformers is not installed.

    Raises:
        UserError: a row differs, or the folder does not open.
    """
    with opened(directory) as layout:
        if difference := _difference(tokenizer, template, layout):
            raise UserError(f"Expected {directory} to give the rows of this model's texts, found {difference}.")
    return 2 * len(SAMPLES)


def difference(tokenizer: Any, template: Template, directory: str | Path) -> str:
    """Compare rows as `compare` does, for a folder from another writer. Return the first difference in words, or ""."""
    with opened(directory) as layout:
        return _difference(tokenizer, template, layout)


@contextlib.contextmanager
def opened(directory: str | Path) -> Iterator[Layout]:
    """Open the tokenizer of a folder as a function that makes rows, with transformers if it is installed."""
    import tokenizers

    try:
        import transformers
    except ImportError:
        yield _engine_layout(tokenizers.Tokenizer.from_file(str(Path(directory) / ENGINE)))
        return
    with notices.none_from(transformers):
        try:
            theirs = transformers.AutoTokenizer.from_pretrained(str(directory))
        except Exception as error:  # of any type: each class checks its arguments
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"Expected transformers to open the tokenizer in {directory}, found: {reason}; correct its files."
            ) from error

        def layout(*texts: str) -> tuple[Sequence[int], Sequence[int]]:
            row = theirs(*texts, return_token_type_ids=True)
            return row["input_ids"], row["token_type_ids"]

        yield layout


def row(tokenizer: Any, template: Template, *texts: str) -> TokenRow:
    """Return the row that our own commands make from one text or two.

    The names of special tokens in a text are read, as transformers reads them.
    """
    return template.lay_out(tokenizer.reading().encode_batch(texts), tokenizer.vocabulary)


def _difference(tokenizer: Any, template: Template, layout: Layout) -> str:
    pairs = zip(SAMPLES, (*SAMPLES[1:], SAMPLES[0]), strict=True)
    for texts in [*((text,) for text in SAMPLES), *pairs]:
        ours, (ids, types) = row(tokenizer, template, *texts), layout(*texts)
        what = "a pair" if len(texts) == 2 else "a text"
        if list(ids) != ours.tokens:
            return f"ids of {what} that differ ({_shown(ids, ours.tokens)} of {quoted(texts[0])})"
        if template.typed and list(types) != ours.token_types:
            return f"token types of {what} that differ ({_shown(types, ours.token_types)} of {quoted(texts[0])})"
    return ""


def _shown(found: Sequence[int], expected: Sequence[int]) -> str:
    """Return up to six numbers of both sequences, from one position before their first difference."""
    same = next((place for place, pair in enumerate(zip(found, expected)) if pair[0] != pair[1]), 0)  # noqa: B905
    first = max(0, same - 1)
    return f"{list(found)[first : first + 6]} for {list(expected)[first : first + 6]} from token {first + 1} on"


def _engine_layout(engine: Any) -> Layout:
    def layout(*texts: str) -> tuple[Sequence[int], Sequence[int]]:
        encoding = engine.encode(*texts)
        return encoding.ids, encoding.type_ids

    return layout


def _processor(template: Template, vocabulary: Vocabulary, engine: Any) -> Any:
    from tokenizers.processors import TemplateProcessing

    tokens = {role: engine.id_to_token(vocabulary.id_of(role)) for role in template.roles}
    names = tokens | {text: f"${text}" for text in TEXTS}
    single, pair = ([f"{names[name]}:{kind}" for name, kind in template.parts(texts)] for texts in (1, 2))
    ids = [(token, engine.token_to_id(token)) for token in dict.fromkeys(tokens.values())]
    return TemplateProcessing(single=single, pair=pair, special_tokens=ids)


def _named(token: str, engine: Any) -> str | dict[str, Any]:
    """Return the form of a special token in settings.

    With the name alone, transformers would forget that the token takes a space.
    """
    known = engine.get_added_tokens_decoder().get(engine.token_to_id(token))
    if known is None or not (known.lstrip or known.rstrip or known.single_word):
        return token
    kept = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
    return {"__type": "AddedToken"} | {name: getattr(known, name) for name in kept}
