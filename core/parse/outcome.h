// Outcome<T, Fault>: a value, or a fault that says why there is no value. C++17: the built-in plugins include it.
#pragma once

#include <utility>
#include <variant>

namespace mortise::parse {

template <class T, class Fault>
class [[nodiscard]] Outcome {
 public:
  Outcome(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT(google-explicit-constructor)
  Outcome(Fault fault) : state_(std::in_place_index<1>, std::move(fault)) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  // Precondition: ok().
  T& operator*() & { return std::get<0>(state_); }
  const T& operator*() const& { return std::get<0>(state_); }
  T&& operator*() && { return std::get<0>(std::move(state_)); }
  T* operator->() { return &std::get<0>(state_); }
  const T* operator->() const { return &std::get<0>(state_); }
  // Precondition: !ok().
  const Fault& fault() const& { return std::get<1>(state_); }
  Fault&& fault() && { return std::get<1>(std::move(state_)); }

 private:
  std::variant<T, Fault> state_;
};

}  // namespace mortise::parse
