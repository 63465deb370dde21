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

  // Starts it, always on the same port, and waits until it is healthy.
  [[nodiscard]] bool start() {
    service_.tell("start");
    ++num_starts_;
    for (int i = 0; i < 1'200; ++i) {
      if (get("/health").ok()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
    }
    return false;
  }
  // Kills all its processes. No answer that is not sent yet gets out.
  void kill() {
    service_.tell("kill");
    while (!get("/health").head.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  // It takes connections and answers nothing, until it continues.
  void stop() { service_.tell("stop"); }
  void go_on() { service_.tell("continue"); }

  [[nodiscard]] std::string url() const { return service_.url(""); }
  [[nodiscard]] HttpGot get(const std::string& path) const { return http_get(service_.port(), path); }
  // The end of its log.
  [[nodiscard]] std::string log() const {
    const auto text = default_env().read_file(folder_ / ("vllm" + std::to_string(num_starts_) + ".txt"));
    return text.ok() ? text->substr(text->size() - std::min<size_t>(text->size(), 4'000)) : "";
  }

 private:
  Path folder_;
  PythonService service_;
  int num_starts_ = 0;
};

}  // namespace mortise::test
