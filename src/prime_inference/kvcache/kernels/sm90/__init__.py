"""CUDA C++ for Hopper (sm_90a): one launch, a cluster of thread blocks per query token."""
