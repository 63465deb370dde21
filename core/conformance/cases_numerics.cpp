// Numerics cases: properties of every loss, KL estimator and advantage estimator, whatever its formula.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "conformance/token_batch.h"
#include "foundation/base/text.h"

namespace mortise::check {
namespace {

// --- gradient --------------------------------------------------------------------------------------------------------

double total(const TokenBatch& batch, const TokenResult& result) {
  double sum = 0;
  const auto& weight = batch.tokens.at("weight");
  for (size_t t = 0; t < weight.size(); ++t) {
    if (batch.mask[t] != 0) sum += static_cast<double>(weight[t]) * static_cast<double>(result.out[0][t]);
  }
  return sum;
}

// d total / d input[t] by differences of step h: forward and backward, so that a kink shows.
struct Slope {
  double forward = 0, backward = 0;
};
Result<Slope> slope_at(const Instance& instance, TokenBatch& batch, const std::string& input, size_t t, float h,
                       const TokenCall& how, double middle) {
  float& x = batch.tokens.at(input)[t];
  const float at = x;
  x = at + h;
  const double up = static_cast<double>(x) - static_cast<double>(at);
  const TokenResult above = TRY(tokens_ok(instance, batch, how));
  const double high = total(batch, above);
  x = at - h;
  const double down = static_cast<double>(at) - static_cast<double>(x);
  const TokenResult below = TRY(tokens_ok(instance, batch, how));
  const double low = total(batch, below);
  x = at;
  return Slope{(high - middle) / up, (middle - low) / down};
}

Result<> check_gradient(const Instance& instance, TokenBatch& batch, const std::string& input, size_t output,
                        const TokenCall& how) {
  constexpr float kStep = 0x1p-8F;
  const TokenResult result = TRY(tokens_ok(instance, batch, how));
  const double middle = total(batch, result);
  const auto& gradient = result.out[output];
  double largest = 0;
  for (const float g : gradient) largest = std::max(largest, std::abs(static_cast<double>(g)));
  size_t num_checked = 0;
  for (size_t t = 0; t < gradient.size(); ++t) {
    if (batch.mask[t] == 0) continue;
    const Slope slope = TRY(slope_at(instance, batch, input, t, kStep, how, middle));
    const double central = (slope.forward + slope.backward) / 2, given = static_cast<double>(gradient[t]);
    const double scale = std::max({largest, std::abs(slope.forward), std::abs(slope.backward), 1e-12});
    if (std::abs(slope.forward - slope.backward) > 0.05 * scale) continue;  // a kink is between
    ++num_checked;
    if (std::abs(given - central) > 0.01 * scale)
      return broken(fmt::format("{} is {} at {}, differences of the loss give {}",
                                output_name(instance.subject().kind(), output), format_f64(given), place_of(batch, t),
                                format_f64(central)));
  }
  if (num_checked == 0) return not_applicable("no token lies away from a kink");
  return {};
}

Result<> gradient(Subject& subject) {
  if ((subject.info().flags & MORTISE_FLAG_SURROGATE_GRADIENT) != 0)
    return not_applicable("its gradient is declared to be another function's (MORTISE_FLAG_SURROGATE_GRADIENT)");
  const Instance instance = TRY(subject.create(make_host()));
  constexpr int64_t kLengths[] = {6, 9, 3, 14};
  for (uint64_t seed = 1; seed < 4; ++seed) {
    TokenBatch batch = make_batch(kLengths, 2, seed, true);
    for (float& weight : batch.column<column::Weight>()) weight *= 100;
    TRY(check_gradient(instance, batch, std::string(column::LogProb::name), 1, {}));
  }
  return {};
}

Result<> entropy_gradient(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  TokenCall how;
  how.optional_inputs = true;
  how.entropy_gradient = true;
  constexpr int64_t kLengths[] = {6, 9, 3, 14};
  TokenBatch batch = make_batch(kLengths, 2, 1, true);
  for (float& weight : batch.column<column::Weight>()) weight *= 100;
  const TokenResult result = TRY(tokens_ok(instance, batch, how));
  const bool any = std::any_of(result.out[2].begin(), result.out[2].end(), [](float g) { return g != 0.0F; });
  if (!any) return not_applicable("it gives no gradient of the entropy");
  return check_gradient(instance, batch, std::string(column::Entropy::name), 2, how);
}

// --- weights and masks -----------------------------------------------------------------------------------------------

Result<> zero_weight(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  TokenBatch batch = usual_batch();
  // Coupled parts get weight 0 together: all, or every second row or token.
  const Coupling coupling = subject.info().coupling;
  auto& weight = batch.column<column::Weight>();
  for (size_t row = 0; row + 1 < batch.row_offsets.size(); ++row) {
    for (auto t = static_cast<size_t>(batch.row_offsets[row]); t < static_cast<size_t>(batch.row_offsets[row + 1]);
         ++t) {
      if (coupling == Coupling::kToken ? t % 2 == 0 : coupling == Coupling::kRow ? row % 2 == 0 : true) weight[t] = 0;
    }
  }
  const TokenResult result = TRY(tokens_ok(instance, batch));
  for (size_t t = 0; t < weight.size(); ++t) {
    if (weight[t] == 0.0F && batch.mask[t] != 0 && result.out[1][t] != 0.0F)
      return broken(
          fmt::format("the weight is 0 and the gradient {} at {}", format_f64(result.out[1][t]), place_of(batch, t)));
  }
  return {};
}

Result<> masked_inert(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  const TokenBatch clean = usual_batch();
  const TokenResult a = TRY(tokens_ok(instance, clean));
  for (const float rubbish :
       {std::numeric_limits<float>::quiet_NaN(), 1e30F, -std::numeric_limits<float>::infinity()}) {
    TokenBatch dirty = clean;
    for (auto& [name, values] : dirty.tokens) {
      if (name == column::TokenLevelRewards::name) continue;  // a reward counts at every token
      for (size_t t = 0; t < values.size(); ++t) {
        if (dirty.mask[t] == 0) values[t] = rubbish;
      }
    }
    const TokenResult b = TRY(tokens_ok(instance, dirty));
    TRY(compare(instance, clean, a, b, 0, fmt::format("with {} at masked tokens", format_f64(rubbish))));
  }
  return {};
}

// The engine aggregates: the loss of a token does not know its weight, and the gradient is linear in the weights.
Result<> weight_linear(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  const TokenBatch batch = usual_batch();
  TokenBatch heavy = batch;
  for (float& weight : heavy.tokens["weight"]) weight *= 4;
  const TokenResult a = TRY(tokens_ok(instance, batch));
  TokenResult b = TRY(tokens_ok(instance, heavy));
  for (float& g : b.out[1]) g /= 4;
  return compare(instance, batch, a, b, kTolerance, "with four times the weights (the gradient divided by four)");
}

// --- cuts and orders -------------------------------------------------------------------------------------------------

// Puts the outputs of parts at the places of their rows in the whole.
void place_rows(const TokenBatch& whole, const TokenBatch& part, std::span<const int64_t> order,
                const TokenResult& from, TokenResult& to) {
  for (size_t k = 0; k < order.size(); ++k) {
    const auto row = static_cast<size_t>(order[k]);
    const auto length = whole.row_offsets[row + 1] - whole.row_offsets[row];
    for (size_t i = 0; i < to.out.size(); ++i) {
      if (from.out[i].empty()) continue;
      std::copy_n(from.out[i].begin() + part.row_offsets[k], length, to.out[i].begin() + whole.row_offsets[row]);
    }
  }
}

Result<> permutation(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  const TokenBatch batch = usual_batch();
  const TokenResult a = TRY(tokens_ok(instance, batch));
  constexpr int64_t kOrders[][8] = {{7, 6, 5, 4, 3, 2, 1, 0}, {2, 5, 0, 7, 4, 1, 6, 3}};
  for (const auto& order : kOrders) {
    const TokenBatch mixed = pick_rows(batch, order);
    const TokenResult mixed_result = TRY(tokens_ok(instance, mixed));
    TokenResult b = a;
    place_rows(batch, mixed, order, mixed_result, b);
    TRY(compare(instance, batch, a, b, kTolerance, "with the rows in another order"));
  }
  return {};
}

// Pieces that the declared coupling allows: rows (tokens are cut with them) or groups.
Result<std::vector<std::vector<int64_t>>> pieces_for(const Subject& subject) {
  switch (subject.info().coupling) {
    case Coupling::kToken:
    case Coupling::kRow:
      return std::vector<std::vector<int64_t>>{{0}, {1, 2}, {3, 4, 5}, {6}, {7}};
    case Coupling::kGroup:
      return std::vector<std::vector<int64_t>>{{0, 1, 2, 3}, {4, 5, 6, 7}};
    default:
      return not_applicable("it is coupled over the whole update and always gets it whole");
  }
}

Result<> batch_split(Subject& subject) {
  const auto pieces = TRY(pieces_for(subject));
  const Instance instance = TRY(subject.create(make_host()));
  const TokenBatch batch = usual_batch();
  const TokenResult a = TRY(tokens_ok(instance, batch));
  TokenResult b = a;
  for (const auto& piece : pieces) {
    const TokenBatch part = pick_rows(batch, piece);
    const TokenResult result = TRY(tokens_ok(instance, part));
    place_rows(batch, part, piece, result, b);
  }
  return compare(instance, batch, a, b, kTolerance,
                 fmt::format("cut into pieces (coupling {})", coupling_name(subject.info().coupling)));
}

// A name's value as the engine joins it: sum / weight, sum, largest, smallest.
struct Joined {
  double sum = 0, weight = 0;
  int32_t reduction = 0;
  bool any = false;
  void add(const MetricRecord& record) {
    reduction = record.reduction;
    if (reduction == MORTISE_REDUCE_MAX)
      sum = any ? std::max(sum, record.sum) : record.sum;
    else if (reduction == MORTISE_REDUCE_MIN)
      sum = any ? std::min(sum, record.sum) : record.sum;
    else
      sum += record.sum;
    weight += record.weight;
    any = true;
  }
  [[nodiscard]] double value() const { return reduction == MORTISE_REDUCE_MEAN ? sum / weight : sum; }
};

Result<> metrics_split(Subject& subject) {
  const auto pieces = TRY(pieces_for(subject));
  const Instance instance = TRY(subject.create(make_host()));
  const TokenBatch batch = usual_batch();
  std::map<std::string, Joined> whole, cut;
  const TokenResult all = TRY(tokens_ok(instance, batch));
  for (const MetricRecord& record : all.call.metrics) whole[record.name].add(record);
  if (whole.empty()) return not_applicable("it reports no metrics");
  for (const auto& piece : pieces) {
    const TokenResult result = TRY(tokens_ok(instance, pick_rows(batch, piece)));
    for (const MetricRecord& record : result.call.metrics) cut[record.name].add(record);
  }
  for (const auto& [name, one] : whole) {
    const auto other = cut.find(name);
    if (other == cut.end())
      return broken(fmt::format("metric {} is not reported for pieces of the batch", quote(name)));
    const double a = one.value(), b = other->second.value();
    if (std::isnan(a) && std::isnan(b)) continue;
    if (!(std::abs(a - b) <= 1e-6 * std::max(1.0, std::abs(a))))
      return broken(fmt::format("metric {} is {} of the whole and {} joined from pieces; give sums and weights",
                                quote(name), format_f64(a), format_f64(b)));
  }
  return {};
}

Result<> thread_order(Subject& subject) {
  const std::vector<int64_t> lengths(64, 2048);  // more than a chunk of any reasonable size
  const TokenBatch batch = make_batch(lengths, 4, 1, true);
  std::vector<TokenResult> results;
  for (const bool backwards : {false, true}) {
    HostShape shape;
    shape.backwards = backwards;
    const Instance instance = TRY(subject.create(make_host(shape)));
    results.push_back(TRY(tokens_ok(instance, batch)));
    if (host_log().num_parallel == 0) return not_applicable("it does not use parallel_for");
    if (!backwards) continue;
    TRY(compare(instance, batch, results[0], results[1], 0, "with the pieces of parallel_for in another order"));
  }
  return {};
}

// --- extremes --------------------------------------------------------------------------------------------------------

Result<> finite(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  for (uint64_t seed = 1; seed < 9; ++seed) {
    const TokenBatch batch = usual_batch(seed);
    const TokenResult result = TRY(tokens_ok(instance, batch));
    TRY(demand_finite(subject, batch, result, "on ordinary inputs"));
  }
  return {};
}

Result<> extreme_ratios(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  for (const float distance : {50.0F, -50.0F, 90.0F, -90.0F, 800.0F, -800.0F, 1e4F, -1e4F}) {
    TokenBatch batch = usual_batch();
    for (size_t t = 0; t < batch.mask.size(); t += 3) {
      const float log_prob = std::min(-0.01F, -0.01F + distance);
      batch.column<column::LogProb>()[t] = log_prob;
      batch.column<column::OldLogProb>()[t] = batch.column<column::RefLogProb>()[t] = log_prob - distance;
    }
    const TokenResult result = TRY(tokens_ok(instance, batch));
    TRY(demand_finite(subject, batch, result, "where log-probs differ by " + format_f64(distance)));
  }
  return {};
}

constexpr Case kNumericsCases[] = {
    {"numerics.finite", "R40", kTokens, "ordinary inputs give finite results", finite},
    {"numerics.extreme_ratios", "R40", kLosses, "very different policies give finite results", extreme_ratios},
    {"numerics.gradient", "R39", kLosses, "the gradient is that of sum(weight * loss), by central differences",
     gradient},
    {"numerics.entropy_gradient", "R39", kPolicyLoss,
     "the gradient of the entropy is that of the loss, by central differences", entropy_gradient},
    {"numerics.weight_linear", "R39", kLosses,
     "the loss does not depend on the weight, and the gradient is linear in it", weight_linear},
    {"numerics.zero_weight", "R22", kLosses, "weight 0 means gradient 0", zero_weight},
    {"numerics.masked_inert", "R22", kTokens, "values at masked tokens change nothing", masked_inert},
    {"numerics.permutation", "R24", kTokens, "the order of the rows changes nothing", permutation},
    {"numerics.split", "R24", kLosses, "splitting the batch, as far as the coupling allows, changes nothing",
     batch_split},
    {"numerics.metrics_split", "R25", kLosses, "metrics of pieces add up to those of the whole", metrics_split},
    {"numerics.thread_order", "R24", kTokens, "the order in which threads take pieces changes no bit", thread_order},
};

}  // namespace

std::span<const Case> numerics_cases() { return kNumericsCases; }

}  // namespace mortise::check
