// The kernels of the layers in training against the same formulas in float64, and against finite differences of these, in
// three orders of their threads: gradients of norms, gates, and the heads that attention reads. Every barrier is needed.
#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "cuda/kernels/dialect.cuh"
#include "emulated.h"

namespace mortise::cuda {
namespace {

using Numbers = std::vector<double>;

Numbers widened(const std::vector<float>& numbers) { return {numbers.begin(), numbers.end()}; }

std::vector<uint16_t> halves_of(const std::vector<float>& numbers) {
  std::vector<uint16_t> out;
  for (const float number : numbers) out.push_back(bfloat16_of(number));
  return out;
}
std::vector<float> floats_of(const std::vector<uint16_t>& halves) {
  std::vector<float> out;
  for (const uint16_t half : halves) out.push_back(number_of(half));
  return out;
}
// Numbers that bfloat16 has.
std::vector<float> rounded_normal(size_t count, double scale, unsigned seed) {
  return floats_of(halves_of(normal(count, scale, seed)));
}

// The gradient of value(x), by central differences.
Numbers slopes(const std::function<double(const Numbers&)>& value, Numbers x) {
  constexpr double kStep = 1e-5;
  Numbers out;
  for (double& one : x) {
    const double at = one;
    one = at + kStep;
    const double above = value(x);
    one = at - kStep;
    out.push_back((above - value(x)) / (2 * kStep));
    one = at;
  }
  return out;
}

void expect_near(const std::vector<float>& got, const Numbers& want, double tolerance, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_NEAR(got[i], want[i], tolerance * std::max(1.0, std::abs(want[i]))) << what << " " << i;
}

// ---- norms ----

constexpr double kEps = 1e-3;

struct NormCase {
  size_t rows, width;
  std::vector<float> x, weight, d_out, extra;

  NormCase(size_t num_rows, size_t row_width)
      : rows(num_rows),
        width(row_width),
        x(normal(rows * width, 2, 1)),
        weight(normal(width, 1, 2)),
        d_out(rounded_normal(rows * width, 1, 3)),
        extra(normal(rows * width, 1, 4)) {}

  // {dx, d_weight}
  [[nodiscard]] std::pair<std::vector<float>, std::vector<float>> by_kernel(bool in_bfloat16, bool adds) const {
    std::vector<float> dx(x.size(), NAN), d_weight(width, NAN);
    std::vector<float> parts((rows + MORTISE_CUDA_NORM_ROWS - 1) / MORTISE_CUDA_NORM_ROWS * width, NAN);
    const std::vector<uint16_t> halves = halves_of(d_out);
    const MortiseCudaIn in{in_bfloat16 ? static_cast<const void*>(halves.data()) : d_out.data(), in_bfloat16 ? 1 : 0};
    EXPECT_EQ(
        mortise_cuda_rms_norm_backward(x.data(), weight.data(), static_cast<float>(kEps), static_cast<int64_t>(rows),
                                       static_cast<int64_t>(width), in, adds ? extra.data() : nullptr, dx.data(),
                                       parts.data(), d_weight.data(), nullptr),
        0);
    return {dx, d_weight};
  }

  [[nodiscard]] double factor(const Numbers& numbers, size_t row) const {
    double squares = 0;
    for (size_t i = 0; i < width; ++i) squares += numbers[row * width + i] * numbers[row * width + i];
    return 1 / std::sqrt(squares / double(width) + kEps);
  }
  [[nodiscard]] std::pair<Numbers, Numbers> exact(bool adds) const {
    const Numbers wide = widened(x);
    Numbers dx, d_weight(width, 0.0);
    for (size_t r = 0; r < rows; ++r) {
      const double f = factor(wide, r);
      double dot = 0;
      for (size_t i = 0; i < width; ++i) dot += double(weight[i]) * double(d_out[r * width + i]) * wide[r * width + i];
      for (size_t i = 0; i < width; ++i) {
        const size_t at = r * width + i;
        const double d = double(d_out[at]), shift = wide[at] * f * f * dot / double(width);
        d_weight[i] += d * wide[at] * f;
        dx.push_back(f * (double(weight[i]) * d - shift) + (adds ? double(extra[at]) : 0.0));
      }
    }
    return {dx, d_weight};
  }
  // sum(norm(x) weight d_out)
  [[nodiscard]] double value(const Numbers& given_x, const Numbers& given_weight) const {
    double out = 0;
    for (size_t at = 0; at < given_x.size(); ++at)
      out += given_x[at] * factor(given_x, at / width) * given_weight[at % width] * double(d_out[at]);
    return out;
  }
};

void check_norm_gradients(size_t rows, size_t width) {
  SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(width));
  const NormCase c(rows, width);
  for (const bool in_bfloat16 : {false, true}) {
    const auto [dx, d_weight] = c.by_kernel(in_bfloat16, in_bfloat16);
    const auto [want_dx, want_weight] = c.exact(in_bfloat16);
    expect_near(dx, want_dx, 2e-5, "dx");
    expect_near(d_weight, want_weight, 2e-5, "d_weight");
  }
}

// As many rows as a part has, fewer and more; rows for each number of columns that a thread may have.
TEST(CudaLayers, GradientsOfNormsEqualFloat64) {
  in_three_orders([] {
    check_norm_gradients(17, 77);
    if (takes_few_cases()) return;
    check_norm_gradients(1, 1);
    check_norm_gradients(16, 600);
    check_norm_gradients(35, 40);
    check_norm_gradients(3, 1025);
    check_norm_gradients(2, 2100);
    check_norm_gradients(2, 4097);
    check_norm_gradients(1, MORTISE_CUDA_MOST_NORM_WIDTH);
  });
  EXPECT_EQ(mortise_cuda_rms_norm_backward(nullptr, nullptr, 0, 1, MORTISE_CUDA_MOST_NORM_WIDTH + 1, {nullptr, 0},
                                           nullptr, nullptr, nullptr, nullptr, nullptr),
            1);
}

TEST(CudaLayers, GradientsOfNormsEqualFiniteDifferences) {
  emulator_options() = {};
  const NormCase c(5, 9);
  const auto [dx, d_weight] = c.by_kernel(false, false);
  const Numbers x = widened(c.x), weight = widened(c.weight);
  expect_near(dx, slopes([&](const Numbers& it) { return c.value(it, weight); }, x), 2e-5, "dx");
  expect_near(d_weight, slopes([&](const Numbers& it) { return c.value(x, it); }, weight), 2e-5, "d_weight");
}

// A row does not change with the rows around it, and a sum over rows neither with the order of the threads.
TEST(CudaLayers, GradientsOfNormsHaveTheSameBitsInEveryOrder) {
  const NormCase c(33, 130);
  std::optional<std::pair<std::vector<float>, std::vector<float>>> first;
  in_three_orders([&] {
    const auto got = c.by_kernel(true, true);
    if (!first) first = got;
    EXPECT_EQ(got, *first);
  });
}

// ---- gates ----

double gate_of(double gate, double up, MortiseCudaActivation activation) {
  if (activation == MORTISE_CUDA_SILU) return gate / (1 + std::exp(-gate)) * up;
  return 0.5 * gate * (1 + std::tanh(std::sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate))) * up;
}

void check_gates(size_t rows, size_t width, MortiseCudaActivation activation) {
  std::vector<float> gate_up = normal(rows * 2 * width, 4, 1);
  gate_up[0] = 90.0F;
  if (width > 1) gate_up[1] = -90.0F;
  const std::vector<float> d_out = rounded_normal(rows * width, 1, 2);
  const std::vector<uint16_t> d_halves = halves_of(d_out);
  std::vector<float> out(rows * width, NAN), d(gate_up.size(), NAN);
  std::vector<uint16_t> halves(out.size()), gradient_halves(d.size());
  const auto num_rows = static_cast<int64_t>(rows), columns = static_cast<int64_t>(width);
  mortise_cuda_gated(gate_up.data(), num_rows, columns, activation, {out.data(), 0}, nullptr);
  mortise_cuda_gated(gate_up.data(), num_rows, columns, activation, {halves.data(), 1}, nullptr);
  mortise_cuda_gated_backward(gate_up.data(), num_rows, columns, activation, {d_out.data(), 0}, d.data(), nullptr);
  mortise_cuda_gated_backward(gate_up.data(), num_rows, columns, activation, {d_halves.data(), 1},
                              gradient_halves.data(), nullptr);
  EXPECT_EQ(halves, halves_of(out));
  EXPECT_EQ(gradient_halves, halves_of(d));
  for (size_t i = 0; i < out.size(); ++i) {
    const size_t at = i / width * 2 * width + i % width;
    const double gate = double(gate_up[at]), up = double(gate_up[at + width]), step = 1e-5;
    const auto value = [&](double g, double u) { return gate_of(g, u, activation); };
    ASSERT_NEAR(out[i], value(gate, up), 1e-5 * std::max(1.0, std::abs(value(gate, up)))) << i;
    const double by_gate = double(d_out[i]) * (value(gate + step, up) - value(gate - step, up)) / (2 * step);
    const double by_up = double(d_out[i]) * value(gate, 1);
    ASSERT_NEAR(d[at], by_gate, 2e-5 * std::max(1.0, std::abs(by_gate))) << i;
    ASSERT_NEAR(d[at + width], by_up, 2e-5 * std::max(1.0, std::abs(by_up))) << i;
  }
}

// The gradients of large gates are those of up or 0, never an infinity times 0.
TEST(CudaLayers, LargeGatesHaveFiniteGradients) {
  emulator_options() = {};
  const std::vector<float> gate_up{1e20F, -1e20F, 0.5F, 0.25F}, d_out{2.0F, 2.0F};
  for (const MortiseCudaActivation activation : {MORTISE_CUDA_SILU, MORTISE_CUDA_GELU_TANH}) {
    std::vector<float> d(4, NAN);
    mortise_cuda_gated_backward(gate_up.data(), 1, 2, activation, {d_out.data(), 0}, d.data(), nullptr);
    EXPECT_EQ(d[0], 1.0F);
    EXPECT_EQ(d[1], 0.0F);
    EXPECT_EQ(d[2], 2e20F);
    EXPECT_EQ(d[3], 0.0F);
  }
}

TEST(CudaLayers, GatesAndTheirGradientsEqualFloat64) {
  in_three_orders([] {
    for (const MortiseCudaActivation activation : {MORTISE_CUDA_SILU, MORTISE_CUDA_GELU_TANH}) {
      check_gates(3, 130, activation);
      if (takes_few_cases()) continue;
      check_gates(1, 1, activation);
      check_gates(2, 1030, activation);  // two blocks for each row
    }
  });
}

// ---- heads ----

struct HeadCase {
  MortiseCudaHeads heads;
  int32_t half;
  bool has_norms, is_bfloat16;
  std::vector<int32_t> sources;  // from which each key row comes; empty: from its own
  size_t rows;
};

// A pass of such heads by the kernels, and in float64.
struct HeadPass {
  HeadCase c;
  size_t dim, all, num_keys;
  std::vector<float> qkv, q_weight, k_weight, cosines, sines, dq, dk, dv;
  std::vector<int32_t> begins, places;

  explicit HeadPass(HeadCase given)
      : c(std::move(given)),
        dim(static_cast<size_t>(c.heads.head_dim)),
        all(static_cast<size_t>(c.heads.num_heads + 2 * c.heads.num_kv_heads)),
        num_keys(c.sources.empty() ? c.rows : c.sources.size()),
        qkv(normal(c.rows * all * dim, 2, 1)),
        q_weight(normal(dim, 1, 2)),
        k_weight(normal(dim, 1, 3)),
        cosines(normal(c.rows * static_cast<size_t>(c.half), 1, 4)),
        sines(normal(c.rows * static_cast<size_t>(c.half), 1, 5)),
        dq(rounded_normal(c.rows * static_cast<size_t>(c.heads.num_heads) * dim, 1, 6)),
        dk(rounded_normal(num_keys * static_cast<size_t>(c.heads.num_kv_heads) * dim, 1, 7)),
        dv(rounded_normal(dk.size(), 1, 8)) {
    if (c.sources.empty()) return;
    begins.push_back(0);
    for (size_t row = 0; row < c.rows; ++row) {
      for (size_t place = 0; place < num_keys; ++place)
        if (c.sources[place] == static_cast<int32_t>(row)) places.push_back(static_cast<int32_t>(place));
      begins.push_back(static_cast<int32_t>(places.size()));
    }
  }

  [[nodiscard]] MortiseCudaHeadNorms norms() const {
    if (!c.has_norms) return {nullptr, nullptr, 0};
    return {q_weight.data(), k_weight.data(), static_cast<float>(kEps)};
  }

  // q, k and v behind each other. `bias`: a row that is added before; null: none.
  [[nodiscard]] std::vector<float> forward(const float* bias = nullptr) const {
    std::vector<float> q(dq.size(), NAN), k(dk.size(), NAN), v(dv.size(), NAN);
    std::vector<uint16_t> half_q(q.size()), half_k(k.size()), half_v(v.size());
    const int32_t* const from = c.sources.empty() ? nullptr : c.sources.data();
    const auto num_rows = static_cast<int64_t>(c.rows), keys = static_cast<int64_t>(num_keys);
    const MortiseCudaRotation turns{cosines.data(), sines.data(), c.half};
    EXPECT_EQ(mortise_cuda_rotate_heads(qkv.data(), bias, num_rows, c.heads, norms(), turns, from, keys,
                                        {q.data(), k.data(), v.data(), 0}, nullptr),
              0);
    mortise_cuda_rotate_heads(qkv.data(), bias, num_rows, c.heads, norms(), turns, from, keys,
                              {half_q.data(), half_k.data(), half_v.data(), 1}, nullptr);
    EXPECT_EQ(half_q, halves_of(q));
    EXPECT_EQ(half_k, halves_of(k));
    EXPECT_EQ(half_v, halves_of(v));
    q.insert(q.end(), k.begin(), k.end());
    q.insert(q.end(), v.begin(), v.end());
    return q;
  }

  // {d_qkv, d_norms}, or {d_qkv, d_bias}
  [[nodiscard]] std::pair<std::vector<float>, std::vector<float>> backward(bool has_bias = false) const {
    const size_t width = has_bias ? all * dim : 2 * dim;
    std::vector<float> d_qkv(qkv.size(), NAN), sums(width, NAN);
    std::vector<float> parts((c.rows + MORTISE_CUDA_NORM_ROWS - 1) / MORTISE_CUDA_NORM_ROWS * width, NAN);
    const MortiseCudaCopies copies{begins.empty() ? nullptr : begins.data(), begins.empty() ? nullptr : places.data()};
    std::vector<float> own_dq = dq, own_dk = dk, own_dv = dv;
    std::vector<uint16_t> half_q = halves_of(dq), half_k = halves_of(dk), half_v = halves_of(dv);
    const MortiseCudaHeadRows d_out = c.is_bfloat16
                                          ? MortiseCudaHeadRows{half_q.data(), half_k.data(), half_v.data(), 1}
                                          : MortiseCudaHeadRows{own_dq.data(), own_dk.data(), own_dv.data(), 0};
    EXPECT_EQ(mortise_cuda_rotate_heads_backward(c.has_norms ? qkv.data() : nullptr, static_cast<int64_t>(c.rows),
                                                 c.heads, norms(), {cosines.data(), sines.data(), c.half}, copies,
                                                 d_out, d_qkv.data(), parts.data(), has_bias ? nullptr : sums.data(),
                                                 has_bias ? sums.data() : nullptr, nullptr),
              0);
    return {d_qkv, sums};
  }

  // One head in float64, normed and rotated. `weight`: its norm's.
  [[nodiscard]] Numbers exact_head(const Numbers& x, size_t row, const Numbers& weight) const {
    Numbers out = x;
    double squares = 0;
    for (const double number : x) squares += number * number;
    if (c.has_norms)
      for (size_t d = 0; d < dim; ++d) out[d] *= weight[d] / std::sqrt(squares / double(dim) + kEps);
    const auto half = static_cast<size_t>(c.half);
    for (size_t p = 0; p < half; ++p) {
      const double a = out[p], b = out[p + half];
      const double cosine = double(cosines[row * half + p]), sine = double(sines[row * half + p]);
      out[p] = a * cosine - b * sine;
      out[p + half] = b * cosine + a * sine;
    }
    return out;
  }
  // What forward() gives, in float64.
  [[nodiscard]] Numbers exact(const Numbers& given, const Numbers& weights) const {
    Numbers out;
    const auto first = static_cast<size_t>(c.heads.num_heads), groups = static_cast<size_t>(c.heads.num_kv_heads);
    const auto head = [&](size_t row, size_t index) {
      const auto begin = given.begin() + static_cast<std::ptrdiff_t>((row * all + index) * dim);
      const Numbers x(begin, begin + static_cast<std::ptrdiff_t>(dim));
      const auto weight = weights.begin() + static_cast<std::ptrdiff_t>(index < first ? 0 : dim);
      const bool is_value = index >= first + groups;
      const Numbers it = is_value ? x : exact_head(x, row, Numbers(weight, weight + static_cast<std::ptrdiff_t>(dim)));
      out.insert(out.end(), it.begin(), it.end());
    };
    for (size_t row = 0; row < c.rows; ++row)
      for (size_t h = 0; h < first; ++h) head(row, h);
    for (const size_t part : {first, first + groups})
      for (size_t place = 0; place < num_keys; ++place)
        for (size_t h = 0; h < groups; ++h)
          head(c.sources.empty() ? place : static_cast<size_t>(c.sources[place]), part + h);
    return out;
  }
  // sum(q dq) + sum(k dk) + sum(v dv)
  [[nodiscard]] double value(const Numbers& given, const Numbers& weights) const {
    std::vector<float> d_out = dq;
    d_out.insert(d_out.end(), dk.begin(), dk.end());
    d_out.insert(d_out.end(), dv.begin(), dv.end());
    const Numbers out = exact(given, weights);
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i) sum += out[i] * double(d_out[i]);
    return sum;
  }
};

// Heads without norms whose bias is added first: the same gradients, and the sums of their columns.
void check_bias(const HeadPass& pass, const Numbers& weights) {
  const size_t width = pass.all * pass.dim;
  const std::vector<float> bias = normal(width, 1, 9);
  Numbers biased = widened(pass.qkv);
  for (size_t i = 0; i < biased.size(); ++i) biased[i] += double(bias[i % width]);
  expect_near(pass.forward(bias.data()), pass.exact(biased, weights), 2e-5, "biased q, k, v");
  const auto [d_qkv, d_bias] = pass.backward(/*has_bias=*/true);
  EXPECT_EQ(d_qkv, pass.backward().first);
  Numbers want(width, 0.0);
  for (size_t i = 0; i < d_qkv.size(); ++i) want[i % width] += double(d_qkv[i]);
  expect_near(d_bias, want, 1e-5, "d_bias");
}

void check_heads(const HeadCase& c) {
  SCOPED_TRACE(std::to_string(c.rows) + " rows, heads of " + std::to_string(c.heads.head_dim));
  const HeadPass pass(c);
  Numbers weights = widened(pass.q_weight);
  for (const float weight : pass.k_weight) weights.push_back(double(weight));
  const Numbers qkv = widened(pass.qkv);
  expect_near(pass.forward(), pass.exact(qkv, weights), 2e-5, "q, k, v");
  const auto [d_qkv, d_norms] = pass.backward();
  expect_near(d_qkv, slopes([&](const Numbers& it) { return pass.value(it, weights); }, qkv), 5e-5, "d_qkv");
  if (c.has_norms)
    expect_near(d_norms, slopes([&](const Numbers& it) { return pass.value(qkv, it); }, weights), 5e-5, "d_norms");
  else
    check_bias(pass, weights);
}

// Rotations of all numbers of a head and of a part, norms, shared prompts (rows 0 and 1 are read three times), and more rows than
// a block has.
TEST(CudaLayers, HeadsAndTheirGradientsEqualFiniteDifferences) {
  const std::vector<int32_t> shared{0, 1, 0, 1, 2, 0, 1, 3, 4};
  in_three_orders([&] {
    check_heads({{2, 1, 6}, 3, true, true, shared, 5});
    if (takes_few_cases()) return;
    check_heads({{2, 1, 6}, 3, false, false, {}, 3});
    check_heads({{3, 1, 10}, 2, true, false, {}, 2});
    check_heads({{2, 2, 7}, 2, false, true, shared, 5});
    check_heads({{6, 2, 6}, 3, false, true, {}, 18});  // more heads than warps
    check_heads({{1, 1, 4}, 2, true, false, {}, 18});
  });
}

// Heads as large as they may be: a lane has four pairs.
TEST(CudaLayers, LargeHeadsEqualFloat64) {
  emulator_options() = {};
  for (const bool has_norms : {false, true}) {
    const HeadPass pass({{1, 1, 256}, 128, has_norms, false, {}, 1});
    Numbers weights = widened(pass.q_weight);
    for (const float weight : pass.k_weight) weights.push_back(double(weight));
    expect_near(pass.forward(), pass.exact(widened(pass.qkv), weights), 2e-5, "q, k, v");
    const Numbers want = slopes([&](const Numbers& it) { return pass.value(it, weights); }, widened(pass.qkv));
    expect_near(pass.backward().first, want, 5e-5, "d_qkv");
    if (!has_norms) check_bias(pass, weights);
  }
  const MortiseCudaHeads large{1, 1, MORTISE_CUDA_MOST_HEAD_DIM + 1}, odd{1, 1, 7};
  const float one = 1;
  float sum = 0;
  const auto forward = [](const float* bias, MortiseCudaHeads heads, MortiseCudaHeadNorms norms) {
    return mortise_cuda_rotate_heads(nullptr, bias, 1, heads, norms, {}, nullptr, 1, {}, nullptr);
  };
  const auto backward = [](MortiseCudaHeads heads, MortiseCudaHeadNorms norms, float* d_bias) {
    return mortise_cuda_rotate_heads_backward(nullptr, 1, heads, norms, {}, {}, {}, nullptr, nullptr, nullptr, d_bias,
                                              nullptr);
  };
  EXPECT_EQ(forward(nullptr, large, {}), 1);
  EXPECT_EQ(forward(&one, {1, 1, 8}, {&one, &one, 0}), 1);
  EXPECT_EQ(backward(large, {}, nullptr), 1);
  EXPECT_EQ(backward(odd, {&one, &one, 0}, nullptr), 1);
  EXPECT_EQ(backward({1, 1, 8}, {&one, &one, 0}, &sum), 1);
}

TEST(CudaLayers, EveryBarrierIsNeeded) {
  const auto run = [] {
    check_norm_gradients(3, 40);
    const std::vector<float> x = normal(40, 1, 1);
    std::vector<float> out(40, NAN);
    mortise_cuda_rms_norm(x.data(), nullptr, x.data(), 1e-3F, 1, 40, nullptr, {out.data(), 0}, nullptr);
    const HeadPass pass({{2, 1, 6}, 3, true, true, {}, 2});
    const auto [d_qkv, d_norms] = pass.backward();
    for (const float number : d_norms) ASSERT_TRUE(std::isfinite(number));
  };
  expect_every_barrier_is_needed(run, {"dialect.cuh", "norm_gradients.cuh", "rotated_heads.cuh"});
}

}  // namespace
}  // namespace mortise::cuda
