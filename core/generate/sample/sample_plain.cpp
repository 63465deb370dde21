// The reference implementation of sampling.cpp: doubles, a full sort, and one option after the other, as in
// transformers.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "generate/sample/row_edits.h"
#include "generate/sample/sampling.h"

namespace mortise {
namespace {

constexpr double kNoLogit = -std::numeric_limits<double>::infinity();

double largest(const std::vector<double>& x) { return *std::ranges::max_element(x); }

double log_sum(const std::vector<double>& x) {
  const double top = largest(x);
  double sum = 0;
  for (const double v : x) sum += std::exp(v - top);
  return top + std::log(sum);
}

std::vector<double> scaled(std::span<const float> logits, const SamplingParams& params) {
  const double temperature = params.greedy() ? 1.0 : params.temperature;
  std::vector<double> x(logits.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<double>(logits[i]) / temperature;
  return x;
}

// Logits after penalties and forbidden tokens, divided by the temperature.
std::vector<double> edited(std::span<const float> logits, const DrawInput& input) {
  std::vector<float> x(logits.begin(), logits.end());
  if (input.params->penalises()) {
    for (const SeenToken& seen : input.edits.seen) {
      float& logit = x[static_cast<size_t>(seen.id)];
      logit = penalised(logit, seen, *input.params);
    }
  }
  for (const int64_t id : input.edits.barred) x[static_cast<size_t>(id)] = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < x.size(); ++i)
    if (!input.edits.allows(static_cast<int64_t>(i))) x[i] = -std::numeric_limits<float>::infinity();
  return scaled(x, *input.params);
}

// The warpers, each on what the one before left.
class Kept {
 public:
  explicit Kept(const std::vector<double>& x) : x_(x) {
    for (size_t i = 0; i < x.size(); ++i) {
      if (x[i] > kNoLogit) ids_.push_back(i);
    }
    std::ranges::stable_sort(ids_, [&](size_t a, size_t b) { return x_[a] < x_[b]; });
    top_ = x_[ids_.back()];
  }
  void top_k(int64_t k) {
    if (k <= 0 || static_cast<size_t>(k) >= ids_.size()) return;
    const double least = x_[ids_[ids_.size() - static_cast<size_t>(k)]];
    std::erase_if(ids_, [&](size_t i) { return x_[i] < least; });
  }
  void top_p(double p) {
    if (p >= 1.0) return;
    const double limit = (1.0 - p) * total();
    double tail = 0;
    size_t cut = 0;
    while (cut + 1 < ids_.size() && tail + mass(ids_[cut]) <= limit) tail += mass(ids_[cut++]);
    ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(cut));
  }
  void min_p(double p) {
    std::erase_if(ids_, [&](size_t i) { return mass(i) < p; });
  }
  void typical_p(double p) {
    if (p >= 1.0) return;
    const double all = total();
    const auto information = [&](size_t i) { return std::log(all) - (x_[i] - top_); };
    double entropy = 0;
    for (const size_t i : ids_) entropy += mass(i) > 0 ? mass(i) / all * information(i) : 0.0;
    const auto distance = [&](size_t i) { return std::abs(information(i) - entropy); };
    std::vector<size_t> order = ids_;
    std::ranges::stable_sort(order, [&](size_t a, size_t b) { return distance(a) < distance(b); });
    double sum = 0;
    size_t last = 0;
    while (last + 1 < order.size() && (sum += mass(order[last])) < p * all) ++last;
    const double limit = distance(order[last]);
    std::erase_if(ids_, [&](size_t i) { return distance(i) > limit; });
  }
  // The token that `uniform` picks, in the order of ids, and its log-probability among the kept.
  std::pair<size_t, double> draw(double uniform) {
    std::ranges::sort(ids_);
    const double all = total();
    double target = uniform * all;
    size_t pick = ids_.front();
    for (const size_t i : ids_) {
      if (mass(i) <= 0) continue;
      pick = i;
      if (target < mass(i)) break;
      target -= mass(i);
    }
    return {pick, x_[pick] - top_ - std::log(all)};
  }

 private:
  [[nodiscard]] double mass(size_t i) const { return std::exp(x_[i] - top_); }
  [[nodiscard]] double total() const {
    double sum = 0;
    for (const size_t i : ids_) sum += mass(i);
    return sum;
  }
  const std::vector<double>& x_;
  std::vector<size_t> ids_;  // ascending by value until draw()
  double top_ = 0;
};

}  // namespace

SampledToken sample_plain(std::span<const float> logits, const DrawInput& input) {
  const SamplingParams& params = *input.params;
  const std::vector<double> own = scaled(logits, params);
  const std::vector<double> x = edited(logits, input);
  const double log_all = log_sum(own);
  const auto token = [&](size_t id, double filtered) {
    return SampledToken{static_cast<int64_t>(id), static_cast<float>(own[id] - log_all), static_cast<float>(filtered)};
  };
  if (params.greedy()) return token(static_cast<size_t>(std::ranges::max_element(x) - x.begin()), 0.0);
  Kept kept(x);
  kept.top_k(params.top_k);
  kept.top_p(params.top_p);
  kept.min_p(params.min_p);
  kept.typical_p(params.typical_p);
  const auto [id, log_prob] = kept.draw(input.uniform);
  return token(id, log_prob);
}

void append_top_log_probs_plain(std::span<const float> logits, const SamplingParams& params, int64_t count,
                                std::vector<TokenLogProb>& out) {
  const std::vector<double> x = scaled(logits, params);
  const double log_all = log_sum(x);
  std::vector<int64_t> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(
      order, [&](int64_t a, int64_t b) { return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)]; });
  order.resize(std::min(order.size(), static_cast<size_t>(count)));
  for (const int64_t id : order) out.push_back({id, static_cast<float>(x[static_cast<size_t>(id)] - log_all)});
}

}  // namespace mortise
