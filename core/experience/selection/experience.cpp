// Appends, picks and serializes groups of prompts, samples and rewards.
#include "experience/selection/experience.h"

#include <cstring>
#include <limits>
#include <map>

#include "foundation/formats/json.h"

namespace mortise {

namespace {

constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

// Adds the rows of `more` to those of `to`. Either may be empty if no row of it has a value.
template <class T>
void append_rows(std::vector<T>& to, size_t old_rows, const std::vector<T>& more, size_t new_rows) {
  if (to.empty() && more.empty()) return;
  to.resize(old_rows);
  to.insert(to.end(), more.begin(), more.end());
  to.resize(old_rows + new_rows);
}

// The rows of `groups`, n each.
std::vector<size_t> rows_of_groups(std::span<const int64_t> groups, int64_t n) {
  std::vector<size_t> rows;
  for (const int64_t group : groups) {
    for (int64_t i = 0; i < n; ++i) rows.push_back(static_cast<size_t>(group * n + i));
  }
  return rows;
}

template <class T>
std::vector<T> pick(const std::vector<T>& from, std::span<const size_t> rows) {
  std::vector<T> out;
  out.reserve(rows.size());
  for (const size_t row : rows) out.push_back(from[row]);
  return out;
}

Json column_json(const RewardColumn& column) {
  Json extra = Json::object();
  for (const auto& [name, values] : column.extra) extra[name] = values;
  return {{"name", column.name},       {"weight", column.weight},         {"values", column.values},
          {"extra", std::move(extra)}, {"num_failed", column.num_failed}, {"errors", column.errors},
          {"texts", column.texts}};
}

RewardColumn column_of(const Json& json) {
  RewardColumn column;
  column.name = json.at("name").get<std::string>();
  column.weight = json.at("weight").get<double>();
  column.values = json.at("values").get<std::vector<double>>();
  for (const auto& [name, values] : json.at("extra").items()) column.extra[name] = values.get<std::vector<double>>();
  column.num_failed = json.at("num_failed").get<int64_t>();
  column.errors = json.value("errors", std::vector<std::string>());
  column.texts = json.value("texts", std::map<std::string, std::vector<std::string>>());
  return column;
}

Json prompt_json(const Prompt& prompt) {
  Json json = {{"token_ids", prompt.token_ids},       {"text", prompt.text},
               {"messages", prompt.messages},         {"data_source", prompt.data_source},
               {"columns", prompt.columns},           {"dataset_row", prompt.dataset_row},
               {"response_ids", prompt.response_ids}, {"response_mask", prompt.response_mask}};
  if (prompt.sampled_in_step > 0) json["sampled_in_step"] = prompt.sampled_in_step;
  return json;
}

Prompt prompt_of(const Json& json) {
  Prompt prompt;
  prompt.token_ids = json.at("token_ids").get<std::vector<int64_t>>();
  prompt.text = json.at("text").get<std::string>();
  prompt.messages = json.at("messages").get<std::string>();
  prompt.data_source = json.at("data_source").get<std::string>();
  prompt.columns = json.at("columns");
  prompt.dataset_row = json.at("dataset_row").get<int64_t>();
  prompt.sampled_in_step = json.value("sampled_in_step", int64_t{0});
  prompt.response_ids = json.at("response_ids").get<std::vector<int64_t>>();
  prompt.response_mask = json.at("response_mask").get<std::vector<uint8_t>>();
  return prompt;
}

Json turns_json(const SampleTurns& turns) {
  const auto& [num_assistant, num_tool_calls, num_failed_calls, end, is_sampled, rewards, prompt_ids, messages,
               failure] = turns;
  return {{"num_assistant", num_assistant},
          {"num_tool_calls", num_tool_calls},
          {"num_failed_calls", num_failed_calls},
          {"end", static_cast<int32_t>(end)},
          {"is_sampled", is_sampled},
          {"rewards", rewards},
          {"prompt_ids", prompt_ids},
          {"messages", messages},
          {"failure", failure}};
}

SampleTurns sample_turns_of(const Json& json) {
  SampleTurns turns;
  turns.num_assistant = json.at("num_assistant").get<int64_t>();
  turns.num_tool_calls = json.at("num_tool_calls").get<int64_t>();
  turns.num_failed_calls = json.at("num_failed_calls").get<int64_t>();
  turns.end = static_cast<TurnEnd>(json.at("end").get<int32_t>());
  turns.is_sampled = json.at("is_sampled").get<std::vector<uint8_t>>();
  turns.rewards = json.at("rewards").get<std::vector<double>>();
  turns.prompt_ids = json.at("prompt_ids").get<std::vector<int64_t>>();
  turns.messages = json.at("messages").get<std::string>();
  turns.failure = json.at("failure").get<std::string>();
  return turns;
}

Json spans_json(const std::vector<VersionSpan>& spans) {
  Json list = Json::array();
  for (const auto& [version, num_tokens] : spans) list.push_back({version, num_tokens});
  return list;
}

std::vector<VersionSpan> spans_of(const Json& json) {
  std::vector<VersionSpan> spans;
  for (const Json& span : json) spans.push_back({span.at(0).get<int64_t>(), span.at(1).get<int64_t>()});
  return spans;
}

Json sample_json(const Sample& sample) {
  Json json = {{"prompt_index", sample.prompt_index},
               {"sample_index", sample.sample_index},
               {"token_ids", sample.token_ids},
               {"log_prob", sample.log_prob},
               {"finish", static_cast<int32_t>(sample.finish_reason)},
               {"version", sample.weight_version},
               {"text", sample.text}};
  if (sample.turns.num_assistant > 0) json["turns"] = turns_json(sample.turns);
  if (!sample.spans.empty()) json["spans"] = spans_json(sample.spans);
  if (!sample.experts.empty()) {
    const auto* const bytes = reinterpret_cast<const char*>(sample.experts.data());
    json["experts"] = std::string(bytes, sample.experts.size() * sizeof(uint16_t));
  }
  return json;
}

Sample sample_of(const Json& json) {
  Sample sample;
  sample.prompt_index = json.at("prompt_index").get<int64_t>();
  sample.sample_index = json.at("sample_index").get<int64_t>();
  sample.token_ids = json.at("token_ids").get<std::vector<int64_t>>();
  sample.log_prob = json.at("log_prob").get<std::vector<float>>();
  sample.finish_reason = static_cast<FinishReason>(json.at("finish").get<int32_t>());
  sample.weight_version = json.at("version").get<int64_t>();
  sample.text = json.at("text").get<std::string>();
  if (const auto turns = json.find("turns"); turns != json.end()) sample.turns = sample_turns_of(*turns);
  if (const auto spans = json.find("spans"); spans != json.end()) sample.spans = spans_of(*spans);
  if (const auto experts = json.find("experts"); experts != json.end()) {
    const auto& bytes = experts->get_ref<const std::string&>();
    sample.experts.resize(bytes.size() / sizeof(uint16_t));
    std::memcpy(sample.experts.data(), bytes.data(), sample.experts.size() * sizeof(uint16_t));
  }
  return sample;
}

}  // namespace

Experience take_groups(const Experience& from, std::span<const int64_t> groups) {
  Experience out;
  out.prompts.step = from.prompts.step;
  out.prompts.epoch = from.prompts.epoch;
  for (const int64_t group : groups) out.prompts.prompts.push_back(from.prompts.prompts[static_cast<size_t>(group)]);
  const int64_t n = from.samples.num_samples_per_prompt;
  const std::vector<size_t> rows = rows_of_groups(groups, n);
  out.samples.num_samples_per_prompt = n;
  out.samples.mask_truncated = from.samples.mask_truncated;
  out.samples.is_filtered = from.samples.is_filtered;
  out.samples.rows = pick(from.samples.rows, rows);
  for (size_t i = 0; i < out.samples.rows.size(); ++i) out.samples.rows[i].prompt_index = static_cast<int64_t>(i) / n;
  for (const RewardColumn& column : from.scored.columns) {
    RewardColumn part = column;
    part.values = pick(column.values, rows);
    for (auto& [name, values] : part.extra) values = pick(column.extra.at(name), rows);
    for (auto& [name, texts] : part.texts) texts = pick(column.texts.at(name), rows);
    if (!column.errors.empty()) part.errors = pick(column.errors, rows);
    out.scored.columns.push_back(std::move(part));
  }
  if (from.scored.rewards.empty()) return out;  // not scored yet
  out.scored.rewards = pick(from.scored.rewards, rows);
  out.scored.row_valid = pick(from.scored.row_valid, rows);
  if (!from.scored.token_scores.empty()) out.scored.token_scores = pick(from.scored.token_scores, rows);
  return out;
}

void append_groups(Experience& to, const Experience& more) {
  if (to.prompts.prompts.empty()) {
    to = more;
    return;
  }
  const int64_t first = to.num_groups();
  const size_t old_rows = to.samples.rows.size(), new_rows = more.samples.rows.size();
  to.prompts.step = more.prompts.step;
  to.prompts.epoch = more.prompts.epoch;
  to.prompts.prompts.insert(to.prompts.prompts.end(), more.prompts.prompts.begin(), more.prompts.prompts.end());
  for (const Sample& sample : more.samples.rows) {
    to.samples.rows.push_back(sample);
    to.samples.rows.back().prompt_index += first;
  }
  for (size_t k = 0; k < to.scored.columns.size(); ++k) {
    RewardColumn& column = to.scored.columns[k];
    const RewardColumn& added = more.scored.columns[k];
    column.values.insert(column.values.end(), added.values.begin(), added.values.end());
    // A number that only one part has is NaN in the other.
    for (const auto& [name, values] : added.extra) column.extra.try_emplace(name, old_rows, kNotMeasured);
    for (auto& [name, values] : column.extra) {
      const auto found = added.extra.find(name);
      if (found == added.extra.end())
        values.resize(old_rows + new_rows, kNotMeasured);
      else
        values.insert(values.end(), found->second.begin(), found->second.end());
    }
    column.num_failed += added.num_failed;
    for (const auto& [name, texts] : added.texts) column.texts.try_emplace(name, old_rows);
    for (auto& [name, texts] : column.texts) {
      const auto found = added.texts.find(name);
      append_rows(texts, old_rows, found == added.texts.end() ? std::vector<std::string>() : found->second, new_rows);
    }
    append_rows(column.errors, old_rows, added.errors, new_rows);
  }
  to.scored.rewards.insert(to.scored.rewards.end(), more.scored.rewards.begin(), more.scored.rewards.end());
  to.scored.row_valid.insert(to.scored.row_valid.end(), more.scored.row_valid.begin(), more.scored.row_valid.end());
  append_rows(to.scored.token_scores, old_rows, more.scored.token_scores, new_rows);
}

// CBOR: doubles stay exact, NaN included, and texts may be any bytes.
std::string encode_experience(const Experience& experience) {
  Json prompts = Json::array(), samples = Json::array(), columns = Json::array();
  for (const Prompt& prompt : experience.prompts.prompts) prompts.push_back(prompt_json(prompt));
  for (const Sample& sample : experience.samples.rows) samples.push_back(sample_json(sample));
  for (const RewardColumn& column : experience.scored.columns) columns.push_back(column_json(column));
  const Json all = {{"step", experience.prompts.step},
                    {"epoch", experience.prompts.epoch},
                    {"prompts", std::move(prompts)},
                    {"n", experience.samples.num_samples_per_prompt},
                    {"mask_truncated", experience.samples.mask_truncated},
                    {"is_filtered", experience.samples.is_filtered},
                    {"samples", std::move(samples)},
                    {"columns", std::move(columns)},
                    {"rewards", experience.scored.rewards},
                    {"row_valid", experience.scored.row_valid},
                    {"token_scores", experience.scored.token_scores}};
  const std::vector<uint8_t> bytes = Json::to_cbor(all);
  return {bytes.begin(), bytes.end()};
}

Result<Experience> decode_experience(std::string_view bytes, std::string_view where) {
  const auto unreadable = [&](const std::string& why) {
    return Error{ErrorKind::kDisk, "the sampled groups in it cannot be read: " + why, std::string(where),
                 "resume from another checkpoint"};
  };
  try {
    // A value takes a byte or more, so the file's size bounds their number.
    const parse::JsonLimits limits{.max_bytes = bytes.size(), .max_values = bytes.size()};
    auto read = parse::parse_cbor(bytes, limits);
    if (!read) return unreadable(read.fault().what);
    const Json all = *std::move(read);
    Experience out;
    out.prompts.step = all.at("step").get<int64_t>();
    out.prompts.epoch = all.at("epoch").get<int64_t>();
    for (const Json& prompt : all.at("prompts")) out.prompts.prompts.push_back(prompt_of(prompt));
    out.samples.num_samples_per_prompt = all.at("n").get<int64_t>();
    out.samples.mask_truncated = all.at("mask_truncated").get<bool>();
    out.samples.is_filtered = all.value("is_filtered", false);
    for (const Json& sample : all.at("samples")) out.samples.rows.push_back(sample_of(sample));
    for (const Json& column : all.at("columns")) out.scored.columns.push_back(column_of(column));
    out.scored.rewards = all.at("rewards").get<std::vector<double>>();
    out.scored.row_valid = all.at("row_valid").get<std::vector<uint8_t>>();
    out.scored.token_scores = all.value("token_scores", std::vector<std::vector<double>>());
    return out;
  } catch (const Json::exception& problem) {
    return unreadable(problem.what());
  }
}

}  // namespace mortise
