// The rows that reward functions are tried on.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <set>

#include "conformance/reward_call.h"

namespace mortise::check {
namespace {

constexpr std::string_view kUsualColumns[] = {"answer",   "ground_truth", "label", "target",
                                              "solution", "reference",    "score"};

void add_columns(const Subject& subject, RewardBatch& batch, std::span<const std::string> answers) {
  for (const std::string& name : likely_columns(subject)) {
    DataColumn column;
    column.name = name;
    for (const std::string& answer : answers) {
      column.valid.push_back(1);
      column.text.append(answer);
    }
    batch.columns.push_back(std::move(column));
  }
}

void add_row(RewardBatch& batch, const std::string& completion, int64_t group, int64_t sample) {
  const int64_t row = batch.num_rows++;
  batch.prompt.append(fmt::format("Question {}: what is it?", group));
  batch.completion.append(completion);
  batch.messages.append("");
  const int64_t prompt_ids[] = {1, 2, 3 + group};
  batch.prompt_ids.append(prompt_ids);
  std::vector<int64_t> ids;
  for (size_t i = 0; i < std::min<size_t>(completion.size(), 64); i += 3)
    ids.push_back(10 + static_cast<int64_t>(i) % 50);
  ids.push_back(2);
  batch.completion_ids.append(ids);
  batch.finish_reason.push_back(0);
  batch.group_index.push_back(group);
  batch.sample_index.push_back(sample);
  batch.row_id.push_back(row);
  batch.step = 3;
  batch.max_response_length = 64;
}

}  // namespace

std::vector<std::string> likely_columns(const Subject& subject) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  const auto add = [&](std::string name) {
    if (!name.empty() && name.size() <= 64 && seen.insert(name).second) names.push_back(std::move(name));
  };
  for (const auto& item : subject.request().params.items()) {
    if (!item.value().is_string()) continue;
    const auto text = item.value().get<std::string>();
    const bool is_name = std::all_of(text.begin(), text.end(), [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '-';
    });
    if (is_name) add(text);
  }
  for (const std::string_view name : kUsualColumns) add(std::string(name));
  return names;
}

RewardBatch usual_rows(const Subject& subject, uint64_t seed) {
  constexpr std::array<const char*, 12> kForms = {"#",
                                                  "The answer is #.",
                                                  "<think>Let me see.\nIt must be #.</think>\n\\boxed{#}",
                                                  "no idea",
                                                  "# apples, because # is right",
                                                  "#### #",
                                                  "",
                                                  "  #\n",
                                                  "{\"answer\": \"#\"}",
                                                  "Antwort: # \xC3\xA4\xC3\xB6\xC3\xBC \xF0\x9F\x8D\x8E",
                                                  "def f(x):\n    return x + #\n",
                                                  "1, 2, 3, #"};
  RewardBatch batch;
  std::vector<std::string> answers;
  for (size_t row = 0; row < kForms.size(); ++row) {
    const auto group = static_cast<int64_t>(row / 4);
    const std::string answer = std::to_string(40 + seed + static_cast<uint64_t>(group));
    std::string completion = kForms[row];
    for (size_t at = completion.find('#'); at != std::string::npos; at = completion.find('#', at + answer.size())) {
      if (completion.compare(at, 4, "####") == 0) {
        at += 4;
        if ((at = completion.find('#', at)) == std::string::npos) break;
      }
      completion.replace(at, 1, answer);
    }
    add_row(batch, completion, group, static_cast<int64_t>(row % 4));
    answers.push_back(answer);
  }
  add_columns(subject, batch, answers);
  return batch;
}

RewardBatch rows_of(const Subject& subject, std::span<const std::string> completions) {
  RewardBatch batch;
  std::vector<std::string> answers;
  for (size_t row = 0; row < completions.size(); ++row) {
    add_row(batch, completions[row], static_cast<int64_t>(row), 0);
    answers.emplace_back("42");
  }
  add_columns(subject, batch, answers);
  return batch;
}

RewardBatch pick(const RewardBatch& batch, std::span<const int64_t> order) {
  RewardBatch out;
  out.step = batch.step;
  out.max_response_length = batch.max_response_length;
  for (const DataColumn& column : batch.columns) {
    DataColumn& copy = out.columns.emplace_back();
    copy.name = column.name;
    copy.type = column.type;
  }
  for (const int64_t index : order) {
    const auto row = static_cast<size_t>(index);
    ++out.num_rows;
    out.prompt.append(batch.prompt.row(row));
    out.completion.append(batch.completion.row(row));
    out.messages.append(batch.messages.row(row));
    const auto ids = [row](const IdColumn& column) {
      return std::span(column.ids).subspan(column.offsets[row], column.offsets[row + 1] - column.offsets[row]);
    };
    out.prompt_ids.append(ids(batch.prompt_ids));
    out.completion_ids.append(ids(batch.completion_ids));
    out.finish_reason.push_back(batch.finish_reason[row]);
    out.group_index.push_back(batch.group_index[row]);
    out.sample_index.push_back(batch.sample_index[row]);
    out.row_id.push_back(batch.row_id[row]);
    for (size_t k = 0; k < out.columns.size(); ++k) {
      out.columns[k].valid.push_back(batch.columns[k].valid[row]);
      out.columns[k].text.append(batch.columns[k].text.row(row));
    }
  }
  return out;
}

}  // namespace mortise::check
