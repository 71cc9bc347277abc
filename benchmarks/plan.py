"""Plans of the published runs on every TPU generation that has their slice, as a table in Markdown.

    python benchmarks/plan.py [--run experiments/bert_large_8x8.py] [--topology v3:8x8] [--topology v5e:8x8]

BERT-Base on 4x4 and BERT-Large on 8x8 for v5e, v6e, v3 and v2, at the published batch of 256 and at 4,096 with LAMB. A
number after a slash is the number of microbatches: that of the run, or the smallest one that is estimated to fit if
this is larger. A second table has the cycles by category. Each plan runs in its own process, as for a user. Its time is
printed under the tables (the goal is 120 seconds on two idle cores).
"""

import argparse
import json
import os
import subprocess
import sys
import time

os.environ["JAX_PLATFORMS"] = "cpu"

from plmjax import experiment as experiments
from plmjax.parallel import topologies
from plmjax.plan import report as plan_report
from plmjax.plan import search as plan_search
from plmjax.plan.compilation import Batches

RUNS = {
    "experiments/bert_base_4x4.py": "4x4",
    "experiments/bert_base_4x4.py:lamb_4096": "4x4",
    "experiments/bert_large_8x8.py": "8x8",
    "experiments/bert_large_8x8.py:lamb_4096": "8x8",
}
GENERATIONS = ("v5e", "v6e", "v3", "v2")


def fitting(run: str, topology: str) -> list[str]:
    """Return the options that split a run's batch into microbatches that fit the slice."""
    composed, options = experiments.load(run), []
    batches = Batches.of_text(composed)
    mesh = plan_search.place(composed, batches, topologies.parse(topology)).mesh
    for phase in composed.resolved_phases:
        count = plan_search.fewest_microbatches(composed, batches, phase, mesh)
        if count > phase.accumulation:
            options += [f"--phases.{phase.index}.accumulation", str(count)]
    return options


def main() -> None:
    """Print one table per run, each row as soon as it is ready."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", action="append", help="one of " + ", ".join(RUNS))
    parser.add_argument("--topology", action="append", help="a slice, such as v3:8x8")
    chosen = parser.parse_args()
    for run in chosen.run or RUNS:
        print(f"\n`{run}`\n")
        times, plans = [], []
        for number, topology in enumerate(chosen.topology or [f"{name}:{RUNS[run]}" for name in GENERATIONS]):
            command = [sys.executable, "-m", "plmjax", "plan", run, "--topology", topology, "--json", "--breakdown"]
            start = time.perf_counter()
            done = subprocess.run([*command, *fitting(run, topology)], stdout=subprocess.PIPE, text=True)
            times.append(f"{topology} {time.perf_counter() - start:.0f} s")
            made = json.loads(done.stdout) if done.returncode == 0 else {"topology": topology}
            names, rows = plan_report.columns([made])
            if number == 0:
                print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")
            for row in rows or [[topology, *["-"] * (len(names) - 1)]]:
                print(f"| {' | '.join(row)} |", flush=True)
            plans.append(made)
            for phase in made.get("phases", ()):
                for sentence in phase["findings"]:
                    print(f"finding in phase {phase['phase']} on {topology}: {sentence}", file=sys.stderr)
        names, rows = plan_report.breakdown_columns(plans)
        print(f"\nMcycles of a device and step, compiler / refined:\n\n| {' | '.join(names)} |\n|{'---|' * len(names)}")
        for row in rows:
            print(f"| {' | '.join(row)} |")
        print(f"\nWall-clock time: {', '.join(times)} (load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores).")


if __name__ == "__main__":
    main()
