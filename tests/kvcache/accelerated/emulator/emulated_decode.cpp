// sparse_decode.cuh, the very file that nvcc compiles, on the emulator.
#include "sparse_decode.cuh"

namespace prime {

template <class Row, int HEADS>
void emulate(const DecodeParams& params, int batch, int parts, int reverse) {
  using P = Plan<Row, HEADS>;
  for (int token = 0; token < batch; ++token)
    for (int tile = 0; tile < (params.heads + HEADS - 1) / HEADS; ++tile) {
      prim::token = token;
      prim::head_tile = tile;
      prim::body = [&] { Decode<Row, HEADS>(params).run(); };
      prim::run_cluster(parts, P::THREADS, P::BYTES, reverse);
    }
}

}  // namespace prime

// `reverse` runs the threads in the opposite order: a result that changes shows a race.
extern "C" int emulate_sparse_decode(const prime::DecodeParams* params, int batch, int parts,
                                     int format, int reverse) {
  switch (format) {
    case 0:
      params->heads <= 16 ? prime::emulate<prime::Nvfp4Row, 16>(*params, batch, parts, reverse)
                          : prime::emulate<prime::Nvfp4Row, 64>(*params, batch, parts, reverse);
      return 0;
    case 1:
      prime::emulate<prime::Fp8Row, 64>(*params, batch, parts, reverse);
      return 0;
    case 2:
      prime::emulate<prime::Bf16Row, 64>(*params, batch, parts, reverse);
      return 0;
    default:
      return 1;
  }
}
