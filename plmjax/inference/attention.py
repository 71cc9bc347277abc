"""The attention weights of every line of a text, from any model with attention (`plmjax.contracts.attentions`)."""

import dataclasses
import functools
import inspect
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from plmjax.contracts.attentions import attentions_of
from plmjax.contracts.parameters import check_parameters
from plmjax.contracts.system import Kind, Purpose
from plmjax.contracts.template import TEXT_ALONE, Template
from plmjax.data.packing import padded_width
from plmjax.data.unknown_tokens import MAX_UNKNOWN, UnknownTokens
from plmjax.errors import UserError
from plmjax.experiment import Experiment
from plmjax.files import storage
from plmjax.inference.rows import pad
from plmjax.training import program as programs
from plmjax.training.checkpoints import checkpoints

TARGET = "decoder_"
"""Prefix of the names of the decoder's inputs and tokens in an encoder-decoder."""
SIDES = {
    "attentions": ("", ""),
    "encoder_attentions": ("", ""),
    "decoder_attentions": (TARGET, TARGET),
    "cross_attentions": (TARGET, ""),
}
"""Dict from the name of attention weights to the prefixes of the sides of their queries and of their keys."""


def attention(
    checkpoint: str | Path,
    input: str | Path,
    output: str | Path,
    *,
    second: str | Path | None = None,
    batch_size: int = 8,
    max_unknown: float = MAX_UNKNOWN,
    report: Callable[[str], None] = lambda line: None,
) -> int:
    """Write the attention weights of the lines of `input` to an .npz file, and return the number of lines.

    For line i, from 0, the file has `tokens_i`, the n tokens of its row with special ones, and `attentions_i` float32
    [L N n S], for L layers, N heads, n queries and S keys. The keys are the tokens of the row; before them come
    the keys of a memory or of persistent vectors, if the model has these. `cut` bool [lines] is true for truncated
    lines.

    For an encoder-decoder, the file has `encoder_attentions_i` instead of `attentions_i`. It also has
    `decoder_tokens_i`, which begin with the start token of the decoder; `decoder_attentions_i`; and
    `cross_attentions_i`, whose keys are `tokens_i`.

    Args:
        second: file with the other text of each line: the second of a pair, or the target of an encoder-decoder.
            Without it, encoder and decoder of BART and LED both read the line, as in fine-tuning.
        batch_size: number of lines that the model reads at once.
        max_unknown: largest fraction of unknown tokens in the lines.
        report: function that is called with lines of text about unknown tokens and truncated lines.

    Raises:
        UserError: no checkpoint or text, files of different lengths, a model without attention, an encoder-decoder
            without targets, too many unknown tokens, or a line without a token.
    """
    from plmjax.data import text_files

    input, output = storage.path(input), storage.path(output)
    if batch_size < 1:
        raise UserError(f"Expected a --batch_size of at least 1, found {batch_size}; change it.")
    if output.suffix != ".npz" or not (storage.in_bucket(output) or output.absolute().parent.is_dir()):
        raise UserError(f"Expected an .npz file in a folder that exists for --output, found {output}; name another.")
    storage.check_file(output, "--output", lambda beginning: beginning.startswith(b"PK") and b"cut.npy" in beginning)
    directory = checkpoints.find(checkpoint)
    params, description = checkpoints.load_parameters(directory)
    run, tokenizer = description.experiment, description.load_tokenizer()
    module = _attention_module(run, checkpoint)
    texts = [text_files.lines(input)]
    if second is not None:
        texts.append(text_files.lines(storage.path(second)))
        if len(texts[0]) != len(texts[1]):
            raise UserError(
                f"Expected a line in {second} for each of the {len(texts[0]):,} of {input}, found {len(texts[1]):,}; "
                "make both files equally long."
            )
    template = run.model.template
    if run.model.system.kind is Kind.DECODER and second is None and template.missing(tokenizer.vocabulary):
        template = TEXT_ALONE  # a language model reads plain text; fine-tuning adds the special tokens of a row
    template.check(tokenizer.vocabulary)
    encoded = [tokenizer.encode_batch(list(column)) for column in texts]
    unknown = UnknownTokens(tokenizer.vocabulary, max_unknown)
    for column in encoded:
        for ids in column:
            unknown.add(ids)
    unknown.check()
    if unknown.count:
        report(str(unknown))
    reader = _Reader(
        module, run.model, template, tokenizer=tokenizer, lines=list(zip(*encoded, strict=True)), input=input
    )
    own = params if module.name is None else params.get(module.name, {})
    check_parameters(module, own, reader.inputs([0]), origin=checkpoint, hint="it has no model that attends")
    variables = jax.device_put({"params": own, **(checkpoints.load_collections(directory) or {})})
    with storage.replace_file(output) as path, zipfile.ZipFile(path, "w") as archive:
        _write(archive, "cut", reader.cut)
        for chosen in reader.batches(batch_size):
            inputs = reader.inputs(chosen + chosen[-1:] * (batch_size - len(chosen)))
            found = jax.device_get(_attentions(module, variables, inputs))
            for place, line in enumerate(chosen):
                for side, rows in reader.sides.items():
                    _write(archive, f"{side}tokens_{line}", np.array(tokenizer.tokens(rows[line].tokens), str))
                for name, weights in found.items():
                    _write(archive, f"{name}_{line}", _without_padding(name, weights[:, place], inputs, place))
    if count := int(reader.cut.sum()):
        report(f"cut        {count:,} of {len(texts[0]):,} texts, at the tokens of the model's longest row")
    return len(texts[0])


def _attention_module(run: Experiment, checkpoint: str | Path) -> nn.Module:
    """Return the module that returns attention weights: the encoder or, if it has none, the module of the run.

    Raises:
        UserError: neither attends to the tokens of a text.
    """
    execution = programs.execution(run, jax.default_backend())
    found = [run.objective.module(run.model, execution)]
    if Purpose.ENCODING in run.model.system:
        found.insert(0, run.model.module(Purpose.ENCODING, execution))
    for module in found:
        if "output_attentions" in _arguments(module):
            return module
    run.model.system.refuse("attends to the tokens of a text", f" in {checkpoint}", "name a BERT, a GPT-2 or a T5")


def _arguments(module: nn.Module) -> dict[str, inspect.Parameter]:
    """Return the arguments of a module and of its base classes."""
    found: dict[str, inspect.Parameter] = {}
    for known in reversed(type(module).__mro__):
        found |= inspect.signature(known.__call__).parameters if "__call__" in vars(known) else {}
    return found


class _Reader:
    """The rows of all lines.

    sides: prefix of the names of each side of the model -> its rows. cut: bool [lines], true if truncated.
    """

    def __init__(
        self, module: nn.Module, model: Any, template: Template, *, tokenizer: Any, lines: list[tuple], input: Path
    ) -> None:
        """Lay out the rows of `lines`, each with the token ids of one or two texts.

        Raises:
            UserError: no target for an encoder-decoder, or a line without a token.
        """
        self._model, self._template, self._vocabulary = model, template, tokenizer.vocabulary
        self._arguments = _arguments(module)
        columns = {"": lines}
        if model.system.kind is Kind.ENCODER_DECODER:
            needed = self._arguments["decoder_input_ids"].default is inspect.Parameter.empty
            if needed and len(lines[0]) == 1:
                raise UserError(
                    f"Expected the targets of {input} for {model.system}, found none; name their file with --second."
                )
            columns = {"": [line[:1] for line in lines], TARGET: [line[-1:] for line in lines]}
        longest = {"": model.longest, TARGET: model.longest_target}
        self.sides = {
            side: [template.lay_out(texts, self._vocabulary, longest[side]) for texts in column]
            for side, column in columns.items()
        }
        whole = [
            [
                len(row.tokens) == template.specials(len(texts)) + sum(map(len, texts))
                for row, texts in zip(rows, columns[side], strict=True)
            ]
            for side, rows in self.sides.items()
        ]
        self.cut = ~np.all(whole, axis=0)
        if TARGET in self.sides:
            first = model.decoder_start_token_id
            self.sides[TARGET] = [
                dataclasses.replace(row, tokens=[first, *row.tokens[:-1]]) for row in self.sides[TARGET]
            ]
        for number, row in enumerate(self.sides[""], start=1):
            if not row.tokens:
                raise UserError(
                    f"Expected lines of at least one token, found none in line {number} of {input}; remove it."
                )

    def batches(self, size: int) -> Iterator[list[int]]:
        """Yield the numbers of at most `size` lines that have the same padded width."""
        widths = [self._widths([line]) for line in range(len(self.cut))]
        for width in sorted(set(widths)):
            members = [line for line, own in enumerate(widths) if own == width]
            yield from (members[first : first + size] for first in range(0, len(members), size))

    def inputs(self, lines: Sequence[int]) -> dict[str, np.ndarray]:
        """Return the inputs of the model for lines of the same padded width."""
        inputs = {}
        for (side, rows), width in zip(self.sides.items(), self._widths(lines), strict=True):
            chosen = [rows[line] for line in lines]
            fields = pad(chosen, self._template, self._vocabulary, width)
            inputs |= {f"{side}{name}": field for name, field in fields.items()}
        return {name: field for name, field in inputs.items() if name in self._arguments}

    def _widths(self, lines: Sequence[int]) -> tuple[int, ...]:
        longest = self._model.longest, self._model.longest_target
        return tuple(
            padded_width(max(len(rows[line].tokens) for line in lines), most)
            for rows, most in zip(self.sides.values(), longest, strict=False)
        )


@functools.partial(jax.jit, static_argnums=0)
def _attentions(module: nn.Module, variables: Any, inputs: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Return a dict from name to attention weights, float32 [L B N T S]."""
    output = module.apply(variables, **inputs, output_attentions=True)
    return {name: weights for name, weights in attentions_of(output).items() if weights is not None}


def _without_padding(name: str, weights: np.ndarray, inputs: Mapping[str, np.ndarray], place: int) -> np.ndarray:
    """Return the weights [L N T S] of a row without the queries and keys at padding."""
    queries, keys = (inputs[f"{side}attention_mask"][place] for side in SIDES[name])
    before = np.ones(weights.shape[-1] - len(keys), bool)  # keys of a memory or persistent vectors
    return weights[:, :, queries][..., np.concatenate([before, keys])]


def _write(archive: zipfile.ZipFile, name: str, array: np.ndarray) -> None:
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)
