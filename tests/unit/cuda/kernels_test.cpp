// The kernels against the same sums in float64, in three orders of their threads; and every barrier is needed.
#include <algorithm>

#include "cuda/kernels/dialect.cuh"
#include "emulated.h"

namespace mortise::cuda {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Head {
  int64_t rows = 3, vocab = 0, chunk = 0;
  MortiseCudaHeadScale scale = {1.25F, 0.0F};
  std::vector<float> logits, grads;  // grads: by log-prob, then by entropy
  std::vector<int64_t> target;
};

Head make_head(int64_t vocab, int64_t chunk, float softcap = 0.0F) {
  Head head;
  head.scale.softcap = softcap;
  head.vocab = vocab;
  head.chunk = chunk;
  head.logits = normal(static_cast<size_t>(head.rows * vocab), 3.0, 1);
  head.grads = normal(6, 1.0, 2);
  head.target = {0, vocab - 1, vocab / 2};
  if (vocab > 2 && softcap == 0.0F)
    head.logits[static_cast<size_t>(vocab + 1)] = -std::numeric_limits<float>::infinity();
  return head;
}

// A chunk of the vocabulary is its own tensor [rows, columns], as the head's matrix product makes it.
void check_head(const Head& head) {
  std::vector<MortiseCudaHeadRow> rows(static_cast<size_t>(head.rows));
  std::vector<double> numbers(3 * rows.size(), NAN);
  std::vector<float> gradient(head.logits);
  std::vector<uint16_t> rounded(gradient.size());
  for (int64_t first = 0; first < head.vocab; first += head.chunk) {
    const int64_t columns = std::min(head.chunk, head.vocab - first);
    ASSERT_EQ(mortise_cuda_head_chunk(head.logits.data() + first, head.rows, head.vocab, first, columns,
                                      head.target.data(), head.scale, rows.data(), nullptr),
              0);
  }
  mortise_cuda_head_finish(rows.data(), head.rows, head.scale, numbers.data(), nullptr);
  for (int64_t first = 0; first < head.vocab; first += head.chunk) {
    for (uint16_t* const out : {rounded.data() + first, static_cast<uint16_t*>(nullptr)}) {
      mortise_cuda_head_backward(gradient.data() + first, head.rows, head.vocab, first,
                                 std::min(head.chunk, head.vocab - first), head.target.data(), head.scale, rows.data(),
                                 head.grads.data(), out, nullptr);
    }
  }
  for (size_t i = 0; i < rounded.size(); ++i) EXPECT_EQ(rounded[i], bfloat16_of(gradient[i])) << i;
  const auto cap = double(head.scale.softcap), inverse = double(head.scale.inverse_temperature);
  for (size_t r = 0; r < rows.size(); ++r) {
    const float* const row = head.logits.data() + static_cast<int64_t>(r) * head.vocab;
    std::vector<double> log_p(static_cast<size_t>(head.vocab)), slope(log_p.size(), 1.0);
    double max = -kInf, sum = 0, h = 0;
    for (size_t i = 0; i < log_p.size(); ++i) {
      const double t = cap > 0 ? std::tanh(double(row[i]) / cap) : 0.0;
      if (cap > 0) slope[i] = 1 - t * t;
      max = std::max(max, log_p[i] = (cap > 0 ? cap * t : double(row[i])) * inverse);
    }
    for (const double x : log_p) sum += std::exp(x - max);
    for (double& x : log_p) x -= max + std::log(sum);
    for (const double x : log_p) h -= x > -kInf ? std::exp(x) * x : 0.0;
    EXPECT_NEAR(numbers[r], max + std::log(sum), 2e-5);
    EXPECT_NEAR(numbers[rows.size() + r], log_p[static_cast<size_t>(head.target[r])], 2e-5);
    EXPECT_NEAR(numbers[2 * rows.size() + r], h, 2e-5);
    for (size_t i = 0; i < log_p.size(); ++i) {
      const double p = std::exp(log_p[i]), g = double(head.grads[r]), gh = double(head.grads[rows.size() + r]);
      const double hit = static_cast<int64_t>(i) == head.target[r] ? g : 0.0;
      const double want = (hit - p * (g + (p > 0 ? gh * (log_p[i] + h) : 0.0))) * inverse * slope[i];
      ASSERT_NEAR(gradient[r * log_p.size() + i], want, 2e-5) << "row " << r << " column " << i;
    }
  }
}

TEST(CudaKernels, HeadEqualsFloat64ForAnyChunks) {
  in_three_orders([] {
    check_head(make_head(77, 13));
    if (takes_few_cases()) return;
    check_head(make_head(1, 1));
    check_head(make_head(1031, 1031));
    check_head(make_head(1031, 300));
    check_head(make_head(1031, 300, 2.5F));
  });
}

// Such a token must not be learnt: an update with it is skipped.
TEST(CudaKernels, ALogitThatIsNanReachesAllNumbersOfItsToken) {
  in_three_orders([] {
    for (const int64_t column : {0, 40, 76}) {  // no target
      const int64_t vocab = 77, half = 39;
      const std::vector<int64_t> target{50};
      std::vector<float> logits = normal(77, 3.0, 1);
      logits[static_cast<size_t>(column)] = NAN;
      MortiseCudaHeadRow row = {};
      const MortiseCudaHeadScale scale = {1.25F, 0.0F};
      for (const int64_t first : {int64_t{0}, half}) {
        mortise_cuda_head_chunk(logits.data() + first, 1, vocab, first, std::min(half, vocab - first), target.data(),
                                scale, &row, nullptr);
      }
      std::vector<double> numbers(3, 0.0);
      mortise_cuda_head_finish(&row, 1, scale, numbers.data(), nullptr);
      for (const double number : numbers) EXPECT_TRUE(std::isnan(number)) << column;
      const std::vector<float> grads{1.0F, 0.0F};
      mortise_cuda_head_backward(logits.data(), 1, vocab, 0, vocab, target.data(), scale, &row, grads.data(), nullptr,
                                 nullptr);
      for (const float gradient : logits) EXPECT_TRUE(std::isnan(gradient)) << column;
    }
  });
}

// A tensor that is stepped, and what it was before.
struct Stepped {
  std::vector<float> gradient, before, master, m, v;
  std::vector<uint16_t> copies;
  float lr = 1e-2F, decay = 0.1F;
};

Stepped make_stepped(size_t count, unsigned seed, bool has_copies = true) {
  Stepped out{normal(count, 1, seed), normal(count, 1, seed + 1), {}, {}, {}, {}};
  out.master = out.before;
  out.m.assign(count, 0.0F);
  out.v.assign(count, 0.0F);
  if (has_copies) out.copies.assign(count, 7);
  return out;
}

struct StepTable {
  std::vector<MortiseCudaStepTensor> tensors;
  int64_t num_parts = 0;
};

StepTable table_of(std::vector<Stepped>& all) {
  StepTable out;
  for (Stepped& one : all) {
    const auto count = static_cast<int64_t>(one.master.size());
    out.tensors.push_back({one.gradient.data(), one.master.data(), one.m.data(), one.v.data(),
                           one.copies.empty() ? nullptr : one.copies.data(), count, out.num_parts, out.num_parts,
                           one.lr, one.decay});
    out.num_parts += (count + MORTISE_CUDA_STEP_PART - 1) / MORTISE_CUDA_STEP_PART;
  }
  return out;
}

// The norm and the factor.
std::vector<float> clip_of(const StepTable& table, float max_norm) {
  std::vector<double> sums(static_cast<size_t>(table.num_parts), NAN);
  std::vector<float> clip(2, NAN);
  mortise_cuda_square_sums(table.tensors.data(), static_cast<int64_t>(table.tensors.size()), table.num_parts,
                           sums.data(), nullptr);
  mortise_cuda_clip(sums.data(), table.num_parts, max_norm, clip.data(), nullptr);
  return clip;
}

void step(const StepTable& table, const MortiseCudaAdamW& settings, const std::vector<float>& clip) {
  mortise_cuda_adamw(settings, table.tensors.data(), static_cast<int64_t>(table.tensors.size()), table.num_parts,
                     clip.data(), nullptr);
}

// Tensors that no part divides, an empty one, one of a whole part, and settings of their own.
TEST(CudaKernels, ClippedAdamWEqualsFloat64) {
  const MortiseCudaAdamW settings{0.9F, 0.1F, 0.999F, 0.001F, 1e-8F, 0.1F, std::sqrt(0.001F)};
  in_three_orders([&] {
    std::vector<Stepped> all = {make_stepped(MORTISE_CUDA_STEP_PART + 77, 1), make_stepped(0, 3),
                                make_stepped(5, 5, /*has_copies=*/false), make_stepped(MORTISE_CUDA_STEP_PART, 7)};
    all[2].lr = 0.03F;
    all[2].decay = 0.0F;
    double norm = 0;
    for (const Stepped& one : all)
      for (const float g : one.gradient) norm += double(g) * double(g);
    norm = std::sqrt(norm);
    const StepTable table = table_of(all);
    EXPECT_EQ(table.num_parts, 4);
    EXPECT_EQ(clip_of(table, 0.0F)[1], 1.0F);
    EXPECT_EQ(clip_of(table, 1e6F)[1], 1.0F);
    const std::vector<float> clip = clip_of(table, 1.0F);
    EXPECT_NEAR(clip[0], norm, 1e-4);
    EXPECT_NEAR(clip[1], 1 / (norm + 1e-6), 1e-8);
    step(table, settings, clip);
    for (const Stepped& one : all) {
      for (size_t i = 0; i < one.master.size(); ++i) {
        const double g = double(one.gradient[i]) / (norm + 1e-6), lr = double(one.lr);
        const double want = double(one.before[i]) * (1 - lr * double(one.decay)) - lr * g / (std::abs(g) + 1e-8);
        ASSERT_NEAR(one.master[i], want, 2e-6) << i;
        if (one.copies.empty()) continue;
        const uint32_t bits = uint32_t{one.copies[i]} << 16;
        float copy = 0;
        std::memcpy(&copy, &bits, sizeof copy);
        ASSERT_LE(std::abs(copy - one.master[i]), std::abs(one.master[i]) / 256) << i;
      }
    }
  });
}

TEST(CudaKernels, FiveUpdatesOfAdamWEqualFloat64) {
  std::vector<Stepped> all = {make_stepped(300, 2)};
  std::vector<double> weight(all[0].before.begin(), all[0].before.end()), mean(300, 0.0), square(300, 0.0);
  emulator_options() = {};
  for (int t = 1; t <= 5; ++t) {
    all[0].gradient = normal(300, 1, static_cast<unsigned>(10 + t));
    const double left1 = 1 - std::pow(0.9, t), left2 = std::sqrt(1 - std::pow(0.99, t));
    step(table_of(all), {0.9F, 0.1F, 0.99F, 0.01F, 1e-6F, static_cast<float>(left1), static_cast<float>(left2)},
         {1.0F, 0.5F});
    for (size_t i = 0; i < weight.size(); ++i) {
      const double g = 0.5 * double(all[0].gradient[i]);
      mean[i] = 0.9 * mean[i] + 0.1 * g;
      square[i] = 0.99 * square[i] + 0.01 * g * g;
      weight[i] *= 1 - 1e-3;
      weight[i] -= 1e-2 * (mean[i] / left1) / (std::sqrt(square[i]) / left2 + 1e-6);
      ASSERT_NEAR(all[0].master[i], weight[i], 2e-6 * t) << "update " << t << ", weight " << i;
    }
  }
}

TEST(CudaKernels, AGradientThatIsNotFiniteChangesNothing) {
  emulator_options() = {};
  for (const float bad : {NAN, INFINITY}) {
    std::vector<Stepped> all = {make_stepped(2, 1), make_stepped(3, 3)};
    all[0].gradient[1] = bad;
    const StepTable table = table_of(all);
    const std::vector<float> clip = clip_of(table, 1.0F);
    EXPECT_FALSE(std::isfinite(clip[0]));
    step(table, {0.9F, 0.1F, 0.9F, 0.1F, 0, 1, 1}, clip);
    for (const Stepped& one : all) {
      EXPECT_EQ(one.master, one.before);
      EXPECT_EQ(one.m, std::vector<float>(one.m.size(), 0.0F));
      EXPECT_EQ(one.copies, std::vector<uint16_t>(one.copies.size(), 7));
    }
  }
}

TEST(CudaKernels, EveryBarrierIsNeeded) {
  const auto run = [] {
    check_head(make_head(77, 40));
    std::vector<Stepped> all = {make_stepped(100, 1)};
    clip_of(table_of(all), 1.0F);
  };
  expect_every_barrier_is_needed(run, {"head.cuh"});
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
            (std::vector<std::string>{"attention.cuh", "dialect.cuh", "expert_tensors.cuh", "experts.cuh", "head.cuh",
                                      "logit_rows.cuh", "norm_gradients.cuh", "rotated_heads.cuh", "sampler.cuh"}));
}

}  // namespace
}  // namespace mortise::cuda
