// The names of libtorch's operators that start while an object of this class lives, also those that other operators and backward
// call. One at a time in a program.
#pragma once

#include <ATen/record_function.h>

#include <memory>
#include <mutex>
#include <set>
#include <string>

namespace mortise::test {

class RecordedOperators {
 public:
  RecordedOperators() {
    names().clear();
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback(&note).scopes({at::RecordScope::FUNCTION}));
  }
  RecordedOperators(const RecordedOperators&) = delete;
  RecordedOperators& operator=(const RecordedOperators&) = delete;
  ~RecordedOperators() { at::removeCallback(handle_); }

  [[nodiscard]] static std::set<std::string>& names() {
    static std::set<std::string> all;
    return all;
  }

 private:
  static std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& function) {
    const auto name = function.operator_name();
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    if (name) names().insert(c10::toString(*name));
    return nullptr;
  }
  at::CallbackHandle handle_;
};

}  // namespace mortise::test
