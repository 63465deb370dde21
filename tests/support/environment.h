// Environment variables for the length of a test.
#pragma once

#include <cstdlib>
#include <string>

namespace mortise::test {

// Sets a variable, and gives it back its value of before. Tests that use it run one thread.
class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    const char* old = std::getenv(name);
    had_ = old != nullptr;
    if (had_) old_ = old;
    ::setenv(name, value.c_str(), 1);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment() { had_ ? ::setenv(name_, old_.c_str(), 1) : ::unsetenv(name_); }

 private:
  const char* name_;
  std::string old_;
  bool had_ = false;
};

}  // namespace mortise::test
