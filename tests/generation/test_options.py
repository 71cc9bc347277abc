"""Settings of how texts are written: which come first, and what has no effect."""

import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError
from plmjax.generation.beam_search import BeamSearch
from plmjax.generation.command import in_force, settings_with
from plmjax.generation.constraints import Constraints
from plmjax.generation.options import Decoding, Generation, Options
from plmjax.generation.sampling import Greedy, Sampling
from plmjax.generation.writer import Settings, settings_of

BEAMS = Generation(
    beams=4, length_penalty=2.0, length_normalization="tokens", early_stopping="full", max_length=50, min_length=9,
    no_repeat_ngram_size=3,
)  # fmt: skip


def test_what_is_left_open_is_as_it_is_stored() -> None:
    settings = settings_with(Options(no_repeat_ngram_size=2), BEAMS)
    assert settings.strategy == BeamSearch(4, length_penalty=2.0, early_stopping="full")
    assert settings.no_repeat_ngram_size == 2 and settings.lengths(before=10) == (0, 40)
    assert [settings.lengths(before=before) for before in (1, 5, 9, 49)] == [(8, 49), (4, 45), (0, 41), (0, 1)]
    assert settings_with(Options(length_penalty=0.5), BEAMS).strategy.length_penalty == 0.5
    assert settings_with(Options(), Generation()).strategy == Sampling()


@pytest.mark.parametrize(
    ("options", "strategy"),
    [
        (Options(temperature=0.0), Greedy()),
        (Options(beams=1), Greedy()),
        (Options(top_k=5), Sampling(top_k=5)),
        (Options(temperature=0.5, sequences=2), Sampling(temperature=0.5, sequences=2)),
        (Options(beams=2), BeamSearch(2, length_penalty=2.0, early_stopping="full")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_another_way_to_choose_tokens_leaves_settings_of_the_stored_one_out(options: Options, strategy: object) -> None:
    assert settings_with(options, BEAMS).strategy == strategy


def test_a_stored_greedy_search_gives_way_to_options_of_what_is_drawn() -> None:
    assert settings_with(Options(top_p=0.5), Generation(temperature=0.0)).strategy == Sampling(top_p=0.5)
    with pytest.raises(UserError, match="no --seed with --temperature 0"):
        settings_with(Options(seed=1), Generation(temperature=0.0))


def test_lengths_of_the_command_line_replace_those_that_are_counted_in_another_way() -> None:
    settings = settings_with(Options(max_new_tokens=5), BEAMS)
    assert settings.max_length is None and settings.lengths(before=1) == (5, 5)
    assert settings_with(Options(max_new_tokens=5), Generation(min_new_tokens=9)).min_new_tokens == 5
    assert settings_with(Options(min_new_tokens=2), BEAMS).lengths(before=1) == (2, 49)
    with pytest.raises(UserError, match=r"--max_length above the 50 tokens of the prompt, found 50"):
        settings_of(BEAMS).lengths(before=50)


def test_a_greedy_search_leaves_settings_of_what_is_drawn_out() -> None:
    stored = Generation(top_k=5, top_p=0.5, max_new_tokens=3)
    settings = settings_with(Options(temperature=0.0), stored)
    assert (settings.strategy, settings.max_new_tokens) == (Greedy(), 3)
    with pytest.raises(UserError, match="no --length_penalty with --beams 1"):
        settings_with(Options(beams=1, length_penalty=2.0), Generation())


def test_a_text_may_not_need_more_tokens_than_it_may_have() -> None:
    with pytest.raises(UserError, match="--min_new_tokens of at most the 64 tokens that a text may have, found 65"):
        settings_of(Decoding(min_new_tokens=65)).lengths(before=1)


def test_one_line_names_what_is_in_force() -> None:
    stored = Generation(temperature=0.0, repetition_penalty=1.5)
    assert in_force(Options(max_new_tokens=20), stored, "the task") == (
        "decoding   repetition_penalty 1.5, temperature 0 of the task; max_new_tokens 20 of the command line"
    )
    assert in_force(Options(), Generation(), "the checkpoint") == (
        "decoding   temperature 1, max_new_tokens 64 by default"
    )
    assert in_force(Options(temperature=0.5), Generation(max_length=9), "the checkpoint") == (
        "decoding   max_length 9 of the checkpoint; temperature 0.5 of the command line"
    )


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("repetition_penalty", 0.0), ("bad_words_ids", ("1,x",)), ("bad_words_ids", ("1,\u00b2",)),
        ("eos_token_id", (-1,)), ("beams", 0),
        ("max_length", 0), ("min_length", -1), ("forced_eos_token_id", -2), ("forced_bos_token_id", -2),
    ],
)  # fmt: skip
def test_numbers_out_of_range(option: str, value: object) -> None:
    with pytest.raises(UserError, match=f"--{option}"):
        settings_with(Options(**{option: value}), Generation())


def test_ids_that_the_model_does_not_have() -> None:
    settings = Settings(bad_words_ids=("1", "2,3"), forced_bos_token_id=-1)
    assert settings.constraints(Vocabulary(4, end=1), 4).bad_words == ((2, 3),)  # the end is never banned by itself
    assert settings.constraints(Vocabulary(4, end=1), 4).first is None
    with pytest.raises(UserError, match=r"below the model's 3 in eos_token_id, bad_words_ids, .* found 3"):
        settings.constraints(Vocabulary(3, end=1), 3)
    assert Settings(bad_words_ids=("none",)).bad_words() == ()


def test_the_constraints_are_those_of_the_settings() -> None:
    """The tokens are the tokenizer's, of a table with two rows more; its own end gives way to the ends asked for."""
    settings = Settings(
        no_repeat_ngram_size=2, repetition_penalty=1.5, bad_words_ids=("1", "0"), forced_bos_token_id=2,
        forced_eos_token_id=3, renormalize_logits=True, eos_token_id=(0, 2),
    )  # fmt: skip
    assert settings.constraints(Vocabulary(4, end=1), 6) == Constraints(
        tokens=4, stop=(0, 2), no_repeat_ngram_size=2, repetition_penalty=1.5, bad_words=((1,),), first=2, last=3,
        renormalize=True,
    )  # fmt: skip
    assert Settings().constraints(Vocabulary(4, end=1), 6) == Constraints(tokens=4, stop=(1,))
    assert Settings().constraints(Vocabulary(4), 6) == Constraints(tokens=4)


def test_a_beams_option_asks_for_a_beam_search_that_a_task_has_by_default() -> None:
    task = Decoding(length_penalty=1.0).over(Generation(temperature=0.0)).over(Decoding(beams=3, length_penalty=0.6))
    assert settings_of(task).strategy == BeamSearch(3, length_penalty=1.0)
    with pytest.raises(UserError, match="no --length_penalty with no --beams"):
        settings_with(Options(length_penalty=1.0), Generation(temperature=0.0))


def test_nothing_of_a_decoder_task_counts_its_prompt() -> None:
    assert Decoding(beams=2).over(BEAMS).explicit().keys().isdisjoint({"max_length", "min_length"})


def test_a_seed_has_32_bits_and_a_batch_a_prompt() -> None:
    assert Settings(seed=2**32 - 1, batch_size=1).seed == 2**32 - 1
    for wrong, found in (({"seed": 2**32}, 2**32), ({"seed": -1}, -1), ({"batch_size": 0}, 0)):
        with pytest.raises(UserError, match=f"found {found}; change it"):
            Settings(**wrong)


def test_as_many_tokens_at_least_as_at_most_are_asked_for() -> None:
    for least, most in (("min_new_tokens", "max_new_tokens"), ("min_length", "max_length")):
        Settings(**{least: 7, most: 7})
        with pytest.raises(UserError, match=f"--{least} of at most --{most}, 7, found 8; change one"):
            Settings(**{least: 8, most: 7})


def test_lengths_with_a_prompt_replace_those_without_one() -> None:
    stored = Generation(max_new_tokens=20, min_new_tokens=9)
    assert settings_with(Options(max_length=12), stored).lengths(before=2) == (9, 10)
    assert settings_with(Options(min_length=5), stored).lengths(before=2) == (3, 20)


def test_the_same_text_is_written_once() -> None:
    for options, way in (
        (Options(temperature=0.0, sequences=2), "temperature 0"),
        (Options(beams=1, sequences=2), "beams 1"),
    ):
        with pytest.raises(UserError, match=f"--sequences 1 with --{way}.*always writes the same text, found 2"):
            settings_with(options, Generation())
