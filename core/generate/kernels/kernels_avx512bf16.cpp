// The decoding kernels for AVX-512 with dot products of bfloat16; flags in CMakeLists.txt, code in kernels_impl.inc.
#define MORTISE_ISA isa_avx512bf16
#define MORTISE_ISA_NAME "avx512bf16"
#define MORTISE_VECTOR 16
#define MORTISE_ROW_TILE 8
#include "generate/kernels/kernels_impl.inc"
