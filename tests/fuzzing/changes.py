"""Seeded changes of a file that may happen on its way: of its bytes, lines, cells, JSON and place."""

import bz2
import functools
import gzip
import json
import random
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Random = random.Random

# ----------------------------------------------------------------------------------------------------------- bytes


def cut(content: bytes, draws: Random) -> bytes:
    """The beginning."""
    return content[: draws.randrange(len(content) + 1)]


def cut_at_the_end(content: bytes, draws: Random) -> bytes:
    """All but a few last bytes."""
    return content[: max(0, len(content) - draws.randint(1, 9))]


def flip_bits(content: bytes, draws: Random) -> bytes:
    """From one bit to eight of them changed."""
    changed = bytearray(content or b"\0")
    for _ in range(draws.randint(1, 8)):
        changed[draws.randrange(len(changed))] ^= 1 << draws.randrange(8)
    return bytes(changed)


def overwrite_a_block(content: bytes, draws: Random) -> bytes:
    """Up to 64 bytes replaced by random ones, by zeros or by ones."""
    at, length = draws.randrange(len(content) + 1), draws.randint(1, 64)
    block = draws.choice([draws.randbytes(length), bytes(length), b"\xff" * length])
    return content[:at] + block + content[at + length :]


def empty(content: bytes, draws: Random) -> bytes:
    """Nothing."""
    return b""


def packed_garbage(content: bytes, draws: Random) -> bytes:
    """Random bytes, gzipped."""
    return gzip.compress(draws.randbytes(200), mtime=0)


def packed_and_cut(content: bytes, draws: Random) -> bytes:
    """The file gzipped, without its end."""
    return cut(gzip.compress(content, mtime=0), draws)


def damaged_gzip(content: bytes, draws: Random) -> bytes:
    """The file gzipped, with changed bits behind the header."""
    packed = gzip.compress(content, mtime=0)
    return packed[:10] + flip_bits(packed[10:], draws)


def something_else(content: bytes, draws: Random) -> bytes:
    """The beginning of a file of another kind."""
    return draws.choice(OTHERS)


OTHERS = (
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1",
    b"\x89HDF\r\n\x1a\n" + bytes(64),
    b"PK\3\4\x14\0\0\0\0\0" + bytes(32),
    b"PAR1" + bytes(16) + b"PAR1",
    b"BZh91AY&SY",
    b"\xfd7zXZ\0\0\4",
    b"\x28\xb5\x2f\xfd\x04\x00",
    b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.",
    b"\x93NUMPY\x01\0v\0{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000,), }\n",
    b"\x08\0\0\0\0\0\0\0{}      ",
    b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    b"<!DOCTYPE html><html><body>404 Not Found</body></html>\n",
    b"[1, 2, 3]\n",
    b"{}\n",
    b"0\n",
    b"text\n",
)
"""Files of other kinds: pictures, archives, tables, pickles, pointers, pages of errors, JSON of another shape."""

BYTES = (cut, cut_at_the_end, flip_bits, overwrite_a_block, empty, something_else)
PACKED = (packed_garbage, packed_and_cut, damaged_gzip)

# ------------------------------------------------------------------------------------------------------------ text


def _lines(content: bytes, draws: Random) -> tuple[list[bytes], int]:
    """The lines, and the number of one."""
    lines = content.splitlines(keepends=True) or [b""]
    return lines, draws.randrange(len(lines))


def repeat_a_line(content: bytes, draws: Random) -> bytes:
    """A line twice."""
    lines, at = _lines(content, draws)
    return b"".join([*lines[: at + 1], *lines[at:]])


def leave_out_a_line(content: bytes, draws: Random) -> bytes:
    """A line is missing."""
    lines, at = _lines(content, draws)
    return b"".join([*lines[:at], *lines[at + 1 :]])


def _in_a_line(changed: Callable[[bytes, Random], bytes], content: bytes, draws: Random) -> bytes:
    lines, at = _lines(content, draws)
    line = lines[at].rstrip(b"\r\n")
    lines[at] = changed(line, draws) + lines[at][len(line) :]
    return b"".join(lines)


def _in_a_cell(changed: Callable[[bytes], Sequence[bytes]], line: bytes, draws: Random) -> bytes:
    """A line, one of whose cells is replaced by any number of them."""
    mark = next((mark for mark in (b"\t", b" ", b",") if mark in line), b"\t")
    cells = line.split(mark)
    at = draws.randrange(len(cells))
    return mark.join([*cells[:at], *changed(cells[at]), *cells[at + 1 :]])


CELLS: dict[str, Callable[[bytes], Sequence[bytes]]] = {
    "a cell more": lambda cell: [cell, cell],
    "a cell less": lambda cell: [],
    "an empty cell": lambda cell: [b""],
    "an underscore in a cell": lambda cell: [cell[:1] + b"_" + cell[1:]],
    "a number that is none": lambda cell: [b"nan"],
    "an endless number": lambda cell: [b"1e999"],
    "a huge number": lambda cell: [b"9" * 5000],
    "a negative number": lambda cell: [b"-1"],
    "other digits": lambda cell: ["\u0663\u0664".encode()],
    "a superscript": lambda cell: ["\u00b2".encode()],
    "a quotation mark": lambda cell: [b'"' + cell],
    "a zero byte": lambda cell: [cell + b"\0"],
    "bytes that are no text": lambda cell: [cell + b"\xff\xfe\xed\xa0\x80"],
    "a separator of lines": lambda cell: [cell + "\u2028\u0085".encode()],
    "a white cell": lambda cell: ["\u00a0\u3000".encode()],
}
LINES: dict[str, Callable[[bytes, Random], bytes]] = {
    "a line of a megabyte": lambda line, draws: (line or b"x") * (1_000_000 // max(1, len(line)) + 1),
    "a word of a megabyte": lambda line, draws: line + b"x" * 1_000_000,
    "an empty line": lambda line, draws: line + b"\n",
    "a carriage return": lambda line, draws: line[: len(line) // 2] + b"\r" + line[len(line) // 2 :],
}
WHOLE: dict[str, Callable[[bytes, Random], bytes]] = {
    "a byte order mark": lambda content, draws: b"\xef\xbb\xbf" + content,
    "UTF-16": lambda content, draws: content.decode("utf-8", "replace").encode("utf-16"),
    "carriage returns": lambda content, draws: content.replace(b"\n", b"\r"),
    "both ends of lines": lambda content, draws: content.replace(b"\n", b"\r\n"),
    "no last end of line": lambda content, draws: content.rstrip(b"\r\n"),
    "a line twice": repeat_a_line,
    "a line less": leave_out_a_line,
}
TEXT: dict[str, Callable[[bytes, Random], bytes]] = (
    WHOLE
    | {name: functools.partial(_in_a_line, changed) for name, changed in LINES.items()}
    | {name: functools.partial(_in_a_line, functools.partial(_in_a_cell, changed)) for name, changed in CELLS.items()}
)

# ------------------------------------------------------------------------------------------------------------ JSON

RAW = {
    "\ue000deep": "[" * 100_000 + "]" * 100_000,
    "\ue000objects": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "\ue000digits": "9" * 5000,
    "\ue000large": "1e999",
}
"""Placeholder -> JSON text that json.dumps cannot write."""
VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1,
    2**31,
    2**63,
    10**30,
    0.5,
    -0.0,
    1e308,
    float("inf"),
    float("nan"),
    "",
    "x",
    "\x00",
    "\ud800",
    "line\nline\u2028line",
    "../../outside",
    "/tmp",
    "x" * 200_000,
    [],
    {},
    [[]],
    [None],
    [1, "a"],
    {"type": "plmjax.experiment.settings:Experiment"},
    {"a": {"b": 1}},
    *RAW,
)


def _places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """(object or list, key) of every value within."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        found.append((value, key))
        _places(value[key], found)
    return found


def _changed_value(value: Any, draws: Random) -> tuple[Any, str]:
    """A value of JSON with a change somewhere within, and what was done."""
    places = _places(value, [])
    if not places or draws.random() < 0.03:
        return draws.choice(VALUES), "another value"
    # The few outer names as often as the many numbers of a long list.
    outer = [place for place in places if isinstance(place[0], dict)]
    within, key = draws.choice(outer if outer and draws.random() < 0.7 else places)
    done = draws.choice(["replaced", "replaced", "replaced", "removed", "renamed", "wrapped", "repeated"])
    if done == "removed":
        del within[key]
    elif done == "renamed" and isinstance(within, dict):
        within[draws.choice([str(key).upper(), f"{key}_", "", "\ud800", "x" * 10_000])] = within.pop(key)
    elif done == "wrapped":
        within[key] = draws.choice([[within[key]], {"value": within[key]}, str(within[key])])
    elif done == "repeated" and isinstance(within, list):
        within.append(within[key])
    else:
        within[key] = new = draws.choice(VALUES)
        done = f"replaced by {repr(new)[:40]}"
    return value, f"{str(key)[:40]!r} {done}"


def _dumped(value: Any) -> str:
    text = json.dumps(value)
    for mark, raw in RAW.items():
        text = text.replace(json.dumps(mark), raw)
    return text


def change_json(content: bytes, draws: Random) -> tuple[bytes, str] | None:
    """A value, a name or the shape of JSON changed, of one line where each line is JSON; None where there is none."""
    try:
        value, name = _changed_value(json.loads(content), draws)
        return _dumped(value).encode(), f"JSON: {name}"
    except ValueError:
        pass
    lines, at = _lines(content, draws)
    try:
        value, name = _changed_value(json.loads(lines[at]), draws)
    except ValueError:
        return None
    lines[at] = _dumped(value).encode() + b"\n"
    return b"".join(lines), f"JSON in line {at + 1}: {name}"


def change_header(content: bytes, draws: Random) -> tuple[bytes, str] | None:
    """The header of safetensors changed as other JSON is; None for other files."""
    length = int.from_bytes(content[:8], "little")
    if not 0 < length <= len(content) - 8 or content[8:9] != b"{":
        return None
    changed = change_json(content[8 : 8 + length], draws)
    if changed is None:
        return None
    header, name = changed
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + content[8 + length :], f"header of {name}"


# ----------------------------------------------------------------------------------------------------------- place


def folder_in_its_place(path: Path) -> None:
    """A folder."""
    path.mkdir()


def loop(path: Path) -> None:
    """A link to itself."""
    path.symlink_to(path.name)


def dangling(path: Path) -> None:
    """A link to nothing; what writes through it writes beside the sample."""
    path.symlink_to(path.parents[1] / "behind-a-link")


def removed(path: Path) -> None:
    """Nothing at all."""


PLACES = (folder_in_its_place, loop, dangling, removed)

# ------------------------------------------------------------------------------------------------------------- all

_COMPRESSED: dict[bytes, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    b"\x1f\x8b": (gzip.decompress, functools.partial(gzip.compress, mtime=0)),
    b"BZh": (bz2.decompress, bz2.compress),
}


def _is_text(content: bytes) -> bool:
    return b"\0" not in content[:4096] and b"\n" in content[:65536]


def changed(content: bytes, draws: Random) -> tuple[bytes, str]:
    """The bytes of a file after a change, and its name; of a compressed file half the time of what it holds."""
    for start, (unpack, pack) in _COMPRESSED.items():
        if content.startswith(start) and draws.random() < 0.6:
            try:
                inner, name = changed(unpack(content), draws)
            except (OSError, EOFError, zlib.error):
                break
            return pack(inner), f"{name}, packed again"
    structured = change_json(content, draws) if content[:1] in b"{[" else change_header(content, draws)
    if structured is not None and draws.random() < 0.7:
        return structured
    kinds: list[tuple[str, Callable[[bytes, Random], bytes]]] = []
    if _is_text(content):
        kinds += [*TEXT.items()] * (1 if content[:1] in b"{[" else 2)
    kinds += [(one.__name__.replace("_", " "), one) for one in (*BYTES, *BYTES, *PACKED)]
    name, change = draws.choice(kinds)
    return change(content, draws), name


def spoil(sample: Path, draws: Random) -> tuple[Path, str]:
    """Changes one file of a folder, or what stands in its place; says which, and the change."""
    files = sorted(file for file in sample.rglob("*") if file.is_file())
    kinds = sorted({(file.parent, file.suffix) for file in files})
    # A kind of file first: a checkpoint has many more files of numbers than of settings.
    folder, suffix = draws.choice(kinds)
    file = draws.choice([file for file in files if (file.parent, file.suffix) == (folder, suffix)])
    if draws.random() < 0.08:
        place = draws.choice(PLACES)
        file.unlink()
        place(file)
        return file, place.__name__.replace("_", " ")
    if len(files) > 1 and draws.random() < 0.04:
        other = draws.choice([one for one in files if one != file])
        file.write_bytes(other.read_bytes())
        return file, f"the content of {other.name}"
    content, name = changed(file.read_bytes(), draws)
    file.write_bytes(content)
    return file, name
