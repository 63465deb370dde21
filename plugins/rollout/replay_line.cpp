// Parses one line of a replay file.
#include "replay_line.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include <mortise/mortise.h>

#include "parse/json.h"

namespace mortise {
namespace {

using Json = nlohmann::json;
using Fault = std::string;
template <class T>
using Read = parse::Outcome<T, Fault>;

// What `row` has at `key`, else `absent`.
const Json& member(const Json& row, const char* key, const Json& absent) {
  const auto found = row.find(key);
  return found == row.end() ? absent : *found;
}

Read<std::vector<std::int64_t>> read_ids(const Json& list, const std::string& what) {
  if (!list.is_array()) return Fault(what + " is not a list of token ids");
  std::vector<std::int64_t> ids;
  ids.reserve(list.size());
  for (const Json& id : list) {
    if (!id.is_number_integer() || id.get<std::int64_t>() < 0)
      return Fault(what + " holds " + id.dump() + ", not a token id");
    ids.push_back(id.get<std::int64_t>());
  }
  return ids;
}

Read<std::int32_t> read_reason(const Json& reason) {
  if (reason == "stop") return std::int32_t{MORTISE_FINISH_STOP};
  if (reason == "length") return std::int32_t{MORTISE_FINISH_LENGTH};
  if (reason == "abort") return std::int32_t{MORTISE_FINISH_ABORT};
  return Fault("a finish reason is " + reason.dump() + "; known are \"stop\", \"length\", \"abort\"");
}

// Log-probs of `count` tokens; none where the line has none.
Read<std::vector<float>> read_log_probs(const Json& list, std::size_t count, const std::string& what) {
  std::vector<float> out;
  if (list.is_null()) return out;
  if (!list.is_array() || list.size() != count) return Fault(what + " needs one number per token");
  for (const Json& value : list) {
    const auto number = value.is_number() ? value.get<float>() : NAN;
    if (!std::isfinite(number)) return Fault(what + " holds " + value.dump() + ", not a log-probability");
    out.push_back(number);
  }
  return out;
}

struct Parts {  // one completion, as the line has it
  const Json &ids, &reason, &log_probs, &filtered;
};

Read<ReplayCompletion> read_completion(const Parts& parts, const std::string& what) {
  ReplayCompletion out;
  const auto reason = read_reason(parts.reason);
  if (!reason) return what + ": " + reason.fault();
  out.finish_reason = *reason;
  auto ids = read_ids(parts.ids, what);
  if (!ids) return std::move(ids).fault();
  out.ids = *std::move(ids);
  if (out.ids.empty() && out.finish_reason != MORTISE_FINISH_ABORT) return Fault(what + " is empty");
  auto log_prob = read_log_probs(parts.log_probs, out.ids.size(), what + ": log_probs");
  if (!log_prob) return std::move(log_prob).fault();
  out.log_prob = *std::move(log_prob);
  auto filtered = read_log_probs(parts.filtered, out.ids.size(), what + ": filtered_log_probs");
  if (!filtered) return std::move(filtered).fault();
  out.filtered_log_prob = *std::move(filtered);
  return out;
}

Parts parts_of(const Json& row, const Json& absent) {
  return {member(row, "token_ids", absent), member(row, "finish_reason", absent), member(row, "log_probs", absent),
          member(row, "filtered_log_probs", absent)};
}

// Which tokens of a row with several turns were sampled: a row begins with a sampled one.
Read<std::vector<bool>> read_turns(const Json& mask, std::size_t count) {
  const Fault wrong = "response_mask needs a 1 or a 0 per token, beginning with a 1";
  if (!mask.is_array() || mask.size() != count || (count > 0 && mask[0] != 1)) return wrong;
  std::vector<bool> is_sampled;
  for (const Json& one : mask) {
    if (one != 0 && one != 1) return wrong;
    is_sampled.push_back(one == 1);
  }
  return is_sampled;
}

// A line of a completion dump.
Read<ReplayLine> read_dumped(const Json& row, ReplayLine out) {
  const Json absent;
  const Json& index = member(row, "sample_index", absent);
  if (!index.is_number_integer() || index.get<std::int64_t>() < 0)
    return Fault("sample_index is not a place in the group");
  out.sample_index = index.get<std::int64_t>();
  auto completion = read_completion(parts_of(row, absent), "the completion");
  if (!completion) return std::move(completion).fault();
  const Json& step = member(row, "step", absent);
  if (step.is_number_integer()) out.step = step.get<std::int64_t>();
  out.has_turns = row.contains("turns");
  const Json& mask = member(row, "response_mask", absent);
  if (!out.has_turns && mask.is_array() && std::find(mask.begin(), mask.end(), 0) != mask.end())
    return Fault("response_mask leaves out tokens, but the row has no turns");
  if (out.has_turns) {
    auto is_sampled = read_turns(mask, completion->ids.size());
    if (!is_sampled) return std::move(is_sampled).fault();
    completion->is_sampled = *std::move(is_sampled);
    completion->environment_failed = row.contains("environment_error");
  }
  out.completions.push_back(*std::move(completion));
  return out;
}

// Completions as lists of ids, with the reasons (and log-probs) in lists next to them.
Read<ReplayLine> read_lists(const Json& row, const Json& completions, ReplayLine out) {
  const Json absent;
  const Json& reasons = member(row, "finish_reasons", absent);
  const Json& log_probs = member(row, "log_probs", absent);
  const Json& filtered = member(row, "filtered_log_probs", absent);
  if (completions.size() != reasons.size() || (!reasons.is_null() && !reasons.is_array()))
    return Fault("finish_reasons needs one entry per completion");
  for (const auto& [list, name] : {std::pair(&log_probs, "log_probs"), std::pair(&filtered, "filtered_log_probs")}) {
    if (!list->is_null() && (!list->is_array() || list->size() != completions.size()))
      return Fault(std::string(name) + " needs one list per completion");
  }
  for (std::size_t i = 0; i < completions.size(); ++i) {
    const Parts parts{completions[i], reasons[i], log_probs.is_null() ? absent : log_probs[i],
                      filtered.is_null() ? absent : filtered[i]};
    auto completion = read_completion(parts, "completion " + std::to_string(i));
    if (!completion) return std::move(completion).fault();
    out.completions.push_back(*std::move(completion));
  }
  return out;
}

// Completions as objects: a row of `mortise generate`.
Read<ReplayLine> read_generated(const Json& completions, ReplayLine out) {
  const Json absent;
  for (std::size_t i = 0; i < completions.size(); ++i) {
    const std::string what = "completion " + std::to_string(i);
    if (!completions[i].is_object()) return Fault(what + " is not an object, unlike the first");
    auto completion = read_completion(parts_of(completions[i], absent), what);
    if (!completion) return std::move(completion).fault();
    out.completions.push_back(*std::move(completion));
  }
  return out;
}

}  // namespace

Read<ReplayLine> read_replay_line(std::string_view line) {
  const auto parsed = parse::parse_json(line);
  if (!parsed) return Fault("not JSON: column " + std::to_string(parsed.fault().column) + ": " + parsed.fault().what);
  const Json& row = *parsed;
  if (!row.is_object()) return Fault("not a JSON object");
  ReplayLine out;
  const Json absent;
  auto prompt_ids = read_ids(member(row, "prompt_token_ids", absent), "prompt_token_ids");
  if (!prompt_ids) return std::move(prompt_ids).fault();
  out.prompt_ids = *std::move(prompt_ids);
  const Json& completions = member(row, "completions", absent);
  if (completions.is_null() && row.contains("token_ids")) return read_dumped(row, std::move(out));
  if (!completions.is_null() && !completions.is_array()) return Fault("completions is not a list");
  if (!completions.empty() && completions[0].is_object()) return read_generated(completions, std::move(out));
  return read_lists(row, completions, std::move(out));
}

}  // namespace mortise
