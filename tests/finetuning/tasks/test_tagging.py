"""Words and their labels: files, schemes, first pieces, entities, losses."""

import gzip
import json

import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.data import tokenizers
from plmjax.errors import UserError
from plmjax.finetuning.tasks import label_schemes
from plmjax.finetuning.tasks.tagging import TaggedExamples, Tagging, TokenTagging
from plmjax.interop import huggingface
from plmjax.models.bert import BertConfig
from tests.finetuning import parity
from tests.finetuning.parity import Numbers

WORDS = [["Zoë", "Lee", "left", "."], ["In", "Łódź", "?"]]
LABELS = [["B-PER", "I-PER", "O", "O"], ["O", "B-LOC", "O"]]
FORMATS = {
    "rows.conll": "Zoë\tB-PER\nLee\tI-PER\nleft\tO\n.\tO\n\nIn\tO\nŁódź\tB-LOC\n?\tO\n",
    "rows.conll.gz": "-DOCSTART- -X- -X- O\r\n\r\nZoë NNP   B-NP B-PER\r\nLee NNP I-NP I-PER\r\n"
    "left VBD B-VP O\r\n. . O O\r\n\r\n \r\n-DOCSTART- -X- -X- O\r\nIn IN B-PP O \r\nŁódź NNP B-NP B-LOC\r\n? . O O",
    "rows.conllu": "# sent_id = 1\n# text = Zoë Lee left.\n"
    "1\tZoë\tB-PER\n2-3\tLeeleft\t_\n2\tLee\tI-PER\n3\tleft\tO\n3.1\tleft\t_\n4\t.\tO\n\n"
    "# sent_id = 2\n1\tIn\tO\n2\tŁódź\tB-LOC\n3\t?\tO\n\n",
    "rows.jsonl.gz": '{"id": 7, "form": ["Zoë", "Lee", "left", "."], "tag": ["B-PER", "I-PER", "O", "O"]}\n\n'
    '{"tag": ["O", "B-LOC", "O"], "form": ["In", "Łódź", "?"]}\n',
}
COLUMNS = {"rows.conll.gz": ("form", "pos", "chunk", "tag"), "rows.conllu": ("id", "form", "tag")}
LINES = {
    "rows.conll": [[1, 2, 3, 4], [6, 7, 8]],
    "rows.conll.gz": [[3, 4, 5, 6], [10, 11, 12]],
    "rows.conllu": [[3, 5, 6, 8], [11, 12, 13]],
    "rows.jsonl.gz": [[1] * 4, [3] * 3],
}


def written(path, text: str) -> str:
    data = text.encode("utf-8")
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


@pytest.mark.parametrize("name", FORMATS)
def test_reads_every_format_alike(tmp_path, name):
    path = written(tmp_path / name, FORMATS[name])
    examples = Tagging(train=path, columns=COLUMNS.get(name, ()), scheme="IOB2").read("train")
    lines = LINES[name]
    assert examples == TaggedExamples(path, [one[-1] for one in lines], WORDS, LABELS, lines, "IOB2")


POSSIBLE = {
    "IOB1": ["I-A I-A B-A I-A O I-B I-A", "O O", "I-A B-A", "I-A I-B B-B"],
    "IOB2": ["B-A I-A B-A B-B I-B O B-X-Y", "O", "B-A O B-A"],
    "IOBES": ["S-A B-A E-A B-B I-B I-B E-B O S-B S-B", "O O"],
}
IMPOSSIBLE = {
    "IOB1": {"B-A": "B-A", "O B-A": "B-A", "I-A B-B": "B-B", "I-A O B-A": "B-A", "I": "I"},
    "IOB2": {"O I-A": "I-A", "B-A I-B": "I-B", "E-A": "E-A", "-A": "-A", "B-": "B-", "A": "A"},
    "IOBES": {"B-A O": "O", "B-A": "B-A", "B-A B-A": "B-A", "I-A": "I-A", "S-A E-A": "E-A", "B-A I-B": "I-B",
              "B-A I-A": "I-A", "B-A E-B": "E-B", "B-A E-A E-A": "E-A", "B-A S-A": "S-A"},
}  # fmt: skip


for table in (POSSIBLE, IMPOSSIBLE):
    renamed = json.loads(json.dumps(table["IOBES"]).replace("E-", "L-").replace("S-", "U-"))
    table["BILOU"] = renamed


@pytest.mark.parametrize("scheme", POSSIBLE)
def test_entities_are_of_the_scheme_or_named_with_file_and_line(tmp_path, scheme):
    for labels, culprit in {**dict.fromkeys(POSSIBLE[scheme]), **IMPOSSIBLE[scheme]}.items():
        sentence = "".join(f"word\t{label}\n" for label in labels.split())
        path = written(tmp_path / "rows.conll", "word\tO\n\n" * 2 + sentence + "\nword\tO\n")
        if culprit is None:
            assert Tagging(train=path, scheme=scheme).read("train").labels[2] == labels.split()
            continue
        with pytest.raises(UserError) as error:
            Tagging(train=path, scheme=scheme).read("train")
        said, line = str(error.value), 5 + len(labels.split()) - 1 - labels.split()[::-1].index(culprit)
        assert f"found {culprit!r}" in said and f"in line {line} of" in said.replace(", which", " of") and path in said
        assert "\n" not in said and said.endswith("--data.scheme.")
        assert len(Tagging(train=path).read("train")) == 4  # labels of single words may be anything


SENTENCES = ["The fox — in Łódź didn't jump , 3.5 Zoë !", "unbelievable internationalization", "x"]


@pytest.mark.parametrize("kind", ["wordpiece", "byte-bpe", "sentencepiece-unigram", "sentencepiece-bpe"])
def test_pieces_of_words_are_those_of_transformers(tmp_path, kind):
    from transformers import AutoTokenizer

    texts = [f"{text} and the rest of the tokens" for text in SENTENCES] * 4
    size = 320 if kind == "byte-bpe" else 70
    tokenizer = tokenizers.train(kind, size, texts, tmp_path, lowercase=kind != "byte-bpe")
    options = {"add_prefix_space": True} if kind == "byte-bpe" else {}
    theirs = AutoTokenizer.from_pretrained(tmp_path, **options)
    sentences = [sentence.split() for sentence in SENTENCES]
    examples = TaggedExamples("", [1] * 3, sentences, [["a"] * len(one) for one in sentences], [[1] * 9] * 3)
    encoded = TokenTagging(("a", "b")).encode(examples, tokenizer, BertConfig.tiny(), Tagging())
    made = theirs(sentences, is_split_into_words=True)
    for row, words in enumerate(sentences):
        here = slice(*encoded.offsets[row : row + 2])
        assert encoded.tokens[here].tolist() == made["input_ids"][row]
        belongs = made.word_ids(row)
        first = [word is not None and word != before for word, before in zip(belongs, [None, *belongs], strict=False)]
        assert (encoded.token_fields["label_weights"][here] > 0).tolist() == first
        assert sum(first) == len(words)


def example(words: str, labels: str) -> TaggedExamples:
    split = [one.split() for one in words.split("/")]
    return TaggedExamples(
        "", [1] * len(split), split, [one.split() for one in labels.split("/")], [[1] * len(one) for one in split]
    )


TAGS = ("B-A", "B-B", "I-A", "I-B", "O")


def answered(gold: str, found: str, *, length: int = 64, entities: bool = True, tags: tuple[str, ...] = TAGS):
    """Metrics and predictions where the model finds `found` in sentences of words of two pieces."""
    words = "/".join(" ".join(["10+11"] * len(one.split())) for one in gold.split("/"))
    examples, objective = example(words, gold), TokenTagging(tags, entities)
    encoded = objective.encode(examples, Numbers(), BertConfig.tiny(), Tagging(sequence_length=length))
    outputs = []
    for row, one in enumerate(found.split("/")):
        logits = np.zeros((encoded.offsets[row + 1] - encoded.offsets[row], len(tags)), np.float32)
        for word, label in enumerate(one.split()):
            if 1 + 2 * word < len(logits) - 1:
                logits[1 + 2 * word, tags.index(label)] = 1
        outputs.append(logits)
    return objective.evaluate_outputs(examples, encoded, outputs)


CASES = {
    "all": ("B-A I-A O B-B", "B-A I-A O B-B"),
    "a kind": ("B-A I-A O B-B/O B-A", "B-B I-B O B-B/B-A O"),
    "neighbours": ("B-A B-A I-A O/B-B", "B-A I-A B-A O/B-B"),
    "none": ("B-A O", "O O"),
    "many": ("/".join(["B-A I-A O B-B"] * 3), "B-A I-A O B-B/O O O B-B/B-A O O B-A"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_entities_are_counted_whole(case):
    from seqeval import metrics as seqeval

    gold, found = ([one.split() for one in side.split("/")] for side in CASES[case])
    metrics, files = answered(*CASES[case])
    for name in ("f1", "precision", "recall"):
        expected = getattr(seqeval, f"{name}_score")(gold, found, zero_division=0)
        assert metrics[name] == pytest.approx(expected)
    pairs = [(a, b) for one, other in zip(gold, found, strict=True) for a, b in zip(one, other, strict=True)]
    assert metrics["accuracy"] == pytest.approx(np.mean([a == b for a, b in pairs]))
    sentences = files["predictions.tsv"].split("\n", 1)[1].split("\n\n")[:-1]
    assert [[row.split("\t") for row in one.split("\n")] for one in sentences] == [
        [["10+11", a, b] for a, b in zip(one, other, strict=True)] for one, other in zip(gold, found, strict=True)
    ]


@pytest.mark.parametrize(
    ("scheme", "sentence"),
    [
        ("IOB2", "B-A I-A B-A O B-B"), ("IOE2", "I-A E-A E-A O E-B"), ("BILOU", "B-A L-A U-A O U-B"),
        ("BILOU", "U-A U-A L-A B-B I-B L-B"),
    ],
)  # fmt: skip
def test_marks_of_every_scheme_are_read_as_seqeval_reads_its_scheme(scheme: str, sentence: str) -> None:
    """seqeval without a scheme joins neighbours of BILOU, which it does not know."""
    from seqeval import scheme as schemes
    from seqeval.metrics.sequence_labeling import get_entities

    labels = sentence.split()
    strict = schemes.Entities([labels], getattr(schemes, scheme)).entities[0]
    read = [label_schemes.in_iobes(label) for label in labels]
    found = get_entities([read])
    assert set(found) >= {(one.tag, one.start, one.end - 1) for one in strict}
    if "U-A L-A" not in sentence:
        assert len(found) == len(strict)
    tags = tuple(sorted({*labels, "O"}))
    metrics, _ = answered(sentence, sentence, tags=tags)
    assert metrics == dict.fromkeys(("accuracy", "f1", "precision", "recall"), 1.0)
    missed, _ = answered(sentence, " ".join(["O", *labels[1:]]), tags=tags)
    assert missed["f1"] < 1 and missed["recall"] < 1


def test_what_is_cut_off_counts_as_mistakes():
    metrics, files = answered("O B-A O O B-A", "O B-A O O B-A", length=7)  # room for two words and a half
    assert files["predictions.tsv"].splitlines()[1:6] == [
        "10+11\tO\tO", "10+11\tB-A\tB-A", "10+11\tO\tO", "10+11\tO\tO", "10+11\tB-A\tO"
    ]  # fmt: skip
    assert metrics["accuracy"] == pytest.approx(3 / 5)  # a first piece is enough to be asked
    assert (metrics["recall"], metrics["precision"]) == (0.5, 1.0)
    metrics, files = answered("O B-A O O B-A", "O B-A O O B-A", length=7, entities=False)
    assert metrics == {"accuracy": pytest.approx(3 / 5)} and files["predictions.tsv"].splitlines()[5] == "10+11\tB-A\t"


def draws(count: int) -> TaggedExamples:
    """Sentences of one to six words of one to three pieces."""
    random = np.random.default_rng(0)
    sentences = [
        [
            "+".join(map(str, random.integers(10, 97, random.integers(1, 4))))
            for _ in range(random.integers(1, 7))
        ]
        for _ in range(count)
    ]  # fmt: skip
    labels = [[TAGS[random.integers(len(TAGS))] for _ in words] for words in sentences]
    return TaggedExamples("", [1] * count, sentences, labels, [[1] * len(words) for words in sentences])


@pytest.mark.nightly
def test_losses_and_gradients_equal_those_of_transformers_and_of_packed_rows(tmp_path):
    theirs = parity.reference(tmp_path, "BertForTokenClassification", len(TAGS))
    module, params = huggingface.load(tmp_path)
    objective = TokenTagging(TAGS)
    encoded = objective.encode(draws(9), Numbers(), module.config, Tagging(sequence_length=24))
    given = parity.batch(encoded, 24, 1)
    labels = np.where(np.asarray(given["label_weights"]) > 0, given["labels"], -100)
    loss, gradient, sums, their = parity.compared(
        tmp_path, theirs, objective, module=module, params=params, given=given, labels=parity.tensor(labels)
    )
    assert (labels >= 0).sum() == objective.weights(given)["task"] > 20
    hits, weight = sums.metrics["accuracy"]
    right = (their.logits.argmax(-1).numpy() == labels).sum()
    assert (int(hits), int(weight)) == (right, (labels >= 0).sum())

    packed = parity.batch(encoded, 60, 4)
    assert len(packed["input_ids"]) < len(given["input_ids"]) / 2 and jnp.max(packed["segment_ids"]) == 4
    parity.assert_same_packed(objective, module, params, packed=packed, loss=loss, gradient=gradient)


REAL = {
    "ud_english_ewt/en_ewt-ud-dev.conllu.gz": ({"label": "upos"}, 2001, 25147, 17),
    "ud_chinese_gsdsimp/zh_gsdsimp-ud-dev.conllu.gz": ({"label": "upos"}, 500, 12663, 16),
    "wnut17/emerging.dev.conll.gz": ({"scheme": "IOB2"}, 1009, 15733, 13),
}
"""File -> options; sentences, words and labels, counted by awk."""


@pytest.mark.parametrize("name", REAL)
def test_real_files_are_read_wholly(shared_data, name):
    options, sentences, words, labels = REAL[name]
    examples = Tagging(train=str(shared_data / "finetune" / name), **options).read("train")
    assert len(examples) == sentences and sum(map(len, examples.words)) == words
    assert len({label for one in examples.labels for label in one}) == labels


def test_sentences_to_tag_may_be_lines_of_words(tmp_path) -> None:
    path = written(tmp_path / "a.txt", "In  Łódź ?\nNo\n")
    assert list(Tagging().rows(path, labelled=False)) == [
        (1, ["In", "Łódź", "?"], [None] * 3, [1] * 3), (2, ["No"], [None], [2])
    ]  # fmt: skip
    path = written(tmp_path / "rows.conllu", "1\ta b\tlemma\tDET\tDT\t_\t2\tdet\t_\t_\n")
    found = Tagging(train=path, label="upos").read("train")  # columns of CoNLL-U have names
    assert (found.words, found.labels) == ([["a b"]], [["DET"]])
