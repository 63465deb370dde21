// TempDir: a fresh folder for one test, removed with all below it at the end.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "foundation/base/env.h"

namespace mortise::test {

class TempDir {
 public:
  TempDir() {
    Env& env = default_env();
    path_ = std::filesystem::temp_directory_path() / unique_name(env, "mortise_test_");
    const Result<> made = env.create_dirs(path_);
    if (!made.ok()) ADD_FAILURE() << made.error().to_string();
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() { (void)remove_tree(default_env(), path_); }

  [[nodiscard]] const Path& path() const { return path_; }
  [[nodiscard]] Path operator/(std::string_view name) const { return path_ / name; }

  // Writes a file below the folder (parents are made) and returns its path.
  Path write(std::string_view name, std::string_view bytes) const {
    const Path file = path_ / name;
    (void)default_env().create_dirs(file.parent_path());
    auto out = default_env().open_for_write(file, WriteMode::kTruncate);
    const Result<> done = out.ok() ? (*out)->append_text(bytes) : Result<>(out.error());
    if (!done.ok()) ADD_FAILURE() << done.error().to_string();
    return file;
  }
  [[nodiscard]] std::string read(std::string_view name) const {
    Result<std::string> text = default_env().read_file(path_ / name);
    if (text.ok()) return *std::move(text);
    ADD_FAILURE() << text.error().to_string();
    return {};
  }

 private:
  Path path_;
};

// The Error's line, or "ok": for EXPECT_THAT(error_of(r), HasSubstr(...)).
template <class T>
std::string error_of(const Result<T>& result) {
  return result.ok() ? "ok" : result.error().to_string();
}

}  // namespace mortise::test

// Stops the test with the Error's text where a Result holds one. ASSERT_OK_AND_ASSIGN also takes the value.
#define ASSERT_OK(...)                                                        \
  do {                                                                        \
    const auto& mortise_assert_ = (__VA_ARGS__);                              \
    ASSERT_TRUE(mortise_assert_.ok()) << mortise_assert_.error().to_string(); \
  } while (false)
#define EXPECT_OK(...)                                                        \
  do {                                                                        \
    const auto& mortise_assert_ = (__VA_ARGS__);                              \
    EXPECT_TRUE(mortise_assert_.ok()) << mortise_assert_.error().to_string(); \
  } while (false)
#define MORTISE_TEST_CONCAT2(a, b) a##b
#define MORTISE_TEST_CONCAT(a, b) MORTISE_TEST_CONCAT2(a, b)
#define ASSERT_OK_AND_ASSIGN(target, ...) \
  MORTISE_TEST_ASSIGN(MORTISE_TEST_CONCAT(mortise_result_, __LINE__), target, __VA_ARGS__)
#define MORTISE_TEST_ASSIGN(name, target, ...)        \
  auto name = (__VA_ARGS__);                          \
  ASSERT_TRUE(name.ok()) << name.error().to_string(); \
  target = std::move(name).value()
