// The softmax of attention scores and its gradient, for each of the kernels that this CPU has, next to plain float64.
#include "model/layers/attention_softmax.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace mortise {
namespace {

constexpr double kNoSink = -std::numeric_limits<double>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Way {
  std::string name;
  void (*softmax)(float*, const ScoreBlock&, float*, int64_t);
  void (*softmax_grad)(float*, float*, const ScoreBlock&, const float*, float*, int64_t);
};

std::vector<Way> ways() {
  std::vector<Way> out = {{"the one that is chosen", attention_softmax_, attention_softmax_grad_}};
#ifdef __x86_64__
  const AttentionKernels* const best = find_attention_kernels();
  if (best != nullptr)
    out.push_back({"AVX2", isa_avx2::kAttentionKernels.softmax, isa_avx2::kAttentionKernels.softmax_grad});
  if (best == &isa_avx512::kAttentionKernels) out.push_back({"AVX-512", best->softmax, best->softmax_grad});
#endif
  return out;
}

std::vector<ScoreBlock> blocks() {
  std::vector<ScoreBlock> out;
  for (const int64_t first_end : {1, 15, 16, 17, 80}) {
    for (const int64_t rows : {1, 5, 33}) {
      const int64_t width = first_end + rows - 1, stride = (width + kScoreLanes - 1) / kScoreLanes * kScoreLanes;
      for (const int64_t lag : {rows, int64_t{3}}) {
        if (lag < rows && lag >= first_end) continue;  // a row would see nothing
        for (const double sink : {kNoSink, 0.7}) out.push_back({rows, width, stride, first_end, lag, 0.0, sink});
      }
    }
  }
  return out;
}

std::string text_of(const ScoreBlock& b) {
  return "rows " + std::to_string(b.rows) + ", width " + std::to_string(b.width) + ", first_end " +
         std::to_string(b.first_end) + ", lag " + std::to_string(b.lag) + ", sink " + std::to_string(b.sink);
}

// Numbers where a row looks and in the other columns, NaN behind the last column.
std::vector<float> numbers(const ScoreBlock& b, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::uniform_real_distribution<float> some(-6.0F, 6.0F);
  std::vector<float> out(static_cast<size_t>(b.rows * b.stride), kNaN);
  for (int64_t r = 0; r < b.rows; ++r) {
    for (int64_t i = 0; i < b.width; ++i) out[static_cast<size_t>(r * b.stride + i)] = some(generator);
  }
  return out;
}

struct Expected {
  std::vector<double> p, ds;  // by row and column
  std::vector<double> lse, dot;
};

Expected expected(const ScoreBlock& b, const std::vector<float>& scores, const std::vector<float>& dp) {
  Expected out{std::vector<double>(scores.size()), std::vector<double>(scores.size()), {}, {}};
  for (int64_t r = 0; r < b.rows; ++r) {
    const auto at = [&](int64_t i) { return static_cast<size_t>(r * b.stride + i); };
    double sum = std::exp(b.sink), dot = 0;
    for (int64_t i = b.begin(r); i < b.end(r); ++i) sum += std::exp(static_cast<double>(scores[at(i)]));
    for (int64_t i = b.begin(r); i < b.end(r); ++i) {
      out.p[at(i)] = std::exp(static_cast<double>(scores[at(i)])) / sum;
      dot += out.p[at(i)] * static_cast<double>(dp[at(i)]);
    }
    for (int64_t i = b.begin(r); i < b.end(r); ++i)
      out.ds[at(i)] = out.p[at(i)] * (static_cast<double>(dp[at(i)]) - dot);
    out.lse.push_back(std::log(sum));
    out.dot.push_back(dot);
  }
  return out;
}

void expect_near(const ScoreBlock& b, const std::vector<float>& found, const std::vector<double>& wanted) {
  for (int64_t r = 0; r < b.rows; ++r) {
    for (int64_t i = 0; i < b.width; ++i) {
      const auto at = static_cast<size_t>(r * b.stride + i);
      ASSERT_NEAR(static_cast<double>(found[at]), wanted[at], 3e-6) << "row " << r << ", column " << i;
    }
  }
}

TEST(AttentionSoftmax, IsThatOfFloat64) {
  for (const Way& way : ways()) {
    for (const ScoreBlock& b : blocks()) {
      SCOPED_TRACE(way.name + ": " + text_of(b));
      const std::vector<float> scores = numbers(b, 1), dp = numbers(b, 2);
      const Expected wanted = expected(b, scores, dp);
      constexpr int64_t kApart = 3;
      std::vector<float> p = scores, lse(static_cast<size_t>(b.rows * kApart), kNaN);
      way.softmax(p.data(), b, lse.data(), kApart);
      expect_near(b, p, wanted.p);
      std::vector<float> again = scores, ds = dp, dot(lse.size(), kNaN);
      way.softmax_grad(again.data(), ds.data(), b, lse.data(), dot.data(), kApart);
      expect_near(b, again, wanted.p);
      expect_near(b, ds, wanted.ds);
      for (int64_t r = 0; r < b.rows; ++r) {
        EXPECT_NEAR(static_cast<double>(lse[static_cast<size_t>(r * kApart)]), wanted.lse[static_cast<size_t>(r)],
                    3e-6);
        EXPECT_NEAR(static_cast<double>(dot[static_cast<size_t>(r * kApart)]), wanted.dot[static_cast<size_t>(r)],
                    6e-6);
      }
    }
  }
}

// A score that is NaN must reach the loss: the run then skips the update and says so.
TEST(AttentionSoftmax, NaNStaysNaN) {
  const ScoreBlock b{1, 20, 32, 20, 1, 0.0, kNoSink};
  for (const Way& way : ways()) {
    for (int64_t bad = 0; bad < b.width; ++bad) {
      SCOPED_TRACE(way.name + ", column " + std::to_string(bad));
      std::vector<float> scores = numbers(b, 3);
      scores[static_cast<size_t>(bad)] = kNaN;
      float lse = 0;
      way.softmax(scores.data(), b, &lse, 1);
      EXPECT_TRUE(std::isnan(lse));
      EXPECT_TRUE(std::isnan(scores[0]) && std::isnan(scores[static_cast<size_t>(b.width - 1)]));
    }
  }
}

// A row's bits do not depend on the rows above it.
TEST(AttentionSoftmax, ARowDependsOnItsOwnNumbers) {
  const ScoreBlock b{9, 40, 48, 32, 9, 0.0, kNoSink};
  for (const Way& way : ways()) {
    SCOPED_TRACE(way.name);
    std::vector<float> all = numbers(b, 4), lse(9);
    std::vector<float> last(all.end() - b.stride, all.end());
    way.softmax(all.data(), b, lse.data(), 1);
    float alone = 0;
    way.softmax(last.data(), {1, b.width, b.stride, b.end(8), 1, 0.0, kNoSink}, &alone, 1);
    EXPECT_EQ(alone, lse[8]);
    for (int64_t i = 0; i < b.width; ++i)
      ASSERT_EQ(last[static_cast<size_t>(i)], all[static_cast<size_t>(8 * b.stride + i)]) << i;
  }
}

}  // namespace
}  // namespace mortise
