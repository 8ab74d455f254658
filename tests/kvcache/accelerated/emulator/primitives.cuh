// The primitives of kernels/sm90/primitives.cuh on a CPU: every GPU thread is a fiber, and a
// collective is a barrier of fibers. Fragment layouts are written down from the PTX ISA
// (ldmatrix, mma.m16n8k16), independently of the kernel that relies on them.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#define PRIME_DEVICE inline

struct uint2 { uint32_t x, y; };
struct alignas(16) uint4 { uint32_t x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };

namespace prim {

struct Barrier {
  int members = 0, arrived = 0;
  uint64_t generation = 0;
};

struct Warp {
  Barrier barrier;
  uint64_t posted[32][8];  // what each lane hands to the others in a collective
};

struct Block {
  Barrier barrier;
  std::vector<Warp> warps;
  std::vector<uint8_t> storage;
  uint8_t* memory = nullptr;
};

struct Cluster {
  Barrier barrier;
  std::vector<Block> blocks;
};

struct Fiber {
  ucontext_t context;
  std::unique_ptr<uint8_t[]> stack;
  int thread = 0, rank = 0;
  bool done = false;
};

inline Fiber* self;
inline Cluster* cluster;
inline ucontext_t scheduler;
inline int parts, head_tile, token;
inline std::function<void()> body;

inline void pass() { swapcontext(&self->context, &scheduler); }

inline void arrive_and_wait(Barrier& barrier) {
  const uint64_t generation = barrier.generation;
  if (++barrier.arrived == barrier.members) {
    barrier.arrived = 0;
    ++barrier.generation;
  } else {
    while (barrier.generation == generation) pass();
  }
}

inline Block& block() { return cluster->blocks[self->rank]; }
inline Warp& warp() { return block().warps[self->thread / 32]; }
inline int lane() { return self->thread % 32; }

inline uint8_t* shared_memory() { return block().memory; }
inline int thread_index() { return self->thread; }
inline int part_index() { return self->rank; }
inline int part_count() { return parts; }
inline int head_tile_index() { return head_tile; }
inline int token_index() { return token; }
inline void block_barrier() { arrive_and_wait(block().barrier); }
inline void cluster_barrier() { arrive_and_wait(cluster->barrier); }

template <class T>
const T* of_peer(const T* mine, int peer) {
  const auto offset = reinterpret_cast<const uint8_t*>(mine) - block().memory;
  return reinterpret_cast<const T*>(cluster->blocks[peer].memory + offset);
}

inline void copy_async_16(void* target, const void* source, bool valid) {
  if (reinterpret_cast<uintptr_t>(target) % 16 || (valid && reinterpret_cast<uintptr_t>(source) % 16))
    std::abort();  // a GPU would fault
  if (valid) std::memcpy(target, source, 16); else std::memset(target, 0, 16);
}
inline void commit_copies() {}
inline void wait_copies() {}

inline void load_matrices_as(uint32_t (&r)[4], const uint16_t* row, bool transposed) {
  if (reinterpret_cast<uintptr_t>(row) % 16) std::abort();
  warp().posted[lane()][0] = reinterpret_cast<uint64_t>(row);
  arrive_and_wait(warp().barrier);
  const int g = lane() / 4, t = lane() % 4;
  for (int m = 0; m < 4; ++m) {
    auto at = [&](int i, int j) {
      return uint32_t(reinterpret_cast<const uint16_t*>(warp().posted[8 * m + i][0])[j]);
    };
    r[m] = transposed ? at(2 * t, g) | at(2 * t + 1, g) << 16 : at(g, 2 * t) | at(g, 2 * t + 1) << 16;
  }
  arrive_and_wait(warp().barrier);
}
inline void load_matrices(uint32_t (&r)[4], const uint16_t* row) { load_matrices_as(r, row, false); }
inline void load_matrices_transposed(uint32_t (&r)[4], const uint16_t* row) {
  load_matrices_as(r, row, true);
}

inline float half_value(uint32_t bits) {
  const uint16_t low = uint16_t(bits);
  _Float16 value;
  std::memcpy(&value, &low, 2);
  return float(value);
}
inline uint32_t half_bits(float value) {
  const _Float16 half = _Float16(value);
  uint16_t bits;
  std::memcpy(&bits, &half, 2);
  return bits;
}
inline uint32_t float_bits(float value) { uint32_t b; std::memcpy(&b, &value, 4); return b; }
inline float bits_float(uint32_t bits) { float v; std::memcpy(&v, &bits, 4); return v; }

// Products are exact in float; the sum of a column's 16 is in float32, in ascending order of k.
// A GPU's order inside one mma is not documented, so results are compared with a bound.
inline void mma_16816(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  uint64_t* mine = warp().posted[lane()];
  for (int i = 0; i < 4; ++i) mine[i] = a[i];
  mine[4] = b0;
  mine[5] = b1;
  arrive_and_wait(warp().barrier);
  const int g = lane() / 4, t = lane() % 4;
  for (int i = 0; i < 4; ++i) {
    const int row = g + (i >= 2 ? 8 : 0), column = 2 * t + i % 2;
    for (int k = 0; k < 16; ++k) {
      const uint64_t left = warp().posted[row % 8 * 4 + k % 8 / 2][(row >= 8) + 2 * (k >= 8)];
      const uint64_t right = warp().posted[column * 4 + k % 8 / 2][4 + (k >= 8)];
      d[i] += half_value(uint32_t(left >> 16 * (k % 2))) * half_value(uint32_t(right >> 16 * (k % 2)));
    }
  }
  arrive_and_wait(warp().barrier);
}

inline float shuffle_xor(float value, int mask) {
  warp().posted[lane()][0] = float_bits(value);
  arrive_and_wait(warp().barrier);
  const float other = bits_float(uint32_t(warp().posted[lane() ^ mask][0]));
  arrive_and_wait(warp().barrier);
  return other;
}

inline uint32_t pack_half2(float low, float high) { return half_bits(low) | half_bits(high) << 16; }
inline uint32_t mul_half2(uint32_t a, uint32_t b) {
  return pack_half2(half_value(a) * half_value(b), half_value(a >> 16) * half_value(b >> 16));
}
inline uint32_t bf16_bits(float value) {
  const uint32_t bits = float_bits(value);
  return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}
inline uint32_t pack_bf16(float low, float high) { return bf16_bits(low) | bf16_bits(high) << 16; }
inline uint32_t half2_of_bf16(uint32_t pair) {
  return pack_half2(bits_float(pair << 16), bits_float(pair & 0xFFFF0000u));
}
inline float exp2(float x) { return std::exp2(x); }
inline float log2(float x) { return std::log2(x); }
inline float maximum(float a, float b) { return std::fmax(a, b); }
inline int clamp(int x, int low, int high) { return std::min(std::max(x, low), high); }

inline void enter() {
  body();
  self->done = true;
  pass();
}

// Run one cluster of `ranks` blocks of `threads` threads to its end. Shared memory starts as
// 0xFF, NaN in every format, so that what was never written shows.
inline void run_cluster(int ranks, int threads, int bytes, int reverse) {
  Cluster one;
  cluster = &one;
  parts = ranks;
  one.barrier.members = ranks * threads;
  one.blocks.resize(ranks);
  std::vector<Fiber> fibers(size_t(ranks) * threads);
  for (int rank = 0; rank < ranks; ++rank) {
    Block& b = one.blocks[rank];
    b.barrier.members = threads;
    b.warps.resize(threads / 32);
    for (Warp& w : b.warps) w.barrier.members = 32;
    b.storage.assign(bytes + 128, 0xFF);
    b.memory = b.storage.data() + (128 - reinterpret_cast<uintptr_t>(b.storage.data()) % 128) % 128;
    for (int thread = 0; thread < threads; ++thread) {
      Fiber& f = fibers[size_t(rank) * threads + thread];
      constexpr size_t STACK = 64 * 1024;
      f.thread = thread;
      f.rank = rank;
      f.stack = std::make_unique<uint8_t[]>(STACK);
      getcontext(&f.context);
      f.context.uc_stack.ss_sp = f.stack.get();
      f.context.uc_stack.ss_size = STACK;
      f.context.uc_link = nullptr;
      makecontext(&f.context, enter, 0);
    }
  }
  for (bool left = true; left;) {
    left = false;
    for (size_t i = 0; i < fibers.size(); ++i) {
      self = &fibers[reverse ? fibers.size() - 1 - i : i];
      if (self->done) continue;
      left = true;
      swapcontext(&scheduler, &self->context);
    }
  }
}

}  // namespace prim
