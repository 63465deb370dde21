// Pack bench.rewards: rewards that only benchmarks use.
#include <mortise/cpp/plugin.hpp>

MORTISE_PACK()
