// Encodes and decodes the messages about episodes.
#include "plugin/worker/episode_messages.h"

#include <fmt/core.h>

#include "foundation/base/hints.h"
#include "plugin/worker/channel.h"

namespace mortise {
namespace {

Result<> finish_episodes(const Decoder& in, const char* what) {
  if (in.done()) return {};
  return Error{ErrorKind::kPlugin, fmt::format("a message '{}' cannot be read", what), "connection to a worker",
               hints::kOneBuildOfWorkers};
}

constexpr size_t kLeastStart = 56, kLeastAction = 64;  // bytes

}  // namespace

std::string encode(const ResetMessage& m) {
  Encoder out;
  out.i64(m.timeout_ms).u64(m.starts.size());
  for (const EpisodeStart& start : m.starts) {
    out.i64(start.episode).i64(start.step).u64(start.seed).i64(start.sample_index);
    out.i64(start.is_validation ? 1 : 0).text(start.messages).text(start.columns);
  }
  return out.bytes();
}
Result<> decode(std::string_view body, ResetMessage& m) {
  Decoder in(body);
  m.timeout_ms = in.i64();
  m.starts.resize(in.count(kLeastStart));
  for (EpisodeStart& start : m.starts) {
    start.episode = in.i64();
    start.step = in.i64();
    start.seed = in.u64();
    start.sample_index = in.i64();
    start.is_validation = in.i64() != 0;
    start.messages = in.text();
    start.columns = in.text();
  }
  return finish_episodes(in, "reset");
}

std::string encode(const ActMessage& m) {
  Encoder out;
  out.i64(m.timeout_ms).u64(m.actions.size());
  for (const EpisodeAction& action : m.actions) {
    out.i64(action.episode).i64(action.step).i64(action.turn).i64(action.finish_reason);
    out.i64(action.is_last ? 1 : 0).text(action.text).text(action.calls).u64(action.ids.size());
    for (const int64_t id : action.ids) out.i64(id);
  }
  return out.bytes();
}
Result<> decode(std::string_view body, ActMessage& m) {
  Decoder in(body);
  m.timeout_ms = in.i64();
  m.actions.resize(in.count(kLeastAction));
  for (EpisodeAction& action : m.actions) {
    action.episode = in.i64();
    action.step = in.i64();
    action.turn = in.i64();
    action.finish_reason = static_cast<int32_t>(in.i64());
    action.is_last = in.i64() != 0;
    action.text = in.text();
    action.calls = in.text();
    action.ids.resize(in.count(sizeof(int64_t)));
    for (int64_t& id : action.ids) id = in.i64();
  }
  return finish_episodes(in, "act");
}

std::string encode(const CloseMessage& m) {
  Encoder out;
  out.i64(m.step).u64(m.episodes.size());
  for (const int64_t episode : m.episodes) out.i64(episode);
  return out.bytes();
}
Result<> decode(std::string_view body, CloseMessage& m) {
  Decoder in(body);
  m.step = in.i64();
  m.episodes.resize(in.count(sizeof(int64_t)));
  for (int64_t& episode : m.episodes) episode = in.i64();
  return finish_episodes(in, "close");
}

std::string encode(const EpisodeAnswer& m) {
  Encoder out;
  out.i64(m.episode).i64(m.done ? 1 : 0).f64(m.reward).text(m.messages);
  return out.i64(m.num_calls).i64(m.num_failed_calls).text(m.failure).bytes();
}
Result<> decode(std::string_view body, EpisodeAnswer& m) {
  Decoder in(body);
  m.episode = in.i64();
  m.done = in.i64() != 0;
  m.reward = in.f64();
  m.messages = in.text();
  m.num_calls = in.i64();
  m.num_failed_calls = in.i64();
  m.failure = in.text();
  return finish_episodes(in, "answer");
}

}  // namespace mortise
