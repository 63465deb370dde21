// The kernels of a decoding step against the same formulas in float64, in three orders of their threads: norms, the
// rotation, and attention over pages. Every barrier is needed.
#include <algorithm>

#include "cuda/kernels/attention.cuh"
#include "emulated.h"

namespace mortise::cuda {
namespace {

double bfloat16(double value) {
  const auto number = static_cast<float>(value);
  uint32_t bits = 0;
  std::memcpy(&bits, &number, sizeof bits);
  bits = (bits + 0x7fffU + (bits >> 16 & 1U)) & 0xffff0000U;
  float out = 0;
  std::memcpy(&out, &bits, sizeof out);
  return static_cast<double>(out);
}

void check_norm(int64_t width, bool adds) {
  const auto count = static_cast<size_t>(2 * width);
  const std::vector<float> x = normal(count, 2, 1), added = normal(count, 1, 2);
  const std::vector<float> weight = normal(static_cast<size_t>(width), 1, 3);
  std::vector<float> sum(count, NAN), out(count, NAN);
  std::vector<uint16_t> halves(count);
  for (const MortiseCudaOut to : {MortiseCudaOut{out.data(), 0}, MortiseCudaOut{halves.data(), 1}})
    mortise_cuda_rms_norm(x.data(), adds ? added.data() : nullptr, weight.data(), 1e-3F, 2, width, sum.data(), to,
                          nullptr);
  for (size_t i = 0; i < count; ++i) ASSERT_EQ(halves[i], bfloat16_of(out[i])) << i;
  for (size_t r = 0; r < 2; ++r) {
    std::vector<double> row(static_cast<size_t>(width));
    double squares = 0;
    for (size_t i = 0; i < row.size(); ++i) {
      const size_t at = r * row.size() + i;
      row[i] = double(x[at]) + (adds ? double(added[at]) : 0.0);
      squares += row[i] * row[i];
      if (adds) {
        ASSERT_NEAR(sum[at], row[i], 1e-6) << i;
      }
    }
    const double factor = 1 / std::sqrt(squares / double(width) + 1e-3);
    for (size_t i = 0; i < row.size(); ++i)
      ASSERT_NEAR(out[r * row.size() + i], row[i] * factor * double(weight[i]), 2e-5) << i;
  }
}

TEST(CudaDecode, NormsEqualFloat64) {
  in_three_orders([] {
    for (const int64_t width : {1, 77, 600}) {
      check_norm(width, false);
      check_norm(width, true);
    }
  });
}

TEST(CudaDecode, NormsOfHeadsEqualFloat64) {
  constexpr MortiseCudaHeads kHeads{4, 2, 40};
  constexpr size_t kRows = 3, kDim = 40, kAll = 8;
  const std::vector<float> before = normal(kRows * kAll * kDim, 2, 1), q = normal(kDim, 1, 2), k = normal(kDim, 1, 3);
  in_three_orders([&] {
    std::vector<float> qkv = before;
    mortise_cuda_head_norm(qkv.data(), kRows, kHeads, q.data(), k.data(), 1e-3F, nullptr);
    for (size_t head = 0; head < kRows * kAll; ++head) {
      double squares = 0;
      for (size_t d = 0; d < kDim; ++d) squares += std::pow(double(before[head * kDim + d]), 2);
      const double factor = 1 / std::sqrt(squares / kDim + 1e-3);
      const std::vector<float>& weight = head % kAll < 4 ? q : k;
      for (size_t d = 0; d < kDim; ++d) {
        const double x = double(before[head * kDim + d]);
        ASSERT_NEAR(qkv[head * kDim + d], head % kAll < 6 ? x * factor * double(weight[d]) : x, 2e-5) << head;
      }
    }
  });
}

// ---- keys and values in pages ----

// Samples of some lengths whose pages lie in no order, with room behind them.
struct Pages {
  MortiseCudaHeads heads;
  bool is_bfloat16;
  std::vector<int64_t> positions;  // places of the rows' last tokens
  std::vector<int32_t> table;
  std::vector<float> keys, values;  // [pages, heads, tokens, D]
  std::vector<uint16_t> half_keys, half_values;

  static constexpr int64_t kStride = 40;  // pages of a row

  Pages(MortiseCudaHeads shape, bool in_bfloat16, std::vector<int64_t> last)
      : heads(shape), is_bfloat16(in_bfloat16), positions(std::move(last)) {
    const auto num_pages = static_cast<int64_t>(positions.size()) * kStride;
    for (int64_t page = 0; page < num_pages; ++page) table.push_back(static_cast<int32_t>(page * 7 % num_pages));
    const auto size = static_cast<size_t>(num_pages * heads.num_kv_heads * MORTISE_CUDA_PAGE_TOKENS * heads.head_dim);
    keys = normal(size, 1, 11);
    values = normal(size, 1, 12);
    if (!is_bfloat16) return;
    for (auto* const part : {&keys, &values}) {
      for (float& x : *part) x = static_cast<float>(bfloat16(double(x)));
    }
    half_keys = bits_of(keys);
    half_values = bits_of(values);
  }
  static std::vector<uint16_t> bits_of(const std::vector<float>& numbers) {
    std::vector<uint16_t> out;
    for (const float number : numbers) {
      uint32_t bits = 0;
      std::memcpy(&bits, &number, sizeof bits);
      out.push_back(static_cast<uint16_t>(bits >> 16));
    }
    return out;
  }
  MortiseCudaPages view() {
    if (is_bfloat16) return {half_keys.data(), half_values.data(), 1, table.data(), kStride};
    return {keys.data(), values.data(), 0, table.data(), kStride};
  }
  [[nodiscard]] size_t place(size_t row, int64_t token, int64_t head) const {
    const int64_t page = table[row * kStride + static_cast<size_t>(token / MORTISE_CUDA_PAGE_TOKENS)];
    const int64_t at = (page * heads.num_kv_heads + head) * MORTISE_CUDA_PAGE_TOKENS + token % MORTISE_CUDA_PAGE_TOKENS;
    return static_cast<size_t>(at * heads.head_dim);
  }
};

TEST(CudaDecode, RotatesAndWritesKeysAndValues) {
  constexpr MortiseCudaHeads kHeads{4, 2, 12};
  const std::vector<float> cosines = normal(200, 1, 1), sines = normal(200, 1, 2), product = normal(2 * 8 * 12, 1, 3);
  const std::vector<float> bias = normal(8 * 12, 1, 4);
  for (const int32_t half : {6, 4, 0}) {  // all dimensions, the first eight, and none
    for (const bool in_bfloat16 : {false, true}) {
      std::vector<float> before = product;
      for (size_t i = 0; i < before.size() && in_bfloat16; ++i) before[i] += bias[i % bias.size()];
      in_three_orders([&] {
        Pages pages(kHeads, in_bfloat16, {0, 19});
        std::vector<float> qkv = product;
        mortise_cuda_rope_write(qkv.data(), 2, kHeads, in_bfloat16 ? bias.data() : nullptr, cosines.data(),
                                sines.data(), half, pages.positions.data(), pages.view(), nullptr);
        for (size_t row = 0; row < 2; ++row) {
          for (size_t head = 0; head < 8; ++head) {
            for (size_t d = 0; d < 12; ++d) {
              const size_t at = (row * 8 + head) * 12 + d, width = static_cast<size_t>(half);
              double want = double(before[at]);
              if (head < 6 && d < 2 * width) {
                const size_t other = d < width ? at + width : at - width;
                const size_t turn = static_cast<size_t>(pages.positions[row]) * width + d % width;
                want =
                    want * double(cosines[turn]) + (d < width ? -1 : 1) * double(before[other]) * double(sines[turn]);
              }
              ASSERT_NEAR(qkv[at], want, 1e-5);
              if (head < 4) continue;
              const size_t to = pages.place(row, pages.positions[row], static_cast<int64_t>((head - 4) % 2)) + d;
              const auto& numbers = head < 6 ? pages.keys : pages.values;
              const auto& bits = head < 6 ? pages.half_keys : pages.half_values;
              if (in_bfloat16)
                ASSERT_EQ(bits[to], Pages::bits_of({static_cast<float>(bfloat16(double(qkv[at])))})[0]);
              else
                ASSERT_EQ(numbers[to], qkv[at]);
            }
          }
        }
      });
    }
  }
}

void check_attention(MortiseCudaHeads heads, MortiseCudaScores scores, bool has_sinks, bool in_bfloat16,
                     const std::vector<int64_t>& last) {
  Pages pages(heads, in_bfloat16, last);
  const auto dim = static_cast<size_t>(heads.head_dim), num_heads = static_cast<size_t>(heads.num_heads);
  const size_t all = num_heads + 2 * static_cast<size_t>(heads.num_kv_heads);
  const std::vector<float> qkv = normal(last.size() * all * dim, 1, 5), sinks = normal(num_heads, 1, 6);
  constexpr int32_t kSplits = 3;
  std::vector<float> scratch(last.size() * num_heads * kSplits * (dim + 2), NAN),
      out(last.size() * num_heads * dim, NAN);
  std::vector<uint16_t> halves(out.size());
  ASSERT_EQ(mortise_cuda_attention(qkv.data(), static_cast<int64_t>(last.size()), heads, scores,
                                   has_sinks ? sinks.data() : nullptr, pages.positions.data(), pages.view(), kSplits,
                                   scratch.data(), scores.rounds != 0 ? static_cast<void*>(halves.data()) : out.data(),
                                   nullptr),
            0);
  for (size_t i = 0; i < out.size() && scores.rounds != 0; ++i) out[i] = number_of(halves[i]);
  const auto round = [&](double x) { return scores.rounds != 0 ? bfloat16(x) : x; };
  for (size_t row = 0; row < last.size(); ++row) {
    for (size_t head = 0; head < num_heads; ++head) {
      const int64_t kv_head = static_cast<int64_t>(head) / (heads.num_heads / heads.num_kv_heads);
      const int64_t first = scores.window > 0 ? std::max<int64_t>(0, last[row] + 1 - scores.window) : 0;
      double sum = has_sinks ? std::exp(double(sinks[head])) : 0.0;
      std::vector<double> want(dim, 0.0);
      for (int64_t t = first; t <= last[row]; ++t) {
        const size_t at = pages.place(row, t, kv_head);
        double score = 0;
        for (size_t d = 0; d < dim; ++d)
          score += round(double(qkv[(row * all + head) * dim + d])) * double(pages.keys[at + d]);
        score *= double(scores.scale);
        if (scores.softcap > 0) score = double(scores.softcap) * std::tanh(score / double(scores.softcap));
        sum += std::exp(score);
        for (size_t d = 0; d < dim; ++d) want[d] += std::exp(score) * double(pages.values[at + d]);
      }
      for (size_t d = 0; d < dim; ++d) {
        const double exact = want[d] / sum;
        ASSERT_NEAR(out[(row * num_heads + head) * dim + d], exact, scores.rounds != 0 ? 0.01 : 2e-5)
            << "row " << row << " head " << head << " " << d;
      }
    }
  }
}

// One token, page ends, several splits; heads of few numbers, of many, and of a number that loads of 16 bytes do not divide.
TEST(CudaDecode, AttentionOverPagesEqualsFloat64) {
  in_three_orders([] {
    check_attention({3, 1, 80}, {0.1F, 0, 40, 0}, true, false, {5, 70, 300});
    if (takes_few_cases()) return;
    check_attention({4, 2, 16}, {0.3F, 0, 0, 0}, false, false, {0, 15, 16, 255, 256, 600});
    check_attention({2, 2, 200}, {0.1F, 1.5F, 0, 0}, false, false, {33});
    check_attention({2, 1, 256}, {0.08F, 0, 0, 1}, false, true, {18, 2});
    check_attention({6, 2, 12}, {0.3F, 0, 0, 0}, false, false, {40});
    check_attention({6, 2, 20}, {0.3F, 0, 0, 0}, false, true, {17});
  });
  MortiseCudaHeads large{1, 1, MORTISE_CUDA_MOST_HEAD_DIM + 1};
  EXPECT_EQ(mortise_cuda_attention(nullptr, 1, large, {}, nullptr, nullptr, {}, 1, nullptr, nullptr, nullptr), 1);
}

// Query heads that fill a block's, that leave some of them empty, and that take several blocks.
TEST(CudaDecode, AttentionOfAnyGroupEqualsFloat64) {
  in_three_orders([] {
    check_attention({14, 2, 64}, {0.1F, 0, 50, 0}, true, true, {270});
    if (takes_few_cases()) return;
    check_attention({8, 1, 128}, {0.1F, 1.5F, 0, 0}, false, false, {40, 3});
    check_attention({32, 2, 128}, {0.1F, 0, 0, 0}, true, true, {19});
    check_attention({20, 1, 16}, {0.3F, 0, 0, 0}, false, true, {33});
    check_attention({9, 1, 136}, {0.1F, 0, 0, 0}, true, false, {2});
  });
}

// A bfloat16 number that notes each read of the place where it lies.
struct Counted {
  uint16_t bits = 0;

  Counted() = default;
  explicit Counted(uint16_t given) : bits(given) {}
  Counted(const Counted& other) : bits(other.bits) { note(&other); }
  Counted& operator=(const Counted& other) {
    note(&other);
    bits = other.bits;
    return *this;
  }
  friend float number_of(const Counted& x) { return cuda::number_of(x.bits); }

  static void note(const Counted* place) {
    for (const auto& [numbers, reads] : watched)
      if (place >= numbers->data() && place < numbers->data() + numbers->size())
        ++(*reads)[static_cast<size_t>(place - numbers->data())];
  }
  struct Watched {
    const std::vector<Counted>* numbers;
    std::vector<int>* reads;
  };
  static inline std::vector<Watched> watched = {};  // NOLINT: a copy knows nothing else
};

// How often the kernel reads each number of keys and values: `wanted` times if a row sees its token, else never.
template <int kHeads>
void check_reads(MortiseCudaHeads heads, MortiseCudaScores scores, const std::vector<int64_t>& last, int wanted) {
  Pages pages(heads, /*in_bfloat16=*/true, last);
  std::vector<Counted> keys, values;
  for (const uint16_t bits : pages.half_keys) keys.emplace_back(bits);
  for (const uint16_t bits : pages.half_values) values.emplace_back(bits);
  std::vector<int> key_reads(keys.size()), value_reads(values.size()), want(keys.size());
  const size_t all = static_cast<size_t>(heads.num_heads + 2 * heads.num_kv_heads) * last.size();
  const std::vector<float> qkv = normal(all * static_cast<size_t>(heads.head_dim), 1, 5);
  constexpr int32_t kSplits = 2;
  std::vector<float> splits(last.size() * static_cast<size_t>(heads.num_heads * kSplits * (heads.head_dim + 2)));
  const auto kernel = attention_split_kernel<Counted, kHeads>;
  const int group = heads.num_heads / heads.num_kv_heads, num_parts = (group + kHeads - 1) / kHeads;
  ASSERT_EQ(heads_of_block(group, heads.head_dim), kHeads) << "that of a real launch";
  const unsigned blocks = static_cast<unsigned>(last.size()) * static_cast<unsigned>(heads.num_kv_heads * num_parts);
  Counted::watched = {{&keys, &key_reads}, {&values, &value_reads}};
  MORTISE_LAUNCH(kernel, blocks * kSplits, kThreads, nullptr, qkv.data(), heads, scores, pages.positions.data(),
                 pages.table.data(), Pages::kStride, keys.data(), values.data(), kSplits, splits.data());
  Counted::watched.clear();
  for (size_t row = 0; row < last.size(); ++row) {
    const int64_t first = scores.window > 0 ? std::max<int64_t>(0, last[row] + 1 - scores.window) : 0;
    for (int64_t head = 0; head < heads.num_kv_heads; ++head)
      for (int64_t t = first; t <= last[row]; ++t)
        std::fill_n(want.begin() + static_cast<std::ptrdiff_t>(pages.place(row, t, head)), heads.head_dim, wanted);
  }
  EXPECT_EQ(key_reads, want);
  EXPECT_EQ(value_reads, want);
}

// What a step costs on a GPU: the memory of keys and values is read once for all query heads of a group.
TEST(CudaDecode, AttentionReadsEachKeyAndValueOnce) {
  emulator_options() = {};
  check_reads<8>({14, 2, 64}, {0.1F, 0, 0, 0}, {300, 37}, 1);
  check_reads<16>({32, 2, 128}, {0.1F, 0, 20, 0}, {261}, 1);
  check_reads<4>({6, 2, 12}, {0.1F, 0, 0, 0}, {18}, 1);
  check_reads<8>({9, 1, 136}, {0.1F, 0, 0, 0}, {17}, 2);  // nine query heads take two blocks
}

// A sink must not turn a query that is no number into zeros.
TEST(CudaDecode, AttentionOfAQueryThatIsNotANumberIsNone) {
  emulator_options() = {};
  std::vector<float> qkv(3 * 16, 1.0F), keys(16 * 16, 0.5F), values = keys, scratch(2 * 18), out(16, 0.0F);
  qkv[3] = NAN;
  const float sink = 0.5F;
  const int32_t table = 0;
  const int64_t position = 3;
  for (const float* const sinks : {static_cast<const float*>(nullptr), &sink}) {
    ASSERT_EQ(
        mortise_cuda_attention(qkv.data(), 1, {1, 1, 16}, {0.3F, 0, 0, 0}, sinks, &position,
                               {keys.data(), values.data(), 0, &table, 1}, 2, scratch.data(), out.data(), nullptr),
        0);
    for (const float value : out) EXPECT_TRUE(std::isnan(value));
  }
}

TEST(CudaDecode, EveryBarrierIsNeeded) {
  const auto run = [] {
    check_norm(77, false);
    check_attention({3, 1, 136}, {0.3F, 0, 0, 0}, false, false, {20});  // adds its threads in two rounds
  };
  expect_every_barrier_is_needed(run, {"attention.cuh"});
}

}  // namespace
}  // namespace mortise::cuda
