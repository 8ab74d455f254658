"""GPU kernels over NVFP4 rows: Triton (any GPU, and a CPU interpreter), CUDA C++ (SM90a)."""
