"""Contextual embeddings of every line of a text, from any encoder: one layer, or a mix of all layers.

Lines are computed in blocks and batched by length within a block. A finished block is stored in OUTPUT.parts/, with a
seal (files/seals.py). So a run over a million lines resumes where it was stopped, and memory does not grow with the
text. At the end the parts are concatenated, and the folder is removed.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from plmjax.data.unknown_tokens import MAX_UNKNOWN, UnknownTokens
from plmjax.errors import UserError, check_choice
from plmjax.experiment import Experiment
from plmjax.files import json_text, locks, seals, storage
from plmjax.inference import encoded_texts
from plmjax.inference.encoded_texts import EncodedTexts
from plmjax.inference.rows import list_of_texts
from plmjax.inference.vectors import Arrays, Encoder, Vectors
from plmjax.layers.text_vectors import TextVectors
from plmjax.models.families.task_heads import MIX
from plmjax.training.checkpoints import items

POOLINGS = ("cls", "mean", "none")
SUFFIXES = (".npz", ".jsonl")
LEARNED = "learned"
BLOCK = 4096
"""Number of lines in a part."""
RECORD, SEAL = "settings.json", ".json"
"""Names in the folder of parts: the file that records their settings and inputs, and the suffix of their seals."""


def embed(
    checkpoint: str | Path,
    texts: Sequence[str],
    *,
    layer: int = -1,
    pooling: str | None = None,
    prompt: str | None = None,
    mix: Sequence[str] = (),
    batch_size: int = 32,
    max_unknown: float = MAX_UNKNOWN,
    report: Callable[[str], None] = lambda line: None,
) -> np.ndarray | list[np.ndarray]:
    """Return the embeddings of texts, float32 [N D]; with pooling "none" a list of N arrays [T D], a row per token.

    Args:
        layer: 0 for the output of the embedding layer, k for the output of layer k. Negative numbers count from the
            last layer.
        mix: one number per layer, the embedding layer first. Instead of one layer, the mean of all layers is taken,
            weighted by the softmax of the numbers. ["learned"] takes the mix of a fine-tuned checkpoint.
        pooling: "cls" takes the hidden state of [CLS], or of the summary position in another model's template; "mean"
            takes the mean over the row's tokens with special ones; "none" takes the hidden state of every token. By
            default the recipe of the checkpoint is applied, such as the recipe of an imported folder of
            sentence-transformers. Without a recipe, and with another `layer` or with `mix`, the default is "mean".
        prompt: name of a prompt of the recipe, whose text is put before each text; by default the recipe's default
            prompt.
        max_unknown: largest fraction of unknown tokens in the lines. Models that read words only by their characters
            accept any fraction.
        report: function that is called with lines of text about the recipe, unknown tokens and truncated texts.

    Raises:
        UserError: no checkpoint or text, an unknown layer, mix, pooling or prompt, a model without an encoder, too many
            unknown tokens, or a text without a token to pool.
    """
    texts = list_of_texts(texts)
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise UserError(f"Expected a text, found {text!r} as number {number}; give texts alone.")
    encoder, wanted = _encoder(checkpoint, report, layer=layer, pooling=pooling, prompt=prompt, mix=mix)
    _check_batch_size(batch_size)
    _check_texts(encoder, wanted, texts, max_unknown=max_unknown, report=report, place="text {} of the list".format)
    arrays, _ = encoder(encoder.read(texts, wanted), wanted, batch_size)
    _report_cut(int(arrays["cut"].sum()), len(texts), encoder=encoder, wanted=wanted, report=report)
    vectors = arrays["embeddings"]
    return vectors if wanted.recipe is not None else np.split(vectors, np.cumsum(arrays["lengths"])[:-1])


def embed_file(
    checkpoint: str | Path,
    input: str | Path,
    output: str | Path,
    *,
    layer: int = -1,
    pooling: str | None = None,
    prompt: str | None = None,
    mix: Sequence[str] = (),
    batch_size: int = 32,
    max_unknown: float = MAX_UNKNOWN,
    report: Callable[[str], None] = lambda line: None,
) -> int:
    """Write the embeddings of the lines of `input` to a file, and return the number of lines.

    The other arguments are those of `embed`.

    An .npz file holds `embeddings` float32 [lines D]; or, for pooling "none", [tokens D] with `offsets` int64
    [lines + 1], the first token of each line. Lines longer than the model's positions are truncated. `lengths` int32
    [lines] is the number of tokens read, and `cut` bool [lines] is true for truncated lines. A .jsonl file has one
    object per line: `embedding` (or `tokens` and `embeddings`), `length`, `cut`.

    Raises:
        UserError: an error of `embed`, an output that is neither .npz nor .jsonl, or a folder OUTPUT.parts that was
            made with other settings or another input.
    """
    from plmjax.data import text_files

    input, output = storage.path(input), storage.path(output)
    _check_pooling(pooling)
    _check_batch_size(batch_size)
    if output.suffix not in SUFFIXES or not (storage.in_bucket(output) or output.absolute().parent.is_dir()):
        raise UserError(
            f"Expected an .npz or .jsonl file in a folder that exists for --output, found {output}; name another."
        )
    storage.check_file(output, "--output", _are_vectors)
    if input.name.removesuffix(".gz").endswith((".tsv", ".csv", ".jsonl")):
        raise UserError(
            f"Expected a file with a text per line, found the table {input}; write the column of its texts to a .txt "
            f"file."
        )
    lines = text_files.lines(input)
    encoder, wanted = _encoder(checkpoint, report, layer=layer, pooling=pooling, prompt=prompt, mix=mix)
    _check_texts(
        encoder, wanted, lines, max_unknown=max_unknown, report=report, place=lambda number: f"line {number} of {input}"
    )
    parts = output.with_name(f"{output.name}.parts")
    names = [f"{first // BLOCK:06d}{output.suffix}" for first in range(0, len(lines), BLOCK)]
    with locks.lock(parts, report):
        made_from = _claim(parts, encoder.directory, input, wanted)
        for number, name in enumerate(names):
            seal = parts / f"{name}{SEAL}"
            if seals.read(seal, made_from) is None:
                encoded = encoder.read(lines[number * BLOCK : (number + 1) * BLOCK], wanted)
                arrays, rows = encoder(encoded, wanted, batch_size)
                as_text = output.suffix == ".jsonl"
                storage.write(parts / name, _jsonl(arrays, rows, encoded, wanted) if as_text else _npz(arrays))
                seals.write(seal, made_from, [name])
        with storage.replace_file(output) as path:
            cut = _join([parts / name for name in names], path, output.suffix, wanted)
        for name in (*(f"{name}{SEAL}" for name in names), *names, RECORD):
            storage.remove(parts / name)
    if not storage.in_bucket(parts):
        with contextlib.suppress(OSError):  # Another process already writes to it.
            parts.rmdir()
    _report_cut(cut, len(lines), encoder=encoder, wanted=wanted, report=report)
    return len(lines)


def _encoder(
    checkpoint: str | Path,
    report: Callable[[str], None],
    *,
    layer: int,
    pooling: str | None,
    prompt: str | None,
    mix: Sequence[str],
) -> tuple[Encoder, Vectors]:
    """Return the encoder of a checkpoint and the settings of the embeddings; report the recipe of the checkpoint."""
    _check_pooling(pooling)
    encoder = Encoder(checkpoint)
    run = encoder.run
    wanted = _choose_vectors(layer, mix, run.model.depth, encoder.params)
    wanted = dataclasses.replace(wanted, **_recipe(run, pooling, prompt, own=layer == -1 and not mix))
    if wanted.recipe is not None and wanted.recipe is run.text_vectors:
        report(f"vectors    {wanted.recipe}")
        named = [f"--prompt {name}" for name, text in wanted.recipe.prompts if text]
        if named and prompt is None and not wanted.prompt:
            report(f"prompt     none, though the recipe has some: {' or '.join(named)}")
    return encoder, wanted


def _check_pooling(pooling: str | None) -> None:
    if pooling is not None:
        check_choice("--pooling", pooling, POOLINGS)


def _check_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        raise UserError(f"Expected a --batch_size of at least 1, found {batch_size}; change it.")


def _check_texts(
    encoder: Encoder,
    wanted: Vectors,
    texts: Sequence[str],
    *,
    max_unknown: float,
    report: Callable[[str], None],
    place: Callable[[int], str],
) -> None:
    """Check that the tokenizer knows the texts, and that each has a token to pool.

    place: function from the number of a text, from 1, to its name in messages.
    """
    model = encoder.run.model
    unknown = UnknownTokens(encoder.tokenizer.vocabulary, encoded_texts.limit_of(model, max_unknown))
    for first in range(0, len(texts), BLOCK):
        ids, counts = encoder.tokenizer.encode_arrays([wanted.prompt + text for text in texts[first : first + BLOCK]])
        unknown.add(ids)
        if wanted.recipe is not None and not model.template.specials(1) and not counts.all():
            raise UserError(
                f"Expected texts of at least one token to pool, found none in "
                f"{place(first + int(counts.argmin()) + 1)}; remove it, or take the vectors of all tokens "
                f"(--pooling none)."
            )
    unknown.check()
    if unknown.count:
        report(str(unknown))


def _report_cut(cut: int, texts: int, *, encoder: Encoder, wanted: Vectors, report: Callable[[str], None]) -> None:
    if cut:
        whose = "the recipe" if encoder.longest(wanted) != encoder.run.model.longest else "the model's longest row"
        report(f"cut        {cut:,} of {texts:,} texts, at the {encoder.longest(wanted)} tokens of {whose}")


def _recipe(run: Experiment, pooling: str | None, prompt: str | None, *, own: bool) -> dict[str, Any]:
    """Return `recipe` and `prompt` of `Vectors`. own: false if the run's recipe does not apply to the hidden states."""
    recipe = (run.text_vectors if own else None) or TextVectors()
    if pooling is None:
        return {"recipe": recipe, "prompt": recipe.prompt(prompt)}
    if prompt is not None:
        raise UserError(f"Expected --prompt or --pooling, found both, {prompt} and {pooling}; leave one out.")
    if pooling == "none":
        return {"recipe": None, "prompt": ""}
    last = pooling == "cls" and run.model.template.position(2) > 0
    return {"recipe": TextVectors(("lasttoken" if last else pooling,)), "prompt": ""}


def _choose_vectors(layer: int, mix: Sequence[str], layers: int, params: Any) -> Vectors:
    if not -layers - 1 <= layer <= layers:
        raise UserError(f"Expected a --layer from 0 to {layers} (or from -{layers + 1}), found {layer}; change it.")
    if not mix:
        return Vectors(layer % (layers + 1), (), 1.0, None, "")
    if layer != -1:
        raise UserError(f"Expected --layer or --mix, found both, {layer} and {' '.join(mix)}; leave one out.")
    if list(mix) == [LEARNED]:
        if MIX not in params:
            raise UserError(
                "Expected a checkpoint that was fine-tuned with a mix (plmjax finetune --objective.mix True) for --mix "
                "learned, found none in it; give numbers."
            )
        learned = params[MIX]
        return Vectors(layer, tuple(map(float, learned["weights"])), float(learned["scale"]), None, "")
    try:
        weights = tuple(map(float, mix))
    except ValueError:
        weights = ()
    if len(weights) != layers + 1:
        raise UserError(
            f"Expected --mix learned or {layers + 1} numbers, for the embeddings and {layers} layers, found "
            f"{' '.join(mix)}; change it."
        )
    return Vectors(layer, weights, 1.0, None, "")


def _claim(parts: Path, checkpoint: Path, input: Path, wanted: Vectors) -> str:
    """Create the folder of parts, or check that its parts have the same settings and text. Return a digest of both."""
    settings = {
        "checkpoint": hashlib.sha256((checkpoint / items.MANIFEST).read_bytes()).hexdigest(),
        "input": hashlib.sha256(input.read_bytes()).hexdigest(),
        **dataclasses.asdict(wanted),
    }
    settings = json.loads(json.dumps(settings))
    record = parts / RECORD
    if not record.exists():
        parts.mkdir(parents=True, exist_ok=True)
        storage.write(record, json.dumps(settings, indent=2) + "\n")
        return seals.digest(settings)
    before = json_text.read_object(record, "the settings of an embedding's parts", "remove that folder")
    for name in settings:
        if before.get(name) != settings[name]:
            raise UserError(
                f"Expected the parts of this embedding in {parts}, found parts made with another {name}; remove that "
                f"folder or name another --output."
            )
    return seals.digest(settings)


def _npz(arrays: Arrays) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _jsonl(arrays: Arrays, rows: list[list[int]], encoded: EncodedTexts, wanted: Vectors) -> str:
    """Return one JSON object per line. Numbers have the fewest digits that restore the same float32."""

    def listed(vector: np.ndarray) -> str:
        return f"[{', '.join(map(str, vector))}]"

    text = []
    vectors = iter(arrays["embeddings"])
    for ids, length, cut in zip(rows, arrays["lengths"].tolist(), arrays["cut"].tolist(), strict=True):
        if wanted.recipe is None:
            tokens = json.dumps(encoded.names(ids), ensure_ascii=False)
            own = f'"tokens": {tokens}, "embeddings": [{", ".join(listed(next(vectors)) for _ in ids)}]'
        else:
            own = f'"embedding": {listed(next(vectors))}'
        text.append(f'{{{own}, "length": {length}, "cut": {json.dumps(cut)}}}\n')
    return "".join(text)


def _are_vectors(beginning: bytes) -> bool:
    """Return whether a file starts like either format."""
    archive = beginning.startswith(b"PK") and b"embeddings.npy" in beginning
    return archive or beginning.startswith((b'{"tokens": ', b'{"embedding": '))


def _join(parts: list[Path], path: Path, suffix: str, wanted: Vectors) -> int:
    """Write the parts as one file, with the embeddings of one part at a time in memory.

    Return the number of truncated texts.
    """
    if suffix == ".jsonl":
        cut = 0
        with path.open("wb") as file:
            for part in parts:
                rows = part.read_bytes()
                cut += rows.count(b'"cut": true}\n')
                file.write(rows)
        return cut
    arrays = {name: np.concatenate([_read(part, name) for part in parts]) for name in ("lengths", "cut")}
    first, rows = _read(parts[0], "embeddings"), len(arrays["lengths"])
    if wanted.recipe is None:
        arrays["offsets"] = np.concatenate([[0], np.cumsum(arrays["lengths"], dtype=np.int64)])
        rows = int(arrays["offsets"][-1])
    header = {"descr": first.dtype.str, "fortran_order": False, "shape": (rows, first.shape[1])}
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, array)
        with archive.open("embeddings.npy", "w", force_zip64=True) as file:
            np.lib.format.write_array_header_1_0(file, header)
            for part in parts:
                file.write(np.ascontiguousarray(_read(part, "embeddings")).tobytes())
    return int(arrays["cut"].sum())


def _read(part: Path, name: str) -> np.ndarray:
    with storage.local(part) as file, np.load(file) as arrays:
        return arrays[name]
