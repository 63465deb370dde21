// Parses one line of a replay file.
#include "replay_line.h"

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
  return Fault("finish_reasons holds " + reason.dump() + "; known are \"stop\", \"length\", \"abort\"");
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
  const Json& reasons = member(row, "finish_reasons", absent);
  if (!completions.is_null() && !completions.is_array()) return Fault("completions is not a list");
  if (completions.size() != reasons.size() || (!reasons.is_null() && !reasons.is_array()))
    return Fault("finish_reasons needs one entry per completion");
  for (std::size_t i = 0; i < completions.size(); ++i) {
    const std::string what = "completion " + std::to_string(i);
    const auto reason = read_reason(reasons[i]);
    if (!reason) return reason.fault();
    auto ids = read_ids(completions[i], what);
    if (!ids) return std::move(ids).fault();
    if (ids->empty() && *reason != MORTISE_FINISH_ABORT) return Fault(what + " is empty");
    out.completions.push_back({*reason, *std::move(ids)});
  }
  return out;
}

}  // namespace mortise
