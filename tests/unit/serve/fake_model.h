// A model for tests of the server: sample j of a prompt gives the ids first + j, first + j + 1, ... where first is the
// prompt's last id; id t has log-prob -0.25 t of its place. Ends at stop ids and at the length.
#pragma once

#include <algorithm>
#include <deque>
#include <string>

#include "serve/engine_port.h"

namespace mortise::test {

class FakeModel final : public ServedModel {
 public:
  [[nodiscard]] const ServedModelInfo& info() const override { return info_; }
  Result<> submit(int64_t id, const ServedRequest& request) override {
    if (request.prompt_ids.empty()) return Error{ErrorKind::kData, "the prompt is empty", "", ""};
    for (int64_t j = 0; j < request.num_samples; ++j) {
      ServedSequence sequence;
      sequence.sample_index = j;
      sequence.weight_version = version;
      samples_.push_back({id, request, sequence});
    }
    ++num_submitted;
    return {};
  }
  Result<uint64_t> step(const Take& take) override {
    ++num_steps;
    most_at_once = std::max(most_at_once, samples_.size());
    if (diverges) return Error{ErrorKind::kNumerics, "a log-prob is not finite", "", ""};
    for (const Entry& entry : std::exchange(aborted_, {})) take(entry.id, entry.sequence);
    std::deque<Entry> left;
    for (Entry& entry : std::exchange(samples_, {})) {
      ServedSequence& s = entry.sequence;
      const auto t = static_cast<int64_t>(s.ids.size());
      s.ids.push_back(entry.request.prompt_ids.back() + s.sample_index + t);
      s.log_prob.push_back(-0.25F * static_cast<float>(t));
      const bool stops = std::ranges::count(entry.request.sampling.stop_ids, s.ids.back()) > 0;
      s.finish_reason = stops ? FinishReason::kStop : FinishReason::kLength;
      if (stops || t + 1 == entry.request.sampling.max_new_tokens)
        take(entry.id, s);
      else
        left.push_back(std::move(entry));
    }
    for (Entry& entry : left) samples_.push_back(std::move(entry));
    return samples_.size();
  }
  void visit_running(const Take& take) const override {
    for (const Entry& entry : samples_) take(entry.id, entry.sequence);
  }
  void abort(int64_t id) override {
    for (auto it = samples_.begin(); it != samples_.end();) {
      if (id >= 0 && it->id != id) {
        ++it;
        continue;
      }
      it->sequence.finish_reason = FinishReason::kAbort;
      aborted_.push_back(std::move(*it));
      it = samples_.erase(it);
    }
  }
  Result<> load_weights(const std::string& folder) override {
    loaded.push_back(folder);
    if (folder == "bad") return Error{ErrorKind::kData, "a tensor is missing", folder, ""};
    return {};
  }
  Result<> set_version(int64_t v) override {
    version = v;
    return {};
  }
  void free_caches() override {}

  int64_t version = 0;
  bool diverges = false;
  int num_steps = 0, num_submitted = 0;
  size_t most_at_once = 0;
  std::vector<std::string> loaded;

 private:
  struct Entry {
    int64_t id;
    ServedRequest request;
    ServedSequence sequence;
  };
  ServedModelInfo info_{100, 64, {1}};
  std::deque<Entry> samples_, aborted_;
};

}  // namespace mortise::test
