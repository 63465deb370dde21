// The columns that a kind of plugin sees, read from the tensors of their names, and shown to the plugin.
//
// plugin/host/kinds/input_columns.h says which these are, so that a new column needs no line here.
#pragma once

#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "eval_tensors.h"
#include "foundation/batch/step_view.h"
#include "plugin/host/kinds/input_columns.h"

namespace mortise {

template <class C>
struct EvalColumn {
  std::vector<typename C::Value> values;  // empty: absent
};

template <class In>
class EvalColumns {
 public:
  template <class C>
  [[nodiscard]] std::vector<typename C::Value>& get() {
    return std::get<EvalColumn<C>>(columns_).values;
  }
  // All that are there.
  void show(StepView& view) const {
    std::apply([&]<class... C>(const EvalColumn<C>&... column) { (view.set<C>(column.values), ...); }, columns_);
  }
  // Calls `each` with an EvalColumn<C> after the other until one fails.
  template <class Each>
  Result<> visit(const Each& each) {
    Result<> done;
    std::apply([&](auto&... column) { static_cast<void>(((done = each(column)).ok() && ...)); }, columns_);
    return done;
  }

 private:
  template <class... F>
  static std::tuple<EvalColumn<typename F::Shown>...> of(const std::tuple<F...>&);
  decltype(of(InputFields<In>::kAll)) columns_;
};

// The tensor of the column C. Absent: an error, or empty if it may be.
template <class C>
Result<std::vector<typename C::Value>> read_column(EvalTensors& in, bool may_lack) {
  if constexpr (std::is_same_v<typename C::Value, uint8_t>) {
    if constexpr (C::level == Level::kRow) return in.optional_row_flags(C::name);
    return in.mask(C::name, !may_lack);
  } else {
    if constexpr (C::level == Level::kRow) return in.optional_rows(C::name);
    return may_lack ? in.optional_tokens(C::name) : in.tokens(C::name);
  }
}

template <class C, class In>
constexpr bool may_lack() {
  return std::apply(
      []<class... F>(const F&... field) {
        return ((std::is_same_v<C, typename F::Shown> && field.is_optional) || ...);
      },
      InputFields<In>::kAll);
}

template <class C, class... Any>
inline constexpr bool kIsOneOf = (std::is_same_v<C, Any> || ...);

// Columns that the command computes, and columns that a file may lack although a run has them.
template <class... C>
struct Computed {};
template <class... C>
struct Lacking {};

// Reads all but the computed ones.
template <class In, class... C, class... L>
Result<EvalColumns<In>> read_columns(EvalTensors& in, Computed<C...> /*computed*/, Lacking<L...> /*lacking*/) {
  EvalColumns<In> out;
  const auto read = [&]<class One>(EvalColumn<One>& column) -> Result<> {
    if constexpr (!kIsOneOf<One, C...>)
      column.values = TRY(read_column<One>(in, may_lack<One, In>() || kIsOneOf<One, L...>));
    return {};
  };
  TRY(out.visit(read));
  return out;
}

// Their names, for a help text: "log_prob, advantages".
template <class In, class... C, class... L>
std::string column_names(bool optional, Computed<C...> /*computed*/, Lacking<L...> /*lacking*/) {
  std::string names;
  const auto add = [&]<class One>(const InputField<One, In>& field) {
    if (kIsOneOf<One, C...> || (field.is_optional || kIsOneOf<One, L...>) != optional) return;
    names += (names.empty() ? "" : ", ") + std::string(One::name);
  };
  std::apply([&](const auto&... field) { (add(field), ...); }, InputFields<In>::kAll);
  return names;
}

}  // namespace mortise
