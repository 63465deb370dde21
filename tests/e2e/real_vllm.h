// A real vLLM on the CPU (tests/support/vllm_service.py). A start takes one to three minutes.
#pragma once

#include <chrono>
#include <thread>

#include "python_service.h"
#include "support/http_get.h"

namespace mortise::test {

class RealVllm {
 public:
  // The Python that has vLLM; null if it is not installed.
  static const char* python() { return std::getenv("MORTISE_VLLM_PYTHON"); }

  // `max_length`: tokens of a prompt and its completion. Logs go to `folder`.
  RealVllm(const Path& model, const Path& folder, int64_t max_length)
      : folder_(folder),
        service_(folder, "vllm_service.py " + std::string(python()) + " " + model.string() + " " +
                             std::to_string(max_length) + " " + folder.string()) {}

  // Starts it, always on the same port, and waits until it is healthy. False at once if it ends.
  [[nodiscard]] bool start() {
    if (!service_.started()) return false;
    tell("start");
    ++num_starts_;
    for (int i = 0; i < 1'200 && !default_env().exists(file("ended")); ++i) {
      if (get("/health").ok()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
    }
    return false;
  }
  // Kills all its processes. No answer that is not sent yet gets out.
  void kill() {
    tell("kill");
    while (!get("/health").head.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  // It takes connections and answers nothing, until it continues.
  void stop() { tell("stop"); }
  void go_on() { tell("continue"); }

  [[nodiscard]] int port() const { return service_.port(); }
  [[nodiscard]] std::string url() const { return service_.url(""); }
  [[nodiscard]] HttpGot get(const std::string& path) const { return http_get(service_.port(), path); }
  // The end of its log.
  [[nodiscard]] std::string log() const {
    const std::string text = whole_log();
    return text.substr(text.size() - std::min<size_t>(text.size(), 4'000));
  }
  // How many requests its log has, by a part of their line: "POST /resume".
  [[nodiscard]] int count_of(const std::string& part) const {
    const std::string text = whole_log();
    int count = 0;
    for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++count;
    return count;
  }

 private:
  [[nodiscard]] Path file(const std::string& kind) const {
    return folder_ / ("vllm" + std::to_string(num_starts_) + "." + kind);
  }
  [[nodiscard]] std::string whole_log() const {
    const auto text = default_env().read_file(file("txt"));
    return text.ok() ? *text : "";
  }
  // Returns when the service has obeyed.
  void tell(const std::string& word) {
    service_.tell(word);
    const std::string wanted = std::to_string(++num_told_);
    for (int i = 0; i < 6'000; ++i) {
      const auto text = default_env().read_file(folder_ / "obeyed");
      if (text.ok() && *text == wanted) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  Path folder_;
  PythonService service_;
  int num_starts_ = 0, num_told_ = 0;
};

}  // namespace mortise::test
