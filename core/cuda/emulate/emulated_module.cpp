// The functions of module.h on the CPU, for tests.
#include "cuda/module.cu"  // NOLINT
