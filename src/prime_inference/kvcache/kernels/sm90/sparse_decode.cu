// Kernels and launchers of sparse_decode.cuh for sm_90a, with a C interface for ctypes.

#include <cuda_runtime.h>

#include "sparse_decode.cuh"

namespace prime {

template <class Row, int HEADS>
__global__ void __launch_bounds__(Plan<Row, HEADS>::THREADS, 1)
    sparse_decode(const __grid_constant__ DecodeParams params) {
  Decode<Row, HEADS>(params).run();
}

// The second launch of the two-launch version: one warp per token and head.
__global__ void combine_parts(const __grid_constant__ DecodeParams p, int splits) {
  const int64_t row = static_cast<int64_t>(blockIdx.y) * p.heads + blockIdx.x;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * splits * p.heads + blockIdx.x;
  float largest = -INFINITY;
  for (int s = 0; s < splits; ++s)
    largest = fmaxf(largest, p.part_stats[2 * (first + static_cast<int64_t>(s) * p.heads)]);
  const float base = largest == -INFINITY ? 0 : largest;
  float sum = 0;
  float4 value[4] = {};
  for (int s = 0; s < splits; ++s) {
    const int64_t part = first + static_cast<int64_t>(s) * p.heads;
    const float weight = exp2f(p.part_stats[2 * part] - base);
    sum += p.part_stats[2 * part + 1] * weight;
    const float4* source = reinterpret_cast<const float4*>(p.parts + part * LATENT);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 one = source[threadIdx.x + 32 * i];
      value[i].x += weight * one.x;
      value[i].y += weight * one.y;
      value[i].z += weight * one.z;
      value[i].w += weight * one.w;
    }
  }
  const bool empty = largest == -INFINITY && sum == 0;  // NaN scores have a NaN sum
  const float inverse = empty ? 0 : 1 / sum;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int dim = 4 * (threadIdx.x + 32 * i);
    const float4 v{value[i].x * inverse, value[i].y * inverse, value[i].z * inverse,
                   value[i].w * inverse};
    if (p.out_bf16) {
      *reinterpret_cast<uint2*>(static_cast<uint16_t*>(p.out) + row * LATENT + dim) =
          uint2{prim::pack_bf16(v.x, v.y), prim::pack_bf16(v.z, v.w)};
    } else {
      *reinterpret_cast<float4*>(static_cast<float*>(p.out) + row * LATENT + dim) = v;
    }
  }
  if (threadIdx.x == 0) p.lse[row] = empty ? INFINITY : (log2f(sum) + base) * LN2;
}

template <class Row, int HEADS>
cudaError_t launch(const DecodeParams& params, int batch, int parts, cudaStream_t stream) {
  using P = Plan<Row, HEADS>;
  auto* kernel = sparse_decode<Row, HEADS>;
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, P::BYTES);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = params.parts ? 1 : parts;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(parts, (params.heads + HEADS - 1) / HEADS, batch);
  config.blockDim = dim3(P::THREADS);
  config.dynamicSmemBytes = P::BYTES;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  error = cudaLaunchKernelEx(&config, kernel, params);
  if (error != cudaSuccess || !params.parts) return error;
  combine_parts<<<dim3(params.heads, batch), 32, 0, stream>>>(params, parts);
  return cudaGetLastError();
}

}  // namespace prime

// `format`: 0 NVFP4, 1 FP8 (656 bytes), 2 BF16. `parts`: the cluster size, 1 to 8, or, where
// params->parts is not null, the number of splits of the two-launch version. Returns a
// cudaError_t; 0 is success.
extern "C" int prime_sparse_decode(const prime::DecodeParams* params, int batch, int parts,
                                   int format, void* stream) {
  auto* queue = static_cast<cudaStream_t>(stream);
  if (batch < 1 || parts < 1 || (!params->parts && parts > prime::MAX_CLUSTER))
    return cudaErrorInvalidValue;
  const bool few_heads = params->heads <= 16;
  switch (format) {
    case 0:
      return few_heads ? prime::launch<prime::Nvfp4Row, 16>(*params, batch, parts, queue)
                       : prime::launch<prime::Nvfp4Row, 64>(*params, batch, parts, queue);
    case 1:
      return prime::launch<prime::Fp8Row, 64>(*params, batch, parts, queue);
    case 2:
      return prime::launch<prime::Bf16Row, 64>(*params, batch, parts, queue);
    default:
      return cudaErrorInvalidValue;
  }
}

// Dynamic shared memory of a block, in bytes; 0 where there is no such kernel.
extern "C" int prime_shared_bytes(int format, int heads) {
  if (format == 0)
    return heads <= 16 ? prime::Plan<prime::Nvfp4Row, 16>::BYTES
                       : prime::Plan<prime::Nvfp4Row, 64>::BYTES;
  if (format == 1) return prime::Plan<prime::Fp8Row, 64>::BYTES;
  if (format == 2) return prime::Plan<prime::Bf16Row, 64>::BYTES;
  return 0;
}

extern "C" const char* prime_error_text(int error) {
  return cudaGetErrorString(static_cast<cudaError_t>(error));
}
