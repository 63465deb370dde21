// Choices: enums whose values people write by name in a config file.
//
// One table per enum, next to it, gives the names in the order of the values:
//   enum class Truncation { kError, kLeft };
//   constexpr auto choice_names(Truncation) { return std::array<std::string_view, 2>{"error", "left"}; }
// The decoder, errors, `config explain`, the schema and `config show` take the names from there. Pure functions.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <optional>
#include <string_view>
#include <type_traits>

namespace mortise {

template <class E>
concept NamedChoice = std::is_enum_v<E> && requires(E value) {
  { choice_names(value)[0] } -> std::convertible_to<std::string_view>;
};

template <NamedChoice E>
[[nodiscard]] constexpr std::string_view choice_name(E value) {
  constexpr auto kNames = choice_names(E{});
  return kNames[static_cast<size_t>(value)];
}

template <NamedChoice E>
[[nodiscard]] constexpr std::optional<E> parse_choice(std::string_view name) {
  constexpr auto kNames = choice_names(E{});
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<E>(i);
  }
  return std::nullopt;
}

// One of E, or "auto": something else decides.
template <NamedChoice E>
struct OrAuto {
  std::optional<E> value;  // none: "auto"

  OrAuto() = default;
  OrAuto(E choice) : value(choice) {}  // NOLINT(google-explicit-constructor)
  [[nodiscard]] bool is_auto() const { return !value.has_value(); }
  bool operator==(const OrAuto&) const = default;
};

template <NamedChoice E>
[[nodiscard]] constexpr std::string_view choice_name(const OrAuto<E>& choice) {
  return choice.value ? choice_name(*choice.value) : "auto";
}

}  // namespace mortise
