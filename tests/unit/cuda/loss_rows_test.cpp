// The kernels that sdk/include/mortise/cpp/cuda_loop.hpp and cuda_passes.hpp make of a loss: against the same formulas in
// float64, in three orders of the threads, and without any of their barriers.
#include <cuda_runtime.h>

#include <mortise/cpp/mortise.hpp>

#include "emulated.h"

namespace mortise::cuda {
namespace {

struct Clip : TokenLoss {
  double edge = 1.2;
  enum { kClipped, kRatio };
  static constexpr Metric metrics[] = {{kClipped, "clipped", Average::kTokens},
                                       {kRatio, "least", Average::kLowest},
                                       {kRatio, "most", Average::kHighest}};
  template <class Real, class Number, class Meter>
  MORTISE_HD Real token(Real logp, Number old_logp, Number adv, Meter& meter) const {
    const Real r = exp(logp - old_logp);
    meter.count(kClipped, r > edge);
    meter.add(kRatio, r);
    return -adv * clamp_max(r, edge);
  }
};

struct RowRatio : SequenceLoss {
  template <class Real>
  MORTISE_HD Real sequence(Real mean_log_ratio, double adv) const {
    return -adv * exp(mean_log_ratio);
  }
};

// Rows of these lengths, with holes.
struct Tokens {
  std::vector<std::int64_t> offsets{0, 1, 1, 700, 733, 989};
  std::vector<float> log_prob = normal(989, 0.4, 1), old = normal(989, 0.4, 2), advantages = normal(989, 1, 3),
                     weight = normal(989, 1, 4), loss = std::vector<float>(989, NAN),
                     grad = std::vector<float>(989, NAN);
  std::vector<std::uint8_t> mask = std::vector<std::uint8_t>(989, 1);

  Tokens() {
    for (size_t t = 0; t < mask.size(); t += 5) mask[t] = 0;
    weight[7] = 0;
  }
  [[nodiscard]] std::int64_t rows() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
  detail::TokenArrays arrays() {
    detail::TokenArrays out;
    out.x = log_prob.data();
    out.a = old.data();
    out.b = advantages.data();
    out.weight = weight.data();
    out.mask = mask.data();
    out.out = loss.data();
    out.grad = grad.data();
    return out;
  }
  [[nodiscard]] double log_ratio(size_t t) const { return double(log_prob[t]) - double(old[t]); }
};

// The kernel's measurements of all rows.
template <class T, class Eval>
std::vector<double> run(Tokens& tokens, bool own_token = false) {
  // The parameters of a plugin are read by a host; the kernel reads the bytes of numbers alone.
  alignas(T) unsigned char memory[sizeof(T)];
  detail::ParamTable table;
  const detail::Building building{&table, nullptr, nullptr};
  const detail::BuildingScope scope(building);
  const T& plugin = *new (memory) T();
  detail::PluginBytes<T> bytes;
  std::memcpy(bytes.bytes, static_cast<const void*>(&plugin), sizeof bytes.bytes);
  std::vector<double> measured(static_cast<size_t>(tokens.rows()) * detail::RowValues<T>::kCount, NAN);
  launch({static_cast<unsigned>(tokens.rows())}, {detail::kCudaThreads}, [&] {
    detail::loss_rows_kernel<T, Eval>(bytes, tokens.arrays(), tokens.offsets.data(), own_token, measured.data());
  });
  plugin.~T();
  return measured;
}

void check_clip() {
  using Row = detail::RowValues<Clip>;
  Tokens tokens;
  const std::vector<double> measured = run<Clip, detail::TokenLossEval<Clip>>(tokens);
  for (std::int64_t row = 0; row < tokens.rows(); ++row) {
    double count = 0, clipped = 0, least = INFINITY, most = -INFINITY;
    for (auto t = size_t(tokens.offsets[size_t(row)]); t < size_t(tokens.offsets[size_t(row) + 1]); ++t) {
      const double r = std::exp(tokens.log_ratio(t)), a = double(tokens.advantages[t]);
      const bool counts = tokens.mask[t] != 0;
      ASSERT_NEAR(tokens.loss[t], counts ? -a * std::min(r, 1.2) : 0.0, 1e-6 * (1 + std::abs(a * r))) << t;
      ASSERT_NEAR(tokens.grad[t], counts && r < 1.2 ? -a * r * double(tokens.weight[t]) : 0.0,
                  2e-6 * (1 + std::abs(a * r)))
          << t;
      if (!counts) continue;
      count += 1;
      clipped += r > 1.2 ? 1 : 0;
      least = std::min(least, r);
      most = std::max(most, r);
    }
    const double* found = &measured[size_t(row) * Row::kCount];
    EXPECT_EQ(found[Row::kTokens], count) << row;
    EXPECT_EQ(found[Row::kSum + Clip::kClipped], clipped) << row;
    EXPECT_TRUE(std::isinf(least) ? found[Row::kLow + Clip::kRatio] == least
                                  : std::abs(found[Row::kLow + Clip::kRatio] - least) < 1e-6);
    EXPECT_TRUE(std::isinf(most) ? found[Row::kHigh + Clip::kRatio] == most
                                 : std::abs(found[Row::kHigh + Clip::kRatio] - most) < 1e-6);
  }
}

void check_row_ratio(bool own_token) {
  Tokens tokens;
  run<RowRatio, detail::SequenceEval<RowRatio>>(tokens, own_token);
  for (std::int64_t row = 0; row < tokens.rows(); ++row) {
    const auto begin = size_t(tokens.offsets[size_t(row)]), end = size_t(tokens.offsets[size_t(row) + 1]);
    double count = 0, mean = 0, slope = 0;
    for (size_t t = begin; t < end; ++t) {
      count += tokens.mask[t];
      mean += tokens.mask[t] * tokens.log_ratio(t);
    }
    mean /= std::max(count, 1.0);
    const auto own = [&](size_t t) {
      return tokens.mask[t] == 0 ? 0.0 : -double(tokens.advantages[t]) * std::exp(mean) * double(tokens.weight[t]);
    };
    for (size_t t = begin; t < end; ++t) slope += own(t);
    for (size_t t = begin; t < end; ++t) {
      const double value = tokens.mask[t] == 0 ? 0.0 : -double(tokens.advantages[t]) * std::exp(mean);
      const double shared = tokens.mask[t] == 0 ? 0.0 : slope / std::max(count, 1.0);
      ASSERT_NEAR(tokens.loss[t], value, 1e-6 * (1 + std::abs(value))) << t;
      ASSERT_NEAR(tokens.grad[t], own_token ? own(t) : shared, 1e-6 * (1 + std::abs(value))) << t;
    }
  }
}

// What a row's tokens see in passes: three sums, a value of their own, and what is behind them.
struct Moments {
  double count = 0, ratio = 0, square = 0;
};
struct AddMoments {
  using Sums = Moments;
  void operator()(const TokenColumns& in, std::int64_t t, Moments& sums) const {
    const double d = in.log_ratio(t);
    sums.count += 1;
    sums.ratio += d;
    sums.square += d * d;
  }
};
struct LogRatio {
  double operator()(const TokenColumns& in, std::int64_t t) const { return in.log_ratio(t); }
};
struct Scaled {
  double operator()(const TokenColumns& in, std::int64_t t, double row) const { return row * in.log_ratio(t); }
};
struct ScaledValue {
  TokenValue operator()(const TokenColumns& in, std::int64_t t, double row) const {
    return {row * in.log_ratio(t), in.unless_weightless(t, row)};
  }
};

constexpr double kDecay = 0.9;
constexpr unsigned kThreads = detail::kCudaThreads;

// What the kernels of all passes give.
struct Passed {
  explicit Passed(Tokens& tokens) {
    TokenColumns in;
    in.log_prob = tokens.log_prob.data();
    in.old_log_prob = tokens.old.data();
    in.weight = tokens.weight.data();
    in.mask = tokens.mask.data();
    const std::int64_t* offsets = tokens.offsets.data();
    const auto rows = static_cast<unsigned>(tokens.rows());
    for (double row = 1; row <= double(rows); ++row) factors.push_back(row);
    launch({rows}, {kThreads}, [&] { detail::row_sums_kernel<AddMoments>({}, in, offsets, sums.data()); });
    launch({rows}, {kThreads}, [&] { detail::row_values_kernel<LogRatio>({}, in, offsets, -7.0, values.data()); });
    launch({rows}, {kThreads},
           [&] { detail::row_numbers_kernel<Scaled>({}, in, offsets, factors.data(), numbers.data()); });
    launch({rows}, {kThreads}, [&] {
      detail::row_outputs_kernel<ScaledValue>({}, in, offsets, factors.data(), tokens.loss.data(), tokens.grad.data());
    });
    launch({rows}, {kThreads}, [&] { detail::decayed_sums_kernel<LogRatio>({}, in, offsets, kDecay, behind.data()); });
  }
  std::vector<double> factors, sums = std::vector<double>(15, NAN), values = std::vector<double>(989, NAN),
                               numbers = values, behind = values;
};

void check_passes() {
  Tokens tokens;
  const Passed passed(tokens);
  for (size_t row = 0; row < size_t(tokens.rows()); ++row) {
    Moments expected;
    double behind = 0;
    for (auto t = size_t(tokens.offsets[row + 1]); t-- > size_t(tokens.offsets[row]);) {
      const bool counts = tokens.mask[t] != 0;
      const double d = counts ? tokens.log_ratio(t) : 0.0, factor = passed.factors[row];
      if (counts) {
        expected.count += 1;
        expected.ratio += d;
        expected.square += d * d;
        behind = kDecay * behind + d;
      }
      ASSERT_EQ(passed.values[t], counts ? d : -7.0) << t;
      ASSERT_EQ(passed.numbers[t], factor * d) << t;
      ASSERT_EQ(tokens.loss[t], float(factor * d)) << t;
      ASSERT_EQ(tokens.grad[t], counts && tokens.weight[t] != 0 ? float(factor) : 0.0F) << t;
      ASSERT_NEAR(passed.behind[t], counts ? behind : 0.0, 1e-12) << t;
    }
    EXPECT_EQ(passed.sums[3 * row], expected.count);
    EXPECT_NEAR(passed.sums[3 * row + 1], expected.ratio, 1e-12);
    EXPECT_NEAR(passed.sums[3 * row + 2], expected.square, 1e-12);
  }
}

TEST(CudaPasses, EqualFloat64) { in_three_orders(check_passes); }

TEST(CudaPasses, EveryBarrierIsNeeded) {
  expect_every_barrier_is_needed(
      [] {
        Tokens tokens;
        Passed{tokens};
      },
      {"../../../sdk/include/mortise/cpp/cuda_passes.hpp"});
}

// ---- choices of tokens ----

// Many tokens have the same key, or hardly any.
struct RatioKey {
  bool is_coarse;
  std::uint64_t operator()(const TokenColumns& in, std::int64_t t, const RowToken& row) const {
    if (row.index % 9 == 4) return kNeverChosen;
    const double ratio = in.log_ratio(t) + double(row.number);
    return rising_key(is_coarse ? std::floor(ratio * 2) : ratio);
  }
};
struct SignedCost {
  std::int64_t operator()(std::uint64_t key) const {
    return std::int64_t(std::floor((number_of_key(key) - 0.25) * 1e12));
  }
};

// What the two kernels choose; `order` has the rows by their names.
template <class Cost>
std::vector<double> chosen_by_kernels(Tokens& tokens, const RatioKey& key, const Cost& cost, const Choice& choice,
                                      const std::vector<std::int64_t>& order) {
  TokenColumns in;
  in.log_prob = tokens.log_prob.data();
  in.old_log_prob = tokens.old.data();
  in.mask = tokens.mask.data();
  const std::vector<std::uint64_t> row_numbers{0, 0, 1, 0, 0};
  std::vector<std::uint64_t> keys(989, 0);
  std::vector<double> numbers(989, NAN);
  launch({unsigned(tokens.rows())}, {kThreads}, [&] {
    detail::choice_keys_kernel<RatioKey>(key, in, tokens.offsets.data(), row_numbers.data(), keys.data());
  });
  launch({1}, {kThreads}, [&] {
    detail::choose_kernel<Cost>(cost, choice, keys.data(), 989, tokens.offsets.data(), order.data(), tokens.rows(),
                                numbers.data());
  });
  for (size_t t = 0; t < keys.size(); ++t)
    if (tokens.mask[t] == 0) {
      EXPECT_EQ(keys[t], kNeverChosen);
    }
  return numbers;
}

// One token after the other.
template <class Cost>
std::vector<double> chosen_one_by_one(Tokens& tokens, const RatioKey& key, const Cost& cost, const Choice& choice,
                                      const std::vector<std::int64_t>& order) {
  TokenColumns in;
  in.log_prob = tokens.log_prob.data();
  in.old_log_prob = tokens.old.data();
  std::vector<double> numbers(989, choice.never);
  std::vector<detail::ChoiceToken> sorted;
  for (const std::int64_t row : order) {
    RowToken token{0, row == 2 ? 1U : 0U};
    for (std::int64_t t = tokens.offsets[size_t(row)]; t < tokens.offsets[size_t(row) + 1]; ++t) {
      if (tokens.mask[size_t(t)] == 0) continue;
      const std::uint64_t own = key(in, t, token);
      ++token.index;
      if (own == kNeverChosen) continue;
      numbers[size_t(t)] = choice.others;
      sorted.push_back({own, std::int64_t(sorted.size()), size_t(t)});
    }
  }
  std::sort(sorted.begin(), sorted.end());
  std::int64_t sum = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    const std::int64_t own = cost(sorted[i].key);
    const bool is_chosen = own < 0 || sum + own <= choice.budget || (choice.keeps_one && i == 0);
    if (!is_chosen) break;
    sum += own;
    numbers[sorted[i].token] = choice.chosen;
  }
  return numbers;
}

template <class Cost>
void check_choice(bool is_coarse, const Cost& cost, std::int64_t budget, bool keeps_one) {
  SCOPED_TRACE(budget);
  Tokens tokens;
  Choice choice;
  choice.budget = budget;
  choice.keeps_one = keeps_one;
  choice.chosen = 2.0;
  choice.never = 3.0;
  const std::vector<std::int64_t> order{3, 0, 4, 1, 2};
  const RatioKey key{is_coarse};
  const std::vector<double> want = chosen_one_by_one(tokens, key, cost, choice, order);
  EXPECT_EQ(chosen_by_kernels(tokens, key, cost, choice, order), want);
  if (budget > 1 && budget < 1000) {
    EXPECT_EQ(std::count(want.begin(), want.end(), 2.0), budget);
  }
}

TEST(CudaChoice, TakesTheLeastTokensThatTheBudgetHasRoomFor) {
  in_three_orders([] {
    check_choice(true, CostsOne{}, 333, false);
    if (!takes_few_cases()) check_choice(true, SignedCost{}, 40 * std::int64_t(1e12), false);
  });
  if (takes_few_cases()) return;
  check_choice(false, CostsOne{}, 5, false);
  check_choice(false, CostsOne{}, 0, true);
  check_choice(true, CostsOne{}, 5000, false);
  check_choice(true, SignedCost{}, -1, true);
}

// The same choice as that of the host, which compares by halves.
TEST(CudaChoice, TheHostChoosesTheSameNumberOfTokens) {
  for (const std::int64_t budget : {-1, 0, 3, 40, 2000}) {
    std::vector<detail::ChoiceToken> tokens;
    for (std::int64_t i = 0; i < 500; ++i) tokens.push_back({rising_key(double(i * 7919 % 50) - 3), i, size_t(i)});
    Choice choice;
    choice.budget = budget;
    const auto cost = [](std::uint64_t key) { return std::max<std::int64_t>(0, std::int64_t(number_of_key(key))); };
    std::vector<detail::ChoiceToken> sorted = tokens;
    std::sort(sorted.begin(), sorted.end());
    size_t want = 0;
    for (std::int64_t sum = 0; want < sorted.size(); ++want) {
      sum += cost(sorted[want].key);
      if (sum > budget) break;
    }
    const size_t got = detail::choose_least(tokens, cost, choice, {}, false);
    EXPECT_EQ(got, want) << budget;
    std::sort(tokens.begin(), tokens.begin() + std::ptrdiff_t(got));
    for (size_t i = 0; i < got; ++i) EXPECT_EQ(tokens[i].token, sorted[i].token);
  }
}

TEST(CudaChoice, EveryBarrierIsNeeded) {
  expect_every_barrier_is_needed([] { check_choice(true, CostsOne{}, 333, false); },
                                 {"../../../sdk/include/mortise/cpp/cuda_choice.hpp"});
}

TEST(Choice, KeysHaveTheOrderOfTheirNumbers) {
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<double> numbers{-infinity, -2.5, -1e-300, 0.0, 1e-300, 1.0, 2.5, infinity};
  for (size_t i = 0; i < numbers.size(); ++i) {
    EXPECT_EQ(number_of_key(rising_key(numbers[i])), numbers[i]);
    if (i == 0) continue;
    EXPECT_LT(rising_key(numbers[i - 1]), rising_key(numbers[i]));
    EXPECT_GT(falling_key(numbers[i - 1]), falling_key(numbers[i]));
  }
  EXPECT_EQ(rising_key(-0.0), rising_key(0.0));
  for (const double last : {infinity, -infinity}) {
    EXPECT_GT(rising_key(NAN), rising_key(last));
    EXPECT_GT(falling_key(NAN), falling_key(last));
  }
  EXPECT_LT(rising_key(NAN), kNeverChosen);
}

// Sums do not overflow, and have the budget's room to the last unit.
TEST(Choice, SumsOfCosts) {
  const std::int64_t large = std::int64_t(1) << 62;
  detail::CostSum sum;
  for (int i = 0; i < 100; ++i) sum.add(large);
  EXPECT_FALSE(sum.is_within(large));
  for (int i = 0; i < 100; ++i) sum.add(-large);
  EXPECT_TRUE(sum.is_within(0));
  EXPECT_FALSE(sum.is_within(-1));
  EXPECT_EQ(sum.room(-1, 1), 0);
  EXPECT_EQ(sum.room(0, 1), 0);
  EXPECT_EQ(sum.room(0, 0), large);
  EXPECT_EQ(sum.room(large, large), 1);
  sum.add(-7);
  EXPECT_EQ(sum.room(-1, 2), 3);
  EXPECT_EQ(sum.room((std::int64_t(1) << 40), (std::int64_t(1) << 33)), 128);
}

TEST(CudaLossRows, TokensEqualFloat64) { in_three_orders(check_clip); }

TEST(CudaLossRows, SequencesEqualFloat64) {
  in_three_orders([] { check_row_ratio(false); });
  in_three_orders([] { check_row_ratio(true); });
}

TEST(CudaLossRows, EveryBarrierIsNeeded) {
  expect_every_barrier_is_needed(
      [] {
        Tokens tokens;
        run<Clip, detail::TokenLossEval<Clip>>(tokens);
        run<RowRatio, detail::SequenceEval<RowRatio>>(tokens);
      },
      {"../../../sdk/include/mortise/cpp/cuda_loop.hpp"});
}

}  // namespace
}  // namespace mortise::cuda
