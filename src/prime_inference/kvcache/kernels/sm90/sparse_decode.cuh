// Sparse MLA decode in one launch: a cluster of thread blocks per query token and head tile.
//
//   rows chosen by top-k     rank 0             rank 1        ...   rank c-1
//   (352 bytes each)     [ tiles 0..a )     [ tiles a..b )       [ tiles ..n )
//                              |                  |                   |
//   cp.async             raw rows in shared memory, 64 at a time; the next tile's
//                        copy runs while this one is multiplied
//   unpack               FP16 keys = value * 2^-8, exact, in shared memory, once per tile
//   mma.m16n8k16         S = Q K^T, running softmax in FP32, O += P K[:, :512]
//                              |                  |                   |
//   distributed          (max, sum) and O of every rank are read by every rank;
//   shared memory        rank r writes its slice of the output
//
// The sum over tiles and ranks has a fixed order: the same input and cluster size give the
// same bits. What is warp- or cluster-collective comes from primitives.cuh, which tests
// replace by an emulator; this file holds all index arithmetic and no PTX.
#pragma once

#include <cstdint>

#include <primitives.cuh>  // of this folder, or the emulator of the tests

#include "rows.cuh"

namespace prime {

constexpr float LN2 = 0.6931471805599453f;
constexpr int MAX_CLUSTER = 8;  // the largest cluster size every sm_90 GPU grants

struct DecodeParams {
  const void* query;       // [B, heads, 576] f16 or bf16
  const uint8_t* cache;    // rows, 16-byte aligned, as are both strides
  const int32_t* indices;  // [B, top_k] slots; outside of [0, slots): no row
  const int32_t* lengths;  // [B] or null: how many indices of a token count
  void* out;               // [B, heads, 512] f32 or bf16
  float* lse;              // [B, heads], natural logarithm
  float* parts;            // null, or [B, splits, heads, 512]: two launches instead of a cluster
  float* part_stats;       // null, or [B, splits, heads, 2]: max (log2) and sum
  int64_t index_stride;    // elements
  int64_t block_stride;    // bytes
  int64_t row_stride;      // bytes
  float scale_log2;        // softmax scale / ln 2
  int32_t heads;
  int32_t top_k;
  int32_t slots;
  int32_t block_tokens;
  int32_t query_bf16;
  int32_t out_bf16;
};

// ---- Shared memory

template <class Row, int HEADS>
struct Plan {
  static constexpr int TILE = Row::TILE;
  static constexpr int HEAD_TILES = HEADS / 16;              // of an mma
  static constexpr int COLUMNS = HEADS == 16 ? 4 : 2;        // warps side by side in S and O
  static constexpr int THREADS = 32 * HEAD_TILES * COLUMNS;  // 128 or 256
  static constexpr int P_PITCH = TILE + 8;

  static constexpr int QUERY = 0;
  static constexpr int KEYS = QUERY + HEADS * PITCH * 2;
  static constexpr int RAW = KEYS + TILE * PITCH * 2;
  static constexpr int WEIGHTS = RAW + TILE * Row::BYTES;
  static constexpr int COLUMN_STATS = WEIGHTS + HEADS * P_PITCH * 2;
  static constexpr int STATS = COLUMN_STATS + COLUMNS * HEADS * 4;
  static constexpr int FACTORS = STATS + 2 * HEADS * 4;
  static constexpr int VALID = FACTORS + MAX_CLUSTER * HEADS * 4;
  static constexpr int BYTES = VALID + 2 * TILE;
  static constexpr int OUT = 0;  // over QUERY, KEYS and RAW, once they are used up

  static_assert(TILE / COLUMNS % 16 == 0, "a warp's keys are whole ldmatrix.x4");
  static_assert(HEADS * LATENT * 4 <= WEIGHTS, "the output must not reach the statistics");
  static_assert(BYTES <= 232448, "227 KiB of shared memory per block on sm_90");
};

// ---- The kernel

template <class Row, int HEADS>
class Decode {
  using P = Plan<Row, HEADS>;
  static constexpr int KEY_TILES = P::TILE / P::COLUMNS / 8;  // n8 tiles of S of a warp
  static constexpr int OUT_TILES = LATENT / P::COLUMNS / 8;   // n8 tiles of O of a warp
  static constexpr int PIECES_16 = Row::BYTES / 16;

 public:
  PRIME_DEVICE explicit Decode(const DecodeParams& params)
      : p(params),
        smem(prim::shared_memory()),
        thread(prim::thread_index()),
        lane(thread % 32),
        head_tile(thread / 32 / P::COLUMNS),
        column(thread / 32 % P::COLUMNS),
        rank(prim::part_index()),
        ranks(prim::part_count()),
        token(prim::token_index()),
        first_head(prim::head_tile_index() * HEADS) {}

  PRIME_DEVICE void run() {
    const int length = p.lengths ? prim::clamp(p.lengths[token], 0, p.top_k) : p.top_k;
    const int tiles = (length + P::TILE - 1) / P::TILE;
    const int first = static_cast<int64_t>(tiles) * rank / ranks;
    const int last = static_cast<int64_t>(tiles) * (rank + 1) / ranks;
    load_query();
    if (first < last) start_copy(first, length);
    for (int tile = first; tile < last; ++tile) {
      prim::wait_copies();
      prim::block_barrier();  // raw rows, flags and, the first time, the query are there
      unpack();
      prim::block_barrier();  // keys are there, raw rows are free
      if (tile + 1 < last) start_copy(tile + 1, length);
      float scores[KEY_TILES][4];
      multiply_query(scores);
      soften(scores, flags(tile));
      prim::block_barrier();  // weights are there
      accumulate();  // keys and weights are free once all have met at the next barrier
    }
    publish();
    if (p.parts) {
      store_part();
    } else {
      combine();
    }
  }

 private:
  // One element of the tile's O that this thread holds lies at row g (+8) of its head tile.
  PRIME_DEVICE int row_of(int half) const { return 16 * head_tile + lane / 4 + 8 * half; }
  PRIME_DEVICE uint16_t* keys() const { return reinterpret_cast<uint16_t*>(smem + P::KEYS); }
  PRIME_DEVICE uint16_t* query() const { return reinterpret_cast<uint16_t*>(smem + P::QUERY); }
  PRIME_DEVICE uint16_t* weights() const { return reinterpret_cast<uint16_t*>(smem + P::WEIGHTS); }
  PRIME_DEVICE float* column_stats() const {
    return reinterpret_cast<float*>(smem + P::COLUMN_STATS);
  }
  PRIME_DEVICE float* stats() const { return reinterpret_cast<float*>(smem + P::STATS); }
  PRIME_DEVICE float* factors() const { return reinterpret_cast<float*>(smem + P::FACTORS); }
  PRIME_DEVICE float* output() const { return reinterpret_cast<float*>(smem + P::OUT); }
  PRIME_DEVICE uint8_t* flags(int tile) const { return smem + P::VALID + P::TILE * (tile & 1); }

  PRIME_DEVICE void load_query() {
    const uint32_t* source = static_cast<const uint32_t*>(p.query);
    for (int i = thread; i < HEADS * DIMS / 2; i += P::THREADS) {
      const int head = i / (DIMS / 2), pair = i % (DIMS / 2);
      uint32_t value = 0;
      if (first_head + head < p.heads) {
        const int64_t row = static_cast<int64_t>(token) * p.heads + first_head + head;
        value = source[row * (DIMS / 2) + pair];
        if (p.query_bf16) value = prim::half2_of_bf16(value);
      }
      *reinterpret_cast<uint32_t*>(query() + head * PITCH + 2 * pair) = value;
    }
  }

  // Begin to copy a tile's raw rows; a row that does not count is zeros and flagged 0.
  PRIME_DEVICE void start_copy(int tile, int length) {
    const int32_t* indices = p.indices + token * p.index_stride;
    for (int i = thread; i < P::TILE * PIECES_16; i += P::THREADS) {
      const int row = i / PIECES_16, piece = i % PIECES_16;
      const int position = tile * P::TILE + row;
      const int slot = position < length ? indices[position] : -1;
      const bool valid = slot >= 0 && slot < p.slots;
      const int64_t at = valid ? slot / p.block_tokens * p.block_stride +
                                     slot % p.block_tokens * p.row_stride + 16 * piece
                               : 0;
      prim::copy_async_16(smem + P::RAW + row * Row::BYTES + 16 * piece, p.cache + at, valid);
      if (piece == 0) flags(tile)[row] = valid;
    }
    prim::commit_copies();
  }

  PRIME_DEVICE void unpack() {
    for (int i = thread; i < P::TILE * PIECES; i += P::THREADS) {
      const int row = i / PIECES, piece = i % PIECES;
      uint32_t half2[8];
      Row::unpack(smem + P::RAW + row * Row::BYTES, piece, half2);
      uint4* target = reinterpret_cast<uint4*>(keys() + row * PITCH + PIECE * piece);
      target[0] = uint4{half2[0], half2[1], half2[2], half2[3]};
      target[1] = uint4{half2[4], half2[5], half2[6], half2[7]};
    }
  }

  // scores = Q K^T of this warp's 16 heads and TILE / COLUMNS keys.
  PRIME_DEVICE void multiply_query(float (&scores)[KEY_TILES][4]) {
#pragma unroll
    for (int n = 0; n < KEY_TILES; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[n][i] = 0;
    const uint16_t* a_row = query() + (16 * head_tile + lane % 16) * PITCH + lane / 16 * 8;
    const uint16_t* b_row = keys() +
                            (column * (P::TILE / P::COLUMNS) + lane % 8 + lane / 16 * 8) * PITCH +
                            lane / 8 % 2 * 8;
#pragma unroll 4
    for (int k = 0; k < DIMS; k += 16) {
      uint32_t a[4];
      prim::load_matrices(a, a_row + k);
#pragma unroll
      for (int n = 0; n < KEY_TILES; n += 2) {
        uint32_t b[4];
        prim::load_matrices(b, b_row + n * 8 * PITCH + k);
        prim::mma_16816(scores[n], a, b[0], b[1]);
        prim::mma_16816(scores[n + 1], a, b[2], b[3]);
      }
    }
  }

  // Running softmax: scores become FP16 weights in shared memory, O and the sums shrink.
  PRIME_DEVICE void soften(float (&scores)[KEY_TILES][4], const uint8_t* valid) {
    const float scale = p.scale_log2 / Row::KEY_SCALE;
    const int first_key = column * (P::TILE / P::COLUMNS) + lane % 4 * 2;
    float tile_max[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int n = 0; n < KEY_TILES; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool counts = valid[first_key + 8 * n + i % 2];
        scores[n][i] = counts ? scores[n][i] * scale : -INFINITY;
        tile_max[i / 2] = prim::maximum(tile_max[i / 2], scores[n][i]);
      }
    const float (&all_max)[2] = across_columns(tile_max, true);
    float base[2], decay[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float largest = prim::maximum(maximum[half], all_max[half]);
      base[half] = largest == -INFINITY ? 0 : largest;
      decay[half] = prim::exp2(maximum[half] - base[half]);
      maximum[half] = largest;
      total[half] *= decay[half];
    }
#pragma unroll
    for (int n = 0; n < KEY_TILES; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float left = prim::exp2(scores[n][2 * half] - base[half]);
        const float right = prim::exp2(scores[n][2 * half + 1] - base[half]);
        total[half] += left + right;
        uint16_t* target = weights() + row_of(half) * P::P_PITCH + first_key + 8 * n;
        *reinterpret_cast<uint32_t*>(target) = prim::pack_half2(left, right);
      }
#pragma unroll
    for (int n = 0; n < OUT_TILES; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) out[n][i] *= decay[i / 2];
  }

  // O += P K[:, :512] of this warp's 16 heads and 512 / COLUMNS dimensions.
  PRIME_DEVICE void accumulate() {
    const uint16_t* a_row =
        weights() + (16 * head_tile + lane % 16) * P::P_PITCH + lane / 16 * 8;
    const uint16_t* b_row =
        keys() + (lane % 16) * PITCH + column * (LATENT / P::COLUMNS) + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < P::TILE; k += 16) {
      uint32_t a[4];
      prim::load_matrices(a, a_row + k);
#pragma unroll
      for (int n = 0; n < OUT_TILES; n += 2) {
        uint32_t b[4];
        prim::load_matrices_transposed(b, b_row + k * PITCH + 8 * n);
        prim::mma_16816(out[n], a, b[0], b[1]);
        prim::mma_16816(out[n + 1], a, b[2], b[3]);
      }
    }
  }

  // Reduce a value per row over the four lanes and the COLUMNS warps that share the row.
  PRIME_DEVICE float (&across_columns(float (&value)[2], bool take_max))[2] {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int mask = 1; mask <= 2; mask *= 2) {
        const float other = prim::shuffle_xor(value[half], mask);
        value[half] = take_max ? prim::maximum(value[half], other) : value[half] + other;
      }
      if (lane % 4 == 0) column_stats()[column * HEADS + row_of(half)] = value[half];
    }
    prim::block_barrier();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      value[half] = column_stats()[row_of(half)];
#pragma unroll
      for (int other = 1; other < P::COLUMNS; ++other) {
        const float next = column_stats()[other * HEADS + row_of(half)];
        value[half] = take_max ? prim::maximum(value[half], next) : value[half] + next;
      }
    }
    return value;
  }

  // Put this block's maximum, sum and O into shared memory, where peers may read them.
  PRIME_DEVICE void publish() {
    across_columns(total, false);  // its barrier: keys, weights and query are used up
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (column == 0 && lane % 4 == 0) {
        stats()[row_of(half)] = maximum[half];
        stats()[HEADS + row_of(half)] = total[half];
      }
#pragma unroll
    for (int n = 0; n < OUT_TILES; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int dim = column * (LATENT / P::COLUMNS) + 8 * n + lane % 4 * 2;
        float* target = output() + row_of(half) * LATENT + dim;
        target[0] = out[n][2 * half];
        target[1] = out[n][2 * half + 1];
      }
  }

  PRIME_DEVICE void combine() {
    prim::cluster_barrier();  // every rank has published
    for (int head = thread; head < HEADS; head += P::THREADS) weigh(head);
    prim::block_barrier();
    const int quads = HEADS * LATENT / 4;
    const int begin = quads * rank / ranks, end = quads * (rank + 1) / ranks;
    for (int i = begin + thread; i < end; i += P::THREADS) {
      const int head = i / (LATENT / 4);
      float4 sum{0, 0, 0, 0};
      for (int peer = 0; peer < ranks; ++peer) {
        const float factor = factors()[peer * HEADS + head];
        const float4 value = reinterpret_cast<const float4*>(prim::of_peer(output(), peer))[i];
        sum.x += factor * value.x;
        sum.y += factor * value.y;
        sum.z += factor * value.z;
        sum.w += factor * value.w;
      }
      if (first_head + head < p.heads) {
        const int64_t row = static_cast<int64_t>(token) * p.heads + first_head + head;
        store(row * LATENT + i % (LATENT / 4) * 4, sum);
      }
    }
    prim::cluster_barrier();  // a block that ended would take its shared memory with it
  }

  // The factor of each rank's O for one head; rank 0 writes the log-sum-exp.
  PRIME_DEVICE void weigh(int head) {
    float largest = -INFINITY;
    for (int peer = 0; peer < ranks; ++peer)
      largest = prim::maximum(largest, prim::of_peer(stats(), peer)[head]);
    const float base = largest == -INFINITY ? 0 : largest;
    float sum = 0;
    for (int peer = 0; peer < ranks; ++peer) {
      const float* theirs = prim::of_peer(stats(), peer);
      sum += theirs[HEADS + head] * prim::exp2(theirs[head] - base);
    }
    // A maximum skips NaN scores; the sum does not, so it tells them from no row at all.
    const bool empty = largest == -INFINITY && sum == 0;
    for (int peer = 0; peer < ranks; ++peer) {
      const float weight = prim::exp2(prim::of_peer(stats(), peer)[head] - base);
      factors()[peer * HEADS + head] = empty ? 0 : weight / sum / Row::KEY_SCALE;
    }
    if (rank == 0 && first_head + head < p.heads)
      p.lse[static_cast<int64_t>(token) * p.heads + first_head + head] =
          empty ? INFINITY : (prim::log2(sum) + base) * LN2;
  }

  PRIME_DEVICE void store(int64_t at, const float4& value) {
    if (p.out_bf16) {
      uint16_t* target = static_cast<uint16_t*>(p.out) + at;
      *reinterpret_cast<uint2*>(target) =
          uint2{prim::pack_bf16(value.x, value.y), prim::pack_bf16(value.z, value.w)};
    } else {
      *reinterpret_cast<float4*>(static_cast<float*>(p.out) + at) = value;
    }
  }

  PRIME_DEVICE void store_part() {
    prim::block_barrier();
    const int64_t base = (static_cast<int64_t>(token) * ranks + rank) * p.heads + first_head;
    for (int i = thread; i < HEADS * LATENT; i += P::THREADS)
      if (first_head + i / LATENT < p.heads)
        p.parts[base * LATENT + i] = output()[i] / Row::KEY_SCALE;
    for (int head = thread; head < HEADS; head += P::THREADS)
      if (first_head + head < p.heads) {
        p.part_stats[2 * (base + head)] = stats()[head];
        p.part_stats[2 * (base + head) + 1] = stats()[HEADS + head];
      }
  }

  const DecodeParams& p;
  uint8_t* const smem;
  const int thread, lane, head_tile, column, rank, ranks, token, first_head;
  float maximum[2] = {-INFINITY, -INFINITY};
  float total[2] = {0, 0};  // of this thread's keys until publish()
  float out[OUT_TILES][4] = {};
};

}  // namespace prime
