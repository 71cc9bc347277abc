"""generation_config.json, and the fields of an old config.json, as settings of how texts are written, and back."""

from typing import Any

import pytest

from plmjax.errors import UserError
from plmjax.generation.options import Decoding, Generation
from plmjax.interop.generation_settings import NEUTRAL, SUPPORTED, WITHOUT_EFFECT, read, write
from tests.optional import transformers

BART = {
    "bos_token_id": 0, "decoder_start_token_id": 2, "early_stopping": True, "eos_token_id": 2,
    "forced_bos_token_id": 0, "forced_eos_token_id": 2, "length_penalty": 2.0, "max_length": 142, "min_length": 56,
    "no_repeat_ngram_size": 3, "num_beams": 4, "pad_token_id": 1, "transformers_version": "4.27.0",
}  # fmt: skip
"""As published for summaries."""
MARIAN = {
    "bad_words_ids": [[58100]], "bos_token_id": 0, "decoder_start_token_id": 58100, "eos_token_id": 0,
    "forced_eos_token_id": 0, "max_length": 512, "num_beams": 6, "pad_token_id": 58100, "renormalize_logits": True,
}  # fmt: skip
DRAWN = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "max_length": 50, "eos_token_id": [7, 9]}


START = "decoder_start_token_id"
PUBLISHED = [
    (BART, False, 2, Generation(
        beams=4, length_penalty=2.0, length_normalization="tokens", early_stopping="full", max_new_tokens=141,
        min_new_tokens=55, no_repeat_ngram_size=3, forced_bos_token_id=0, forced_eos_token_id=2,
    )),
    (MARIAN, False, 0, Generation(
        beams=6, length_penalty=1.0, length_normalization="tokens", early_stopping="likely", max_new_tokens=511,
        bad_words_ids=("58100",), renormalize_logits=True, forced_eos_token_id=0,
    )),
    (DRAWN, True, 9, Generation(temperature=0.6, top_k=50, top_p=0.9, max_length=50, eos_token_id=(7, 9))),
]  # fmt: skip


@pytest.mark.parametrize(("file", "whole", "end", "expected"), PUBLISHED, ids=["bart", "marian", "drawn"])
def test_what_was_published(file: dict[str, Any], whole: bool, end: int, expected: Generation) -> None:
    found = read(file, {START: file.get(START)}, whole=whole, end=end)
    assert found.generation == expected and not found.unsupported


EACH: dict[str, tuple[Any, dict[str, Any]]] = {
    "bad_words_ids": ([[5]], {}), "do_sample": (True, {}), "early_stopping": (True, {"num_beams": 2}),
    "eos_token_id": (7, {}), "forced_bos_token_id": (3, {}), "forced_eos_token_id": (3, {}),
    "length_penalty": (2.0, {"num_beams": 2}), "max_length": (9, {}), "max_new_tokens": (9, {}), "min_length": (9, {}),
    "min_new_tokens": (9, {}), "no_repeat_ngram_size": (2, {}), "num_beams": (3, {}), "renormalize_logits": (True, {}),
    "repetition_penalty": (2.0, {}), "temperature": (0.5, {"do_sample": True}), "top_k": (3, {"do_sample": True}),
    "top_p": (0.5, {"do_sample": True}),
}  # fmt: skip
"""Setting -> a value that changes the text, and the settings that it needs beside it."""


@pytest.mark.parametrize("name", sorted(SUPPORTED))
def test_every_option_of_generation_is_read(name: str) -> None:
    value, beside = EACH[name]
    without = {"transformers_version": "4.27.0", **beside}
    found, default = (read(file, {}, whole=False, end=0) for file in ({**without, name: value}, without))
    assert found.generation != default.generation


@pytest.mark.parametrize(
    ("file", "whole", "expected"),
    [
        ({"max_length": 1}, False, {"max_new_tokens": 1}), ({"max_length": 2}, False, {"max_new_tokens": 1}),
        ({"max_length": 1}, True, {"max_length": 1}), ({"min_length": 0}, True, {}),
        ({"min_length": 1}, False, {"min_new_tokens": 0}), ({"min_length": 1}, True, {"min_length": 1}),
        ({"max_length": 40, "max_new_tokens": 9, "min_length": 7, "min_new_tokens": 3}, True,
         {"max_new_tokens": 9, "min_new_tokens": 3}),
        ({"bad_words_ids": [[5, 60], [7]]}, True, {"bad_words_ids": ("5,60", "7")}),
        ({"do_sample": False}, True, {"temperature": 0.0}), ({"num_beams": 1}, True, {"temperature": 0.0}),
        ({"do_sample": True}, True, {"temperature": 1.0, "top_k": 50, "top_p": 1.0}), ({"top_k": 5}, True, {}),
        ({"eos_token_id": 2}, True, {}), ({"eos_token_id": [2, 0]}, True, {"eos_token_id": (2, 0)}),
        ({"forced_bos_token_id": [3]}, True, {"forced_bos_token_id": 3}),
        ({"forced_bos_token_id": 0, "repetition_penalty": 1}, True, {"forced_bos_token_id": 0}),
        *(({"num_beams": 2, "early_stopping": theirs}, True, {"beams": 2, "early_stopping": ours,
                                                             "length_penalty": 1.0, "length_normalization": "tokens"})
          for theirs, ours in ((True, "full"), (False, "likely"), ("never", "never"), (None, "likely"))),
    ],
    ids=str,
)  # fmt: skip
def test_values_at_their_bounds(file: dict[str, Any], whole: bool, expected: dict[str, Any]) -> None:
    """The new tokens count before the length, of which a decoder's first token is a part."""
    assert read(file, {}, whole=whole, end=2).generation == Generation(**expected)


def test_what_is_written_has_transformers_names() -> None:
    chosen = {"bad_words_ids": ("5,60", "7"), "forced_bos_token_id": -1, "forced_eos_token_id": 0}
    written, lost = write(Generation(temperature=0.0, max_length=9, **chosen), {"pad_token_id": 0}, end=0)
    assert not lost and written == {
        "pad_token_id": 0, "eos_token_id": 0, "num_beams": 1, "do_sample": False, "bad_words_ids": [[5, 60], [7]],
        "forced_eos_token_id": 0, "max_length": 9,
    }  # fmt: skip
    drawn, _ = write(Generation(temperature=0.5, top_p=0.9), {}, end=-1)
    assert drawn == {"num_beams": 1, "do_sample": True, "top_k": 0, "temperature": 0.5, "top_p": 0.9}
    for ours, theirs in (("full", True), ("likely", False), ("never", "never")):
        written, _ = write(Generation(beams=3, early_stopping=ours), {}, end=-1)
        assert written == {"num_beams": 3, "do_sample": False, "early_stopping": theirs}


@pytest.mark.parametrize("whole", [True, False], ids=["decoder", "encoder-decoder"])
@pytest.mark.parametrize("file", [BART, MARIAN, DRAWN, {"repetition_penalty": 1.2}, {"num_beams": 1}, {}], ids=str)
def test_settings_come_back_as_they_were(file: dict[str, Any], whole: bool) -> None:
    first = read(file, {}, whole=whole, end=2).generation
    written, lost = write(first, {"pad_token_id": 3}, end=2)
    assert not lost and written["pad_token_id"] == 3
    assert read(written, {}, whole=whole, end=2).generation == first


@pytest.mark.parametrize("file", [BART, MARIAN, DRAWN], ids=["bart", "marian", "drawn"])
def test_transformers_accepts_what_is_written(file: dict[str, Any]) -> None:
    written, _ = write(read(file, {}, whole=False, end=2).generation, {}, end=2)
    transformers.GenerationConfig(**written).validate(strict=True)


def test_a_run_without_settings_writes_its_tokens_alone() -> None:
    assert write(None, {"pad_token_id": 3, "bos_token_id": None}, end=2) == ({"pad_token_id": 3, "eos_token_id": 2}, "")


def test_the_tokens_of_a_model_are_written_with_its_settings() -> None:
    """Its three own ones, and the end of the tokenizer unless there are others."""
    own = {"pad_token_id": 3, "bos_token_id": 0, "decoder_start_token_id": 4}
    assert write(None, own | {"vocab_size": 9}, end=-1) == (own, "")
    assert write(Generation(eos_token_id=(7, 9)), own, end=2)[0] == own | {"eos_token_id": [7, 9]}
    assert write(Generation(eos_token_id=(7,)), own, end=2)[0] == own | {"eos_token_id": 7}


def test_the_length_of_gnmt_is_named() -> None:
    written, lost = write(Decoding(beams=2, length_penalty=0.6, length_normalization="gnmt"), {}, end=2)
    assert "length_normalization gnmt" in lost and written["length_penalty"] == 0.6


def test_an_old_config_counts_where_there_is_no_other_file() -> None:
    """As transformers reads both."""
    old = {"num_beams": 4, "no_repeat_ngram_size": 3, "vocab_size": 9, "num_beam_groups": 1, "diversity_penalty": 0.0}
    found = read({}, old, whole=False, end=2)
    assert found.generation.beams == 4 and found.generation.no_repeat_ngram_size == 3 and not found.unsupported
    assert read({"max_length": 9}, old, whole=False, end=2).generation == Generation(max_new_tokens=8)
    first = {"force_bos_token_to_be_generated": True, "bos_token_id": 6}
    assert read({}, first, whole=False, end=2).generation.forced_bos_token_id == 6
    found = read({}, {"encoder_no_repeat_ngram_size": 4, "suppress_tokens": [3]}, whole=False, end=2)
    assert found.unsupported.startswith("config.json has") and "suppress_tokens = [3]" in found.unsupported


@pytest.mark.parametrize(
    ("file", "named"),
    [
        ({"typical_p": 0.5}, "typical_p = 0.5"), ({"num_return_sequences": 3}, "num_return_sequences = 3"),
        ({"made_up": 1}, "made_up = 1"), ({"decoder_start_token_id": 3}, "decoder_start_token_id = 3"),
        ({"num_beams": 2, "do_sample": True}, "do_sample = true"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_named(file: dict[str, Any], named: str) -> None:
    assert read(file, {}, whole=True, end=2).unsupported == (
        f"generation_config.json has settings that plmjax does not support and leaves out, so that texts may differ: "
        f"{named}."
    )


@pytest.mark.parametrize(
    ("file", "config", "unsupported"), [(3, 2, True), (2, 2, False), (None, 2, False), (2, None, True)]
)
def test_a_text_starts_with_the_token_of_the_model(file: int | None, config: int | None, unsupported: bool) -> None:
    start = "decoder_start_token_id"
    found = read({"max_length": 9} | ({} if file is None else {start: file}), {start: config}, whole=False, end=2)
    assert (f"{start} = {file}" in found.unsupported) is unsupported is bool(found.unsupported)


def test_every_setting_of_transformers_is_known() -> None:
    """A setting that transformers has and this table lacks would be named as unsupported even with its default."""
    theirs = transformers.GenerationConfig()
    known = {*SUPPORTED, *NEUTRAL, *WITHOUT_EFFECT}
    assert {name for name, value in vars(theirs).items() if name not in known and value is not None} == set()
    defaults = {name: value for name, value in theirs._get_default_generation_params().items() if value is not None}
    assert not read(defaults, {}, whole=True, end=2).unsupported


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_beams", "4"), ("early_stopping", "soon"), ("bad_words_ids", [7]), ("forced_eos_token_id", [1, 2]),
        ("eos_token_id", "</s>"), ("no_repeat_ngram_size", 2.5), ("repetition_penalty", float("nan")),
        ("early_stopping", [1]),
    ],
)  # fmt: skip
def test_values_of_another_type(name: str, value: Any) -> None:
    with pytest.raises(UserError, match=f"as {name} of the settings of generation"):
        read({"num_beams": 2, name: value}, {}, whole=True, end=2)
