// What bnpo remembers between steps: moments of the groups' means, the posterior's counts, and their bytes.
//
// Bytes: "bnpo1", the number of components, and for each the number of steps, {count, mean, square} of every step,
// successes, failures; all numbers as f64, least significant byte first; then the FNV-1a hash of all that as u64.
#pragma once

#include <cstring>
#include <deque>
#include <mortise/cpp/plugin.hpp>

#include "../shared/groups.h"

namespace mortise {

// f(p; alpha, beta); alpha and beta at least 1.
inline double beta_density(double p, double alpha, double beta) {
  const auto times_log = [](double factor, double x) { return factor == 0 ? 0.0 : factor * std::log(x); };
  return std::exp(std::lgamma(alpha + beta) - std::lgamma(alpha) - std::lgamma(beta) + times_log(alpha - 1, p) +
                  times_log(beta - 1, 1 - p));
}

// The group means of one step: their number, their mean, and their summed squared distance to it.
struct StepMoments {
  double count = 0, mean = 0, square = 0;
};

struct BnpoComponent {
  std::deque<StepMoments> steps;
  double successes = 0, failures = 0;

  void push(Span<const double> means, std::size_t window) {
    const double mean = mean_of(means), count = double(means.size());
    steps.push_back({count, mean, variance_of(means, mean, 0) * count});
    while (steps.size() > window) steps.pop_front();
  }

  // alpha and beta of the density that fits all steps here; 1 and 1 where there is nothing to fit.
  void fit(double& alpha, double& beta) const {
    StepMoments all;
    for (const StepMoments& step : steps) {  // Chan, Golub and LeVeque's merge
      const double count = all.count + step.count, apart = step.mean - all.mean;
      if (step.count == 0) continue;
      all.square += step.square + apart * apart * all.count * step.count / count;
      all.mean += apart * step.count / count;
      all.count = count;
    }
    alpha = beta = 1;
    const double variance = all.count > 1 ? all.square / (all.count - 1) : 0.0;
    if (variance <= 0) return;
    const double nu = all.mean * (1 - all.mean) / variance - 1;
    alpha = std::max(1.0, 1 + nu * all.mean / 3);
    beta = std::max(1.0, 1 + nu * (1 - all.mean) / 3);
  }
};

namespace detail {

inline constexpr std::string_view kBnpoMagic = "bnpo1";

inline void append_u64(std::string& out, std::uint64_t x) {
  for (int i = 0; i < 8; ++i) out.push_back(char(std::uint8_t(x >> (8 * i))));
}
inline void append_f64(std::string& out, double x) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &x, 8);
  append_u64(out, bits);
}
inline std::uint64_t take_u64(std::string_view& bytes) {
  if (bytes.size() < 8) fail(MORTISE_DATA_LOSS, "the saved state of bnpo is cut short; resume from another checkpoint");
  std::uint64_t x = 0;
  for (int i = 0; i < 8; ++i) x |= std::uint64_t(std::uint8_t(bytes[std::size_t(i)])) << (8 * i);
  bytes.remove_prefix(8);
  return x;
}
inline double take_f64(std::string_view& bytes) {
  const std::uint64_t bits = take_u64(bytes);
  double x = 0;
  std::memcpy(&x, &bits, 8);
  return x;
}
inline std::uint64_t fnv1a(std::string_view bytes) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : bytes) hash = (hash ^ std::uint8_t(c)) * 0x100000001b3ULL;
  return hash;
}

}  // namespace detail

inline std::string save_bnpo(const std::vector<BnpoComponent>& components) {
  std::string out(detail::kBnpoMagic);
  detail::append_u64(out, components.size());
  for (const BnpoComponent& c : components) {
    detail::append_u64(out, c.steps.size());
    for (const StepMoments& step : c.steps) {
      for (const double x : {step.count, step.mean, step.square}) detail::append_f64(out, x);
    }
    detail::append_f64(out, c.successes);
    detail::append_f64(out, c.failures);
  }
  detail::append_u64(out, detail::fnv1a(out));
  return out;
}

inline std::vector<BnpoComponent> load_bnpo(std::string_view bytes) {
  const std::string_view magic = detail::kBnpoMagic;
  if (bytes.substr(0, magic.size()) != magic || bytes.size() < magic.size() + 8)
    fail(MORTISE_DATA_LOSS, "these bytes are not a saved state of bnpo; resume from another checkpoint");
  std::string_view hash = bytes.substr(bytes.size() - 8);
  bytes.remove_suffix(8);
  if (detail::take_u64(hash) != detail::fnv1a(bytes))
    fail(MORTISE_DATA_LOSS, "the saved state of bnpo is damaged; resume from another checkpoint");
  bytes.remove_prefix(magic.size());
  std::vector<BnpoComponent> components;
  for (std::uint64_t left = detail::take_u64(bytes); left > 0; --left) {
    BnpoComponent c;
    for (std::uint64_t steps = detail::take_u64(bytes); steps > 0; --steps) {
      const double count = detail::take_f64(bytes), mean = detail::take_f64(bytes), square = detail::take_f64(bytes);
      c.steps.push_back({count, mean, square});
    }
    c.successes = detail::take_f64(bytes);
    c.failures = detail::take_f64(bytes);
    components.push_back(std::move(c));
  }
  if (!bytes.empty()) fail(MORTISE_DATA_LOSS, "the saved state of bnpo is too long; resume from another checkpoint");
  return components;
}

}  // namespace mortise
