// What clients are told, as the OpenAI API and vLLM write it.
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "foundation/base/result.h"
#include "foundation/formats/json.h"
#include "serve/api/completion_call.h"
#include "serve/serve_loop.h"

namespace mortise {

// What all answers to a request have in common.
struct AnswerHead {
  std::string id;  // "cmpl-..." or "chatcmpl-..."
  int64_t created_s = 0;
};

// The part of a completion that a client may read as text: without the end token or stop text, unless it wants them.
std::string visible_text(const CompletionCall& call, const ServedRequest& request, const ServedTexts& texts,
                         const ServedSequence& sequence);

// The same with its special tokens, for HarmonyText.
std::string channel_text(const CompletionCall& call, const ServedRequest& request, const ServedTexts& texts,
                         const ServedSequence& sequence);

// What is new in a stream. `reasoning`: only with CompletionCall::splits_channels. `tool_calls`: only at the end.
struct NewText {
  std::string text, reasoning;
  Json tool_calls = Json::array();
};

// What a client reads of a completion that has ended.
struct FinishedText {
  std::string answer, reasoning;  // as in NewText
  Json tool_calls = Json::array();
};
FinishedText finished_text(const CompletionCall& call, const ServedTexts& texts, size_t request,
                           const ServedSequence& sequence);

// The choice of a finished completion.
Json finished_choice(const CompletionCall& call, const ServedTexts& texts, size_t request,
                     const ServedSequence& sequence);
// A choice of a stream: `news` is new, as are the tokens of the sequence from `first_token` on. `is_last`: it also says
// why the completion ended.
Json streamed_choice(const CompletionCall& call, const ServedTexts& texts, size_t request,
                     const ServedSequence& sequence, size_t first_token, const NewText& news, bool is_last);

Json answer_of(const AnswerHead& head, const CompletionCall& call, const ServedTexts& texts, Json choices,
               int64_t num_completion_tokens);
Json chunk_of(const AnswerHead& head, const CompletionCall& call, const ServedTexts& texts, Json choices);
Json usage_of(const CompletionCall& call, int64_t num_completion_tokens);

std::string error_body(int status, const std::string& message);
std::string error_body(const Error& error);  // tells a client that the weights give bad numbers (NumericsError)
// The HTTP status of an error of the model or of a request.
int status_of(const Error& error);

Json models_answer(const ServedTexts& texts, const ServedModelInfo& model, const ServeStats& stats, int64_t created_s);
// Prometheus' text format.
std::string metrics_text(const ServeStats& stats);

}  // namespace mortise
