"""The plan of the measured step for a slice, as one line of JSON: python -m plmjax.selfcheck.planned v5e:2x4 8."""

import json
import sys

from plmjax.planning.plan import plan
from plmjax.selfcheck.ground import experiment


def interval(topology: str, devices: int, platform: str = "tpu") -> dict[str, float]:
    """Return the bounds of the planned step, in seconds: of the refined estimate, or else roofline and estimate."""
    (phase,) = plan(experiment(platform, devices), topology)["phases"]
    refined, estimate = phase["refined"], phase["estimate"]
    if refined is None:
        return {"fast_seconds": estimate["roofline_seconds"], "slow_seconds": estimate["step_seconds"]}
    return {f"{end}_seconds": refined[end]["step_seconds"] for end in ("fast", "slow")}


if __name__ == "__main__":
    print(json.dumps(interval(sys.argv[1], int(sys.argv[2]))))
