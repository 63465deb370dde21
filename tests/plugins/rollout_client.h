// Drives a backend that samples on servers, as the engine does: weights, requests, answers.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "support/fake_host.h"
#include "support/temp_dir.h"

namespace mortise::test {

struct ServedSample {
  int64_t version;
  int32_t reason;
  std::vector<int64_t> ids;
  std::vector<float> log_prob, filtered;
};

struct ServedSink {
  std::map<std::pair<int64_t, int64_t>, ServedSample> taken;
  int num_twice = 0;
  mortise_rollout_sink view{sizeof(mortise_rollout_sink), 0, this, &ServedSink::take};

  static int32_t take(void* context, const mortise_rollout_sequence* s) noexcept {
    auto& self = *static_cast<ServedSink*>(context);
    const auto floats = [&](const float* list) {
      return list == nullptr ? std::vector<float>() : std::vector<float>(list, list + s->num_ids);
    };
    const ServedSample sample{s->weight_version,
                              s->finish_reason,
                              {s->ids, s->ids + s->num_ids},
                              floats(s->log_prob),
                              floats(s->filtered_log_prob)};
    self.num_twice += self.taken.emplace(std::pair(s->request_id, s->sample_index), sample).second ? 0 : 1;
    return 0;
  }
};

struct SentTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> data;
};

// A backend of the pack rollout_servers, and what it is asked.
class RolloutClient {
 public:
  RolloutClient(const std::string& name, std::map<std::string, std::string> params)
      : backend_(find_plugin(pack(), MORTISE_KIND_ROLLOUT_BACKEND, name), with_defaults(std::move(params))) {
    sampling.struct_size = sizeof sampling;
    sampling.max_new_tokens = 3;
    sampling.temperature = sampling.top_p = sampling.typical_p = sampling.repetition_penalty = 1;
    sampling.num_stop_ids = 1;
    sampling.stop_ids = &stop_id_;
  }

  int32_t send(int64_t version, const std::vector<SentTensor>& tensors) {
    const auto& slots = *backend_.vtable;
    int32_t status = slots.begin_update(backend_.self, &backend_.call, version);
    for (const SentTensor& sent : tensors) {
      std::vector<int64_t> shape = sent.shape, strides(shape.size(), 1), offset(shape.size(), 0);
      for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
      std::vector<float> data = sent.data;
      const mortise_tensor tensor{data.data(),  MORTISE_CPU,    0, int32_t(shape.size()), MORTISE_FLOAT, 32, 1,
                                  shape.data(), strides.data(), 0};
      const mortise_text name{sent.name.data(), sent.name.size()};
      if (status == 0)
        status = slots.update_weight(backend_.self, &backend_.call, name, &tensor, shape.data(), offset.data());
    }
    if (status == 0) status = slots.end_update(backend_.self, &backend_.call);
    return status == 0 ? slots.set_version(backend_.self, &backend_.call, version) : status;
  }
  int32_t send_weights(int64_t version, float value = 1.5F) {
    const std::vector<float> data(6, value);
    return send(version, {{"model.a", {2, 3}, data}, {"model.b", {2, 3}, data}});
  }
  // A LoRA adapter of a pair of matrices for each rank.
  int32_t send_adapter(int64_t version, const std::vector<int64_t>& ranks = {2, 2}) {
    std::vector<SentTensor> tensors;
    for (size_t i = 0; i < ranks.size(); ++i) {
      const std::string module =
          "base_model.model.model.layers." + std::to_string(i) + ".self_attn." + (i == 0 ? "q_proj" : "v_proj");
      const std::vector<float> data(size_t(ranks[i] * 3), 0.25F);
      tensors.push_back({module + ".lora_A.weight", {ranks[i], 3}, data});
      tensors.push_back({module + ".lora_B.weight", {3, ranks[i]}, data});
    }
    return send(version, tensors);
  }
  int32_t submit(int64_t id, int64_t n) { return submit(id, n, {5, 6, 7 + id % 7}); }
  int32_t submit(int64_t id, int64_t n, const std::vector<int64_t>& prompt) {
    mortise_rollout_request request{};
    request.struct_size = sizeof request;
    request.request_id = id;
    request.prompt_ids = prompt.data();
    request.num_prompt_ids = int64_t(prompt.size());
    request.num_samples = n;
    request.first_row_id = id * n;
    request.seed = 11;
    request.sampling = &sampling;
    const mortise_rollout_request* const list[] = {&request};
    uint64_t accepted = 0;
    return backend_.vtable->submit(backend_.self, &backend_.call, list, 1, &accepted);
  }
  // Sends what has room, and takes the answers that are there.
  int32_t poll_once() {
    uint64_t outstanding = 0;
    return backend_.vtable->poll(backend_.self, &backend_.call, &sink.view, 0, &outstanding);
  }
  // Polls until nothing is outstanding, or the status is not 0.
  int32_t collect() {
    uint64_t outstanding = 1;
    int32_t status = 0;
    while (outstanding > 0 && status == 0)
      status = backend_.vtable->poll(backend_.self, &backend_.call, &sink.view, 20'000'000, &outstanding);
    return status;
  }
  // `count` prompts with two completions each.
  int32_t sample(int64_t count) {
    sink.taken.clear();
    for (int64_t id = 0; id < count; ++id)
      if (const int32_t status = submit(id, 2); status != 0) return status;
    return collect();
  }
  void abort() { EXPECT_EQ(backend_.vtable->abort(backend_.self, &backend_.call, -1), 0); }
  [[nodiscard]] int32_t created() const { return backend_.status; }
  [[nodiscard]] const std::string& error() const { return backend_.call.error; }
  [[nodiscard]] const std::vector<std::string>& log() const { return backend_.call.log; }

  mortise_sampling sampling{};
  ServedSink sink;

 private:
  static const mortise_pack* pack() {
    static const mortise_pack* loaded =
        load_pack(std::string(MORTISE_BINARY_DIR) + "/lib/mortise/packs/mortise.rollout_servers.so");
    return loaded;
  }
  std::map<std::string, std::string> with_defaults(std::map<std::string, std::string> params) {
    params.try_emplace("backoff", "0.01");
    params.try_emplace("weights_dir", dir_.path().string());
    params.try_emplace("start_limit", "20");
    return params;
  }

  TempDir dir_;
  int64_t stop_id_ = 2;
  Instance<mortise_rollout_backend_vtable> backend_;
};

}  // namespace mortise::test
