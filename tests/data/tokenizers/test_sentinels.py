"""T5's tokenizer: its special tokens, the sentinels that count down from the last id, and transformers' equal ids."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from plmjax.data import tokenizers

PROSE = [text for file in sorted(Path("docs").glob("*.md")) for text in file.read_text().split("\n\n")][:200]
ODD = [
    "A <extra_id_0> walks <extra_id_1>in park.</s>",
    "  two  spaces ",
    "Ünïcode ﬁ ½ 日本",
    "a\nb\tc",
    "<extra_id_99>x",
]
END = 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of 600 tokens."""
    folder = tmp_path_factory.mktemp("t5")
    tokenizers.train("t5-unigram", 600, PROSE, folder)
    return folder


def test_its_special_tokens_stand_where_t5_has_them(folder: Path) -> None:
    vocabulary = tokenizers.load(folder).vocabulary
    assert (vocabulary.size, vocabulary.pad, vocabulary.end, vocabulary.unknown) == (600, 0, END, 2)
    assert vocabulary.document_end == END
    assert vocabulary.sentinels == tuple(range(599, 499, -1))
    assert vocabulary.special == (0, 1, 2, *range(500, 600))


@pytest.mark.parametrize("kept", [("tokenizer.json", "tokenizer_config.json"), ()])
def test_any_of_its_files_is_the_same_tokenizer_here_and_in_transformers(folder: Path, kept, tmp_path: Path) -> None:
    """The spiece.model alone, as it was published, has neither the sentinels nor a word about them."""
    import transformers

    for name in ("spiece.model", *kept):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    trained, found = tokenizers.load(folder).with_parsed_special(), tokenizers.load(tmp_path).with_parsed_special()
    texts = [*PROSE, *ODD]
    assert found.encode_batch(texts) == trained.encode_batch(texts)
    assert found.vocabulary.sentinels == trained.vocabulary.sentinels
    found.save(tmp_path / "saved")
    for theirs in (
        transformers.T5Tokenizer.from_pretrained(tmp_path),
        transformers.AutoTokenizer.from_pretrained(tmp_path / "saved"),
    ):
        assert theirs(texts)["input_ids"] == [[*ids, END] for ids in found.encode_batch(texts)]
        pair = [*found.encode(texts[0]), END, *found.encode(texts[1]), END]
        assert theirs(texts[0], texts[1])["input_ids"] == pair


def test_sentinels_count_down_from_the_first_without_a_gap() -> None:
    table = {"<extra_id_0>": 9, "<extra_id_1>": 8, "<extra_id_2>": 5, "<extra_id_3>": 6, "[UNK]": 11}
    engine = Tokenizer(models.WordLevel(table, unk_token="[UNK]"))
    assert tokenizers.Tokenizer(engine, {}, {"unk": "[UNK]"}).vocabulary.sentinels == (9, 8)
