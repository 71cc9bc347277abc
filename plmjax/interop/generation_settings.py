"""Settings of generation in transformers' form, from generation_config.json or an old config.json.

transformers reads only generation_config.json if it exists, and config.json otherwise. `read` does the same.
`NEUTRAL` lists the settings that plmjax does not have. A message names such a setting if it has another value.

Deviation: if no length is set, transformers generates 20 tokens at most, and plmjax its own default number of tokens.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from plmjax.errors import UserError, listed, quoted
from plmjax.generation.options import DRAWN, Decoding, Generation

EARLY_STOPPING = {True: "full", False: "likely", "never": "never"}
"""transformers' value -> our value."""
TOP_K = 50
"""transformers' top_k if tokens are sampled and the settings have none."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "assistant_early_exit": (),
    "begin_suppress_tokens": ([],),
    "constraints": (),
    "diversity_penalty": (0,),
    "dola_layers": (),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "exponential_decay_length_penalty": (),
    "force_words_ids": (),
    "guidance_scale": (1,),
    "max_time": (),
    "min_p": (0,),
    "num_beam_groups": (1,),
    "num_return_sequences": (1,),
    "penalty_alpha": (0,),
    "prompt_lookup_num_tokens": (),
    "remove_invalid_values": (False,),
    "sequence_bias": (),
    "stop_strings": (),
    "suppress_tokens": ([],),
    "token_healing": (False,),
    "top_h": (),
    "typical_p": (1,),
    "use_mtp": (False,),
    "watermarking_config": (),
}
"""Unsupported setting -> values, besides None, with which it has no effect."""

WITHOUT_EFFECT = frozenset(
    "_commit_hash _from_model_config assistant_confidence_threshold assistant_ensemble_weight assistant_lookbehind "
    "bos_token_id cache_config cache_implementation compile_config decoder_start_token_id disable_compile is_assistant "
    "low_memory max_cache_len max_matching_ngram_size num_assistant_tokens num_assistant_tokens_schedule "
    "output_attentions output_hidden_states output_logits output_scores pad_token_id prefill_chunk_size "
    "return_dict_in_generate speculation_type target_lookbehind transformers_version use_cache".split()
)
"""Settings that do not change the generated text, or that belong to the model (`huggingface.read_settings`)."""

SUPPORTED = frozenset(
    {field.name for field in dataclasses.fields(Generation)} - {"beams", "length_normalization"}
    | {"num_beams", "do_sample"}
)
"""The options of `Generation` under transformers' names. transformers has no `length_normalization`."""
START = "decoder_start_token_id"
"""A setting of the model. Another value than config.json's is not supported."""
LEGACY = "force_bos_token_to_be_generated"
"""A setting of old BART config.json files: every text begins with its bos_token_id."""


class Read(NamedTuple):
    """Settings and unsupported settings of a folder.

    generation: the settings. unsupported: one sentence about unsupported settings; empty if there are none.
    """

    generation: Generation
    unsupported: str


def read(file: Mapping[str, Any], config: Mapping[str, Any], *, whole: bool, end: int) -> Read:
    """Return the settings of a folder.

    Args:
        file: content of generation_config.json, empty if there is none.
        config: content of config.json, as `huggingface.read_settings` returns it.
        whole: true if the model is a decoder without an encoder. Its lengths include the prompt.
        end: the tokenizer's end-of-text id, -1 if it has none.

    Raises:
        UserError: a value has another type than in transformers.
    """
    place, found = "generation_config.json", dict(file)
    if not file:
        place, found = "config.json", {name: config[name] for name in (*SUPPORTED, *NEUTRAL) if name in config}
        if config.get(LEGACY):
            found["forced_bos_token_id"] = config.get("bos_token_id")
    found = {name: value for name, value in found.items() if value is not None}
    lacking = [name for name, value in found.items() if not _known(name, value)]
    if found.get(START) != config.get(START) and START in found:
        lacking.append(START)
    beams, draws = _value(found, "num_beams", int, 1), _value(found, "do_sample", bool, False)
    chosen: dict[str, Any]
    if beams > 1:
        lacking += ["do_sample"] if draws else []
        chosen = {
            "beams": beams,
            "length_penalty": _value(found, "length_penalty", float, 1.0),
            "length_normalization": "tokens",
            "early_stopping": _early_stopping(found),
        }
    elif draws:
        chosen = {
            "temperature": _value(found, "temperature", float, 1.0),
            "top_k": _value(found, "top_k", int, TOP_K),
            "top_p": _value(found, "top_p", float, 1.0),
        }
    else:  # settings that do not choose tokens leave that choice to a task of fine-tuning
        chosen = {"temperature": 0.0} if {"num_beams", "do_sample"} & found.keys() else {}
    return Read(Generation(**chosen, **_rules(found, whole, end)), _sentence(found, sorted(lacking), place))


def _rules(found: Mapping[str, Any], whole: bool, end: int) -> dict[str, Any]:
    """Return the settings other than those that choose a token. Settings without effect are left out."""
    rules: dict[str, Any] = {}
    for side, before in (("max", 1), ("min", 0)):
        new, length = (_value(found, f"{side}_{name}", int, None) for name in ("new_tokens", "length"))
        if new is not None:
            rules[f"{side}_new_tokens"] = new
        elif length is not None and (side == "max" or length > before):
            # The decoder of an encoder-decoder has one token before every text.
            rules |= {f"{side}_length": length} if whole else {f"{side}_new_tokens": max(length - 1, before)}
    for name, neutral in (("no_repeat_ngram_size", 0), ("repetition_penalty", 1.0)):
        value = _value(found, name, type(neutral), neutral)
        rules |= {name: value} if value != neutral else {}
    if _value(found, "renormalize_logits", bool, False):
        rules["renormalize_logits"] = True
    for name in ("forced_bos_token_id", "forced_eos_token_id"):
        if name in found:
            (rules[name],) = _ids(found, name, most=1)
    words = found.get("bad_words_ids") or []
    if not isinstance(words, list) or not all(isinstance(word, list) and word and _are_ids(word) for word in words):
        raise UserError(f"Expected lists of ids as bad_words_ids of the settings of generation, found {quoted(words)}.")
    if words:
        rules["bad_words_ids"] = tuple(",".join(map(str, word)) for word in words)
    if "eos_token_id" in found and (stop := _ids(found, "eos_token_id")) != (end,):
        rules["eos_token_id"] = stop
    return rules


def write(decoding: Decoding | None, config: Mapping[str, Any], end: int) -> tuple[dict[str, Any], str]:
    """Return the content of generation_config.json, and one sentence about the settings that it cannot express.

    The sentence is empty if there are none.

    decoding: None sets nothing; the file then has only the model's special tokens.
    config: content of config.json. end: the tokenizer's end-of-text id, -1 if it has none.
    """
    names = ("bos_token_id", "pad_token_id", "decoder_start_token_id")
    ids = {name: config[name] for name in names if config.get(name) is not None}
    remaining, lost = {} if decoding is None else decoding.explicit(), ""
    stop = remaining.pop("eos_token_id", (end,) if end >= 0 else ())
    if stop:
        ids["eos_token_id"] = stop[0] if len(stop) == 1 else list(stop)
    written: dict[str, Any] = {}
    if {"beams", *DRAWN} & remaining.keys():
        written = {"num_beams": remaining.pop("beams", 1), "do_sample": decoding.draws}
    if "early_stopping" in remaining:
        written["early_stopping"] = {ours: theirs for theirs, ours in EARLY_STOPPING.items()}[
            remaining["early_stopping"]
        ]
        del remaining["early_stopping"]
    if written.get("do_sample"):
        written["top_k"] = 0  # 0 takes all tokens; without it transformers would take only some of them
    elif "temperature" in remaining:
        del remaining["temperature"]
    if remaining.pop("length_normalization", "tokens") == "gnmt":
        lost = "transformers divides the scores of beams by another length than length_normalization gnmt"
    for name in ("forced_bos_token_id", "forced_eos_token_id"):
        if remaining.get(name, 0) < 0:
            del remaining[name]
    if "bad_words_ids" in remaining:
        del remaining["bad_words_ids"]
        words = [list(word) for word in decoding.bad_words()]
        remaining |= {"bad_words_ids": words} if words else {}
    return ids | written | remaining, lost


def _known(name: str, value: Any) -> bool:
    """Return true if a setting is supported, or has no effect with this value."""
    if name in SUPPORTED or name in WITHOUT_EFFECT:
        return True
    return name in NEUTRAL and any(type(value) is not str and value == neutral for neutral in NEUTRAL[name])


def _sentence(found: Mapping[str, Any], lacking: list[str], place: str) -> str:
    if not lacking:
        return ""
    shown = listed(f"{name} = {quoted(json.dumps(found[name]))[1:-1]}" for name in lacking)
    return f"{place} has settings that plmjax does not support and leaves out, so that texts may differ: {shown}."


def _value(found: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    """Return a number or a boolean of the file. A number must be finite."""
    value = found.get(name, default)
    accepted = {int: (int,), float: (int, float), bool: (bool,)}[kind]
    if value is default:
        return value
    if type(value) not in accepted or not math.isfinite(value):
        raise UserError(
            f"Expected {kind.__name__} as {name} of the settings of generation, found {quoted(value)}; correct it."
        )
    return kind(value)


def _early_stopping(found: Mapping[str, Any]) -> str:
    value = found.get("early_stopping", False)
    if not isinstance(value, bool | str) or value not in EARLY_STOPPING:
        raise UserError(
            f'Expected true, false or "never" as early_stopping of the settings of generation, found {quoted(value)}; '
            f"correct it."
        )
    return EARLY_STOPPING[value]


def _are_ids(value: list[Any]) -> bool:
    return all(type(one) is int and one >= 0 for one in value)


def _ids(found: Mapping[str, Any], name: str, most: int | None = None) -> tuple[int, ...]:
    """Return an id, or a list of ids, as a tuple."""
    value = found[name]
    ids = value if isinstance(value, list) else [value]
    if not ids or not _are_ids(ids) or (most is not None and len(ids) > most):
        raise UserError(
            f"Expected {'one id' if most == 1 else 'ids'} of a token as {name} of the settings of generation, found "
            f"{quoted(value)}; correct it."
        )
    return tuple(ids)
