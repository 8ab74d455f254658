"""The compressed KV cache of MLA models: the 352-byte NVFP4 row, its layouts and kernels.

Needs the extra `kv` (numpy); the modules ending in `_torch` and `kernels` need the extra
`kv-torch`. The format and the reasons behind it are in docs/kv-nvfp4.md.
"""
