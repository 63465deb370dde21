// The right operand is packed in blocks that stay in the second cache (Goto and van de Geijn 2008).
#include "model/tensor/f32_gemm.h"

#include <algorithm>

#include "foundation/base/cpus.h"
#include "model/tensor/kernel.h"

namespace mortise {
namespace {

constexpr int64_t kBlockPanels = 16;  // 512 KiB
constexpr int64_t kTaskFlops = 1 << 18;
constexpr int64_t kPartsPerThread = 4;  // a thread that loses its core keeps the others waiting for one part only
// A part's rows, at least: each part packs all of its columns, some 2% of its time.
constexpr int64_t kPartRows = 384;       // the panels are a transposed copy of the right operand
constexpr int64_t kPlainPartRows = 128;  // they are a plain one

// Memory of the calling thread for the panels of a block.
float* panel_memory() {
  thread_local const auto data = make_aligned<float>(kBlockPanels * kF32BlockK * kF32Columns);
  return data.get();
}

struct Product {
  const F32Kernels& kernels;
  int64_t k;
  F32Operand left, right;
  float alpha;
  bool add;
  float* c;
  int64_t c_stride;
};

// One block of k of some columns: `columns` has at most kBlockPanels panels.
void multiply_block(const Product& p, const BlockRange& rows, const BlockRange& columns, const BlockRange& ks,
                    bool add) {
  float* const panels = panel_memory();
  const int64_t panel_size = ks.size() * kF32Columns;
  for (int64_t j = columns.begin, i = 0; j < columns.end; j += kF32Columns, ++i)
    p.kernels.pack(p.right, j, std::min(kF32Columns, columns.end - j), ks.begin, ks.size(), panels + i * panel_size);
  p.kernels.multiply({p.left.at(rows.begin, ks.begin), p.left.stride, p.left.k_contiguous}, panels, rows.size(),
                     columns.size(), ks.size(), p.alpha, p.c + rows.begin * p.c_stride + columns.begin, p.c_stride,
                     add);
}

// visit(ks) for each block of K, in order.
template <class Visit>
void over_blocks_of_k(int64_t k, const Visit& visit) {
  const int64_t num_blocks = num_f32_blocks(k);
  for (int64_t i = 0; i < num_blocks; ++i) visit(f32_block(k, i));
}

constexpr int64_t kBlockColumns = kBlockPanels * kF32Columns;

void multiply_part(const Product& p, const BlockRange& rows, const BlockRange& columns) {
  for (int64_t column = columns.begin; column < columns.end; column += kBlockColumns) {
    const BlockRange block{column, std::min(columns.end, column + kBlockColumns)};
    over_blocks_of_k(p.k, [&](const BlockRange& ks) { multiply_block(p, rows, block, ks, p.add || ks.begin > 0); });
  }
}

// Part i of n of [0, size), on a border of `unit`.
BlockRange part_of(int64_t size, int64_t unit, int64_t i, int64_t n) {
  const int64_t units = ceil_div(size, unit);
  return {std::min(size, units * i / n * unit), std::min(size, units * (i + 1) / n * unit)};
}

}  // namespace

int64_t num_f32_blocks(int64_t k) {
  const int64_t least = ceil_div(k, kF32BlockK);
  return least <= 1 ? 1 : ceil_div(least, 2) * 2;  // K = 0 sets zeros
}

BlockRange f32_block(int64_t k, int64_t i) {
  const int64_t size = ceil_div(k, num_f32_blocks(k));
  return {std::min(k, i * size), std::min(k, (i + 1) * size)};
}

void f32_gemm(const F32Kernels& kernels, int64_t m, int64_t n, int64_t k, const F32Operand& left,
              const F32Operand& right, float alpha, bool add, float* c, int64_t c_stride) {
  if (m == 0 || n == 0) return;
  const Product product{kernels, k, left, right, alpha, add, c, c_stride};
  const double tasks = static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) / kTaskFlops;
  const int64_t threads = tasks < 2.0 || at::in_parallel_region() ? 1 : compute_threads();
  const int64_t parts = threads == 1 ? 1 : std::clamp(static_cast<int64_t>(tasks), threads, threads * kPartsPerThread);
  // A part packs its own columns, so cuts go between columns where there are enough of them.
  const int64_t across = std::min(parts, std::max<int64_t>(1, n / (4 * kF32Columns)));
  const int64_t part_rows = right.k_contiguous ? kPartRows : kPlainPartRows;
  const int64_t down = std::min(ceil_div(parts, across), std::max(ceil_div(threads, across), m / part_rows));
  // Parts that run at the same time have other rows of c: threads that write to neighbouring lines slow each other down.
  parallel_tasks<char>(across * down, 0, [&](int64_t task, char*) {
    const BlockRange rows = part_of(m, 1, task % down, down), columns = part_of(n, kF32Columns, task / down, across);
    if (rows.size() > 0 && columns.size() > 0) multiply_part(product, rows, columns);
  });
}

void f32_transposed_product(const F32Kernels& kernels, int64_t m, int64_t n, int64_t k, const float* left,
                            int64_t left_stride, const float* right, int64_t right_stride, float alpha, float* panels,
                            float* out, bool add) {
  const F32Operand from{right, right_stride, false};
  for (int64_t j = 0; j < n; j += kF32Columns)
    kernels.pack(from, j, std::min(kF32Columns, n - j), 0, k, panels + j * k);
  kernels.multiply({left, left_stride, false}, panels, m, n, k, alpha, out, n, add);
}

// By blocks of K, each with its panels one after the other.
F32Packed::F32Packed(const F32Kernels& kernels, const F32Operand& right, int64_t n, int64_t k)
    : kernels_(kernels),
      n_(n),
      k_(k),
      panels_(new float[static_cast<size_t>(ceil_div(n, kF32Columns) * kF32Columns * k)]) {
  float* panel = panels_.get();
  over_blocks_of_k(k, [&](const BlockRange& ks) {
    for (int64_t j = 0; j < n; j += kF32Columns, panel += ks.size() * kF32Columns)
      kernels.pack(right, j, std::min(kF32Columns, n - j), ks.begin, ks.size(), panel);
  });
}

void F32Packed::multiply(const float* left, int64_t rows, float* c) const {
  const int64_t packed_columns = ceil_div(n_, kF32Columns) * kF32Columns;
  over_blocks_of_k(k_, [&](const BlockRange& ks) {
    const float* const panels = panels_.get() + ks.begin * packed_columns;
    for (int64_t column = 0; column < n_; column += kBlockColumns) {
      kernels_.multiply({left + ks.begin, k_, true}, panels + column * ks.size(), rows,
                        std::min(kBlockColumns, n_ - column), ks.size(), 1.0F, c + column, n_, ks.begin > 0);
    }
  });
}

const F32Kernels* find_f32_kernels() {
#ifdef __x86_64__
  static const F32Kernels* const kernels = best_for_this_cpu(&isa_avx512::kF32Kernels, &isa_avx2::kF32Kernels);
  return kernels;
#else
  return nullptr;
#endif
}

bool has_slow_f32_blas() {
#ifdef __x86_64__
  static const bool is_slow = find_f32_kernels() == &isa_avx512::kF32Kernels && is_amd_cpu();
  return is_slow;
#else
  return false;
#endif
}

}  // namespace mortise
