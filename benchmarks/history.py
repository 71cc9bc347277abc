"""The history of pretrained language models: each system with the same FLOPs and words, and what its step was worth.

    python benchmarks/history.py DATA --list
    python benchmarks/history.py DATA --output runs/history
    python benchmarks/history.py DATA --output shared/history --share 2/8

DATA is the folder that benchmarks/comparison.py reads. Every system is pretrained with --budget FLOPs on the same
articles, and with at most --tokens tokens, which stops word2vec and GloVe alone: a token costs them a hundredth of
the FLOPs of the others, or less. Then each is fine-tuned as its paper uses it on a classification of sentences, of
pairs and of words, as far as it can be, with --seeds seeds, beside the same model from random parameters.

Every piece, a pretraining or a fine-tuning run, is a run directory in OUTPUT. A piece that is finished is read. Eight
machines that have OUTPUT in common run the command with --share 1/8 to 8/8; run it again for the pieces that waited
for the pretraining of another machine. --rows reads the systems of a page that benchmarks/comparison.py wrote with the
same budget and as many seeds, in place of making them. --list prints the pieces and makes none. In the end the command
prints the table, and draws it to OUTPUT/history.png.
"""

import argparse
import dataclasses
import itertools
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import comparison
import pieces
from comparison import EXPERIMENTS, STARTS, TASKS, Candidate
from pieces import Piece, Share

from plmjax import experiment as experiments
from plmjax.errors import UserError

HISTORY = EXPERIMENTS.with_name("history.py")
JUDGED = ("subjectivity", "snli", "pos")
"""A classification of sentences, of pairs and of words."""
HEADS = {task: f"{EXPERIMENTS}:{task}" for task in JUDGED}


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of the history: a system, its year and its idea."""

    year: int
    title: str
    idea: str
    candidate: Candidate


SENTENCES = ("subjectivity", "snli")
"""The tasks of a system without labels of words."""


def _step(year: int, title: str, idea: str, *, pretraining: str, tasks: Mapping[str, str]) -> Step:
    return Step(year, title, idea, Candidate(title.lower(), pretraining, tasks))


def _own(name: str, *tasks: str) -> dict[str, str]:
    """Return task -> its experiment with a head or features of the system's own kind."""
    return {task: f"{HISTORY}:{name}_{task}" for task in tasks}


def _heads(*tasks: str) -> dict[str, str]:
    """Return task -> its experiment of benchmarks/comparison.py."""
    return {task: HEADS[task] for task in tasks}


STEPS = (
    _step(
        2003, "NNLM", "vectors of words from the next word", pretraining=f"{HISTORY}:nnlm", tasks=_own("words", *JUDGED)
    ),
    _step(
        2013,
        "word2vec",
        "from the words around, a few at a time",
        pretraining=f"{HISTORY}:word2vec",
        tasks=_own("words", *JUDGED),
    ),
    _step(2014, "GloVe", "from counts of the whole text", pretraining=f"{HISTORY}:glove", tasks=_own("words", *JUDGED)),
    _step(
        2017,
        "TagLM",
        "states of language models as features",
        pretraining=f"{HISTORY}:elmo",
        tasks=_own("taglm", "pos"),
    ),
    _step(
        2018,
        "ULMFiT",
        "fine-tuning of a language model",
        pretraining=f"{HISTORY}:ulmfit",
        tasks=_own("ulmfit", "subjectivity", "snli"),
    ),
    _step(
        2018,
        "ELMo",
        "a learned mix of all layers as features",
        pretraining=f"{HISTORY}:elmo",
        tasks=_own("elmo", "pos"),
    ),
    _step(
        2018, "GPT", "a Transformer, one head for all tasks", pretraining=f"{EXPERIMENTS}:gpt", tasks=_heads(*SENTENCES)
    ),
    _step(2018, "BERT", "hidden words, read from both sides", pretraining=f"{EXPERIMENTS}:bert", tasks=HEADS),
    _step(2019, "XLNet", "words in the order of a permutation", pretraining=f"{EXPERIMENTS}:xlnet", tasks=HEADS),
    _step(
        2019, "RoBERTa", "new masks at every step, no next sentence", pretraining=f"{EXPERIMENTS}:roberta", tasks=HEADS
    ),
    _step(2019, "ALBERT", "one layer for all, order of sentences", pretraining=f"{EXPERIMENTS}:albert", tasks=HEADS),
    _step(2019, "BART", "damaged text, restored as a whole", pretraining=f"{HISTORY}:bart", tasks=_heads(*SENTENCES)),
    _step(2019, "T5", "every task as text", pretraining=f"{HISTORY}:t5", tasks=_own("t5", *SENTENCES)),
    _step(2020, "ELECTRA", "replaced words, found at every place", pretraining=f"{EXPERIMENTS}:electra", tasks=HEADS),
)


Score = tuple[float, float | None]
"""Mean and deviation over the seeds, in percent; None for one seed."""


@dataclasses.dataclass(frozen=True)
class Row:
    """The result of a step.

    Attributes:
        judged: (start, task) -> the score.
        cost: parameters, tokens and FLOPs of the pretraining, as text; "-" until it is finished.
    """

    step: Step
    judged: Mapping[tuple[str, str], Score]
    cost: tuple[str, str, str] = ("-", "-", "-")


def chosen(options: argparse.Namespace) -> list[Step]:
    """Return the steps of the options, with the tasks of the options."""
    found = []
    for step in STEPS:
        tasks = {task: name for task, name in step.candidate.tasks.items() if task in options.tasks}
        if step.candidate.name in options.systems and tasks:
            found.append(dataclasses.replace(step, candidate=dataclasses.replace(step.candidate, tasks=tasks)))
    return found


def stages(options: argparse.Namespace, steps: Sequence[Step]) -> tuple[list[Piece], list[Piece]]:
    """Return the pretraining runs and the fine-tuning runs of the steps."""
    systems = [step.candidate for step in steps]
    first = comparison.pretrainings(options, systems, options.tokens)
    return [*first.values()], comparison.finetunings(options, systems, first, options.steps)


def rows_of_page(path: Path, options: argparse.Namespace, steps: Sequence[Step]) -> list[Row]:
    """Return the rows of the steps that a page of benchmarks/comparison.py has.

    Raises:
        UserError: there is no such page, or its budget or its seeds are others.
    """
    if not path.is_file():
        raise UserError(f"Expected a page of benchmarks/comparison.py at {path}, found none; name one with --rows.")
    text = path.read_text(encoding="utf-8")
    asked = f"{options.budget:.2g}", str(options.seeds)
    found = re.search(r"pretrained with (\S+) model FLOPs.*?\bwith (\d+) seeds", text, re.S)
    if not found or found.groups() != asked:
        budget, seeds = found.groups() if found else ("no", "no")
        raise UserError(
            f"Expected a page with {asked[0]} FLOPs and {asked[1]} seeds in {path}, found {budget} and {seeds}; "
            f"set --budget and --seeds, or leave --rows out."
        )
    scores, order = comparison.page_scores(text), list(TASKS)
    costs = {
        name: (parameters, tokens, flops)
        for name, parameters, tokens, flops in re.findall(
            r"^\| (\w+) \| ([\d,]+) \| [\d,]+ \| ([\d.]+ M) \| (\S+) \|", text, re.M
        )
    }
    rows = []
    for step in steps:
        name, judged = step.candidate.name, {}
        for start, task in itertools.product(STARTS, step.candidate.tasks):
            if (name, start) in scores and (one := scores[name, start][order.index(task)]) is not None:
                judged[start, task] = one
        if len(judged) == len(STARTS) * len(step.candidate.tasks):
            rows.append(Row(step, judged, costs[name]))
    return rows


def made_rows(options: argparse.Namespace, steps: Sequence[Step], found: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """Return the rows of the steps, from the finished pieces."""
    rows = []
    for step in steps:
        candidate, judged = step.candidate, {}
        for start, task in itertools.product(STARTS, candidate.tasks):
            if values := comparison.scores(found, candidate.name, task, start=start, seeds=options.seeds):
                deviation = statistics.stdev(values) if len(values) > 1 else None
                judged[start, task] = statistics.fmean(values), deviation
        row = Row(step, judged)
        if run := found.get(candidate.pretraining.partition(":")[2]):
            cost = f"{run['parameters']:,}", f"{run['tokens'] / 1e6:.3g} M", f"{run['flops']:.2g}"
            row = dataclasses.replace(row, cost=cost)
        rows.append(row)
    return rows


def table(rows: Sequence[Row], tasks: Sequence[str]) -> str:
    """Return two tables of the steps in the order of the history: their results, and their cost and worth.

    A result is that of the pretrained model, with that of the random one in brackets. A step's worth is the mean gain
    from pretraining over its tasks, and the points by which it is above all steps before, task by task.
    """
    results = [f"| year | system | step | {' | '.join(tasks)} |", "|" + "---|" * (3 + len(tasks))]
    worths = ["| system | parameters | tokens | FLOPs | from pretraining | above all before |", "|" + "---|" * 6]
    best: dict[str, float] = {}
    for row in rows:
        cells, gains, above = [], [], []
        for task in tasks:
            pretrained, random = (row.judged.get((start, task)) for start in STARTS)
            cells.append(_cell(pretrained, random))
            if pretrained and random:
                gains.append(pretrained[0] - random[0])
            if pretrained and pretrained[0] > best.get(task, math.inf):
                above.append(f"{task} {pretrained[0] - best[task]:+.1f}")
            if pretrained:
                best[task] = max(pretrained[0], best.get(task, 0.0))
        worth = f"{statistics.fmean(gains):+.1f}" if gains else "-"
        step = row.step
        results.append(f"| {step.year} | {step.title} | {step.idea} | {' | '.join(cells)} |")
        worths.append(f"| {step.title} | {' | '.join(row.cost)} | {worth} | {', '.join(above)} |")
    return "\n".join([*results, "", *worths])


def _cell(pretrained: Score | None, random: Score | None) -> str:
    if pretrained is None:
        return ""
    mean, deviation = pretrained
    around = "" if deviation is None else f" ± {deviation:.1f}"
    return f"{mean:.1f}{around}" + (f" ({random[0]:.1f})" if random else "")


def listing(options: argparse.Namespace, steps: Sequence[Step], both: tuple[list[Piece], list[Piece]]) -> str:
    """Return a line for each piece: its number, the steps and FLOPs of a pretraining, the length of a fine-tuning."""
    lines = ["| piece | share | name | steps | tokens | FLOPs | state |", "|" + "---|" * 7]
    first, second = both
    for index, piece in enumerate([*first, *second]):
        state = "done" if piece.result.exists() else "ready" if piece.ready else f"after {piece.start.name}"
        share = f"{index % options.share.of + 1}/{options.share.of}"
        if piece in first:
            (run,) = piece.arguments
            count = run.training.steps
            cost = f"{count:,} | {comparison.tokens(run, count) / 1e6:.1f} M | {comparison.flops(run, count):.2g}"
        else:
            epochs = experiments.load(piece.arguments[0]).finetuning.epochs
            cost = f"{options.steps or f'{epochs:g} epochs'} | | "
        lines.append(f"| {index} | {share} | {piece.name} | {cost} | {state} |")
    total = sum(comparison.flops(piece.arguments[0], piece.arguments[0].training.steps) for piece in first)
    lines += [
        "",
        f"{len(first)} pretrainings with {total:.2g} FLOPs, {len(second)} fine-tunings of {len(steps)} systems",
    ]
    return "\n".join(lines)


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    names = [step.candidate.name for step in STEPS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder of the texts and the tasks")
    parser.add_argument("--output", type=Path, default=Path("runs/history"), help="folder of the runs")
    parser.add_argument("--budget", type=float, default=4e13, help="model FLOPs of each pretraining")
    parser.add_argument("--tokens", type=float, default=1e8, help="most tokens that a pretraining reads")
    parser.add_argument("--seeds", type=int, default=3, help="fine-tunings of each system, task and start")
    parser.add_argument("--steps", type=int, default=0, help="steps of each fine-tuning, in place of its epochs")
    parser.add_argument("--systems", nargs="+", default=names, choices=names, help="which of the systems")
    parser.add_argument("--tasks", nargs="+", default=list(JUDGED), choices=JUDGED, help="which of the tasks")
    parser.add_argument("--rows", type=Path, help="page of benchmarks/comparison.py, whose systems are not made again")
    parser.add_argument("--workers", type=int, default=2, help="pieces made at once; each keeps about one core busy")
    parser.add_argument("--share", type=Share.parse, default=Share(), help="share of the pieces to make, such as 2/8")
    parser.add_argument("--list", action="store_true", help="print the pieces, make none")
    parser.add_argument("--report", action="store_true", help="print the table of the finished pieces, make none")
    return parser


def main() -> None:
    """Make the pieces of the share, print the table and draw the picture."""
    parser = arguments()
    try:
        run(parser.parse_args())
    except UserError as error:
        parser.exit(2, f"{error}\n")


def run(options: argparse.Namespace) -> None:
    """Execute the options.

    Raises:
        UserError: the budget is too small, or the page of --rows does not fit.
    """
    steps = chosen(options)
    read = rows_of_page(options.rows, options, steps) if options.rows else []
    left = [step for step in steps if step not in [row.step for row in read]]
    both = stages(options, left)
    if options.list:
        print(listing(options, left, both))
        return
    if not options.report:
        comparison.split_by_premise(options.data / "finetune" / TASKS["snli"][1], options.output / "data")
        if waiting := pieces.work(both, options.workers, options.share):
            first = ", ".join(dict.fromkeys(piece.start.name for piece in waiting))
            print(f"{len(waiting)} pieces wait for the pretraining of other shares ({first}); run this command again.")
    found = pieces.results(itertools.chain(*both))
    made = made_rows(options, left, found)
    rows = sorted([*read, *made], key=lambda row: steps.index(row.step))
    print("", table(rows, options.tasks), sep="\n")
    minutes = sum(result["seconds"] for result in found.values()) / 60
    print(f"\n{len(found)} of {sum(map(len, both))} pieces, {minutes:.0f} minutes of one core")
    shown = {
        (row.step.title, start): [row.judged.get((start, task)) for task in options.tasks]
        for row in rows
        for start in STARTS
    }
    picture = options.output / "history.png"
    comparison.draw(shown, options.tasks, picture, best=True)
    print(f"\n{picture}")


if __name__ == "__main__":
    main()
