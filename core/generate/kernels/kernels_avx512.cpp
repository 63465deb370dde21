// The decoding kernels for AVX-512; flags in CMakeLists.txt, code in kernels_impl.inc.
#define MORTISE_ISA isa_avx512
#define MORTISE_ISA_NAME "avx512"
#define MORTISE_VECTOR 16
#define MORTISE_ROW_TILE 12  // three tiles for 32 rows; 24 sums leave enough registers
#include "generate/kernels/kernels_impl.inc"
