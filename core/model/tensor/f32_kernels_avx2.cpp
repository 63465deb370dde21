// The kernels of f32_kernels.h for AVX2 with FMA; flags in CMakeLists.txt, code in f32_kernels_impl.inc.
#define MORTISE_ISA isa_avx2
#define MORTISE_VECTOR 8
#define MORTISE_ROW_TILE 6
#include "model/tensor/f32_kernels_impl.inc"
