"""What `plmjax generate` does: its options as settings, prompts from a file, texts on the terminal or in a file."""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path

from plmjax import storage
from plmjax.errors import UserError
from plmjax.experiment import Mesh
from plmjax.generation.beam_search import BeamSearch
from plmjax.generation.generate import Generator, Text, printable
from plmjax.generation.options import BEAMS, Devices, Options
from plmjax.generation.sampling import Greedy, Sampling
from plmjax.generation.search import Strategy
from plmjax.generation.writer import Settings

STANDARD_INPUT = "-"


def run(
    checkpoint: Path,
    prompt: str | None,
    input: Path | None,
    output: Path | None,
    options: Options,
    devices: Devices,
    say: Callable[[str], None],
) -> None:
    """Writes after a prompt, or after every line of a file.

    One text a prompt is shown as it is written; several come when they are ready, each after its score. What goes on
    from a prompt is shown with it, what is written of a source without. With `output` they are written there, a JSON
    object a line.

    Args:
        say: shows a piece of text, without a new line.

    Raises:
        UserError: options that do not fit together, no prompt or two, no text in the file, or as `Generator`.
    """
    settings = settings_of(options)
    output = None if output is None else storage.path(output)
    if output is not None and not (storage.in_bucket(output) or output.absolute().parent.is_dir()):
        raise UserError(f"Expected a file in a folder that exists for --output, found {output}; make the folder first.")
    prompts = prompts_of(prompt, input)
    generator = Generator.load(checkpoint, Mesh(**dataclasses.asdict(devices)))
    if output is not None:
        texts = generator(prompts, settings)
        with storage.replacing(output) as path, path.open("w", encoding="utf-8") as file:
            file.writelines(json_line(text) for of_prompt in texts for text in of_prompt)
        say(f"{sum(map(len, texts))} texts in {output}\n")
    elif settings.strategy.rows == 1:
        generator.check(prompts, settings)  # before anything is shown
        for one in prompts:
            say("" if generator.reads_sources else printable(one))
            generator.stream(one, settings, lambda piece: say(printable(piece)))
            say("\n")
    else:
        for of_prompt in generator(prompts, settings):
            for text in of_prompt:
                prompt = "" if generator.reads_sources else text.prompt
                say(printable(f"{text.score:.4f}  {prompt}{text.text}\n"))


def settings_of(options: Options) -> Settings:
    """The settings that options stand for.

    Raises:
        UserError: a number out of its range, or an option that would have no effect.
    """
    options.check()
    return Settings(
        strategy=_strategy(options),
        max_new_tokens=options.max_new_tokens,
        min_new_tokens=options.min_new_tokens,
        no_repeat_ngram_size=options.no_repeat_ngram_size,
        seed=options.seed or 0,
        batch_size=options.batch_size,
    )


def _strategy(options: Options) -> Strategy:
    def given(*names: str) -> dict[str, float]:
        return {name: getattr(options, name) for name in names if getattr(options, name) is not None}

    if options.beams is not None:
        return BeamSearch(sequences=options.sequences, **given("beams", *BEAMS))
    if options.temperature == 0:
        return Greedy()
    return Sampling(sequences=options.sequences, **given("temperature", "top_k", "top_p"))


def prompts_of(prompt: str | None, input: Path | None) -> list[str]:
    """The prompt, or the lines of a file or of the standard input.

    Raises:
        UserError: neither or both, or a file that is no text.
    """
    from plmjax.data import reading

    if (prompt is None) == (input is None):
        found = "neither" if prompt is None else "both"
        raise UserError(f'Expected a prompt or --input FILE, found {found}; write plmjax generate CHECKPOINT "prompt".')
    if prompt is not None:
        return [prompt]
    if str(input) != STANDARD_INPUT:
        return reading.lines(input)
    given = sys.stdin.buffer.read()
    if not given:
        raise UserError("Expected prompts on the standard input, found none; write one per line.")
    return reading.divided("".join(reading.characters(Path("the standard input"), [given])))


def json_line(text: Text) -> str:
    """A text as a line of a file."""
    return json.dumps(dataclasses.asdict(text), ensure_ascii=False) + "\n"
