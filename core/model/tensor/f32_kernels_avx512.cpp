// The kernels of f32_kernels.h for AVX-512; flags in CMakeLists.txt, code in f32_kernels_impl.inc.
#define MORTISE_ISA isa_avx512
#define MORTISE_VECTOR 16
#define MORTISE_ROW_TILE 14
#include "model/tensor/f32_kernels_impl.inc"
