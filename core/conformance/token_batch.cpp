// Makes token batches, picks and reorders rows, and calls losses and estimators with them.
#include "conformance/token_batch.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "foundation/base/text.h"
#include "plugin/host/kinds/input_columns.h"

namespace mortise::check {
namespace {

// splitmix64 (Steele et al. 2014): small, seedable, the same everywhere
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ULL) {}
  float uniform(float low, float high) { return low + (high - low) * (static_cast<float>(next() >> 40) * 0x1p-24F); }
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_;
};

void fill_tokens(TokenBatch& batch, Random& random) {
  const auto n = static_cast<size_t>(batch.num_tokens());
  const auto add = [n](std::vector<float>& values, auto&& value) {
    values.resize(n);
    for (size_t t = 0; t < n; ++t) values[t] = value(t);
  };
  auto& log_prob = batch.column<column::LogProb>();
  add(log_prob, [&](size_t) { return random.uniform(-3.0F, -0.05F); });
  const auto add_near = [&](std::vector<float>& values, float distance) {
    add(values, [&](size_t t) { return log_prob[t] + random.uniform(-distance, distance); });
  };
  const auto add_between = [&](std::vector<float>& values, float low, float high) {
    add(values, [&](size_t) { return random.uniform(low, high); });
  };
  add_near(batch.column<column::OldLogProb>(), 0.4F);
  add_near(batch.column<column::RefLogProb>(), 0.6F);
  add_near(batch.column<column::RolloutLogProb>(), 0.2F);
  add_between(batch.column<column::Weight>(), 0.005F, 0.015F);
  add_between(batch.column<column::RolloutIsWeights>(), 0.5F, 1.5F);
  add_between(batch.column<column::Entropy>(), 0.1F, 3.0F);
  add_between(batch.column<column::Values>(), -1.0F, 1.0F);
  add_between(batch.column<column::SumPiSquared>(), 0.1F, 0.9F);
  add(batch.column<column::TokenLevelRewards>(), [](size_t) { return 0.0F; });
  auto& advantages = batch.column<column::Advantages>();
  for (int64_t row = 0; row < batch.num_rows(); ++row) {  // as group methods give them: one number a row, either sign
    const float size = random.uniform(0.2F, 1.8F);
    advantages.resize(static_cast<size_t>(batch.row_offsets[static_cast<size_t>(row) + 1]),
                      row % 2 == 0 ? size : -size);
  }
}

// An outcome reward at the row's last unmasked token, the sum of two functions' rewards.
void fill_rewards(TokenBatch& batch, Random& random) {
  for (const char* name : {"reward_0", "reward_1"}) batch.rows[name];  // also where there are no rows
  auto& baselines = batch.column<column::RewardBaselines>();
  for (size_t row = 0; row + 1 < batch.row_offsets.size(); ++row) {
    const float first = random.uniform(-1.0F, 1.0F), second = random.uniform(0.0F, 1.0F);
    batch.rows["reward_0"].push_back(first);
    batch.rows["reward_1"].push_back(second);
    baselines.push_back(random.uniform(-0.5F, 0.5F));
    auto last = static_cast<size_t>(batch.row_offsets[row + 1]);
    const auto begin = static_cast<size_t>(batch.row_offsets[row]);
    while (last > begin && batch.mask[last - 1] == 0) --last;
    if (last > begin) batch.column<column::TokenLevelRewards>()[last - 1] = first + second;
  }
}

// Any other column of numbers that a kind sees: numbers around 0, so that a new column needs no line here.
template <class In>
void fill_others(TokenBatch& batch, Random& random) {
  for (const InputColumn& column : input_columns<In>()) {
    const bool is_row = column.level == Level::kRow;
    if (column.is_mask) continue;
    auto& values = (is_row ? batch.rows : batch.tokens)[std::string(column.name)];
    const auto size = static_cast<size_t>(is_row ? batch.num_rows() : batch.num_tokens());
    while (values.size() < size) values.push_back(random.uniform(-1.0F, 1.0F));
  }
}

}  // namespace

TokenBatch make_batch(std::span<const int64_t> lengths, int64_t group_size, uint64_t seed, bool holes) {
  TokenBatch batch;
  Random random(seed);
  for (const int64_t length : lengths) {
    const auto row = batch.num_rows();
    batch.row_offsets.push_back(batch.row_offsets.back() + length);
    batch.row_id.push_back(100 + row);
    batch.group_index.push_back(row / group_size);
    batch.row_valid.push_back(1);
    for (int64_t t = 0; t < length; ++t) batch.mask.push_back(holes && t % 5 == 3 ? 0 : 1);
  }
  fill_tokens(batch, random);
  fill_rewards(batch, random);
  fill_others<mortise_policy_loss_in>(batch, random);
  fill_others<mortise_kl_estimator_in>(batch, random);
  fill_others<mortise_advantage_estimator_in>(batch, random);
  return batch;
}

TokenBatch usual_batch(uint64_t seed) {
  constexpr int64_t kLengths[] = {40, 8, 24, 32, 16, 48, 1, 23};
  return make_batch(kLengths, 4, seed, true);
}

TokenBatch pick_rows(const TokenBatch& batch, std::span<const int64_t> order) {
  TokenBatch out;
  for (const int64_t index : order) {
    const auto row = static_cast<size_t>(index);
    const auto begin = batch.row_offsets[row], end = batch.row_offsets[row + 1];
    out.row_offsets.push_back(out.row_offsets.back() + end - begin);
    out.row_id.push_back(batch.row_id[row]);
    out.group_index.push_back(batch.group_index[row]);
    out.row_valid.push_back(batch.row_valid[row]);
    out.mask.insert(out.mask.end(), batch.mask.begin() + begin, batch.mask.begin() + end);
    for (const auto& [name, values] : batch.tokens)
      out.tokens[name].insert(out.tokens[name].end(), values.begin() + begin, values.begin() + end);
    for (const auto& [name, values] : batch.rows) out.rows[name].push_back(values[row]);
  }
  for (const auto& [name, values] : batch.tokens) out.tokens[name];
  for (const auto& [name, values] : batch.rows) out.rows[name];
  return out;
}

TokenBatch without_masked(const TokenBatch& batch) {
  TokenBatch out = batch;
  out.row_offsets = {0};
  out.mask.clear();
  for (auto& [name, values] : out.tokens) values.clear();
  for (size_t row = 0; row + 1 < batch.row_offsets.size(); ++row) {
    for (auto t = static_cast<size_t>(batch.row_offsets[row]); t < static_cast<size_t>(batch.row_offsets[row + 1]);
         ++t) {
      if (batch.mask[t] == 0) continue;
      out.mask.push_back(1);
      for (auto& [name, values] : out.tokens) values.push_back(batch.tokens.at(name)[t]);
    }
    out.row_offsets.push_back(static_cast<int64_t>(out.mask.size()));
  }
  return out;
}

Result<TokenResult> tokens_ok(const Instance& instance, const TokenBatch& batch, const TokenCall& how) {
  TokenResult result = call_tokens(instance, batch, how);
  TRY(demand_ok(result.call, "compute"));
  if (!result.damage.empty()) return broken(result.damage);
  return result;
}

std::string output_name(uint32_t kind, size_t i) {
  if (kind == kAdvantage) return i == 0 ? "advantages" : "returns";
  if (i == 0) return kind == kPolicyLoss ? "loss" : "kl";
  return i == 1 ? "grad_log_prob" : "grad_entropy";
}

std::string place_of(const TokenBatch& batch, size_t t) {
  const auto& offsets = batch.row_offsets;
  const auto row =
      static_cast<size_t>(std::upper_bound(offsets.begin(), offsets.end(), static_cast<int64_t>(t)) - offsets.begin()) -
      1;
  return fmt::format("token {} of row {}", static_cast<int64_t>(t) - offsets[row], row);
}

Result<> compare(const Instance& instance, const TokenBatch& batch, const TokenResult& one, const TokenResult& other,
                 double tolerance, std::string_view what) {
  for (size_t i = 0; i < one.out.size(); ++i) {
    const auto& a = one.out[i];
    const auto& b = other.out[i];
    if (a.empty() || b.empty()) continue;
    double largest = 1e-30;
    for (size_t t = 0; t < a.size(); ++t) {
      if (batch.mask[t] != 0 && std::isfinite(a[t])) largest = std::max(largest, std::abs(static_cast<double>(a[t])));
    }
    for (size_t t = 0; t < a.size(); ++t) {
      if (batch.mask[t] == 0) continue;
      const bool same = std::bit_cast<uint32_t>(a[t]) == std::bit_cast<uint32_t>(b[t]);
      const double distance = std::abs(static_cast<double>(a[t]) - static_cast<double>(b[t]));
      if (same || (tolerance > 0 && distance <= tolerance * largest)) continue;
      return broken(fmt::format("{}: {} at {} is {} and then {}", what, output_name(instance.subject().kind(), i),
                                place_of(batch, t), format_f64(a[t]), format_f64(b[t])));
    }
  }
  return {};
}

Result<> demand_finite(const Subject& subject, const TokenBatch& batch, const TokenResult& result,
                       const std::string& when) {
  for (size_t i = 0; i < result.out.size(); ++i) {
    for (size_t t = 0; t < result.out[i].size(); ++t) {
      if (batch.mask[t] != 0 && !std::isfinite(result.out[i][t]))
        return broken(fmt::format("{} is {} at {} {}", output_name(subject.kind(), i), format_f64(result.out[i][t]),
                                  place_of(batch, t), when));
    }
  }
  return {};
}

}  // namespace mortise::check
