"""Where every byte of a row lies.

    byte      0                         256        320        352
              | 512 latent codes, e2m1  | 64 rope, | 32 block |
              | two a byte              | e4m3     | scales   |

Byte i of the first part holds dimension 2i in its low nibble and 2i + 1 in its high nibble.
The rope bytes are plain e4m3 without a scale. The scales are e4m3, one for each block of 16
consecutive latent dimensions, transposed as an 8 x 4 matrix: see `scale_byte`.

Source: vLLM, csrc/libtorch_stable/nvfp4_ds_mla_cache_kernels.cu at 03b60164, and the reader
in FlashMLA, csrc/kernels/sm100/decode/sparse/nvfp4_head64 at 29b0d03c.
"""

from __future__ import annotations

from typing import Final, Literal

LATENT_DIMS: Final = 512  # kv_lora_rank of DeepSeek V3.2 and GLM 5.x
ROPE_DIMS: Final = 64  # qk_rope_head_dim of the same models
BLOCK_DIMS: Final = 16  # latent dimensions that share one scale: NVFP4's block
BLOCKS: Final = LATENT_DIMS // BLOCK_DIMS

ROPE_OFFSET: Final = LATENT_DIMS // 2
SCALE_OFFSET: Final = ROPE_OFFSET + ROPE_DIMS
ROW_BYTES: Final = SCALE_OFFSET + BLOCKS

MIN_SCALE: Final = 2.0**-9  # the smallest positive e4m3 number: no block has scale zero
MAX_CODE: Final = 6.0  # the largest e2m1 magnitude
MAX_SCALE: Final = 448.0  # the largest finite e4m3 magnitude

Writer = Literal["round_up", "four_over_six"]
WRITERS: Final[tuple[Writer, ...]] = ("round_up", "four_over_six")


def scale_byte(block: int) -> int:
    """The byte, counted from `SCALE_OFFSET`, of the scale of dimensions [16b, 16b + 16)."""
    return 8 * (block & 3) + (block >> 2)


SCALE_BYTES: Final[tuple[int, ...]] = tuple(scale_byte(block) for block in range(BLOCKS))
