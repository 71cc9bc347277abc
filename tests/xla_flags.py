"""Options of XLA for tests, which compile far more than they compute.

The passes that only pay in long runs are skipped, XLA's older way to emit fusions compiles twice as fast as the present
one, and a program in one piece a tenth faster than one in 32. XLA's own preset for fast compilation would save another
tenth, but its results differ by up to 3e-5, which is more than parity with other libraries allows.
"""

FAST_COMPILATION = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1"
)
