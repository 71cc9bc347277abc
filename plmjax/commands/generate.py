"""The command that generates text from a prompt or a file of prompts, and prints it or writes it to a file."""

import dataclasses
import functools
import json
import logging
import sys
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, Positional

from plmjax.commands.arguments import Reference, Run, default, load_classes
from plmjax.commands.command_line import Location
from plmjax.data.unknown_tokens import MAX_UNKNOWN
from plmjax.errors import UserError
from plmjax.experiment import Mesh
from plmjax.files import storage
from plmjax.generation.batch_generator import NEW_TOKENS
from plmjax.generation.generate import Generator, Text, default_decoding, printable, settings_with
from plmjax.generation.options import GREATEST, Decoding, Devices, Options, in_words
from plmjax.training.checkpoints import checkpoints

log = logging.getLogger(__name__)

STANDARD_INPUT = "-"
STANDARD_INPUT_NAME = "the standard input"


def generate(
    checkpoint: Positional[Run],
    *,
    prompt: Positional[str | None] = None,
    input: Location | None = None,
    output: Annotated[Location | None, default("the standard output")] = None,
    writing: OmitArgPrefixes[Options] = Options(),
    mesh: Devices = Devices(),
    max_unknown: float = MAX_UNKNOWN,
    experiment: Reference | None = None,
) -> None:
    """Generate a continuation of a prompt, or a target text.

    The text is printed token by token. Options that are left out are those of the task that the model was fine-tuned
    on, or those of an imported checkpoint. Without either, tokens are sampled at temperature 1. A line on the standard
    error shows the settings in use.

    Args:
        checkpoint: Run directory or checkpoint of a model that predicts the next token.
        prompt: Text to continue; an empty text starts a document. For an encoder-decoder, the source text.
        input: File with one prompt per line, also compressed; - for the standard input.
        output: File to write, a JSON object per line: prompt, text, tokens, stopped, log_probability, score,
            unknown_tokens.
        max_unknown: Maximum fraction of unknown tokens in a prompt. A higher fraction is an error: the checkpoint does
            not fit the text.
        experiment: Experiment file that defines classes which the checkpoint uses.
    """
    load_classes(experiment)
    write = functools.partial(print, end="", flush=True)
    run = checkpoints.describe(checkpoints.find(checkpoint)).experiment
    stored, owner = default_decoding(run)
    settings = settings_with(writing, stored)
    output = None if output is None else storage.path(output)
    if output is not None and not (storage.in_bucket(output) or output.absolute().parent.is_dir()):
        raise UserError(f"Expected a file in a folder that exists for --output, found {output}; make the folder first.")
    if output is not None:
        storage.check_file(output, "--output", lambda beginning: b'"log_probability": ' in beginning)
    prompts = prompts_of(prompt, input)
    file = STANDARD_INPUT_NAME if str(input) == STANDARD_INPUT else input
    places = [f"line {number} of {file}" for number in range(1, len(prompts) + 1)] if prompt is None else [""]
    generator = Generator.load(checkpoint, Mesh(**dataclasses.asdict(mesh)), max_unknown)
    generator.check(prompts, settings, places)  # before any output
    print(in_force(writing, stored, owner), file=sys.stderr)
    unknown = generator.count_unknown(prompts)
    if unknown.count:
        log.warning("%s", unknown)
    if output is not None:
        texts = generator(prompts, settings)
        with storage.replace_file(output) as path, path.open("w", encoding="utf-8") as file:
            file.writelines(json_line(text) for of_prompt in texts for text in of_prompt)
        write(f"{sum(map(len, texts))} texts in {output}\n")
    elif settings.strategy.rows == 1:
        for one in prompts:
            write(printable(one) if generator.continues else "")
            try:
                generator.stream(one, settings, lambda piece: write(printable(piece)))
            finally:
                write("\n")  # also after Ctrl-C, before its message
    else:
        for of_prompt in generator(prompts, settings):
            for text in of_prompt:
                prompt = text.prompt if generator.continues else ""
                write(printable(f"{text.score:.4f}  {prompt}{text.text}\n"))


def in_force(options: Options, stored: Decoding, owner: str) -> str:
    """Return one line with every setting of generation in use and its origin."""
    mine, merged = options.explicit(), options.with_defaults(stored)
    theirs = {name: value for name, value in merged.explicit().items() if name not in mine}
    rest: dict[str, Any] = {"temperature": 1.0} if merged.draws and merged.temperature is None else {}
    if all(getattr(merged, name) is None for name in GREATEST):
        rest["max_new_tokens"] = NEW_TOKENS
    parts = ((theirs, f"of {owner}"), (mine, "of the command line"), (rest, "by default"))
    return "decoding   " + "; ".join(f"{in_words(settings)} {whose}" for settings, whose in parts if settings)


def prompts_of(prompt: str | None, input: Path | None) -> list[str]:
    """Return the prompt, or the lines of a file or of the standard input.

    Raises:
        UserError: neither or both are given, or the file is not text.
    """
    from plmjax.data import text_files

    if (prompt is None) == (input is None):
        found = "neither" if prompt is None else "both"
        raise UserError(f'Expected a prompt or --input FILE, found {found}; write plmjax generate CHECKPOINT "prompt".')
    if prompt is not None:
        return [prompt]
    if str(input) != STANDARD_INPUT:
        return text_files.lines(input)
    given = sys.stdin.buffer.read()
    if not given:
        raise UserError("Expected prompts on the standard input, found none; write one per line.")
    return text_files.split_lines("".join(text_files.characters(Path(STANDARD_INPUT_NAME), [given])))


def json_line(text: Text) -> str:
    """Return a text as a line of a JSON file."""
    return json.dumps(dataclasses.asdict(text), ensure_ascii=False) + "\n"
