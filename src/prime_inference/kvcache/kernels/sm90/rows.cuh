// The formats of a row in the cache and how a row becomes FP16 keys.
#pragma once

#include <cstdint>

#include <primitives.cuh>

namespace prime {

constexpr int LATENT = 512;
constexpr int ROPE = 64;
constexpr int DIMS = LATENT + ROPE;
constexpr int PITCH = DIMS + 8;  // halves; 16 bytes of padding: ldmatrix meets no bank twice
constexpr int PIECE = 16;        // dimensions that one thread unpacks: NVFP4's block
constexpr int PIECES = DIMS / PIECE;

// A format has BYTES, the rows of a TILE, the factor KEY_SCALE that keys carry, and `unpack`:
// 16 dimensions of a raw row as eight pairs of halves.

// code * 2^-14 of the two e2m1 nibbles of byte `b`: f16 has the same fields, further left.
PRIME_DEVICE uint32_t e2m1_pair(uint32_t b) {
  return (b & 0x07u) << 9 | (b & 0x08u) << 12 | (b & 0x70u) << 21 | (b & 0x80u) << 24;
}

// value * 2^-8 of an e4m3 byte as f16 bits, NaN kept.
PRIME_DEVICE uint32_t e4m3_half(uint32_t b) {
  const uint32_t bits = (b & 0x7Fu) << 7 | (b & 0x80u) << 8;
  return (b & 0x7Fu) == 0x7Fu ? 0x7E00u : bits;
}

struct Nvfp4Row {
  static constexpr int BYTES = 352;
  static constexpr int TILE = 64;
  static constexpr float KEY_SCALE = 1.0f / 256;
  PRIME_DEVICE static void unpack(const uint8_t* raw, int piece, uint32_t (&half2)[8]) {
    if (piece < LATENT / PIECE) {
      const uint32_t scale = raw[320 + 8 * (piece & 3) + (piece >> 2)];
      const uint32_t half = (scale & 0x7Fu) << 7 | (scale & 0x80u) << 8;
      // (code * 2^-14) * (scale * 2^6): factors and product are exact in f16.
      const uint32_t factor = prim::mul_half2(half | half << 16, 0x74007400u);
      const uint32_t* words = reinterpret_cast<const uint32_t*>(raw + 8 * piece);
#pragma unroll
      for (int i = 0; i < 8; ++i)
        half2[i] = prim::mul_half2(e2m1_pair(words[i / 4] >> 8 * (i % 4)), factor);
    } else {
      const uint8_t* rope = raw + 256 + PIECE * (piece - LATENT / PIECE);
#pragma unroll
      for (int i = 0; i < 8; ++i)
        half2[i] = e4m3_half(rope[2 * i]) | e4m3_half(rope[2 * i + 1]) << 16;
    }
  }
};

// vLLM's fp8_ds_mla: 512 e4m3, a float32 scale for each 128, 64 bf16 rope.
struct Fp8Row {
  static constexpr int BYTES = 656;
  static constexpr int TILE = 64;
  static constexpr float KEY_SCALE = 1;
  PRIME_DEVICE static void unpack(const uint8_t* raw, int piece, uint32_t (&half2)[8]) {
    if (piece < LATENT / PIECE) {
      const float scale = reinterpret_cast<const float*>(raw + LATENT)[piece / 8] * 256.0f;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint8_t* two = raw + PIECE * piece + 2 * i;
        half2[i] = prim::pack_half2(prim::half_value(e4m3_half(two[0])) * scale,
                                    prim::half_value(e4m3_half(two[1])) * scale);
      }
    } else {
      const uint32_t* rope =
          reinterpret_cast<const uint32_t*>(raw + 528 + 2 * PIECE * (piece - LATENT / PIECE));
#pragma unroll
      for (int i = 0; i < 8; ++i) half2[i] = prim::half2_of_bf16(rope[i]);
    }
  }
};

struct Bf16Row {
  static constexpr int BYTES = 1152;
  static constexpr int TILE = 32;  // 64 raw rows would not fit beside the keys
  static constexpr float KEY_SCALE = 1;
  PRIME_DEVICE static void unpack(const uint8_t* raw, int piece, uint32_t (&half2)[8]) {
    const uint32_t* pairs = reinterpret_cast<const uint32_t*>(raw + 2 * PIECE * piece);
#pragma unroll
    for (int i = 0; i < 8; ++i) half2[i] = prim::half2_of_bf16(pairs[i]);
  }
};

}  // namespace prime
