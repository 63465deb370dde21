// Every kernel of every instruction set against a plain loop in double.
#include "generate/kernels/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace mortise {
namespace {

std::vector<float> random_floats(size_t size, uint32_t seed, float scale = 1.0F) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0F, scale);
  std::vector<float> out(size);
  for (float& x : out) x = normal(generator);
  return out;
}

class KernelsTest : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    kernels_ = find_kernels(GetParam());
    if (kernels_ == nullptr) GTEST_SKIP() << "this CPU lacks the instruction set";
  }
  const Kernels* kernels_ = nullptr;
};

TEST_P(KernelsTest, GemmMatchesDouble) {
  for (const int64_t k : {1, 12, 64, 257}) {
    for (const int64_t m : {1, 2, 3, 5, 7, 8, 9, 12, 17}) {
      const int64_t x_stride = k + 5;
      const int64_t y_stride = 48;
      const auto x = random_floats(static_cast<size_t>(m * x_stride), 1);
      const auto panel = random_floats(static_cast<size_t>(k * 32), 2);
      const auto bias = random_floats(32, 3);
      auto y = random_floats(static_cast<size_t>(m * y_stride), 4);
      const auto before = y;
      for (const bool add : {false, true}) {
        y = before;
        kernels_->gemm_panel(x.data(), x_stride, m, k, panel.data(), bias.data(), y.data(), y_stride, add);
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t j = 0; j < y_stride; ++j) {
            const auto at = static_cast<size_t>(i * y_stride + j);
            double want = static_cast<double>(before[at]);
            if (j < 32) {
              if (!add) want = 0;
              want += static_cast<double>(bias[static_cast<size_t>(j)]);
              for (int64_t c = 0; c < k; ++c) {
                want += static_cast<double>(x[static_cast<size_t>(i * x_stride + c)]) *
                        static_cast<double>(panel[static_cast<size_t>(c * 32 + j)]);
              }
            }
            ASSERT_NEAR(y[at], want, 2e-6 * (1.0 + static_cast<double>(k))) << "m " << m << " k " << k;
          }
        }
      }
    }
  }
}

uint32_t bf16_bits(float x) {  // round to nearest, ties to even; finite numbers only
  const auto bits = std::bit_cast<uint32_t>(x);
  return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
}

// Rounds the weights of a panel [k][32], and packs them.
std::vector<uint32_t> round_panel(std::vector<float>& weights) {
  const size_t k = weights.size() / 32;
  std::vector<uint32_t> words((k + 1) / 2 * 32, 0x7FC00000);  // beyond k: NaN
  for (size_t i = 0; i < weights.size(); ++i) {
    const uint32_t bits = bf16_bits(weights[i]);
    weights[i] = std::bit_cast<float>(bits << 16);
    uint32_t& word = words[i / 64 * 32 + i % 32];
    word = i / 32 % 2 == 0 ? (word & 0xFFFF0000U) | bits : (word & 0xFFFFU) | (bits << 16);
  }
  return words;
}

// A product with bfloat16 weights is that with float weights of the same values, bit for bit: odd k, all tiles.
TEST_P(KernelsTest, Bf16GemmIsTheGemmOfRoundedWeights) {
  for (const int64_t k : {1, 2, 13, 64, 131}) {
    auto rounded = random_floats(static_cast<size_t>(k * 32), 2);
    const std::vector<uint32_t> words = round_panel(rounded);
    const auto bias = random_floats(32, 3);
    for (const int64_t m : {1, 2, 3, 5, 7, 8, 9, 17}) {
      const auto x = random_floats(static_cast<size_t>(m * k), 1);
      for (const bool add : {false, true}) {
        auto want = random_floats(static_cast<size_t>(m * 32), 4);
        auto got = want;
        kernels_->gemm_panel(x.data(), k, m, k, rounded.data(), bias.data(), want.data(), 32, add);
        kernels_->gemm_panel_bf16(x.data(), k, m, k, words.data(), bias.data(), got.data(), 32, add);
        ASSERT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0) << "m " << m << " k " << k;
      }
    }
  }
}

// Against sums in double of the same numbers: odd k, all tiles, more than one block of k. A row has the same bits alone.
TEST_P(KernelsTest, RoundedGemmIsTheGemmOfBfloat16Numbers) {
  for (const int64_t k : {1, 2, 13, 131, 256, 515}) {
    auto weights = random_floats(static_cast<size_t>(k * 32), 2);
    const std::vector<uint32_t> words = round_panel(weights);
    const auto bias = random_floats(32, 3);
    for (const int64_t m : {1, 3, 8, 9, 17}) {
      auto x = random_floats(static_cast<size_t>(m * k), 1);
      kernels_->round_bf16(x.data(), m * k);
      std::vector<float> want(static_cast<size_t>(m * 32)), got = want, alone(32);
      kernels_->gemm_panel_rounded(x.data(), k, m, k, words.data(), bias.data(), got.data(), 32, false);
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < 32; ++j) {
          auto want_ij = static_cast<double>(bias[static_cast<size_t>(j)]);
          for (int64_t c = 0; c < k; ++c) {
            want_ij += static_cast<double>(x[static_cast<size_t>(i * k + c)]) *
                       static_cast<double>(weights[static_cast<size_t>(c * 32 + j)]);
          }
          ASSERT_NEAR(got[static_cast<size_t>(i * 32 + j)], want_ij, 2e-6 * (1.0 + static_cast<double>(k)));
        }
        kernels_->gemm_panel_rounded(x.data() + i * k, k, 1, k, words.data(), bias.data(), alone.data(), 32, false);
        ASSERT_EQ(std::memcmp(alone.data(), got.data() + i * 32, 32 * sizeof(float)), 0) << "row " << i;
      }
      kernels_->gemm_panel_rounded(x.data(), k, m, k, words.data(), bias.data(), want.data(), 32, true);
      EXPECT_EQ(want, got) << "added to zeros";
    }
  }
}

TEST_P(KernelsTest, RoundsToTheNearestBfloat16) {
  auto x = random_floats(50, 1);
  for (const float special : {1.00390625F, 1.01171875F, -1.00390625F, 3.39e38F, 0.0F, -0.0F}) x.push_back(special);
  auto got = x;
  got.push_back(std::numeric_limits<float>::infinity());
  got.push_back(std::bit_cast<float>(0x7F800001U));  // a NaN with no bit in the upper half
  kernels_->round_bf16(got.data(), static_cast<int64_t>(got.size()));
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), bf16_bits(x[i]) << 16) << x[i];
  EXPECT_EQ(got[x.size()], std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(got.back()));
}

// The guarantee behind batch independence: a row has the same bits alone and among others.
TEST_P(KernelsTest, GemmRowDoesNotDependOnOtherRows) {
  const int64_t k = 131;
  const int64_t m = 23;
  const auto x = random_floats(static_cast<size_t>(m * k), 5);
  const auto panel = random_floats(static_cast<size_t>(k * 32), 6);
  std::vector<float> together(static_cast<size_t>(m * 32));
  kernels_->gemm_panel(x.data(), k, m, k, panel.data(), nullptr, together.data(), 32, false);
  for (int64_t i = 0; i < m; ++i) {
    float alone[32];
    kernels_->gemm_panel(x.data() + i * k, k, 1, k, panel.data(), nullptr, alone, 32, false);
    ASSERT_EQ(std::memcmp(alone, together.data() + i * 32, sizeof(alone)), 0) << "row " << i;
  }
}

TEST_P(KernelsTest, RmsNormMatchesDouble) {
  for (const int64_t size : {1, 12, 16, 40, 64, 100}) {
    const auto x = random_floats(static_cast<size_t>(size), 7, 3.0F);
    const auto weight = random_floats(static_cast<size_t>(size), 8);
    std::vector<float> y(static_cast<size_t>(size));
    kernels_->rms_norm(x.data(), weight.data(), 1e-6F, size, y.data());
    double squares = 0;
    for (const float v : x) squares += static_cast<double>(v) * static_cast<double>(v);
    const double inverse = 1.0 / std::sqrt(squares / static_cast<double>(size) + 1e-6);
    for (size_t i = 0; i < y.size(); ++i) {
      ASSERT_NEAR(y[i], static_cast<double>(x[i]) * inverse * static_cast<double>(weight[i]), 3e-6) << size;
    }
  }
}

TEST_P(KernelsTest, SiluMulMatchesDouble) {
  auto both = random_floats(3 * 40, 9, 4.0F);
  both[0] = -200.0F;
  both[1] = 200.0F;
  std::vector<float> out(3 * 20);
  kernels_->silu_mul(both.data(), 40, 3, out.data(), 20);
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = 0; j < 16; ++j) {
      const auto gate = static_cast<double>(both[i * 40 + j]);
      const double want = gate / (1.0 + std::exp(-gate)) * static_cast<double>(both[i * 40 + 16 + j]);
      ASSERT_NEAR(out[i * 20 + j], want, 1e-6 * (1.0 + std::abs(want))) << j;
    }
  }
}

TEST_P(KernelsTest, GeluMulMatchesDouble) {
  auto both = random_floats(3 * 40, 9, 3.0F);
  both[0] = -200.0F;
  both[1] = 200.0F;
  std::vector<float> out(3 * 20);
  kernels_->gelu_mul(both.data(), 40, 3, out.data(), 20);
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = 0; j < 16; ++j) {
      const auto g = static_cast<double>(both[i * 40 + j]);
      const double inner = std::sqrt(2.0 / 3.14159265358979323846) * (g + 0.044715 * g * g * g);
      const double want = 0.5 * g * (1.0 + std::tanh(inner)) * static_cast<double>(both[i * 40 + 16 + j]);
      ASSERT_NEAR(out[i * 20 + j], want, 2e-6 * (1.0 + std::abs(want))) << g;
    }
  }
}

TEST_P(KernelsTest, ClampedMulMatchesDouble) {
  auto both = random_floats(3 * 40, 9, 4.0F);
  both[0] = -200.0F;
  both[1] = 200.0F;
  both[17] = -200.0F;
  std::vector<float> out(3 * 20);
  kernels_->clamped_mul(both.data(), 40, 3, 1.702F, 2.5F, out.data(), 20);
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = 0; j < 16; ++j) {
      const double gate = std::min(static_cast<double>(both[i * 40 + j]), 2.5);
      const double up = std::clamp(static_cast<double>(both[i * 40 + 16 + j]), -2.5, 2.5);
      const double want = (up + 1.0) * gate / (1.0 + std::exp(-1.702 * gate));
      ASSERT_NEAR(out[i * 20 + j], want, 2e-6 * (1.0 + std::abs(want))) << j;
    }
  }
}

TEST_P(KernelsTest, SoftcapMatchesDouble) {
  auto x = random_floats(160, 21, 30.0F);
  x[0] = 0.0F;
  x[1] = 1e-3F;
  x[2] = -INFINITY;
  const auto before = x;
  kernels_->softcap(x.data(), 160, 25.0F);
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = 25.0 * std::tanh(static_cast<double>(before[i]) / 25.0);
    ASSERT_NEAR(x[i], want, 4e-7 * std::abs(want)) << before[i];
  }
}

TEST_P(KernelsTest, RopeRotatesPairs) {
  for (const int64_t dim : {8, 12, 32, 64}) {
    const int64_t half = dim / 2;
    const auto before = random_floats(static_cast<size_t>(3 * dim), 10);
    auto x = before;
    const auto cos = random_floats(static_cast<size_t>(half), 11);
    const auto sin = random_floats(static_cast<size_t>(half), 12);
    kernels_->rope(x.data(), 3, dim, cos.data(), sin.data());
    for (int64_t h = 0; h < 3; ++h) {
      for (int64_t i = 0; i < half; ++i) {
        const auto low = static_cast<size_t>(h * dim + i);
        const auto high = static_cast<size_t>(h * dim + half + i);
        const auto at = static_cast<size_t>(i);
        ASSERT_NEAR(x[low], before[low] * cos[at] - before[high] * sin[at], 1e-6);
        ASSERT_NEAR(x[high], before[high] * cos[at] + before[low] * sin[at], 1e-6);
      }
    }
  }
}

struct Pages {
  Pages(int64_t dim, int64_t length, uint32_t seed) : stride((dim + 15) / 16 * 16) {
    const int64_t count = (length + 15) / 16;
    const int64_t floats = 16 * (dim + stride);
    // Garbage beyond the length must not matter.
    memory = random_floats(static_cast<size_t>(count * floats), seed, 30.0F);
    keys = random_floats(static_cast<size_t>(length * dim), seed + 1);
    values = random_floats(static_cast<size_t>(length * dim), seed + 2);
    for (int64_t p = 0; p < count; ++p) pointers.push_back(memory.data() + p * floats);
    for (int64_t t = 0; t < length; ++t) {
      float* const page = memory.data() + t / 16 * floats;
      for (int64_t d = 0; d < dim; ++d) {
        page[d * 16 + t % 16] = keys[static_cast<size_t>(t * dim + d)];
        page[dim * 16 + t % 16 * stride + d] = values[static_cast<size_t>(t * dim + d)];
      }
    }
  }
  int64_t stride;
  std::vector<float> memory, keys, values;
  std::vector<const float*> pointers;
};

TEST_P(KernelsTest, AttendMatchesDouble) {
  const auto sinks = random_floats(7, 50, 3.0F);  // the cases without a prefix have none
  for (const int64_t dim : {8, 12, 16, 64, 80}) {
    for (const auto& [prefix, own] : {std::pair<int64_t, int64_t>{0, 1}, {5, 1}, {16, 17}, {37, 20}}) {
      const Pages first(dim, prefix, 20);
      const Pages second(dim, own, 30);
      for (const int64_t queries : {1, 2, 3, 4, 7}) {
        const auto q = random_floats(static_cast<size_t>(queries * dim), 40);
        std::vector<float> out(static_cast<size_t>(queries * dim), 99.0F);
        std::vector<float> scores(4 * 128);
        AttendArgs args;
        args.q = q.data();
        args.out = out.data();
        args.num_queries = queries;
        args.head_dim = dim;
        args.value_stride = first.stride;
        args.scale = 0.3F;
        args.sinks = prefix > 0 ? sinks.data() : nullptr;
        args.spans[0] = {first.pointers.data(), prefix};
        args.spans[1] = {second.pointers.data(), own};
        args.scores = scores.data();
        args.score_stride = 128;
        kernels_->attend(args);
        for (int64_t i = 0; i < queries; ++i) {
          std::vector<double> mass;
          std::vector<double> want(static_cast<size_t>(dim), 0.0);
          double sum = prefix > 0 ? std::exp(static_cast<double>(sinks[static_cast<size_t>(i)])) : 0.0;
          for (const auto& [part, length] : {std::pair{&first, prefix}, std::pair{&second, own}}) {
            for (int64_t t = 0; t < length; ++t) {
              double score = 0;
              for (int64_t d = 0; d < dim; ++d) {
                score += static_cast<double>(q[static_cast<size_t>(i * dim + d)]) *
                         static_cast<double>(part->keys[static_cast<size_t>(t * dim + d)]);
              }
              const double e = std::exp(0.3 * score);
              sum += e;
              for (int64_t d = 0; d < dim; ++d) {
                want[static_cast<size_t>(d)] += e * static_cast<double>(part->values[static_cast<size_t>(t * dim + d)]);
              }
            }
          }
          for (int64_t d = 0; d < dim; ++d) {
            ASSERT_NEAR(out[static_cast<size_t>(i * dim + d)], want[static_cast<size_t>(d)] / sum, 1e-5)
                << "dim " << dim << " prefix " << prefix << " own " << own << " query " << i;
          }
        }
      }
    }
  }
}

// Tokens out of the window do not count, wherever it begins: in the prompt, at a page's border, in the row's own pages.
TEST_P(KernelsTest, AttendWithWindowAndCap) {
  const int64_t dim = 12;
  const int64_t prefix = 37;
  const int64_t own = 20;
  const Pages first(dim, prefix, 20);
  const Pages second(dim, own, 30);
  const auto q = random_floats(static_cast<size_t>(3 * dim), 40, 3.0F);
  for (const int64_t window : {1, 4, 20, 21, 25, 41, 50, 57}) {
    const int64_t begin = prefix + own - window;
    std::vector<float> out(static_cast<size_t>(3 * dim), 99.0F);
    std::vector<float> scores(4 * 128);
    AttendArgs args;
    args.q = q.data();
    args.out = out.data();
    args.num_queries = 3;
    args.head_dim = dim;
    args.value_stride = first.stride;
    args.scale = 0.3F;
    args.softcap = 2.0F;
    args.spans[0] = {first.pointers.data(), prefix, std::min(begin, prefix)};
    args.spans[1] = {second.pointers.data(), own, std::max<int64_t>(0, begin - prefix)};
    args.scores = scores.data();
    args.score_stride = 128;
    kernels_->attend(args);
    for (int64_t i = 0; i < 3; ++i) {
      std::vector<double> want(static_cast<size_t>(dim), 0.0);
      double sum = 0;
      for (int64_t t = begin; t < prefix + own; ++t) {
        const Pages& part = t < prefix ? first : second;
        const int64_t place = t < prefix ? t : t - prefix;
        double score = 0;
        for (int64_t d = 0; d < dim; ++d) {
          score += static_cast<double>(q[static_cast<size_t>(i * dim + d)]) *
                   static_cast<double>(part.keys[static_cast<size_t>(place * dim + d)]);
        }
        const double e = std::exp(2.0 * std::tanh(0.3 * score / 2.0));
        sum += e;
        for (int64_t d = 0; d < dim; ++d) {
          want[static_cast<size_t>(d)] += e * static_cast<double>(part.values[static_cast<size_t>(place * dim + d)]);
        }
      }
      for (int64_t d = 0; d < dim; ++d) {
        ASSERT_NEAR(out[static_cast<size_t>(i * dim + d)], want[static_cast<size_t>(d)] / sum, 1e-5)
            << "window " << window << " query " << i;
      }
    }
  }
}

TEST_P(KernelsTest, ExpSumIsAccurate) {
  auto logits = random_floats(256, 50, 8.0F);
  logits[3] = -INFINITY;
  for (const float inverse_temperature : {1.0F, 0.25F, 3.0F}) {
    float max = 0;
    float sum = 0;
    kernels_->exp_sum(logits.data(), 256, inverse_temperature, &max, &sum);
    ASSERT_EQ(max, *std::max_element(logits.begin(), logits.end()));
    double want = 0;
    for (const float x : logits)
      want += std::exp((static_cast<double>(x) - static_cast<double>(max)) * static_cast<double>(inverse_temperature));
    EXPECT_NEAR(std::log(static_cast<double>(sum)), std::log(want), 5e-7);
  }
  const std::vector<float> never(32, -INFINITY);
  float max = 0;
  float sum = 1;
  kernels_->exp_sum(never.data(), 32, 1.0F, &max, &sum);
  EXPECT_EQ(max, -INFINITY);
  EXPECT_EQ(sum, 0.0F);
}

TEST_P(KernelsTest, ExpScaledHasSmallRelativeError) {
  std::vector<float> x;
  for (int i = 0; i < 16 * 500; ++i) x.push_back(-static_cast<float>(i) * 0.0113F);
  std::vector<float> out(x.size());
  kernels_->exp_scaled(x.data(), static_cast<int64_t>(x.size()), 0.0F, 1.0F, out.data());
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = std::exp(static_cast<double>(x[i]));
    if (x[i] < -87.0F) {
      ASSERT_EQ(out[i], 0.0F);
    } else {
      ASSERT_NEAR(out[i] / want, 1.0, 3e-7) << x[i];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllIsas, KernelsTest, testing::Values(Isa::kBase, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16),
                         [](const auto& test) {
                           return std::string(test.param == Isa::kBase     ? "base"
                                              : test.param == Isa::kAvx2   ? "avx2"
                                              : test.param == Isa::kAvx512 ? "avx512"
                                                                           : "avx512bf16");
                         });

}  // namespace
}  // namespace mortise
