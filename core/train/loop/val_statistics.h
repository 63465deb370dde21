// What k of the n completions of a prompt give: exactly, without bias, and by verl's bootstrap.
//
// verl draws 1,000 lists of k completions with replacement, by numpy's RandomState(42), and takes the best, the worst
// and the majority of each list (process_validation_metrics). The draws are repeated here bit for bit, so that numbers
// can be compared. Drawing with replacement makes verl's best@k smaller than pass@k, which expected_best_of is (arXiv
// 2107.03374). Cost: 1,000 k per prompt and number. Thread rule: plain values; one thread per BootstrapDraws.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace mortise {

// Expected maximum of k values drawn without replacement. Precondition: 1 <= k <= values.size().
double expected_best_of(std::vector<double> values, int64_t k);

// 2, 4, 8 ... below n, and n: the k of verl's statistics. Empty for n = 1.
std::vector<int64_t> bootstrap_sizes(int64_t n);
// The same with 1 in front: the k of pass@k.
std::vector<int64_t> pass_sizes(int64_t n);

class BootstrapDraws {
 public:
  static constexpr size_t kNum = 1000;
  // kNum lists of k places below n, one after the other. Valid until the object is destroyed.
  std::span<const uint32_t> of(size_t n, size_t k);

 private:
  std::map<std::pair<size_t, size_t>, std::vector<uint32_t>> made_;
};

struct DrawnStatistic {
  double mean = 0.0, std = 0.0;  // over the lists; ddof 0
};
// `draws` are those of (values.size(), k).
DrawnStatistic drawn_best(std::span<const double> values, std::span<const uint32_t> draws);
DrawnStatistic drawn_worst(std::span<const double> values, std::span<const uint32_t> draws);
// The value of the answer that most of a list have; of several such, the one that comes first in it. votes[i] numbers
// the answer of value i, from 0.
DrawnStatistic drawn_majority(std::span<const double> values, std::span<const size_t> votes,
                              std::span<const uint32_t> draws);
// The same of all values, each once.
double majority_value(std::span<const double> values, std::span<const size_t> votes);

}  // namespace mortise
