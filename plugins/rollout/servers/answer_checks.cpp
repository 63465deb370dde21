// What holds for the answers of every server: as many samples as were asked for, each once, ids and log-probs that fit.
#include <algorithm>
#include <cmath>

#include <mortise/cpp/sampling.hpp>

#include "protocol.h"

namespace mortise {
namespace {

constexpr float kMostLogProb = 1e-3F;  // rounding may take a log-prob a little above 0

std::string sample_fault(const ServerRequest& request, const ServerSample& sample) {
  const std::string who = "sample " + std::to_string(sample.index);
  if (sample.ids.empty()) return who + " has no tokens";
  if (std::int64_t(sample.ids.size()) > request.max_new_tokens) {
    return who + " has " + std::to_string(sample.ids.size()) + " tokens, but at most " +
           std::to_string(request.max_new_tokens) + " were asked for";
  }
  for (const std::int64_t id : sample.ids)
    if (id < 0) return who + " has the token id " + std::to_string(id);
  for (const std::vector<float>* list : {&sample.log_prob, &sample.filtered_log_prob}) {
    if (!list->empty() && list->size() != sample.ids.size()) {
      return who + " has " + std::to_string(list->size()) + " log-probs for " + std::to_string(sample.ids.size()) +
             " tokens";
    }
    for (const float value : *list)
      if (!std::isfinite(value) || value > kMostLogProb) return who + " has a log-prob of " + std::to_string(value);
  }
  return "";
}

}  // namespace

Fault check_samples(const ServerRequest& request, const std::vector<ServerSample>& samples) {
  if (std::int64_t(samples.size()) != request.num_samples) {
    return {"it answered " + std::to_string(samples.size()) + " samples, but " + std::to_string(request.num_samples) +
            " were asked for"};
  }
  std::vector<bool> seen(samples.size());
  for (const ServerSample& sample : samples) {
    if (sample.index < 0 || sample.index >= request.num_samples || seen[std::size_t(sample.index)])
      return {"its sample indices are not 0 to n - 1, each once"};
    seen[std::size_t(sample.index)] = true;
    if (const std::string fault = sample_fault(request, sample); !fault.empty()) return {fault};
  }
  return {};
}

void place_log_probs(const ServerRequest& request, LogProbs kind, std::vector<float> given, ServerSample& sample) {
  const bool is_greedy = request.temperature == 0;  // such log-probs are at temperature 1 here and there
  const bool is_plain = is_greedy ? !request.changes_logits() : !request.changes_distribution();
  if (kind == LogProbs::kTempered || (kind == LogProbs::kProcessed && is_plain) ||
      (kind == LogProbs::kRaw && (is_greedy || request.temperature == 1)))
    sample.log_prob = std::move(given);
  else if (kind == LogProbs::kProcessed)
    sample.filtered_log_prob = std::move(given);
  // Raw at another temperature is neither: the trainer computes its own.
}

ServerRequest ServerRequest::copy(const mortise_rollout_request& from) {
  ServerRequest out;
  out.id = from.request_id;
  out.num_samples = from.num_samples;
  out.first_row_id = from.first_row_id;
  out.step = from.step;
  out.seed = from.seed;
  if (from.num_prompt_ids > 0) out.prompt_ids.assign(from.prompt_ids, from.prompt_ids + from.num_prompt_ids);
  if (from.sampling == nullptr) fail(MORTISE_INVALID_ARGUMENT, "a request without sampling options");
  read_sampling(*from.sampling, out);
  return out;
}

std::int64_t ServerRequest::spaced_seed() const {
  // splitmix64's finalizer, over the parts one after the other.
  std::uint64_t x = 0;
  for (const std::uint64_t part : {seed, std::uint64_t(step), std::uint64_t(first_row_id)}) {
    x += part + 0x9E3779B97F4A7C15ULL;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    x ^= x >> 31;
  }
  return std::int64_t(x >> 3);  // room for + i
}

bool ServerRequest::changes_distribution() const {
  const bool filters = top_k > 0 || top_p < 1 || min_p > 0 || typical_p < 1;
  return filters || changes_logits();
}

bool ServerRequest::changes_logits() const {
  const bool penalizes = repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0;
  return penalizes || forced_tokens() > 0 || !bad_words.empty() || !regex.empty();
}

}  // namespace mortise
