// See scheduler.h.
#include "generate/schedule/scheduler.h"

#include <algorithm>
#include <set>

#include "foundation/batch/expert_choices.h"

namespace mortise {
namespace {

int64_t prompt_pages(const GenerateRequest& request, bool joins_pages) {
  const auto length = static_cast<int64_t>(request.prompt_ids.size());
  return joins_pages ? length / kPageTokens : KvShape::pages_for(length);
}
// The last token's key and value are never needed.
int64_t own_pages(const GenerateRequest& request, bool joins_pages) {
  const int64_t own = request.sampling.max_new_tokens - 1;
  if (!joins_pages) return KvShape::pages_for(own);
  const auto length = static_cast<int64_t>(request.prompt_ids.size());
  return KvShape::pages_for(length + own) - prompt_pages(request, joins_pages);
}

}  // namespace

TokenEdits RunningSample::edits() {
  TokenEdits out = history.edits();
  const TokenSet* const allowed = guide.allowed();
  if (allowed == nullptr) return out;
  out.allowed = allowed->words;
  if (allowed->count > std::ssize(out.barred)) return out;
  const std::set<int64_t> barred(out.barred.begin(), out.barred.end());
  if (std::ranges::count_if(barred, [&](int64_t id) { return allowed->has(id); }) == allowed->count) out.barred = {};
  return out;
}

int64_t Scheduler::pages_for(const GenerateRequest& request, bool joins_pages) {
  return prompt_pages(request, joins_pages) + own_pages(request, joins_pages);
}

void Scheduler::add(GenerateRequest request) {
  groups_.emplace_back().request = std::move(request);
  ++num_waiting_requests_;
}

int64_t Scheduler::take_sample(GenerateGroup& group) {
  const int64_t index = group.next_sample++;
  if (group.next_sample == group.request.num_samples) --num_waiting_requests_;
  return index;
}

void Scheduler::admit(int64_t weight_version) {
  for (GenerateGroup& group : groups_) {
    while (group.next_sample < group.request.num_samples) {
      if (!admit_one(group, weight_version)) return;
    }
  }
}

bool Scheduler::reserve(int64_t pages) {
  prefixes_.make_room(pages);
  return kv_.reserve(pages);
}

// Reserves the pages of the group's prompt and `further_pages`; all or nothing.
bool Scheduler::hold_prompt(GenerateGroup& group, int64_t further_pages) {
  const int64_t pages = prompt_pages(group.request, options_.joins_pages);
  if (!options_.holds_pages) return reserve(pages + further_pages);
  const std::span<const int64_t> ids = group.request.prompt_ids;
  PrefixCache::Node* const known = options_.shares_prefixes ? prefixes_.acquire(ids, group.pages) : nullptr;
  const auto num_known = static_cast<int64_t>(group.pages.size());
  if (!reserve(pages - num_known + further_pages)) {
    if (known != nullptr) prefixes_.release(known);
    group.pages.clear();
    return false;
  }
  while (static_cast<int64_t>(group.pages.size()) < pages) group.pages.push_back(kv_.take());
  const auto first = static_cast<size_t>(num_known);
  const auto last = static_cast<size_t>(num_shared_blocks(ids));
  if (options_.shares_prefixes)
    group.prefix = prefixes_.insert(ids, known, std::span(group.pages).subspan(first, last - first));
  group.num_known = num_known * kPageTokens;
  num_prefilled_tokens_ += ids.size() - static_cast<size_t>(group.num_known);
  return true;
}

bool Scheduler::admit_one(GenerateGroup& group, int64_t weight_version) {
  if (static_cast<int64_t>(running_.size()) >= options_.max_num_seqs) return false;
  const int64_t own = own_pages(group.request, options_.joins_pages);
  if (!(group.has_pages ? reserve(own) : hold_prompt(group, own))) return false;
  group.has_pages = true;
  auto sample = std::make_unique<RunningSample>();
  sample->group = &group;
  sample->number = ++num_admitted_;
  sample->reserved_pages = own;
  while (options_.joins_pages && std::ssize(sample->pages) < own) sample->pages.push_back(kv_.take());
  sample->history.start(group.request.sampling, group.request.prompt_ids);
  if (!group.request.sampling.stop_strings.empty() && options_.tokenizer != nullptr)
    sample->stop_strings.emplace(*options_.tokenizer, group.request.sampling.stop_strings);
  if (group.request.guide != nullptr) sample->guide = GuidePlace(group.request.guide);
  sample->sequence.request_id = group.request.request_id;
  sample->sequence.sample_index = take_sample(group);
  sample->sequence.weight_version = weight_version;
  ++group.num_running;
  running_.push_back(std::move(sample));
  return true;
}

// Does the sample end with the token that it just got?
std::optional<FinishReason> Scheduler::end_of(RunningSample& sample) {
  const SamplingParams& sampling = sample.group->request.sampling;
  const int64_t id = sample.sequence.ids.back();
  const auto length = static_cast<int64_t>(sample.sequence.ids.size());
  // The finder sees every token; what it finds before min_new_tokens does not count.
  const bool found = sample.stop_strings && sample.stop_strings->push(id) && length >= sampling.min_new_tokens;
  if (found || std::ranges::find(sampling.stop_ids, id) != sampling.stop_ids.end()) return FinishReason::kStop;
  if (length >= sampling.max_new_tokens) return FinishReason::kLength;
  return std::nullopt;
}

void Scheduler::accept(std::span<const SampledToken> tokens) {
  for (size_t i = 0; i < running_.size(); ++i) {
    if (tokens[i].id == kNotDrawn) continue;
    RunningSample& sample = *running_[i];
    GeneratedSequence& sequence = sample.sequence;
    sequence.ids.push_back(tokens[i].id);
    sequence.log_prob.push_back(tokens[i].log_prob);
    if (sample.group->request.sampling.changes_distribution())
      sequence.filtered_log_prob.push_back(tokens[i].filtered_log_prob);
    sample.history.push(tokens[i].id);
    if (const auto reason = end_of(sample))
      finish(sample, *reason);
    else
      sample.guide.push(tokens[i].id);
  }
  std::erase_if(running_, [](const std::unique_ptr<RunningSample>& sample) { return sample->group == nullptr; });
  drop_finished_groups();
}

namespace {

// The prompt's experts in front of its own. The last token did not pass the model.
void put_prompt_experts(RunningSample& sample) {
  const std::vector<uint16_t>& prompt = sample.group->experts;
  if (prompt.empty()) return;
  std::vector<uint16_t>& own = sample.sequence.experts;
  const size_t width = prompt.size() / sample.group->request.prompt_ids.size();
  own.resize(sample.sequence.ids.size() * width, kNoExpert);
  own.insert(own.begin(), prompt.begin(), prompt.end());
}

}  // namespace

void Scheduler::finish(RunningSample& sample, FinishReason reason) {
  sample.sequence.finish_reason = reason;
  put_prompt_experts(sample);
  kv_.give_back(sample.pages);
  kv_.unreserve(sample.reserved_pages);
  --sample.group->num_running;
  sample.group = nullptr;
  finished_.push_back(std::move(sample.sequence));
}

void Scheduler::release(GenerateGroup& group) {
  if (!group.has_pages) return;
  const int64_t shared = num_shared_blocks(group.request.prompt_ids);
  kv_.unreserve(prompt_pages(group.request, options_.joins_pages) - shared);
  if (options_.holds_pages) {
    group.pages.erase(group.pages.begin(), group.pages.begin() + shared);  // those stay in the tree
    kv_.give_back(group.pages);
    if (options_.shares_prefixes) prefixes_.release(group.prefix);
  }
  group.prefix = nullptr;
  group.num_known = 0;
  group.slots = nullptr;
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
      empty.sample_index = take_sample(group);
      empty.finish_reason = FinishReason::kAbort;
      empty.weight_version = weight_version;
    }
  }
  drop_finished_groups();
}

void Scheduler::forget_prompts() {
  for (GenerateGroup& group : groups_) release(group);
  prefixes_.clear();
}

uint64_t Scheduler::outstanding() const {
  uint64_t waiting = 0;
  for (const GenerateGroup& group : groups_) {
    waiting += static_cast<uint64_t>(group.request.num_samples - group.next_sample);
  }
  return waiting + running_.size() + finished_.size();
}

}  // namespace mortise
