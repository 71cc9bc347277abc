"""Options of XLA for tests, which compile far more than they compute.

The passes that only pay in long runs are skipped, XLA's older way to emit fusions compiles twice as fast as the present
one, and a program in one piece a fifth faster than one in 32.
"""

FAST_COMPILATION = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1 --xla_cpu_opt_preset=CPU_OPT_PRESET_FAST_COMPILE"
)
