"""Small corpora in the form of the published ones, with declarations of their own sizes."""

import dataclasses
from pathlib import Path

from plmjax.data.formats.corpora import CORPORA, Corpus

_PAGES = "<page>\n  <title>A fox</title>\n\tIt  digs.\n</page>\n\n"
BYTES = (_PAGES * 30)[:899].encode() + "è".encode() + (_PAGES * 3)[:98].encode() + b"\xc3"
"""A thousand bytes whose cut after 900 divides a character, and whose last character is not whole."""
LETTERS = (b"the quick fox digs a den and sleeps " * 30)[:1000]

_SECTION = " = = Life = = \n \n It lives in the <unk> of 1 @,@ 000 men . \n The end . \n \n"
WIKITEXT = {
    "train": f" \n = A fox = \n \n The fox digs , and digs . \n \n{_SECTION} = B = \n \n A den . \n \n{_SECTION}",
    "validation": f" \n = The den = \n \n A fox digs \xa0the den . \n{_SECTION}",
    "test": f" \n = C = \n \n The men of B sleep . \n \n{_SECTION}",
}
"""Split -> its text."""
WORDS = {split: sum(len(line.split()) + 1 for line in text.split("\n")[:-1]) for split, text in WIKITEXT.items()}
"""Split -> its words, with a word for the end of each line."""
_FILES = {"train": "wiki.train.tokens", "validation": "wiki.valid.tokens", "test": "wiki.test.tokens"}

DECLARED: dict[str, Corpus] = {
    name: dataclasses.replace(
        corpus, sizes={"train": 900, "validation": 50, "test": 50} if name in ("enwik8", "text8") else WORDS
    )
    for name, corpus in CORPORA.items()
}
"""Name -> the declaration of the small corpus."""


def write(name: str, folder: Path) -> Path:
    """Write the files of a small corpus, and return the path that a user names."""
    folder.mkdir(parents=True, exist_ok=True)
    if name.startswith("wikitext"):
        for split, text in WIKITEXT.items():
            (folder / _FILES[split]).write_text(text, encoding="utf-8")
        return folder
    (folder / name).write_bytes(BYTES if name == "enwik8" else LETTERS)
    return folder / name
