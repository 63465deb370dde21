// Result<T>: a value, or an Error that says what went wrong, where, and what to do next.
//
// Expected failures (bad config, missing file, refused plugin) are values passed on with TRY; exceptions are caught at
// two borders only, libtorch calls and plugin glue. An Error's kind decides the exit code of the program.
// Thread rule: plain values, no shared state.
#pragma once

#include <concepts>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

namespace mortise {

// What kind of thing failed. The numbers are the program's exit codes (docs/exit_codes.md); 0 is success.
enum class ErrorKind : int {
  kInternal = 1,     // a bug in Mortise
  kConfig = 2,       // command line or TOML
  kData = 3,         // data rows, model folders, tokenizers, inputs of a command
  kPlugin = 4,       // a pack was refused or a plugin failed
  kNumerics = 5,     // non-finite values above the limit
  kDisk = 6,         // reading or writing files failed
  kRankFailure = 7,  // another rank died, hangs, or disagrees with the others
  kSignal = 8,       // stopped by SIGINT or SIGTERM after a clean save
  kReward = 9,       // a reward failed on more rows than plugins.max_failed_fraction
};

struct [[nodiscard]] Error {
  ErrorKind kind = ErrorKind::kInternal;
  std::string what;   // "unknown key 'actor.policy_los'"
  std::string where;  // "run.toml:12:3", "gspo@mortise.core", "samples.jsonl:7"; may be empty
  std::string next;   // "did you mean 'actor.policy_loss'?"; may be empty

  // One line for people: "where: what; next".
  [[nodiscard]] std::string to_string() const {
    std::string text = where.empty() ? what : where + ": " + what;
    if (!next.empty()) text += "; " + next;
    return text;
  }
};

template <class T = void>
class [[nodiscard]] Result {
 public:
  using value_type = T;
  template <class U = T>
  requires(std::constructible_from<T, U> && !std::same_as<std::remove_cvref_t<U>, Error> &&
           !std::same_as<std::remove_cvref_t<U>, Result>) Result(U&& value)
      : state_(std::in_place_index<0>, std::forward<U>(value)) {}            // NOLINT(google-explicit-constructor)
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  // Precondition: ok().
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  // Precondition: !ok().
  Error& error() & { return std::get<1>(state_); }
  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  using value_type = void;
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  void value() const {}
  Error& error() & { return *error_; }
  const Error& error() const& { return *error_; }
  Error&& error() && { return *std::move(error_); }

 private:
  std::optional<Error> error_;
};

}  // namespace mortise

// TRY(expr): the value of a Result, or return its Error from the calling function.
#define TRY(...)                                                                  \
  __extension__({                                                                 \
    auto&& mortise_try_result_ = (__VA_ARGS__);                                   \
    if (!mortise_try_result_.ok()) return std::move(mortise_try_result_).error(); \
    std::move(mortise_try_result_).value();                                       \
  })
