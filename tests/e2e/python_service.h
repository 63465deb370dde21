// Web services in Python, for runs of the program.
#pragma once

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "foundation/base/env.h"

namespace mortise::test {

// A script of tests/support in its own process, which prints its port. It ends when its standard input closes.
class PythonService {
 public:
  // `words`: the script's name and its arguments.
  PythonService(const Path& folder, const std::string& words, const std::string& python = "python3") {
    const Path port_file = folder / "port";
    std::filesystem::remove(port_file);  // another service's, if it had the same folder
    const std::string script = std::string(MORTISE_SOURCE_DIR) + "/tests/support/" + words;
    pipe_ = ::popen(("exec " + python + " " + script + " 2>&1 >" + port_file.string()).c_str(), "w");
    for (int i = 0; pipe_ != nullptr && i < 5'000 && port_.empty(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const auto text = default_env().read_file(port_file);
      if (text.ok() && text->ends_with('\n')) port_ = text->substr(0, text->size() - 1);
    }
  }
  PythonService(const PythonService&) = delete;
  PythonService& operator=(const PythonService&) = delete;
  ~PythonService() {
    if (pipe_ != nullptr) ::pclose(pipe_);
  }
  // `login`: "user:password@".
  [[nodiscard]] std::string url(const std::string& path, const std::string& login = "") const {
    return "http://" + login + "127.0.0.1:" + port_ + path;
  }
  [[nodiscard]] int port() const { return std::atoi(port_.c_str()); }
  [[nodiscard]] bool started() const { return !port_.empty(); }
  // A line for its standard input.
  void tell(const std::string& line) {
    if (pipe_ == nullptr) return;
    std::fputs((line + "\n").c_str(), pipe_);
    std::fflush(pipe_);
  }

 private:
  FILE* pipe_ = nullptr;
  std::string port_;
};

// Scores rows.
class ScoreService : public PythonService {
 public:
  explicit ScoreService(const Path& folder) : PythonService(folder, "score_server.py") {}
};

}  // namespace mortise::test
