// The decoding kernels for portable; flags in CMakeLists.txt, code in kernels_impl.inc.
#define MORTISE_ISA isa_base
#define MORTISE_ISA_NAME "base"
#define MORTISE_VECTOR 4
#define MORTISE_ROW_TILE 4
#include "generate/kernels/kernels_impl.inc"
