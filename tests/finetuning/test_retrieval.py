"""Queries and passages end to end: a run learns, resumes, evaluates to the same, and hands its vectors on."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import pytest
from scipy.stats import spearmanr

from plmjax.commands import cli
from plmjax.errors import UserError
from plmjax.experiment import Checkpoint, Experiment, Finetuning, Training
from plmjax.finetuning.tasks.contrastive import Contrastive
from plmjax.finetuning.tasks.retrieval import Retrieval
from plmjax.inference.embed import embed, embed_file
from plmjax.inference.evaluate import evaluate
from plmjax.inference.retrieval import score_retrieval
from plmjax.runs.finetuning import finetune
from plmjax.training.checkpoints import checkpoints
from plmjax.training.metrics import read
from plmjax.training.optimizers import BertAdamW
from tests.finetuning.conftest import WORDS, stopping

PAIRS = [*itertools.combinations(range(len(WORDS) - 1), 2)]
"""Numbers of the two words of a query. Those of its passage are the next two, so that only training finds it."""
UNSEEN = PAIRS[::5]


def beir(folder: Path, splits: dict[str, Sequence[tuple[int, int]]]) -> Path:
    """A folder of BEIR with a query and a passage of every pair of words."""
    ids = {pair: number for number, pair in enumerate(PAIRS)}
    (folder / "qrels").mkdir(parents=True)
    queries = [{"_id": f"q{ids[a, b]}", "text": f"{WORDS[a]} {WORDS[b]}"} for a, b in PAIRS]
    corpus = [{"_id": f"p{ids[a, b]}", "title": WORDS[a + 1], "text": WORDS[b + 1]} for a, b in PAIRS]
    for name, rows in (("queries", queries), ("corpus", corpus)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for split, chosen in splits.items():
        rows = ["query-id\tcorpus-id\tscore", *(f"q{ids[pair]}\tp{ids[pair]}\t1" for pair in chosen)]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    seen = [pair for pair in PAIRS if pair not in UNSEEN]
    return beir(tmp_path_factory.mktemp("beir") / "words", {"train": seen, "dev": UNSEEN, "test": UNSEEN[:5]})


def experiment(folder: Path, **training: int) -> Experiment:
    data = Retrieval(
        train=str(folder), validation=str(folder), sequence_length=16, query_prefix="the ", passage_prefix="a "
    )
    return Experiment(
        model=None, objective=Contrastive(sizes=(32, 8), recall_at=(5,)), data=data,
        optimizer=BertAdamW(learning_rate=0.01),
        training=Training(steps=0, batch_size=16, log_every=10, **training),
        finetuning=Finetuning(epochs=100.0, warmup=0.1, evaluations=0.2),
        checkpoint=Checkpoint(every=0, keep=1, best="-eval/ndcg@10", prefer="best"),
    )  # fmt: skip


@pytest.fixture(scope="module")
def finished(folder: Path, small_run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    """The run directory of a run on the folder, and its metrics."""
    workdir = tmp_path_factory.mktemp("retrieval") / "run"
    return workdir, finetune(experiment(folder), small_run, workdir)


@pytest.mark.nightly
def test_learns_to_find_unseen_passages_keeps_the_best_evaluation_and_resumes(
    finished: tuple[Path, dict[str, float]], folder: Path, small_run: Path, tmp_path: Path
) -> None:
    workdir, metrics = finished
    scores = {line["step"]: line["eval/ndcg@10"] for line in read(workdir / "metrics.jsonl") if "eval/ndcg@10" in line}
    assert metrics["eval/ndcg@10"] == pytest.approx(max(scores.values())) and metrics["eval/ndcg@10"] > 0.5
    assert int(checkpoints.find(workdir).name) == max(scores, key=scores.__getitem__)
    assert metrics.keys() == {"eval/ndcg@10", "eval/mrr@10", "eval/recall@5", "eval/unknown_tokens"}
    found = [line.split() for line in (workdir / "search.trec").read_text().splitlines()]
    assert len(found) == len(UNSEEN) * 10 and found[0][1:2] + found[0][3:4] == ["Q0", "1"]
    assert evaluate(workdir, folder, **{"data.split": "dev"}) == pytest.approx(metrics, abs=1e-6)
    assert (workdir / "evaluations" / "words" / "search.trec").is_file()
    tested = evaluate(workdir, folder, ndcg_at=(3,), features=8)
    assert tested.keys() == {"eval/ndcg@3", "eval/mrr@10", "eval/recall@5", "eval/unknown_tokens"}
    smaller = evaluate(workdir, folder, features=8, **{"data.split": "dev"})
    assert smaller["eval/ndcg@10"] != metrics["eval/ndcg@10"]
    with stopping(after=7):
        finetune(experiment(folder), small_run, tmp_path)
    assert finetune(experiment(folder), small_run, tmp_path) == metrics
    params = [jax.tree.leaves(checkpoints.load_parameters(run)[0]) for run in (tmp_path, workdir)]
    assert all(np.array_equal(a, b) for a, b in zip(*params, strict=True))


def test_any_encoder_searches_a_table_and_compares_pairs_with_a_score(small_run: Path, tmp_path: Path, capsys) -> None:
    """By the mean of its last layer. Columns have the names of the task, or are named by options."""
    texts = ["a good film", "a bad plot", "an actor"]
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("question\tanswer\n" + "".join(f"{text}\t{text} .\n" for text in texts), encoding="utf-8")
    command = ["evaluate", str(small_run), "--task", "retrieval", "--data", str(pairs), "--json"]
    cli.run([*command, "--data.query", "question", "--data.positive", "answer", "--output", str(tmp_path / "found")])
    found = json.loads(capsys.readouterr().out)
    assert found["retrieval/queries"] == found["retrieval/passages"] == 3 and 0 < found["retrieval/mrr@10"] <= 1
    assert (tmp_path / "found" / "search.trec").read_text().splitlines()[0].startswith("q2 Q0 p")
    scored = tmp_path / "scored.tsv"
    texts = [*texts, "the man saw a film", "plot"]
    # No text beside itself, and no pair in both orders: equal similarities would have ranks by their last bits.
    rows = [(text, other, float(len(text + other) % 7)) for text, other in itertools.combinations(texts, 2)]
    scored.write_text("query\tpositive\tsame\n" + "".join(f"{a}\t{b}\t{c}\n" for a, b, c in rows), encoding="utf-8")
    found = score_retrieval(small_run, scored, score="same")
    vectors = embed(small_run, texts)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    similarities = (unit @ unit.T)[np.triu_indices(len(texts), 1)]
    expected = spearmanr([row[2] for row in rows], similarities).statistic
    assert found["retrieval/spearman"] == pytest.approx(expected, abs=1e-6) and found["retrieval/pairs"] == 10
    with pytest.raises(UserError, match=r"Expected a column 'query' in the header of .*; set --data.query"):
        score_retrieval(small_run, pairs)
    with pytest.raises(UserError, match=r"Expected no --split for the table .*pairs.tsv, found test"):
        score_retrieval(small_run, pairs, split="test")


@pytest.mark.nightly
def test_embed_and_a_search_without_the_task_have_its_vectors(
    finished: tuple[Path, dict[str, float]], folder: Path, tmp_path: Path
) -> None:
    """`plmjax embed` puts the prefix of queries or of passages before each line, as the run did."""
    workdir, metrics = finished
    found = score_retrieval(workdir, str(folder), tmp_path / "out", split="validation")
    for name in ("ndcg@10", "mrr@10"):
        assert found[f"retrieval/{name}"] == pytest.approx(metrics[f"eval/{name}"], abs=1e-6)
    mine, theirs = ((place / "search.trec").read_text().split() for place in (tmp_path / "out", workdir))
    assert mine[2:60:6] == theirs[2:60:6]
    said, vectors = [], {}
    (tmp_path / "lines.txt").write_text("good film\n", encoding="utf-8")
    for prompt in (None, "query", "document"):
        embed_file(workdir, tmp_path / "lines.txt", tmp_path / f"{prompt}.npz", prompt=prompt, report=said.append)
        vectors[prompt] = np.load(tmp_path / f"{prompt}.npz")["embeddings"][0]
        assert np.linalg.norm(vectors[prompt]) == pytest.approx(1, abs=1e-6)
    assert "prompt     none, though the recipe has some: --prompt document or --prompt query" in said
    (tmp_path / "lines.txt").write_text("the good film\n", encoding="utf-8")
    embed_file(workdir, tmp_path / "lines.txt", tmp_path / "own.npz")
    np.testing.assert_array_equal(np.load(tmp_path / "own.npz")["embeddings"][0], vectors["query"])
    assert np.abs(vectors["document"] - vectors["query"]).max() > 1e-3
