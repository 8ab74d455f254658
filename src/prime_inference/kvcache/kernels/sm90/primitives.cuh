// What sparse_decode.cuh asks of a GPU, for sm_90. Tests have an emulator of the same names.
//
// Sources: PTX ISA 9.0, cp.async, ldmatrix, mma.m16n8k16, barrier.cluster, mapa.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>

#define PRIME_DEVICE __device__ __forceinline__

namespace prim {

PRIME_DEVICE uint8_t* shared_memory() {
  extern __shared__ __align__(128) uint8_t memory[];
  return memory;
}

// grid = (parts, head tiles, tokens); a cluster, where there is one, spans the parts.
PRIME_DEVICE int thread_index() { return threadIdx.x; }
PRIME_DEVICE int part_index() { return blockIdx.x; }
PRIME_DEVICE int part_count() { return gridDim.x; }
PRIME_DEVICE int head_tile_index() { return blockIdx.y; }
PRIME_DEVICE int token_index() { return blockIdx.z; }

PRIME_DEVICE void block_barrier() { __syncthreads(); }

PRIME_DEVICE void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

// The same shared variable in the block of rank `peer` of this cluster, as a generic pointer.
template <class T>
PRIME_DEVICE const T* of_peer(const T* mine, int peer) {
  uint64_t theirs;
  asm("mapa.u64 %0, %1, %2;" : "=l"(theirs) : "l"(mine), "r"(peer));
  return reinterpret_cast<const T*>(theirs);
}

PRIME_DEVICE uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 bytes to shared memory, asynchronously; zeros, and nothing read, where not `valid`.
PRIME_DEVICE void copy_async_16(void* target, const void* source, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(target)),
               "l"(source), "r"(valid ? 16 : 0)
               : "memory");
}
PRIME_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
PRIME_DEVICE void wait_copies() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

// Four 8 x 8 matrices of halves; lane i gives the address of row i % 8 of matrix i / 8.
PRIME_DEVICE void load_matrices(uint32_t (&r)[4], const uint16_t* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
PRIME_DEVICE void load_matrices_transposed(uint32_t (&r)[4], const uint16_t* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// d += a b, 16 x 8 x 16, halves with float32 accumulation.
PRIME_DEVICE void mma_16816(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

PRIME_DEVICE float shuffle_xor(float value, int mask) {
  return __shfl_xor_sync(0xFFFFFFFFu, value, mask);
}

PRIME_DEVICE uint32_t mul_half2(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}
PRIME_DEVICE uint32_t pack_half2(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
PRIME_DEVICE uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
PRIME_DEVICE float half_value(uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}
PRIME_DEVICE uint32_t half2_of_bf16(uint32_t pair) {
  return pack_half2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u));
}

PRIME_DEVICE float exp2(float x) { return exp2f(x); }
PRIME_DEVICE float log2(float x) { return log2f(x); }
PRIME_DEVICE float maximum(float a, float b) { return fmaxf(a, b); }
PRIME_DEVICE int clamp(int x, int low, int high) { return min(max(x, low), high); }

}  // namespace prim
