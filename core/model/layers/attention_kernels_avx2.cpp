// The kernels of attention_kernels.h for AVX2; flags in CMakeLists.txt, code in attention_kernels_impl.inc.
#define MORTISE_ISA isa_avx2
#define MORTISE_VECTOR 8
#include "model/layers/attention_kernels_impl.inc"
