// The sampler's kernels against a full sort in float64, in three orders of their threads: filters, penalties, barred tokens, and
// the likeliest tokens. Every barrier is needed.
#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

#include "emulated.h"
#include "foundation/batch/token_history.h"

namespace mortise::cuda {
namespace {

struct Oracle {
  std::vector<size_t> kept;  // in the order of ids
  std::vector<double> mass;  // in the same order
  double total = 0, best = 0, log_all = 0;
};

// Keeps the tokens whose information is nearest to the entropy, up to a mass of typical_p.
void keep_typical(std::vector<size_t>& ids, const std::function<double(size_t)>& mass, double typical_p) {
  double all = 0, entropy = 0;
  for (const size_t i : ids) all += mass(i);
  for (const size_t i : ids) entropy -= mass(i) / all * std::log(mass(i) / all);
  const auto distance = [&](size_t i) { return std::abs(std::log(mass(i) / all) + entropy); };
  std::stable_sort(ids.begin(), ids.end(), [&](size_t a, size_t b) { return distance(a) < distance(b); });
  size_t last = 0;
  for (double sum = mass(ids[0]); last + 1 < ids.size() && sum < typical_p * all; sum += mass(ids[++last])) {
  }
  const double limit = distance(ids[last]);
  std::erase_if(ids, [&](size_t i) { return distance(i) > limit; });
}

// One option after the other with a full sort, as core/generate/sample/sample_plain.cpp.
Oracle oracle_of(const float* row, size_t vocab, const MortiseCudaDraw& draw) {
  Oracle out;
  const double inverse = double(draw.inverse_temperature);
  out.best = -std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < vocab; ++i) out.best = std::max(out.best, double(row[i]));
  const auto mass = [&](size_t i) { return std::exp((double(row[i]) - out.best) * inverse); };
  double all = 0;
  for (size_t i = 0; i < vocab; ++i) all += mass(i);
  out.log_all = std::log(all);
  std::vector<size_t> ids;
  for (size_t i = 0; i < vocab; ++i)
    if (std::isfinite(row[i])) ids.push_back(i);
  std::stable_sort(ids.begin(), ids.end(), [&](size_t a, size_t b) { return row[a] < row[b]; });
  if (draw.top_k > 0 && static_cast<size_t>(draw.top_k) < ids.size()) {
    const float least = row[ids[ids.size() - static_cast<size_t>(draw.top_k)]];
    std::erase_if(ids, [&](size_t i) { return row[i] < least; });
  }
  if (draw.top_p < 1) {
    double total = 0, tail = 0;
    for (const size_t i : ids) total += mass(i);
    size_t cut = 0;
    while (cut + 1 < ids.size() && tail + mass(ids[cut]) <= (1 - draw.top_p) * total) tail += mass(ids[cut++]);
    ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(cut));
  }
  std::erase_if(ids, [&](size_t i) { return mass(i) < double(draw.min_p); });
  if (draw.typical_p > 0) keep_typical(ids, mass, draw.typical_p);
  std::sort(ids.begin(), ids.end());
  for (const size_t i : ids) {
    out.kept.push_back(i);
    out.mass.push_back(mass(i));
    out.total += mass(i);
  }
  return out;
}

// The token is the oracle's, unless the draw is within rounding of the border between two.
void expect_token(const MortiseCudaDrawn& drawn, const Oracle& oracle, const float* row, const MortiseCudaDraw& draw) {
  const double target = draw.uniform * oracle.total;
  double below = 0;
  size_t k = 0;
  while (k + 1 < oracle.kept.size() && below + oracle.mass[k] <= target) below += oracle.mass[k++];
  const double slack = 1e-5 * oracle.total;
  const bool is_at_border = target - below < slack || below + oracle.mass[k] - target < slack;
  const auto token = static_cast<size_t>(drawn.id);
  if (!is_at_border) {
    EXPECT_EQ(token, oracle.kept[k]) << "uniform " << draw.uniform;
  }
  ASSERT_TRUE(std::ranges::count(oracle.kept, token) > 0) << token << " was filtered";
  const double shifted = (double(row[token]) - oracle.best) * double(draw.inverse_temperature);
  EXPECT_NEAR(drawn.log_prob, shifted - oracle.log_all, 2e-5);
  EXPECT_NEAR(drawn.filtered_log_prob, shifted - std::log(oracle.total), 2e-5);
}

void check_sampler(size_t vocab, bool has_equals, const MortiseCudaDraw& settings) {
  constexpr size_t kRows = 6;
  std::vector<float> logits = normal(kRows * vocab, 2, static_cast<unsigned>(vocab));
  for (size_t i = 0; i < logits.size(); ++i) {
    if (has_equals) logits[i] = std::round(logits[i] * 2.0F) / 2.0F;
    if (vocab > 5 && i % 11 == 3) logits[i] = -std::numeric_limits<float>::infinity();
  }
  std::vector<MortiseCudaDraw> draws(kRows, settings);
  constexpr std::array<double, kRows> kUniforms = {0.0, 0.2, 0.51, 0.77, 0.93, 0.9999999};
  for (size_t r = 0; r < kRows; ++r) draws[r].uniform = kUniforms[r];
  std::vector<MortiseCudaDrawn> drawn(kRows);
  const auto columns = static_cast<int64_t>(vocab);
  ASSERT_EQ(mortise_cuda_sample(logits.data(), kRows, columns, static_cast<int32_t>(vocab), draws.data(), {},
                                drawn.data(), nullptr),
            0);
  for (size_t r = 0; r < kRows; ++r) {
    const float* const row = logits.data() + r * vocab;
    expect_token(drawn[r], oracle_of(row, vocab, draws[r]), row, draws[r]);
  }
}

// What the kernel is given of a row, as core/generate/device/device_history.h makes it.
struct EditedRow {
  std::vector<int32_t> seen, tail, words, ends;
  std::vector<uint32_t> allowed = {};  // tokens of a pattern; empty: all

  MortiseCudaEdits view(const Sampling& params, bool bars_ends) {
    return {params.penalises() ? seen.data() : nullptr,
            tail.data(),
            words.data(),
            ends.data(),
            params.repetition_penalty,
            params.presence_penalty,
            params.frequency_penalty,
            static_cast<int32_t>(tail.size()),
            static_cast<int32_t>(params.bad_words.size()),
            bars_ends ? static_cast<int32_t>(ends.size()) : 0,
            allowed.empty() ? nullptr : allowed.data()};
  }
};

EditedRow edited_row(const Sampling& params, const std::vector<int64_t>& prompt, size_t vocab) {
  EditedRow out;
  out.seen.assign(vocab, 0);
  for (const int64_t id : prompt) out.seen[static_cast<size_t>(id)] = params.repetition_penalty == 1.0 ? 0 : 1;
  for (const std::vector<int64_t>& word : params.bad_words) {
    out.words.push_back(static_cast<int32_t>(word.size()));
    for (const int64_t id : word) out.words.push_back(static_cast<int32_t>(id));
    if (word.size() > 1) out.tail = {static_cast<int32_t>(prompt.back())};
  }
  for (const int64_t id : params.stop_ids) out.ends.push_back(static_cast<int32_t>(id));
  return out;
}

// The host's own history of each row tells which logits change.
void check_edits(const std::vector<float>& logits, size_t vocab, const std::vector<std::vector<int64_t>>& prompts,
                 const std::vector<Sampling>& params, const std::vector<std::vector<uint32_t>>& allowed) {
  const size_t rows = params.size();
  std::vector<TokenHistory> histories(rows);
  std::vector<EditedRow> kept;
  for (size_t r = 0; r < rows; ++r) {
    histories[r].start(params[r], prompts[r]);
    kept.push_back(edited_row(params[r], prompts[r], vocab));
    kept.back().allowed = allowed[r];
  }
  for (int64_t step = 0; step < 3; ++step) {
    std::vector<MortiseCudaEdits> edits;
    std::vector<MortiseCudaDraw> draws;
    for (size_t r = 0; r < rows; ++r) {
      edits.push_back(kept[r].view(params[r], !params[r].barred_ends(step).empty()));
      draws.push_back({0.17 + 0.3 * static_cast<double>(step), 1.0, params[r].inverse_temperature(), 0, 0, 0, 0});
    }
    std::vector<float> edited(logits.size(), NAN);
    std::vector<MortiseCudaTotal> totals(rows);
    std::vector<MortiseCudaDrawn> drawn(rows);
    const auto columns = static_cast<int64_t>(vocab);
    ASSERT_EQ(mortise_cuda_sample(logits.data(), static_cast<int64_t>(rows), columns, static_cast<int32_t>(vocab),
                                  draws.data(), {edits.data(), edited.data(), totals.data()}, drawn.data(), nullptr),
              0);
    for (size_t r = 0; r < rows; ++r) {
      SCOPED_TRACE(r);
      std::vector<float> row(logits.begin() + static_cast<std::ptrdiff_t>(r * vocab),
                             logits.begin() + static_cast<std::ptrdiff_t>((r + 1) * vocab));
      const double log_all = oracle_of(row.data(), vocab, draws[r]).log_all;
      const double best = double(*std::ranges::max_element(row));
      const double own = (double(row[static_cast<size_t>(drawn[r].id)]) - best) * double(draws[r].inverse_temperature);
      EXPECT_NEAR(drawn[r].log_prob, own - log_all, 2e-5);
      const TokenEdits changes = histories[r].edits();
      for (const SeenToken& seen : changes.seen) {
        float& logit = row[static_cast<size_t>(seen.id)];
        if (params[r].penalises()) logit = penalised(logit, seen, params[r]);
      }
      for (const int64_t id : changes.barred) row[static_cast<size_t>(id)] = -std::numeric_limits<float>::infinity();
      for (size_t id = 0; id < vocab && !allowed[r].empty(); ++id)
        if ((allowed[r][id / 32] >> (id % 32) & 1U) == 0) row[id] = -std::numeric_limits<float>::infinity();
      drawn[r].log_prob =
          static_cast<float>((double(row[static_cast<size_t>(drawn[r].id)]) - double(*std::ranges::max_element(row))) *
                                 double(draws[r].inverse_temperature) -
                             oracle_of(row.data(), vocab, draws[r]).log_all);
      expect_token(drawn[r], oracle_of(row.data(), vocab, draws[r]), row.data(), draws[r]);
      histories[r].push(drawn[r].id);
    }
  }
}

void check_top(size_t vocab) {
  std::vector<float> logits = normal(3 * vocab, 2, 4);
  for (float& x : logits) x = std::round(x * 4.0F) / 4.0F;  // many are equal
  const std::vector<int32_t> counts = {5, 0, 2};
  std::vector<MortiseCudaDraw> draws(3, {0, 1.0, 0.7F, 0, 0, 0, 0});
  std::vector<MortiseCudaTop> top(15, {-1, 0});
  const auto columns = static_cast<int64_t>(vocab);
  ASSERT_EQ(mortise_cuda_top(logits.data(), 3, columns, static_cast<int32_t>(vocab), draws.data(), counts.data(), 5,
                             top.data(), nullptr),
            0);
  for (size_t r = 0; r < 3; ++r) {
    const float* const row = logits.data() + r * vocab;
    std::vector<size_t> ids(vocab);
    std::iota(ids.begin(), ids.end(), size_t{0});
    std::stable_sort(ids.begin(), ids.end(), [&](size_t a, size_t b) { return row[a] > row[b]; });
    const Oracle oracle = oracle_of(row, vocab, draws[r]);
    for (size_t t = 0; t < 5; ++t) {
      const MortiseCudaTop& own = top[r * 5 + t];
      if (t >= static_cast<size_t>(counts[r]) || t >= vocab) {
        EXPECT_EQ(own.id, -1);
        continue;
      }
      EXPECT_EQ(own.id, static_cast<int32_t>(ids[t])) << r << "/" << t;
      EXPECT_NEAR(own.log_prob, (double(row[ids[t]]) - oracle.best) * double(0.7F) - oracle.log_all, 2e-5);
    }
  }
}

TEST(CudaSampler, DrawsTheTokensOfAFullSort) {
  const std::vector<MortiseCudaDraw> settings = {
      {0, 1.0, 1.25F, 0, 0, 0, 0},    {0, 1.0, 0.8F, 0, 5, 0, 0},        {0, 0.7, 1.0F, 0, 0, 0, 0},
      {0, 1.0, 1.0F, 0.05F, 0, 0, 0}, {0, 0.85, 1.5F, 0.02F, 30, 0, 0},  {0, 1e-9, 1.0F, 0, 0, 0, 0},
      {0, 1.0, 1.25F, 0, 0, 0, 0.6},  {0, 0.9, 0.8F, 0.01F, 40, 0, 0.8}, {0, 1.0, 1.0F, 0, 0, 0, 1e-9}};
  emulator_options() = {};
  if (takes_few_cases()) return check_sampler(40, false, settings[7]);
  in_three_orders([&] {
    for (const MortiseCudaDraw& draw : settings) {
      for (const size_t vocab : {1, 40, 1031}) check_sampler(vocab, false, draw);
      check_sampler(611, true, draw);
    }
  });
  emulator_options() = {};
  check_sampler(20000, true, settings[0]);  // chunks of more than one warp's width
  check_sampler(20000, true, settings[4]);
}

// Rows with penalties, with barred tokens of each kind, with none, with all of them, and with what a pattern allows; each row
// draws three times.
TEST(CudaSampler, EditsAreThoseOfTheHost) {
  constexpr size_t kRows = 7, kVocab = 600;
  const auto vocab = static_cast<int64_t>(kVocab);
  const std::vector<float> logits = normal(kRows * kVocab, 2, 9);
  std::vector<std::vector<int64_t>> prompts;
  std::vector<Sampling> params(kRows);
  params[0].repetition_penalty = 1.7;
  params[0].temperature = 0.8;
  params[1].presence_penalty = 0.9;
  params[1].frequency_penalty = -3.0;
  params[2].stop_ids = {4, 255, 256, 599};
  params[2].min_new_tokens = 2;
  for (size_t r = 0; r < kRows; ++r) {
    std::vector<int64_t>& prompt = prompts.emplace_back();
    for (int64_t t = 0; t < 40; ++t) prompt.push_back((t * 37 + static_cast<int64_t>(r)) % vocab);
  }
  params[4] = params[0];
  params[4].frequency_penalty = 0.4;
  params[4].stop_ids = params[2].stop_ids;
  params[4].ignore_eos = true;
  for (int64_t id = 0; id < vocab; id += 3) params[4].bad_words.push_back({id});
  for (int64_t id = 0; id < vocab; id += 2) params[4].bad_words.push_back({prompts[4].back(), id});  // only at first
  std::vector<std::vector<uint32_t>> allowed(kRows);
  for (const size_t r : {5, 6}) {
    allowed[r].assign((kVocab + 31) / 32, 0);
    for (size_t id = r; id < kVocab; id += r == 5 ? 97 : 5) allowed[r][id / 32] |= 1U << (id % 32);
  }
  params[6] = params[0];
  params[6].bad_words = {{6}, {prompts[6].back(), 11}};
  in_three_orders([&] { check_edits(logits, kVocab, prompts, params, allowed); });
}

TEST(CudaSampler, TheLikeliestTokensAreInOrder) {
  in_three_orders([] {
    for (const size_t vocab : {3, 77, 700}) check_top(vocab);
  });
}

TEST(CudaSampler, GreedyTakesTheFirstOfTheBest) {
  in_three_orders([] {
    std::vector<float> logits = normal(2 * 700, 1, 3);
    logits[40] = logits[311] = logits[699] = 9.0F;
    logits[700 + 5] = 8.0F;
    const std::vector<MortiseCudaDraw> draws(2, {0.9, 1.0, 1.0F, 0, 0, 1, 0});
    std::vector<MortiseCudaDrawn> drawn(2);
    mortise_cuda_sample(logits.data(), 2, 700, 700, draws.data(), {}, drawn.data(), nullptr);
    EXPECT_EQ(drawn[0].id, 40);
    EXPECT_EQ(drawn[1].id, 5);
    EXPECT_NEAR(drawn[0].log_prob, 9.0 - oracle_of(logits.data(), 700, draws[0]).log_all - 9.0, 2e-5);
    EXPECT_EQ(drawn[0].filtered_log_prob, 0.0F);
  });
}

// The engine stops at a log-prob that is not a number; the id must be one of the vocabulary.
TEST(CudaSampler, LogitsThatAreNotNumbersGiveALogProbThatIsNone) {
  emulator_options() = {};
  const std::vector<float> logits(50, NAN);
  for (const int32_t greedy : {0, 1}) {
    const MortiseCudaDraw draw{0.5, 0.9, 1.0F, 0, 0, greedy, 0};
    MortiseCudaDrawn drawn{-1, 0, 0};
    mortise_cuda_sample(logits.data(), 1, 50, 50, &draw, {}, &drawn, nullptr);
    EXPECT_TRUE(drawn.id >= 0 && drawn.id < 50);
    EXPECT_TRUE(std::isnan(drawn.log_prob));
  }
}

// One logit among numbers is enough, whatever the filters are.
TEST(CudaSampler, OneLogitThatIsNotFiniteGivesALogProbThatIsNone) {
  if (takes_few_cases()) GTEST_SKIP() << "the cases differ in numbers, not in memory";
  emulator_options() = {};
  for (const float wrong : {NAN, INFINITY}) {
    std::vector<float> logits = normal(600, 2, 5);
    logits[433] = wrong;
    for (const MortiseCudaDraw& draw :
         {MortiseCudaDraw{0.5, 1.0, 1.0F, 0, 0, 1, 0}, MortiseCudaDraw{0.5, 1.0, 1.0F, 0, 0, 0, 0},
          MortiseCudaDraw{0.5, 0.9, 0.7F, 0, 0, 0, 0}, MortiseCudaDraw{0.5, 1.0, 1.0F, 0, 5, 0, 0},
          MortiseCudaDraw{0.5, 0.8, 1.0F, 0.1F, 9, 0, 0}, MortiseCudaDraw{0.5, 1.0, 1.0F, 0, 0, 0, 0.7}}) {
      MortiseCudaDrawn drawn{-1, 0, 0};
      mortise_cuda_sample(logits.data(), 1, 600, 600, &draw, {}, &drawn, nullptr);
      EXPECT_TRUE(drawn.id >= 0 && drawn.id < 600) << wrong;
      EXPECT_FALSE(std::isfinite(drawn.log_prob)) << wrong;
    }
  }
}

TEST(CudaSampler, EveryBarrierIsNeeded) {
  const auto run = [] {
    check_sampler(77, false, {0, 0.8, 1.0F, 0, 20, 0, 0.7});
    check_top(77);
  };
  expect_every_barrier_is_needed(run, {"logit_rows.cuh", "sampler.cuh"});
}

}  // namespace
}  // namespace mortise::cuda
