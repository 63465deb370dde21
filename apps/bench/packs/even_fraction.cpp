// The reward of the benchmark workloads: the share of even token ids in the completion.
#include <mortise/cpp/mortise.hpp>

namespace {

struct EvenFraction : mortise::Reward {
  static constexpr const char* summary = "share of even token ids in the completion (benchmarks)";

  double score(const mortise::Row& row) {
    const auto ids = row.completion_ids();
    if (ids.empty()) return mortise::not_applicable;
    double even = 0;
    for (const auto id : ids) even += id % 2 == 0 ? 1 : 0;
    return even / static_cast<double>(ids.size());
  }
};

}  // namespace

MORTISE_REWARD("even_fraction", EvenFraction)
