// StepView: columns of a table as spans, with the layout of their rows: what the objective and plugins get.
//
// A view borrows everything. A column without values is absent. Thread rule: plain values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "foundation/batch/columns.h"
#include "foundation/batch/layout.h"

namespace mortise {

class StepView {
 public:
  Layout layout{};
  int64_t step = 1;          // step of the run
  int64_t update_index = 1;  // update of the run

  // The column's values; empty if it is absent.
  template <class C>
  [[nodiscard]] std::span<const typename C::Value> get() const {
    return get<typename C::Value>(C::name);
  }
  // The same by name; T is the column's type.
  template <class T>
  [[nodiscard]] std::span<const T> get(std::string_view name) const {
    const Entry* entry = find(name);
    const auto* values = entry == nullptr ? nullptr : std::get_if<std::span<const T>>(&entry->values);
    return values == nullptr ? std::span<const T>{} : *values;
  }
  [[nodiscard]] bool has(std::string_view name) const { return find(name) != nullptr; }
  template <class C>
  [[nodiscard]] bool has() const {
    return has(C::name);
  }
  // Replaces the column; without values, removes it.
  template <class C>
  StepView& set(std::span<const typename C::Value> values) {
    set(C::name, values);
    return *this;
  }
  template <class T>
  void set(std::string_view name, std::span<const T> values) {
    std::erase_if(entries_, [name](const Entry& entry) { return entry.name == name; });
    if (!values.empty()) entries_.push_back({name, values});
  }

 private:
  struct Entry {
    std::string_view name;
    std::variant<std::span<const float>, std::span<const uint8_t>> values;
  };
  [[nodiscard]] const Entry* find(std::string_view name) const {
    const auto entry = std::ranges::find(entries_, name, &Entry::name);
    return entry == entries_.end() ? nullptr : &*entry;
  }

  std::vector<Entry> entries_;
};

}  // namespace mortise
