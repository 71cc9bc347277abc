"""Settings of how texts are written: which come first, and what has no effect."""

import pytest

from plmjax.commands.generate import in_force, settings_with
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.generation.batch_generator import Settings, settings_of
from plmjax.generation.beam_search import BeamSearch
from plmjax.generation.constraints import Constraints
from plmjax.generation.options import Decoding, Generation, Options
from plmjax.generation.sampling import Greedy, Sampling

BEAMS = Generation(
    beams=4, length_penalty=2.0, length_normalization="tokens", early_stopping="full", max_length=50, min_length=9,
    no_repeat_ngram_size=3,
)  # fmt: skip


@pytest.mark.parametrize(
    ("options", "stored", "strategy"),
    [
        (Options(), Generation(), Sampling()),
        (Options(no_repeat_ngram_size=2), BEAMS, BeamSearch(4, length_penalty=2.0, early_stopping="full")),
        (Options(length_penalty=0.5), BEAMS, BeamSearch(4, length_penalty=0.5, early_stopping="full")),
        (Options(beams=2), BEAMS, BeamSearch(2, length_penalty=2.0, early_stopping="full")),
        (Options(beams=1), BEAMS, Greedy()),
        (Options(temperature=0.0), BEAMS, Greedy()),
        (Options(top_k=5), BEAMS, Sampling(top_k=5)),
        (Options(temperature=0.5, sequences=2), BEAMS, Sampling(temperature=0.5, sequences=2)),
        (Options(top_p=0.5), Generation(temperature=0.0), Sampling(top_p=0.5)),
        (Options(temperature=0.0), Generation(top_k=5, top_p=0.5), Greedy()),
    ],
    ids=str,
)
def test_another_way_to_choose_tokens_leaves_settings_of_the_stored_one_out(options, stored, strategy) -> None:
    assert settings_with(options, stored).strategy == strategy


@pytest.mark.parametrize(
    ("options", "stored", "lengths"),
    [
        (Options(), BEAMS, {1: (8, 49), 5: (4, 45), 9: (0, 41), 10: (0, 40), 49: (0, 1)}),
        (Options(max_new_tokens=5), BEAMS, {1: (5, 5), 50: (0, 5)}),
        (Options(min_new_tokens=2), BEAMS, {1: (2, 49)}),
        (Options(max_new_tokens=5), Generation(min_new_tokens=9), {1: (5, 5)}),
        (Options(max_length=12), Generation(max_new_tokens=20, min_new_tokens=9), {2: (9, 10)}),
        (Options(min_length=5), Generation(max_new_tokens=20, min_new_tokens=9), {2: (3, 20)}),
        (Options(min_new_tokens=7, max_new_tokens=7), Generation(), {1: (7, 7)}),
        (Options(min_length=7, max_length=7), Generation(), {1: (6, 6)}),
        (Options(temperature=0.0), Generation(max_new_tokens=3), {1: (0, 3)}),
        (Options(), Generation(), {1: (0, 64)}),
    ],
    ids=str,
)
def test_lengths_of_the_command_line_replace_those_that_are_counted_in_another_way(options, stored, lengths) -> None:
    settings = settings_with(options, stored)
    assert {before: settings.lengths(before) for before in lengths} == lengths


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


def test_ids_of_words_and_of_no_token() -> None:
    settings = Settings(bad_words_ids=("1", "2,3"), forced_bos_token_id=-1)
    assert settings.constraints(Vocabulary(4, end=1), 4).bad_words == ((2, 3),)  # the end is never banned by itself
    assert settings.constraints(Vocabulary(4, end=1), 4).first is None
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


def test_nothing_of_a_decoder_task_counts_its_prompt() -> None:
    assert Decoding(beams=2).over(BEAMS).explicit().keys().isdisjoint({"max_length", "min_length"})


def test_the_largest_seed_and_the_smallest_batch() -> None:
    assert Settings(seed=2**32 - 1, batch_size=1).seed == 2**32 - 1
