// The kernels against the same sums in float64, in three orders of their threads; and every barrier is needed.
#include <algorithm>

#include "emulated.h"

namespace mortise::cuda {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Head {
  int64_t rows = 3, vocab = 0, chunk = 0;
  float inverse_temperature = 1.25F;
  std::vector<float> logits, grad_log_prob, grad_entropy;
  std::vector<int64_t> target;
};

Head make_head(int64_t vocab, int64_t chunk) {
  Head head;
  head.vocab = vocab;
  head.chunk = chunk;
  head.logits = normal(static_cast<size_t>(head.rows * vocab), 3.0, 1);
  head.grad_log_prob = normal(3, 1.0, 2);
  head.grad_entropy = normal(3, 1.0, 3);
  head.target = {0, vocab - 1, vocab / 2};
  if (vocab > 2) head.logits[static_cast<size_t>(vocab + 1)] = -std::numeric_limits<float>::infinity();
  return head;
}

// A chunk of the vocabulary is its own tensor [rows, columns], as the head's matrix product makes it.
void check_head(const Head& head) {
  std::vector<MortiseCudaHeadRow> rows(static_cast<size_t>(head.rows));
  std::vector<float> log_prob(rows.size(), NAN), entropy(rows.size(), NAN), gradient(head.logits);
  for (int64_t first = 0; first < head.vocab; first += head.chunk) {
    const int64_t columns = std::min(head.chunk, head.vocab - first);
    ASSERT_EQ(mortise_cuda_head_chunk(head.logits.data() + first, head.rows, head.vocab, first, columns,
                                      head.target.data(), head.inverse_temperature, rows.data(), nullptr),
              0);
  }
  mortise_cuda_head_finish(rows.data(), head.rows, head.inverse_temperature, log_prob.data(), entropy.data(), nullptr);
  for (int64_t first = 0; first < head.vocab; first += head.chunk) {
    mortise_cuda_head_backward(gradient.data() + first, head.rows, head.vocab, first,
                               std::min(head.chunk, head.vocab - first), head.target.data(), head.inverse_temperature,
                               rows.data(), head.grad_log_prob.data(), head.grad_entropy.data(), nullptr);
  }
  for (size_t r = 0; r < rows.size(); ++r) {
    const float* const row = head.logits.data() + static_cast<int64_t>(r) * head.vocab;
    std::vector<double> log_p(static_cast<size_t>(head.vocab));
    double max = -kInf, sum = 0, h = 0;
    for (size_t i = 0; i < log_p.size(); ++i)
      max = std::max(max, log_p[i] = double(row[i]) * double(head.inverse_temperature));
    for (const double x : log_p) sum += std::exp(x - max);
    for (double& x : log_p) x -= max + std::log(sum);
    for (const double x : log_p) h -= x > -kInf ? std::exp(x) * x : 0.0;
    EXPECT_NEAR(log_prob[r], log_p[static_cast<size_t>(head.target[r])], 2e-5);
    EXPECT_NEAR(entropy[r], h, 2e-5);
    for (size_t i = 0; i < log_p.size(); ++i) {
      const double p = std::exp(log_p[i]), g = double(head.grad_log_prob[r]), gh = double(head.grad_entropy[r]);
      const double hit = static_cast<int64_t>(i) == head.target[r] ? g : 0.0;
      const double want = (hit - p * (g + (p > 0 ? gh * (log_p[i] + h) : 0.0))) * double(head.inverse_temperature);
      ASSERT_NEAR(gradient[r * log_p.size() + i], want, 2e-5) << "row " << r << " column " << i;
    }
  }
}

TEST(CudaKernels, HeadEqualsFloat64ForAnyChunks) {
  in_three_orders([] {
    check_head(make_head(1, 1));
    check_head(make_head(77, 13));
    check_head(make_head(1031, 1031));
    check_head(make_head(1031, 300));
  });
}

TEST(CudaKernels, ClippedAdamWEqualsFloat64) {
  const int64_t n = MORTISE_CUDA_NORM_PART + 77;
  const std::vector<float> gradient = normal(n, 1, 1), before = normal(n, 1, 2);
  const MortiseCudaAdamW s{1e-2F, 0.9F, 0.999F, 1e-8F, 0.1F, 0.1F, std::sqrt(0.001F)};
  double norm = 0;
  for (const float g : gradient) norm += double(g) * double(g);
  norm = std::sqrt(norm);
  in_three_orders([&] {
    std::vector<double> partial(2, NAN);
    std::vector<float> clip(2, NAN), master = before, m(n, 0.0F), v(n, 0.0F);
    std::vector<uint16_t> weights(n);
    mortise_cuda_square_sums(gradient.data(), n, partial.data(), nullptr);
    mortise_cuda_clip(partial.data(), 2, 1.0F, clip.data(), nullptr);
    EXPECT_NEAR(clip[0], norm, 1e-4);
    EXPECT_NEAR(clip[1], 1 / (norm + 1e-6), 1e-8);
    mortise_cuda_adamw(s, n, clip.data(), gradient.data(), master.data(), m.data(), v.data(), weights.data(), nullptr);
    for (size_t i = 0; i < master.size(); ++i) {
      const double g = double(gradient[i]) / (norm + 1e-6);
      const double want = double(before[i]) * (1 - 1e-3) - 1e-2 * g / (std::abs(g) + 1e-8);
      ASSERT_NEAR(master[i], want, 2e-6) << i;
      const uint32_t bits = uint32_t{weights[i]} << 16;
      float copy = 0;
      std::memcpy(&copy, &bits, sizeof copy);
      ASSERT_LE(std::abs(copy - master[i]), std::abs(master[i]) / 256) << i;
    }
  });
}

TEST(CudaKernels, FiveUpdatesOfAdamWEqualFloat64) {
  const size_t n = 300;
  std::vector<float> clip{0.0F, 0.5F}, master = normal(n, 1, 2), m(n, 0.0F), v(n, 0.0F);
  std::vector<double> weight(master.begin(), master.end()), mean(n, 0.0), square(n, 0.0);
  std::vector<uint16_t> copies(n);
  emulator_options() = {};
  for (int t = 1; t <= 5; ++t) {
    const std::vector<float> gradient = normal(n, 1, static_cast<unsigned>(10 + t));
    const double left1 = 1 - std::pow(0.9, t), left2 = std::sqrt(1 - std::pow(0.99, t));
    const MortiseCudaAdamW s{1e-2F, 0.9F, 0.99F, 1e-6F, 0.1F, static_cast<float>(left1), static_cast<float>(left2)};
    mortise_cuda_adamw(s, static_cast<int64_t>(n), clip.data(), gradient.data(), master.data(), m.data(), v.data(),
                       copies.data(), nullptr);
    for (size_t i = 0; i < n; ++i) {
      const double g = 0.5 * double(gradient[i]);
      mean[i] = 0.9 * mean[i] + 0.1 * g;
      square[i] = 0.99 * square[i] + 0.01 * g * g;
      weight[i] *= 1 - 1e-3;
      weight[i] -= 1e-2 * (mean[i] / left1) / (std::sqrt(square[i]) / left2 + 1e-6);
      ASSERT_NEAR(master[i], weight[i], 2e-6 * t) << "update " << t << ", weight " << i;
    }
  }
}

TEST(CudaKernels, AGradientThatIsNotFiniteChangesNothing) {
  emulator_options() = {};
  std::vector<float> gradient{1.0F, NAN}, clip(2), master{1.0F, 2.0F}, m(2), v(2);
  std::vector<uint16_t> weights(2, 7);
  double partial = 0;
  mortise_cuda_square_sums(gradient.data(), 2, &partial, nullptr);
  mortise_cuda_clip(&partial, 1, 1.0F, clip.data(), nullptr);
  mortise_cuda_adamw({1, 0.9F, 0.9F, 0, 0, 1, 1}, 2, clip.data(), gradient.data(), master.data(), m.data(), v.data(),
                     weights.data(), nullptr);
  EXPECT_EQ(clip[1], 0.0F);
  EXPECT_EQ(master, (std::vector<float>{1.0F, 2.0F}));
  EXPECT_EQ(weights, (std::vector<uint16_t>{7, 7}));
}

TEST(CudaKernels, EveryBarrierIsNeeded) {
  const auto run = [] {
    check_head(make_head(77, 40));
    const std::vector<float> gradient = normal(100, 1, 1);
    std::vector<double> partial(1);
    mortise_cuda_square_sums(gradient.data(), 100, partial.data(), nullptr);
  };
  expect_every_barrier_is_needed(run, {"dialect.cuh", "head.cuh"});
}

// The tests with the name EveryBarrierIsNeeded pass these sources to expect_every_barrier_is_needed().
TEST(CudaKernels, NoOtherSourceHasBarriers) {
  std::vector<std::string> sources;
  for (const auto& entry : std::filesystem::directory_iterator(kernel_folder())) {
    const std::string name = entry.path().filename().string();
    if (!barrier_lines(name).empty()) sources.push_back(name);
  }
  std::ranges::sort(sources);
  EXPECT_EQ(sources,
            (std::vector<std::string>{"decode.cuh", "dialect.cuh", "head.cuh", "logit_rows.cuh", "sampler.cuh"}));
}

}  // namespace
}  // namespace mortise::cuda
