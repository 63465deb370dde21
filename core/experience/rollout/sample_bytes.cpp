// Writes and reads the parts of a sample in their order.
#include "experience/rollout/sample_bytes.h"

#include <cstring>
#include <string>

#include "foundation/batch/float_bytes.h"

namespace mortise {

namespace {

void put_turns(Encoder& out, const SampleTurns& from) {
  const auto& [num_assistant, num_tool_calls, num_failed_calls, end, is_sampled, rewards, prompt_ids, messages,
               failure] = from;
  out.i64(num_assistant).i64(num_tool_calls).i64(num_failed_calls).i64(static_cast<int64_t>(end));
  out.text({reinterpret_cast<const char*>(is_sampled.data()), is_sampled.size()});
  out.u64(rewards.size());
  for (const double reward : rewards) out.f64(reward);
  out.u64(prompt_ids.size());
  for (const int64_t id : prompt_ids) out.i64(id);
  out.text(messages).text(failure);
}

SampleTurns read_turns(Decoder& in) {
  SampleTurns turns;
  turns.num_assistant = in.i64();
  turns.num_tool_calls = in.i64();
  turns.num_failed_calls = in.i64();
  turns.end = static_cast<TurnEnd>(in.i64());
  const std::string is_sampled = in.text();
  turns.is_sampled.assign(is_sampled.begin(), is_sampled.end());
  turns.rewards.resize(in.count(sizeof(double)));
  for (double& reward : turns.rewards) reward = in.f64();
  turns.prompt_ids.resize(in.count(sizeof(int64_t)));
  for (int64_t& id : turns.prompt_ids) id = in.i64();
  turns.messages = in.text();
  turns.failure = in.text();
  return turns;
}

}  // namespace

void put_sample(Encoder& out, const Sample& sample) {
  const auto& [prompt_index, sample_index, token_ids, log_prob, finish_reason, weight_version, text, turns, spans,
               experts] = sample;
  out.i64(prompt_index).i64(sample_index).i64(static_cast<int64_t>(finish_reason)).i64(weight_version).text(text);
  out.u64(token_ids.size());
  for (const int64_t id : token_ids) out.i64(id);
  out.text(float_bytes(log_prob));
  put_turns(out, turns);
  out.u64(spans.size());
  for (const auto& [version, num_tokens] : spans) out.i64(version).i64(num_tokens);
  out.text({reinterpret_cast<const char*>(experts.data()), experts.size() * sizeof(uint16_t)});
}

Sample read_sample(Decoder& in) {
  Sample sample;
  sample.prompt_index = in.i64();
  sample.sample_index = in.i64();
  sample.finish_reason = static_cast<FinishReason>(in.i64());
  sample.weight_version = in.i64();
  sample.text = in.text();
  sample.token_ids.resize(in.count(sizeof(int64_t)));
  for (int64_t& id : sample.token_ids) id = in.i64();
  sample.log_prob = floats_of_bytes(in.text());
  sample.turns = read_turns(in);
  sample.spans.resize(in.count(2 * sizeof(int64_t)));
  for (VersionSpan& span : sample.spans) {
    span.version = in.i64();
    span.num_tokens = in.i64();
  }
  const std::string experts = in.text();
  sample.experts.resize(experts.size() / sizeof(uint16_t));
  if (!sample.experts.empty())
    std::memcpy(sample.experts.data(), experts.data(), sample.experts.size() * sizeof(uint16_t));
  return sample;
}

}  // namespace mortise
