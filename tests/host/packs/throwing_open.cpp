// An open() that throws, for minimal_pack.c: no C++ code may, and the host says so instead of dying.
#include <stdexcept>

struct mortise_host;

extern "C" int throwing_open(const mortise_host*) { throw std::runtime_error("the moon fell down"); }
