// The operands are packed in blocks that fit in the caches (Goto and van de Geijn 2008); then tasks of some tiles each
// share the block's result.
#include "model/tensor/bf16_gemm.h"

#include <algorithm>

#include "foundation/base/cpus.h"
#include "model/tensor/kernel.h"

namespace mortise {
namespace {

constexpr int64_t kBlockK = 1024;
constexpr int64_t kBlockRowPanels = 160;    // 4.4 MiB with kBf16TileRows and kBlockK
constexpr int64_t kBlockColumnPanels = 48;  // 3 MiB
constexpr int64_t kTaskRowPanels = 4;       // a task's left panels stay in the second cache
constexpr int64_t kTaskColumnPanels = 4;

// Memory of the calling thread, which grows.
class PanelMemory {
 public:
  uint32_t* reserve(int64_t words) {
    if (words > words_) {
      data_.reset();
      data_ = make_aligned<uint32_t>(words);
      words_ = words;
    }
    return data_.get();
  }

 private:
  AlignedArray<uint32_t> data_;
  int64_t words_ = 0;
};

// The panels [panels) of an operand with `rows` rows.
void pack_panels(const Bf16Kernels& kernels, const Bf16Operand& from, int64_t rows, int64_t width,
                 const BlockRange& panels, const BlockRange& k, uint32_t* to) {
  const int64_t words = ceil_div(k.size(), 2) * width;
  const int64_t grain = std::max<int64_t>(1, 32768 / std::max<int64_t>(1, words));
  parallel_tasks<char>(ceil_div(panels.size(), grain), 0, [&](int64_t task, char*) {
    for (int64_t i = task * grain; i < std::min(panels.size(), (task + 1) * grain); ++i) {
      const int64_t first = (panels.begin + i) * width;
      kernels.pack(from, first, std::min(width, rows - first), width, k.begin, k.size(), to + i * words);
    }
  });
}

// One block of k of a block of the result, whose operands are packed.
struct PackedBlock {
  BlockRange rows, columns;  // in panels
  int64_t pairs = 0;
  const uint32_t* left = nullptr;
  const uint32_t* right = nullptr;
};

// Where the product goes.
struct ProductPlace {
  int64_t m = 0, n = 0;
  float* data = nullptr;
  int64_t stride = 0;
};

void multiply(const Bf16Kernels& kernels, const PackedBlock& block, const ProductPlace& c, bool add) {
  const int64_t tasks_across = ceil_div(block.columns.size(), kTaskColumnPanels);
  const int64_t num_tasks = ceil_div(block.rows.size(), kTaskRowPanels) * tasks_across;
  parallel_tasks<char>(num_tasks, 0, [&](int64_t task, char*) {
    const int64_t first_i = task / tasks_across * kTaskRowPanels, first_j = task % tasks_across * kTaskColumnPanels;
    for (int64_t j = first_j; j < std::min(block.columns.size(), first_j + kTaskColumnPanels); ++j) {
      for (int64_t i = first_i; i < std::min(block.rows.size(), first_i + kTaskRowPanels); ++i) {
        const int64_t row = (block.rows.begin + i) * kBf16TileRows,
                      column = (block.columns.begin + j) * kBf16TileColumns;
        kernels.tile(block.left + i * block.pairs * kBf16TileRows, block.right + j * block.pairs * kBf16TileColumns,
                     block.pairs, std::min(kBf16TileRows, c.m - row), std::min(kBf16TileColumns, c.n - column),
                     c.data + row * c.stride + column, c.stride, add);
      }
    }
  });
}

}  // namespace

void bf16_gemm(const Bf16Kernels& kernels, int64_t m, int64_t n, int64_t k, const Bf16Operand& left,
               const Bf16Operand& right, bool add, float* c, int64_t c_stride) {
  if (m == 0 || n == 0) return;
  const int64_t num_steps = std::max<int64_t>(1, ceil_div(k, kBlockK));  // K = 0 sets zeros
  const int64_t step_k = ceil_div(ceil_div(k, num_steps), 2) * 2;
  const int64_t down = ceil_div(m, kBf16TileRows), across = ceil_div(n, kBf16TileColumns);
  thread_local PanelMemory left_memory, right_memory;
  uint32_t* const left_panels = left_memory.reserve(std::min(down, kBlockRowPanels) * kBf16TileRows * step_k / 2);
  uint32_t* const right_panels =
      right_memory.reserve(std::min(across, kBlockColumnPanels) * kBf16TileColumns * step_k / 2);
  for (int64_t step = 0; step < num_steps; ++step) {
    const BlockRange ks{std::min(k, step * step_k), std::min(k, (step + 1) * step_k)};
    for (int64_t column = 0; column < across; column += kBlockColumnPanels) {
      const BlockRange columns{column, std::min(across, column + kBlockColumnPanels)};
      pack_panels(kernels, right, n, kBf16TileColumns, columns, ks, right_panels);
      for (int64_t row = 0; row < down; row += kBlockRowPanels) {
        const BlockRange rows{row, std::min(down, row + kBlockRowPanels)};
        pack_panels(kernels, left, m, kBf16TileRows, rows, ks, left_panels);
        multiply(kernels, {rows, columns, ceil_div(ks.size(), 2), left_panels, right_panels}, {m, n, c, c_stride},
                 add || step > 0);
      }
    }
  }
}

const Bf16Kernels* find_bf16_kernels() {
#ifdef __x86_64__
  static const bool has_them = __builtin_cpu_supports("avx512bf16") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                               __builtin_cpu_supports("avx512vl") != 0;
  return has_them ? &isa_avx512bf16::kBf16Kernels : nullptr;
#else
  return nullptr;
#endif
}

bool has_fast_bf16_dot() { return find_bf16_kernels() != nullptr && is_amd_cpu(); }

}  // namespace mortise
