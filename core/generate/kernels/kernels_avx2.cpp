// The decoding kernels for AVX2+FMA; flags in CMakeLists.txt, code in kernels_impl.inc.
#define MORTISE_ISA isa_avx2
#define MORTISE_ISA_NAME "avx2"
#define MORTISE_VECTOR 8
#define MORTISE_ROW_TILE 6
#include "generate/kernels/kernels_impl.inc"
