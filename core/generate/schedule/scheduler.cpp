// See scheduler.h.
#include "generate/schedule/scheduler.h"

#include <algorithm>

namespace mortise {
namespace {

// Its last token's key and value are never needed.
int64_t own_pages(const GenerateRequest& request) { return KvShape::pages_for(request.sampling.max_new_tokens - 1); }
int64_t prompt_pages(const GenerateRequest& request) {
  return KvShape::pages_for(static_cast<int64_t>(request.prompt_ids.size()));
}

}  // namespace

int64_t Scheduler::pages_for(const GenerateRequest& request) { return prompt_pages(request) + own_pages(request); }

void Scheduler::add(GenerateRequest request) { groups_.emplace_back().request = std::move(request); }

void Scheduler::admit(int64_t weight_version) {
  for (GenerateGroup& group : groups_) {
    while (group.next_sample < group.request.num_samples) {
      if (!admit_one(group, weight_version)) return;
    }
  }
}

bool Scheduler::admit_one(GenerateGroup& group, int64_t weight_version) {
  if (static_cast<int64_t>(running_.size()) >= max_num_seqs_) return false;
  const int64_t own = own_pages(group.request);
  const int64_t shared = group.has_pages ? 0 : prompt_pages(group.request);
  if (!kv_.reserve(own + shared)) return false;
  group.has_pages = true;
  auto sample = std::make_unique<RunningSample>();
  sample->group = &group;
  sample->reserved_pages = own;
  sample->sequence.request_id = group.request.request_id;
  sample->sequence.sample_index = group.next_sample++;
  sample->sequence.weight_version = weight_version;
  ++group.num_running;
  running_.push_back(std::move(sample));
  return true;
}

void Scheduler::accept(std::span<const SampledToken> tokens) {
  for (size_t i = 0; i < running_.size(); ++i) {
    RunningSample& sample = *running_[i];
    const SamplingParams& sampling = sample.group->request.sampling;
    GeneratedSequence& sequence = sample.sequence;
    sequence.ids.push_back(tokens[i].id);
    sequence.log_prob.push_back(tokens[i].log_prob);
    if (sampling.filters() || (!sampling.greedy() && (sampling.ignore_eos || sampling.min_new_tokens > 0))) {
      sequence.filtered_log_prob.push_back(tokens[i].filtered_log_prob);
    }
    if (std::ranges::find(sampling.stop_ids, tokens[i].id) != sampling.stop_ids.end()) {
      finish(sample, FinishReason::kStop);
    } else if (static_cast<int64_t>(sequence.ids.size()) >= sampling.max_new_tokens) {
      finish(sample, FinishReason::kLength);
    }
  }
  std::erase_if(running_, [](const std::unique_ptr<RunningSample>& sample) { return sample->group == nullptr; });
  drop_finished_groups();
}

void Scheduler::finish(RunningSample& sample, FinishReason reason) {
  sample.sequence.finish_reason = reason;
  kv_.give_back(sample.pages);
  kv_.unreserve(sample.reserved_pages);
  --sample.group->num_running;
  sample.group = nullptr;
  finished_.push_back(std::move(sample.sequence));
}

void Scheduler::release(GenerateGroup& group) {
  if (!group.has_pages) return;
  kv_.give_back(group.pages);
  kv_.unreserve(prompt_pages(group.request));
  group.has_pages = false;
  group.prefilled = false;
}

void Scheduler::drop_finished_groups() {
  std::erase_if(groups_, [this](GenerateGroup& group) {
    if (group.num_running > 0 || group.next_sample < group.request.num_samples) return false;
    release(group);
    return true;
  });
}

void Scheduler::abort(int64_t request_id, int64_t weight_version) {
  const auto is_meant = [&](const GenerateGroup& group) {
    return request_id < 0 || group.request.request_id == request_id;
  };
  for (const std::unique_ptr<RunningSample>& sample : running_) {
    if (is_meant(*sample->group)) finish(*sample, FinishReason::kAbort);
  }
  std::erase_if(running_, [](const std::unique_ptr<RunningSample>& sample) { return sample->group == nullptr; });
  for (GenerateGroup& group : groups_) {
    if (!is_meant(group)) continue;
    while (group.next_sample < group.request.num_samples) {
      GeneratedSequence& empty = finished_.emplace_back();
      empty.request_id = group.request.request_id;
      empty.sample_index = group.next_sample++;
      empty.finish_reason = FinishReason::kAbort;
      empty.weight_version = weight_version;
    }
  }
  drop_finished_groups();
}

void Scheduler::forget_prompts() {
  for (GenerateGroup& group : groups_) release(group);
}

int64_t Scheduler::num_waiting_requests() const {
  return std::ranges::count_if(groups_, [](const GenerateGroup& g) { return g.next_sample < g.request.num_samples; });
}

uint64_t Scheduler::outstanding() const {
  uint64_t waiting = 0;
  for (const GenerateGroup& group : groups_) {
    waiting += static_cast<uint64_t>(group.request.num_samples - group.next_sample);
  }
  return waiting + running_.size() + finished_.size();
}

}  // namespace mortise
