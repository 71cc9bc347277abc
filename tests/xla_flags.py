"""Options of XLA for tests, which compile far more than they compute.

The passes that only pay in long runs are skipped, XLA's older way to emit fusions compiles twice as fast as the present
one where XLA still has it, and a program in one piece a tenth faster than one in 32. XLA's own preset for fast
compilation would save another tenth, but its results differ by up to 3e-5, which is more than parity with other
libraries allows.
"""

import os
import subprocess
import sys

GIVEN = os.environ.get("XLA_FLAGS", "")
"""The flags of whoever started the tests."""
WANTED = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1"
)


def known(flags: str) -> str:
    """Those of `flags` that the installed XLA knows.

    XLA ends the process that sets a flag or a value that it does not know, and names it. So a short process asks, in a
    fifth of a second. Searching XLA's library for the names is no answer: it keeps those of removed flags as reserved.

    Raises:
        RuntimeError: the process fails for another reason.
    """
    asked = subprocess.run(
        [sys.executable, "-c", "from jaxlib.xla_client import CompileOptions; CompileOptions()"],
        env=os.environ | {"XLA_FLAGS": flags}, capture_output=True, text=True,
    )  # fmt: skip
    unknown = set(asked.stderr.split()) & set(flags.split()) if asked.returncode else set()
    if asked.returncode and not unknown:
        raise RuntimeError(f"Expected XLA to read {flags!r}, found: {asked.stderr}")
    return " ".join(flag for flag in flags.split() if flag not in unknown)


FAST_COMPILATION = known(WANTED)


def cpu_flags(devices: int) -> str:
    """XLA_FLAGS of a process that has so many simulated devices and compiles nothing for a TPU.

    With eight it finds in the cache what the tests compile: the flags are a part of a program's key.
    """
    return " ".join(
        (FAST_COMPILATION, GIVEN, f"--xla_force_host_platform_device_count={devices}")
    )  # the last one counts
