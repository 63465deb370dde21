// The kernels of attention_kernels.h for AVX-512; flags in CMakeLists.txt, code in attention_kernels_impl.inc.
#define MORTISE_ISA isa_avx512
#define MORTISE_VECTOR 16
#include "model/layers/attention_kernels_impl.inc"
