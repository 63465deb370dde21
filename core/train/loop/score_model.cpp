// Loads a reward model, renders and encodes rows, and scores them in batches.
#include "train/loop/score_model.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "foundation/formats/json.h"
#include "model/adapters/lora.h"
#include "model/padded_eval.h"
#include "train/run/policy_folder.h"

namespace mortise {

namespace {

// Tokens of one pass, whatever batch_size says: rows of very different lengths are common, and memory is limited.
constexpr int64_t kMaxPassTokens = 16384;

Error bad_folder(const Path& folder, std::string what, std::string next) {
  return {ErrorKind::kData, std::move(what), folder.string(), std::move(next)};
}

Result<> check_there(Env& env, const Path& folder) {
  if (env.exists(folder / "config.json") || is_adapter_folder(env, folder)) return {};
  return bad_folder(folder, "there is no model folder (no config.json)",
                    "name the Hugging Face folder of a reward model; relative paths start at the folder that the run "
                    "was started in");
}

Result<> check_one_label(const ModelConfig& config, const Path& folder) {
  if (!config.is_classifier) {
    return bad_folder(folder,
                      "a reward model has a score head, and this is a language model (its config.json names no "
                      "...ForSequenceClassification in 'architectures', and no adapter brings a head)",
                      "name the folder of a sequence classifier with one label");
  }
  if (config.num_labels == 1) return {};
  return bad_folder(folder,
                    "a reward model has one label, and this classifier has " + std::to_string(config.num_labels),
                    "name the folder of a sequence classifier with one label");
}

bool has_vocabulary(Env& env, const Path& folder) {
  return env.exists(folder / "tokenizer.json") || env.exists(folder / "vocab.json") ||
         env.exists(folder / "tokenizer.model");
}

Result<ChatTemplates> load_templates(Env& env, const ScoreModelOptions& options, const Tokenizer& tokenizer) {
  if (!options.chat_template) return ChatTemplates::of_folder(tokenizer);
  const std::string source = TRY(env.read_file(*options.chat_template));
  return ChatTemplates::single(source, options.chat_template->string(), tokenizer);
}

// The next rows of one pass, from `begin` of `order` on.
size_t end_of_pass(const std::vector<size_t>& order, const std::vector<std::vector<int64_t>>& ids, size_t begin,
                   int64_t batch_size, int64_t rope_switch) {
  const auto length = [&](size_t place) { return static_cast<int64_t>(ids[order[place]].size()); };
  int64_t num_tokens = length(begin);
  size_t end = begin + 1;
  while (end < order.size() && static_cast<int64_t>(end - begin) < batch_size) {
    num_tokens += length(end);
    // Rows on both sides of the length at which all rotations of a pass change must not be in one pass.
    const bool changes = rope_switch > 0 && (length(end) > rope_switch) != (length(begin) > rope_switch);
    if (num_tokens > kMaxPassTokens || changes) break;
    ++end;
  }
  return end;
}

}  // namespace

Result<ModelConfig> read_score_config(Env& env, const Path& folder, LoadFault* fault) {
  LoadFault unasked;
  LoadFault& at = fault == nullptr ? unasked : *fault;
  at = LoadFault::kMissing;
  TRY(check_there(env, folder));
  const Path base = TRY(find_model_folder(env, folder));
  at = LoadFault::kDamaged;
  TRY(read_json_file(env, base / "config.json"));
  if (is_adapter_folder(env, folder)) TRY(read_lora_tensors(env, folder));
  at = LoadFault::kUnsuitable;
  ModelConfig config = TRY(read_model_folder_config(env, folder));
  TRY(check_one_label(config, folder));
  return config;
}

ScoreModel::ScoreModel(Model model, Tokenizer tokenizer, ChatTemplates templates, ScoreModelOptions options)
    : model_(std::move(model)),
      tokenizer_(std::move(tokenizer)),
      has_template_(!templates.empty()),
      chats_(std::move(templates), Json::object()),
      pad_id_(tokenizer_.pad_id()),
      options_(std::move(options)) {
  if (!pad_id_) pad_id_ = tokenizer_.eos_id();
  if (!pad_id_) pad_id_ = model_.config().pad_token_id;
  if (options_.max_length <= 0) options_.max_length = model_.config().max_position_embeddings;
}

Result<ScoreModel> ScoreModel::load(Env& env, ScoreModelOptions options, LoadFault* fault) {
  LoadFault unasked;
  LoadFault& at = fault == nullptr ? unasked : *fault;  // what an error of the next lines is
  TRY(read_score_config(env, options.folder, &at));
  at = LoadFault::kDamaged;
  const Path tokenizer_path = TRY(tokenizer_folder(env, options.folder));
  if (!has_vocabulary(env, tokenizer_path)) at = LoadFault::kMissing;
  Tokenizer tokenizer = TRY(Tokenizer::load(tokenizer_path, env));
  const bool has_template = !options.chat_template || env.exists(*options.chat_template);
  at = has_template ? LoadFault::kUnsuitable : LoadFault::kMissing;
  ChatTemplates templates = TRY(load_templates(env, options, tokenizer));
  at = LoadFault::kDamaged;
  Model model = TRY(Model::load(env, options.folder));
  TRY(model.move_to(options.device));
  return ScoreModel(std::move(model), std::move(tokenizer), std::move(templates), std::move(options));
}

Result<std::string> ScoreModel::text_of(const ScoreRow& row) const {
  if (row.messages.empty() || options_.plain_text) return std::string(row.prompt) + std::string(row.completion);
  const std::string where = options_.folder.string();
  if (!has_template_) {
    return bad_folder(options_.folder, "the row holds a chat, and the reward model has no chat template",
                      "name a Jinja file (chat_template), or score the rendered text (plain_text = true)");
  }
  Json messages = TRY(parse_json(row.messages, "messages of the row"));
  if (!messages.is_array()) {
    return Error{ErrorKind::kData, "the row's messages are not a list", "messages of the row",
                 "write a list of {\"role\": ..., \"content\": ...}"};
  }
  Json answer = {{"role", "assistant"}, {"content", std::string(row.completion)}};
  messages.push_back(std::move(answer));
  Json columns = Json::object();
  if (!row.tools.empty()) columns["tools"] = std::string(row.tools);
  Rendered rendered = TRY(chats_.render(columns, messages, /*add_generation_prompt=*/false, where));
  return std::move(rendered.text);
}

Result<std::vector<int64_t>> ScoreModel::encode(const ScoreRow& row) const {
  const std::string text = TRY(text_of(row));
  std::vector<int64_t> ids = TRY(tokenizer_.encode(text, /*add_special_tokens=*/false));
  if (ids.empty()) {
    return Error{ErrorKind::kData, "prompt and completion are empty, and there is nothing to score",
                 options_.folder.string(), "leave such rows out of the data"};
  }
  const int64_t vocab_size = model_.config().vocab_size;
  const auto unknown = std::ranges::find_if(ids, [&](int64_t id) { return id >= vocab_size; });
  if (unknown == ids.end()) return ids;
  return bad_folder(
      options_.folder,
      fmt::format("its tokenizer gives the id {}, and its model knows only {} tokens", *unknown, vocab_size),
      "put the tokenizer that the model was trained with into the folder");
}

Result<std::vector<int64_t>> ScoreModel::fit(const ScoreRow& row, int64_t& num_tokens) const {
  std::vector<int64_t> ids = TRY(encode(row));
  num_tokens = static_cast<int64_t>(ids.size());
  if (num_tokens <= options_.max_length) return ids;
  if (options_.truncation == Truncation::kError) {
    return Error{ErrorKind::kData,
                 fmt::format("prompt and completion have {} tokens, more than the reward model's max_length = {}",
                             num_tokens, options_.max_length),
                 options_.folder.string(), "raise max_length, or set truncation = \"left\" to keep the end"};
  }
  truncate(ids, options_.max_length, options_.truncation);
  return ids;
}

Result<std::vector<RowScore>> ScoreModel::score(std::span<const ScoreRow> rows,
                                                const std::function<bool()>& is_over) const {
  std::vector<RowScore> out(rows.size());
  std::vector<std::vector<int64_t>> ids(rows.size());
  std::vector<size_t> order;
  for (size_t i = 0; i < rows.size(); ++i) {
    auto fitted = fit(rows[i], out[i].num_tokens);
    if (!fitted.ok()) {
      out[i].error = std::move(fitted).error();
      continue;
    }
    ids[i] = *std::move(fitted);
    order.push_back(i);
  }
  // Rows of like length side by side: no pass is much longer than another of as many rows.
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return ids[a].size() > ids[b].size(); });
  for (size_t begin = 0; begin < order.size();) {
    if (is_over && is_over()) return Error{ErrorKind::kSignal, "stopped before all rows were scored", "", ""};
    const size_t end = end_of_pass(order, ids, begin, options_.batch_size, model_.config().rope_switch());
    std::vector<std::vector<int64_t>> pass;
    for (size_t place = begin; place < end; ++place) pass.push_back(std::move(ids[order[place]]));
    const at::Tensor scores = on_host(TRY(classifier_scores(model_, pass, pad_id_))).to(at::kDouble).contiguous();
    for (size_t place = begin; place < end; ++place) {
      RowScore& row = out[order[place]];
      row.score = scores.const_data_ptr<double>()[place - begin];
      if (std::isfinite(row.score)) continue;
      row.error = Error{ErrorKind::kNumerics, "the reward model's score is not finite", options_.folder.string(),
                        "look at its weights: in float32 such a score means that they are damaged"};
      row.score = std::numeric_limits<double>::quiet_NaN();
    }
    begin = end;
  }
  return out;
}

}  // namespace mortise
