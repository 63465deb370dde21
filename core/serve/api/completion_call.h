// The body of POST /v1/completions and /v1/chat/completions, as the OpenAI API and vLLM write it, read into what the
// model is asked for. docs/servers.md lists the fields.
// Thread rule: pure functions; the texts are read-only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "foundation/base/result.h"
#include "foundation/batch/tool_format.h"
#include "foundation/formats/json.h"
#include "serve/engine_port.h"
#include "text/tokenizer/chat_templates.h"
#include "text/tokenizer/tokenizer.h"

namespace mortise {

// The model's folder without its weights, as the API shows it.
struct ServedTexts {
  std::string model_name;
  std::optional<Tokenizer> tokenizer;  // none: token ids only
  ChatTemplates chat_templates;
  std::optional<ToolFormat> tool_format;  // in which the model calls tools; none: a chat's answer is text alone
};

struct CompletionCall {
  bool is_chat = false;
  std::vector<ServedRequest> requests;  // one per prompt
  int64_t num_samples = 1;              // completions per prompt
  bool gives_log_probs = false;
  int64_t num_top_log_probs = 0;
  bool returns_ids = false;
  bool tokens_as_ids = false;  // tokens of log-probs are written as "token_id:5"
  bool streams = false;
  bool streams_usage = false;
  bool skips_special_tokens = true;
  bool splits_channels = false;           // a chat of gpt-oss: the answer has reasoning apart (text/tools/harmony.h)
  std::optional<ToolFormat> tool_format;  // the answer tells calls of tools from text
  Json tools;                             // that the prompt offers
  std::string call_id;                    // part of the ids of calls
  bool keeps_stop_text = false;           // the text that ended a completion stays in "text"
  std::vector<int64_t> own_stop_ids;      // those of the request, without the model's end tokens
};

// `fallback_seed`: of a request without "seed".
Result<CompletionCall> read_completion_call(const Json& body, bool is_chat, const ServedTexts& texts,
                                            const ServedModelInfo& model, uint64_t fallback_seed);

// "prompt" or "messages" of /tokenize, as the completions endpoints read them.
Result<std::vector<int64_t>> read_tokenize_call(const Json& body, const ServedTexts& texts);

// The ids of "tokens" of /detokenize, within the vocabulary.
Result<std::vector<int64_t>> read_detokenize_call(const Json& body, const ServedModelInfo& model);

}  // namespace mortise
