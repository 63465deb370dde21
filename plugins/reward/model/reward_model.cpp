// reward_model: the score of a reward model, a local Hugging Face folder of a sequence classifier with one label.
//
//   chat row    template(messages + [assistant: completion]), without a generation prompt, the model's own template
//   plain row   prompt + completion; so too every row with plain_text = true
//   reward      transform(logit at the last token that is not the tokenizer's padding)
// Only special tokens in the text count, as for the reward models of TRL's GRPO (reward_funcs as a model id:
// AutoModelForSequenceClassification, num_labels = 1). verl's legacy reward worker reads the same position. The engine
// loads and runs the model (host extension mortise.score_model/1), so the reward runs in its process.
// Traps: TRL never truncates; here a row longer than max_length fails unless `truncation` says what to cut. The default
// max_length is the model's. A logit has no fixed scale: sigmoid maps it to (0, 1). With group normalisation (grpo) it
// dominates a sum of rewards unless weights balance them.
#include <algorithm>
#include <cmath>

#include <mortise/cpp/mortise.hpp>

namespace mortise {
namespace {

constexpr const char* kTruncations[] = {"error", "left", "right", "middle"};  // by MORTISE_TRUNCATE_*

struct RewardModel : BatchReward {
  static constexpr const char* summary =
      "the score of a reward model: a local sequence classifier with its own tokenizer and chat template";
  static constexpr const char* doc =
      "transform(logit at the last token of the chat with the completion as its answer). As TRL's GRPO with a model as "
      "reward function";
  static constexpr std::uint32_t flags = MORTISE_FLAG_NEEDS_ENGINE;
  static constexpr std::int32_t granularity = MORTISE_REWARD_ROW;

  std::string model = param<std::string>("model", required,
                                         "Hugging Face folder of the classifier (one label), or of a LoRA adapter that "
                                         "turns its base into one")
                          .model();
  std::string chat_template =
      param("chat_template", "", "Jinja file that replaces the folder's template; empty: the folder's").file();
  bool plain_text = param("plain_text", false,
                          "score chats as they were rendered for the policy, without the reward model's template");
  std::int64_t max_length =
      param(
          "max_length", 0,
          "longest row in tokens, prompt and completion together; 0: the model's max_position_embeddings (more is allowed, "
          "with a warning)")
          .at_least(0);
  std::string truncation =
      param("truncation", "error",
            "what to do with a longer row: error fails it, left keeps its end, right its beginning, middle both")
          .choices({"error", "left", "right", "middle"});
  std::string transform =
      param("transform", "none", "applied to the logit; sigmoid: 1 / (1 + exp(-x))").choices({"none", "sigmoid"});
  std::int64_t batch_size =
      param("batch_size", 8, "rows computed at a time, fewer if they are long; changes time and memory, not the scores")
          .range(1, 65536);

  ~RewardModel() override {
    if (opened_ != nullptr) scorer_->close(opened_);
  }

  void setup(Call call) override {
    const auto* scorer =
        static_cast<const mortise_score_model_vtable*>(call.host()->get_extension(MORTISE_EXT_SCORE_MODEL));
    if (scorer == nullptr) {
      fail(MORTISE_FAILED_PRECONDITION,
           "this process runs no models (no host extension mortise.score_model/1); run the reward in the engine's own "
           "process");
    }
    if (model.empty()) fail(MORTISE_INVALID_ARGUMENT, "model: is empty; name the folder of a reward model");
    mortise_score_model_options options{};
    options.struct_size = sizeof options;
    options.folder = to_text(model);
    options.chat_template = to_text(chat_template);
    options.max_length = max_length;
    options.batch_size = batch_size;
    options.truncation =
        std::int32_t(std::find(std::begin(kTruncations), std::end(kTruncations), truncation) - kTruncations);
    options.plain_text = plain_text ? 1 : 0;
    scorer_ = scorer;
    // The engine has said why.
    const std::int32_t status = scorer->open(call.host(), call.raw(), &options, &opened_);
    if (status != MORTISE_OK) fail(status, "the reward model '" + model + "' could not be loaded");
  }

  void score(const std::vector<Row>& rows, Span<double> rewards, Call call) override {
    const std::size_t n = rows.size();
    std::vector<mortise_text> prompts(n), completions(n), messages(n), tools(n);
    for (std::size_t i = 0; i < n; ++i) {
      prompts[i] = to_text(rows[i].prompt());
      completions[i] = to_text(rows[i].completion());
      messages[i] = to_text(rows[i].messages());
      tools[i] = to_text(rows[i].json("tools").value_or(rows[i].text("tools").value_or("")));
    }
    mortise_score_model_in in{};
    in.struct_size = sizeof in;
    in.num_rows = std::int64_t(n);
    in.prompts = prompts.data();
    in.completions = completions.data();
    in.messages = messages.data();
    in.tools = tools.data();
    std::vector<double> scores(n, not_applicable);
    std::vector<std::int64_t> num_tokens(n);
    mortise_score_model_out out{};
    out.struct_size = sizeof out;
    out.scores = scores.data();
    out.num_tokens = num_tokens.data();
    out.row_failed = [](void* sink, std::int64_t row, std::int32_t code, mortise_text text) noexcept {
      static_cast<Call*>(sink)->fail_row(row, code, view(text));
    };
    out.sink = &call;
    const std::int32_t status = scorer_->score(opened_, call.raw(), &in, &out);
    if (status != MORTISE_OK) fail(status, "the reward model '" + model + "' gave no scores");
    for (std::size_t i = 0; i < n; ++i) {
      if (std::isnan(scores[i])) continue;
      rewards[std::int64_t(i)] = transform == "sigmoid" ? 1.0 / (1.0 + std::exp(-scores[i])) : scores[i];
      rows[i].note("reward_model_tokens", double(num_tokens[i]));
      if (transform != "none") rows[i].note("reward_model_logit", scores[i]);
    }
  }

 private:
  const mortise_score_model_vtable* scorer_ = nullptr;
  void* opened_ = nullptr;
};

}  // namespace
}  // namespace mortise

MORTISE_REWARD("reward_model", mortise::RewardModel)
