"""How long a plan of BERT-Large on a v3:8x8 slice takes here, both phases, as a new user runs it.

    python benchmarks/plan.py [--topology v3:8x8] [--experiment experiments/bert_large_8x8.py]

The goal is 120 seconds on two cores that nothing else uses. CPU seconds are printed beside it: where other work shares
the machine they tell what the plan itself took.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time


def main() -> None:
    """Runs the command in a process of its own and prints a line a phase and one for the whole."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experiment", default="experiments/bert_large_8x8.py")
    parser.add_argument("--topology", default="v3:8x8")
    options = parser.parse_args()
    command = [sys.executable, "-m", "plmjax.cli", "plan", options.experiment, "--topology", options.topology, "--json"]
    start = time.perf_counter()
    made = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    wall = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    for phase in made["phases"]:
        print(f"length {phase['sequence_length']:4d}  {phase['compile_seconds']:6.1f} s to build, compile and read")
    print(
        f"whole command  {wall:.1f} s, {used.ru_utime + used.ru_stime:.1f} CPU seconds, goal 120 s on 2 cores "
        f"(load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores)"
    )


if __name__ == "__main__":
    main()
