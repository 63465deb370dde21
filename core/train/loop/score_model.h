// ScoreModel: a reward model. A sequence classifier of one label, read from a Hugging Face folder with its own
// tokenizer and chat template, scores a completion in its place behind the prompt, as TRL's GRPO asks such a model:
//
//   a chat       messages + [{"role": "assistant", "content": completion}], rendered without a generation prompt
//   plain text   prompt + completion
//   score        the logit at the last token that is not the tokenizer's padding (its end token where it has none)
// No special tokens are added to those in the texts. A score differs with the rows of the same batch by rounding
// alone. Cost: one forward pass without autograd. Thread rule: const methods from several threads.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "experience/data/chat_renderer.h"
#include "experience/data/prompt_encoder.h"
#include "foundation/base/env.h"
#include "model/device/compute_device.h"
#include "model/model.h"
#include "text/tokenizer/tokenizer.h"

namespace mortise {

struct ScoreModelOptions {
  Path folder;
  std::optional<Path> chat_template;  // a Jinja file that replaces the folder's
  bool plain_text = false;            // chats too are scored as prompt + completion
  int64_t max_length = 0;             // tokens of a row; 0: max_position_embeddings
  Truncation truncation = Truncation::kError;
  int64_t batch_size = 8;  // rows of a pass
  ComputeDevice device;    // where the model computes
};

// The texts to score. They stay valid during the call.
struct ScoreRow {
  std::string_view prompt;
  std::string_view completion;
  std::string_view messages;  // JSON of the chat before the completion; empty: the prompt is plain
  std::string_view tools;     // JSON, or empty
};

struct RowScore {
  double score = std::numeric_limits<double>::quiet_NaN();
  int64_t num_tokens = 0;  // before any were cut away
  std::optional<Error> error;
};

// Why there is no model: a file is missing, it has a model or template of another kind, or it cannot be read.
enum class LoadFault { kMissing, kUnsuitable, kDamaged };

// The config of the reward model in a folder, before the weights are read, which can take minutes; else an Error (kind
// data) that says why the folder has none.
Result<ModelConfig> read_score_config(Env& env, const Path& folder, LoadFault* fault = nullptr);

class ScoreModel {
 public:
  // Errors (kind data) name the folder and what to do; `fault`, where given, is set with them.
  static Result<ScoreModel> load(Env& env, ScoreModelOptions options, LoadFault* fault = nullptr);

  // [rows.size()]. A row that cannot be scored carries its error. `is_over` is asked before every pass: where it says
  // yes, an Error of kind kSignal.
  [[nodiscard]] Result<std::vector<RowScore>> score(std::span<const ScoreRow> rows,
                                                    const std::function<bool()>& is_over) const;

  [[nodiscard]] const Model& model() const { return model_; }
  [[nodiscard]] int64_t max_length() const { return options_.max_length; }

 private:
  ScoreModel(Model model, Tokenizer tokenizer, ChatTemplates templates, ScoreModelOptions options);
  // The row's tokens, as many as there are.
  [[nodiscard]] Result<std::vector<int64_t>> encode(const ScoreRow& row) const;
  [[nodiscard]] Result<std::string> text_of(const ScoreRow& row) const;
  // The row's tokens as the model gets them; num_tokens is set.
  [[nodiscard]] Result<std::vector<int64_t>> fit(const ScoreRow& row, int64_t& num_tokens) const;

  Model model_;
  Tokenizer tokenizer_;
  bool has_template_;
  ChatRenderer chats_;
  std::optional<int64_t> pad_id_;
  ScoreModelOptions options_;
};

}  // namespace mortise
