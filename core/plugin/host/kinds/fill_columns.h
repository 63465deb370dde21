// Fills the C structs of calls with the columns of a view. Private to this folder.
//
// Cost: nothing per token for aligned columns (tensor_args.h). Thread rule: free functions without state.
#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include "foundation/batch/step_view.h"
#include "plugin/host/instance.h"
#include "plugin/host/kinds/input_columns.h"
#include "plugin/host/kinds/tensor_args.h"

namespace mortise {

// The sizes of the columns that a kind sees, for check_sizes().
template <class In>
std::vector<InputSize> column_sizes(const StepView& view) {
  std::vector<InputSize> sizes;
  const auto add = [&]<class C>(const InputField<C, In>& field) {
    const int64_t want = C::level == Level::kRow ? view.layout.num_rows() : view.layout.num_tokens();
    sizes.push_back({C::name, view.get<C>().size(), want, !field.is_optional});
  };
  std::apply([&](const auto&... field) { (add(field), ...); }, InputFields<In>::kAll);
  return sizes;
}

// Fills the struct's columns. The view and `args` must live as long as the call.
template <class In>
void fill_columns(const StepView& view, const PluginInfo& plugin, TensorArgs& args, In& in) {
  const auto fill = [&]<class C>(const InputField<C, In>& field) {
    const auto values = view.get<C>();
    const bool is_left_out = field.is_optional && values.empty() && !plugin.requires_input(C::name);
    in.*field.field = is_left_out ? nullptr : args.input(values);
  };
  std::apply([&](const auto&... field) { (fill(field), ...); }, InputFields<In>::kAll);
}

}  // namespace mortise
