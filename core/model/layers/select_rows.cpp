// See select_rows.h.
#include "model/layers/select_rows.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <vector>

#include "model/device/kernel_table.h"
#include "model/tensor/kernel.h"

namespace mortise {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kNumbersAtOnce = 16384;  // that a task copies or adds, at least

// For each row of the matrix, where it was selected: sources[begin[n]..begin[n + 1]), in order.
struct Selections {
  std::vector<int64_t> begin;
  std::vector<int64_t> sources;

  Selections(const int64_t* places, int64_t count, int64_t num_rows)
      : begin(static_cast<size_t>(num_rows) + 1), sources(static_cast<size_t>(count)) {
    for (int64_t i = 0; i < count; ++i) ++begin[static_cast<size_t>(places[i]) + 1];
    for (size_t n = 1; n < begin.size(); ++n) begin[n] += begin[n - 1];
    std::vector<int64_t> next(begin.begin(), begin.end() - 1);
    for (int64_t i = 0; i < count; ++i) sources[static_cast<size_t>(next[static_cast<size_t>(places[i])]++)] = i;
  }
};

template <class T>
void add_selected(const Selections& from, const T* dy, int64_t width, int64_t row, T* dx) {
  std::fill_n(dx, width, T(0));
  for (int64_t s = from.begin[static_cast<size_t>(row)]; s < from.begin[static_cast<size_t>(row) + 1]; ++s) {
    const T* const source = dy + from.sources[static_cast<size_t>(s)] * width;
    for (int64_t i = 0; i < width; ++i) dx[i] += source[i];
  }
}

class SelectRowsFunction : public torch::autograd::Function<SelectRowsFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& places) {
    const int64_t count = places.size(0), width = x.size(1), num_rows = x.size(0);
    const int64_t* const place = places.const_data_ptr<int64_t>();
    TORCH_CHECK(std::all_of(place, place + count, [&](int64_t n) { return n >= 0 && n < num_rows; }),
                "select_rows: a row is not in the matrix");
    at::Tensor out = at::empty({count, width}, x.options());
    dispatch_float(x, [&](auto zero) {
      using T = decltype(zero);
      const T* const from = x.const_data_ptr<T>();
      T* const to = out.mutable_data_ptr<T>();
      compute_ranges(count, std::max<int64_t>(1, kNumbersAtOnce / width), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) std::copy_n(from + place[i] * width, width, to + i * width);
      });
    });
    ctx->save_for_backward({places});
    ctx->saved_data["rows"] = num_rows;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const at::Tensor places = ctx->get_saved_variables()[0], dout = grads[0].contiguous();
    const int64_t num_rows = ctx->saved_data["rows"].toInt(), width = dout.size(1);
    const Selections selections(places.const_data_ptr<int64_t>(), places.size(0), num_rows);
    at::Tensor dx = at::empty({num_rows, width}, dout.options());
    dispatch_float(dout, [&](auto zero) {
      using T = decltype(zero);
      const T* const dy = dout.const_data_ptr<T>();
      T* const out = dx.mutable_data_ptr<T>();
      compute_ranges(num_rows, std::max<int64_t>(1, kNumbersAtOnce / width), [&](int64_t begin, int64_t end) {
        for (int64_t n = begin; n < end; ++n) add_selected(selections, dy, width, n, out + n * width);
      });
    });
    return {dx, at::Tensor()};
  }
};

// Backward of index_select adds rows up, for which libtorch sorts on a device.
class PermuteRowsFunction : public torch::autograd::Function<PermuteRowsFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& places,
                            const at::Tensor& back) {
    ctx->save_for_backward({back});
    return at::index_select(x, 0, places);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {at::index_select(grads[0], 0, ctx->get_saved_variables()[0]), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor permute_rows(const at::Tensor& x_NH, const at::Tensor& place_N, const at::Tensor& back_N) {
  return PermuteRowsFunction::apply(x_NH, place_N, back_N);
}

at::Tensor select_rows(const at::Tensor& x_NH, const at::Tensor& place_R) {
  const bool is_float = x_NH.scalar_type() == at::kFloat || x_NH.scalar_type() == at::kDouble;
  if (!x_NH.is_cpu() || !is_float || x_NH.dim() != 2 || x_NH.size(1) == 0)
    return at::index_select(x_NH, 0, on_device(x_NH.device(), place_R));
  return SelectRowsFunction::apply(x_NH.contiguous(), place_R.contiguous());
}

}  // namespace mortise
