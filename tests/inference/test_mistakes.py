"""Every mistake with a checkpoint that is used is one sentence: (what was asked for, what the sentence names)."""

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError
from plmjax.experiment import load
from plmjax.finetuning.tasks.answer_search import AnswerSearch
from plmjax.finetuning.tasks.tagging import TokenTagging
from plmjax.inference import perplexity
from plmjax.inference.embed import embed_file
from plmjax.inference.fill_mask import fill_mask
from plmjax.inference.rows import check_special, inputs
from plmjax.inference.word_vector_plane import plane
from plmjax.interop import word2vec
from plmjax.interop.word_vectors import WordVectors
from plmjax.models.bert import BertConfig
from plmjax.models.gpt import GptConfig
from tests.finetuning.parity import Numbers, NumbersOfGpt
from tests.third_party import experiments

FILES = {
    "empty": b"", "short": b"a", "empty.tsv": b"", "lines.txt": b"a film\n", "vectors.npz": b"PK, but vectors",
    "five.txt": b"the\n" * 4 + b"\nthe plot\n", "reviews.jsonl": b'{"review": "a film", "stars": "a"}\n',
    "one word": b"one word\nword\n", "long": b"one " + b"xq" * 20, "two words": b"two words\n", "text": b"a sentence\n",
    "keys": json.dumps({"sentence_good": "a", "sentence": "b"}).encode(), "pair": b"tiger\tcat\t7\ntiger\n",
    "unknown": b"tiger cat 7\ntiger dog 3\n", "heading": b"a b c d\n", "later": b": x\n\na b c\n",
    "absent words": b": family\na b c d\n", "bare.tsv": b"text\na film\n",
    "strange.txt": "\u4eca\u5929\u5929\u6c14\u5f88\u597d\uff0c\u6211\u4eec\u53bb\u3002\n".encode() * 20,
    "strange.jsonl": '{"text": "\u4eca\u5929\u5929\u6c14\u5f88\u597d", "label": "a"}\n'.encode() * 6,
}  # fmt: skip
COMMANDS = {
    # evaluations of text
    "no checkpoint": ("evaluate {tmp}", "no finished checkpoint"),
    "a misspelt run": ("evaluate {small}_", "did you mean '{small}'?"),
    "a name of a hub": ("evaluate somebody/model", "plmjax import FOLDER RUN; nothing is downloaded"),
    "an empty text": ("evaluate {decoder} --data {tmp}/empty", "{tmp}/empty"),
    "a text of one token": ("evaluate {decoder} --data {tmp}/short", "two tokens", "{tmp}/short", "found 1"),
    "a stride above the window": ("evaluate {decoder} --data {tmp}/lines.txt --stride 25", "--stride", "24", "25"),
    "a window above the positions": ("evaluate {decoder} --data {tmp}/lines.txt --window 65", "--window", "64", "65"),
    "a stride of no decoder": ("evaluate {small} --data {tmp}/lines.txt --stride 8", "BertPretraining"),
    "a memory of none": ("evaluate {decoder} --data {tmp}/lines.txt --memory 5", "--memory", "NextToken"),
    "a split of text": ("evaluate {decoder} --data {tmp}/lines.txt --split test", "--split", "format"),
    "special names": ("evaluate {decoder} --data {tmp}/lines.txt --data.special_names <s/>", "did you mean '<s>'"),
    "a key of a dataset": ("evaluate {small} --data.text_key body", "--data.text_key", "found none"),
    "a share of a dataset": ("evaluate {small} --max_unknown 0.5", "--max_unknown", "found none"),
    # evaluations of tasks
    "a split of a task": ("evaluate {one} --split test", "--split", "{one}"),
    "no column": ("evaluate {one} --data {tmp}/reviews.jsonl", "'text' in line 1", "--data.text"),
    "a setting of the training": ("evaluate {one} --data.train x", "'--data.train'", "plmjax evaluate"),
    # members
    "members on text": ("evaluate {small} --ensemble {one}", "--ensemble", "{small}"),
    "itself": ("evaluate {one} --ensemble {one}", "{one} twice"),
    "its copy": ("evaluate {one} --ensemble {tmp}/copy", "{tmp}/copy twice"),
    "other labels": ("predict {one} --input {dev} --ensemble {other}", "labels a, b, c", "labels a, b in", "{other}"),
    "another task": ("predict {one} --input {dev} --ensemble {small}", "SequenceClassification", "BertPretraining"),
    # predictions
    "a pretrained run": ("predict {small} --input {tmp}/bare.tsv", "pretraining", "plmjax finetune"),
    "an empty table": ("predict {one} --input {tmp}/empty.tsv", "{tmp}/empty.tsv", "found none"),
    "no file": ("predict {one} --input {tmp}/absent.tsv", "{tmp}/absent.tsv", "no file"),
    "a label to predict": ("predict {one} --input {dev} --data.label a", "'--data.label'", "plmjax predict"),
    "a foreign file": ("predict {one} --input {dev} --output {tmp}/lines.txt", "--output", "{tmp}/lines.txt"),
    "a folder to predict": ("predict {one} --input {tmp}", "the folder {tmp}", "name a file in it"),
    "a table to embed": ("embed {small} --input {tmp}/bare.tsv --output {tmp}/v.npz", "the table {tmp}/bare.tsv"),
    # unknown tokens
    "strange text": ("evaluate {small} --data {tmp}/strange.txt", "100.0%", "--max_unknown"),
    "strange examples": ("evaluate {one} --data {tmp}/strange.jsonl", "100.0%", "--max_unknown"),
    "strange members": ("evaluate {one} --data {tmp}/strange.jsonl --ensemble {two}", "100.0%", "--max_unknown"),
    "strange predictions": ("predict {one} --input {tmp}/strange.jsonl", "100.0%", "--max_unknown"),
    "strange lines": ("embed {small} --input {tmp}/strange.txt --output {tmp}/v.npz", "100.0%", "--max_unknown"),
    "no share": ("evaluate {small} --data {tmp}/strange.txt --max_unknown 2", "--max_unknown", "found 2"),
    # attention
    "no attention": ("attention {one} --input {tmp}/lines.txt --output {tmp}/a.npz", "attends"),
    "no archive": ("attention {small} --input {tmp}/lines.txt --output {tmp}/a.txt", "--output", "a.txt"),
    "fewer others": (
        "attention {small} --input {tmp}/five.txt --output {tmp}/a.npz --second {tmp}/lines.txt", "6", "found 1",
    ),
    "vectors there": ("attention {small} --input {tmp}/lines.txt --output {tmp}/vectors.npz", "{tmp}/vectors.npz"),
    "pairs of a decoder": (
        "attention {decoder} --input {tmp}/lines.txt --second {tmp}/lines.txt --output {tmp}/a.npz",
        "start, delimiter, extract",
    ),
    # masks
    "no mask": ("fill-mask {small} 'no mask'", "[MASK]", "'no mask'"),
    "too many ways": ("fill-mask {small} [MASK] --top 801", "--top", "800", "801"),
    "masks of a decoder": ("fill-mask {decoder} [MASK]", "Gpt2Config"),
    # benchmarks
    "one word": ("evaluate {decoder} --task lambada --data {tmp}/'one word'", "two or more words in line 2", "'word'"),
    "a long word": ("evaluate {decoder} --task lambada --data {tmp}/long", "1 to 24 tokens"),
    "no pairs": ("evaluate {decoder} --task blimp --data {tmp}/empty", "{tmp}/empty"),
    "no second sentence": (
        "evaluate {decoder} --task blimp --data {tmp}/keys", "sentence_good, sentence_bad, field, UID", "line 1",
    ),
    "passages of no decoder": ("evaluate {small} --task lambada --data {tmp}/'two words'", "BertPretraining"),
    "a benchmark's stride": ("evaluate {decoder} --task lambada --data {tmp}/text --stride 4", "--stride"),
    "no data": ("evaluate {decoder} --task blimp", "--data"),
    # word vectors
    "no pair": ("evaluate {vectors} --task similarity --data {tmp}/pair", "two words and a number in line 2"),
    "one pair": ("evaluate {vectors} --task similarity --data {tmp}/unknown", "1 such pairs of 2"),
    "no heading": ("evaluate {vectors} --task analogy --data {tmp}/heading", "four words", "line 1"),
    "three words later": ("evaluate {vectors} --task analogy --data {tmp}/later", "four words", "line 3"),
    "no question": ("evaluate {vectors} --task analogy --data {tmp}/'absent words'", "all four words", "found none"),
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, small_run: Path, decoder_run: Path, classifiers: Path) -> dict:
    """Names in commands -> the files and runs that they stand for."""
    folder = tmp_path_factory.mktemp("mistakes")
    for name, contents in FILES.items():
        (folder / name).write_bytes(contents)
    shutil.copytree(classifiers / "one", folder / "copy")
    word2vec.write(folder / "words.txt", ["tiger", "cat"], np.eye(2, dtype=np.float32))
    runs = {name: classifiers / name for name in ("one", "two", "other")}
    files = {"tmp": folder, "dev": classifiers / "dev.jsonl", "vectors": folder / "words.txt"}
    return {"small": small_run, "decoder": decoder_run} | runs | files


@pytest.mark.parametrize("case", COMMANDS)
def test_commands(case: str, made: dict, fails: Callable[..., str]) -> None:
    command, *names = COMMANDS[case]
    said = fails(*shlex.split(command.format(**made)))
    for name in names:
        assert name.format(**made) in said


SAID = {
    ".txt": lambda run, path: embed_file(run, path / "lines.txt", path / "o.txt"),
    "--batch_size": lambda run, path: embed_file(run, path / "lines.txt", path / "o.npz", batch_size=0),
    "--layer from 0 to 1.*3": lambda run, path: embed_file(run, path / "lines.txt", path / "o.npz", layer=3),
    "--pooling.*'max'": lambda run, path: embed_file(run, path / "lines.txt", path / "o.npz", pooling="max"),
    "--mix .*2 numbers.* 1;": lambda run, path: embed_file(run, path / "lines.txt", path / "o.npz", mix=("1",)),
    "--layer or --mix": lambda run, path: embed_file(run, path / "lines.txt", path / "o.npz", mix=("1", "2"), layer=0),
    "fine-tuned with": lambda run, path: embed_file(run, path / "lines.txt", path / "o.npz", mix=("learned",)),
    "at most 126 tokens.*found 127": lambda run, path: fill_mask(run, "[MASK]" * 127),
}


@pytest.mark.parametrize("said", SAID)
def test_calls(said: str, small_run: Path, made: dict) -> None:
    with pytest.raises(UserError, match=said) as error:
        SAID[said](small_run, made["tmp"])
    assert "\n" not in str(error.value)


class Alone(Numbers):
    vocabulary = Vocabulary(9, mask=0)


VECTORS = WordVectors("here", ["a", "b", "c"], np.eye(3, dtype=np.float32))
PARTS: dict[str, Callable[[], Any]] = {
    "which predicts each token": lambda: perplexity.language_model(load("finetune_gpt")),
    "--memory .*-1": lambda: perplexity.with_memory(experiments.transformer_xl(), -1),
    "--window .*32 positions, found 33": lambda: perplexity.row_length(experiments.gpt2(), 33),
    "null_threshold": lambda: AnswerSearch(impossible=False).with_prediction_settings({"null_threshold": 1.0}),
    "--ensemble.*TokenTagging": lambda: TokenTagging().average_outputs([[], []], None),
    "5 positions, found 6": lambda: inputs(BertConfig.tiny(max_position_embeddings=5), Numbers(), ["11"], length=6),
    "both orders": lambda: inputs(GptConfig.tiny(both_orders=True), NumbersOfGpt(), ["11", ("14", "15")]),
    "'sep'": lambda: check_special(Alone(), "mask", "sep"),
    "three words.* 2": lambda: plane(VECTORS, ["a", "b", "a"]),
    "here .*d": lambda: plane(VECTORS, ["a", "b", "c", "d"]),
}


@pytest.mark.parametrize("said", PARTS)
def test_parts(said: str) -> None:
    with pytest.raises(UserError, match=said):
        PARTS[said]()
