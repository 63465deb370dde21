// The JSON of requests: what is read, and what is refused by name.
#include "serve/api/completion_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "served_texts.h"

namespace mortise::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const ServedModelInfo kModel{13, 64, {1}};

Result<CompletionCall> read_call(std::string_view json, bool is_chat = false) {
  static const TempDir dir;
  static const ServedTexts texts = letter_texts(dir, "abcdefghij ", " ");
  return read_completion_call(parse_json(json, "test").value(), is_chat, texts, kModel, 77);
}
std::string call_error(std::string_view json, bool is_chat = false) {
  const auto call = read_call(json, is_chat);
  return call.ok() ? "no error" : call.error().to_string();
}

TEST(CompletionCallTest, PromptsComeInFourForms) {
  EXPECT_THAT(read_call(R"({"prompt": "abc"})")->requests[0].prompt_ids, ElementsAre(2, 3, 4));
  EXPECT_THAT(read_call(R"({"prompt": [5, 6]})")->requests[0].prompt_ids, ElementsAre(5, 6));
  EXPECT_EQ(read_call(R"({"prompt": ["a", "b"]})")->requests.size(), 2U);
  const auto call = read_call(R"({"prompt": [[5], [6, 7]], "n": 3})");
  ASSERT_EQ(call->requests.size(), 2U);
  EXPECT_THAT(call->requests[1].prompt_ids, ElementsAre(6, 7));
  EXPECT_EQ(call->requests[1].first_row_id, 3) << "every completion has its own random stream";
  EXPECT_THAT(read_call(R"({"messages": [{"role": "user", "content": "ab"}]})", true)->requests[0].prompt_ids,
              ElementsAre(2, 3, 12));
}

TEST(CompletionCallTest, OptionsAreThoseOfTheSampler) {
  const auto call = read_call(R"({"prompt": [5], "max_tokens": 9, "temperature": 0.5, "top_k": 4, "top_p": 0.9,
    "min_p": 0.1, "typical_p": 0.8, "repetition_penalty": 1.5, "presence_penalty": -1, "frequency_penalty": 2,
    "seed": 5, "stop": ["ab"], "stop_token_ids": [7], "min_tokens": 2, "bad_word_ids": [[3, 4]], "bad_words": ["j"],
    "logprobs": 2, "return_token_ids": true, "stream": true, "stream_options": {"include_usage": true}})");
  ASSERT_TRUE(call.ok()) << call.error().to_string();
  const ServedRequest& request = call->requests[0];
  EXPECT_EQ(request.seed, 5U);
  EXPECT_EQ(request.num_top_log_probs, 2);
  EXPECT_TRUE(call->streams && call->streams_usage && call->returns_ids && call->gives_log_probs);
  const Sampling& s = request.sampling;
  EXPECT_EQ(s.max_new_tokens, 9);
  EXPECT_EQ(s.temperature, 0.5);
  EXPECT_EQ(s.top_k, 4);
  EXPECT_EQ(s.frequency_penalty, 2);
  EXPECT_THAT(s.stop_ids, ElementsAre(1, 7));
  EXPECT_THAT(s.stop_strings, ElementsAre("ab"));
  EXPECT_THAT(s.bad_words, ElementsAre(ElementsAre(3, 4), ElementsAre(11), ElementsAre(12, 11)));
}

TEST(CompletionCallTest, DefaultsAreThoseOfTheApi) {
  const auto call = read_call(R"({"prompt": [5]})");
  EXPECT_EQ(call->requests[0].sampling.max_new_tokens, 16);
  EXPECT_EQ(call->requests[0].seed, 77U);
  EXPECT_THAT(call->requests[0].sampling.stop_ids, ElementsAre(1));
  EXPECT_FALSE(call->gives_log_probs);
  const auto chat = read_call(R"({"messages": [{"role": "user", "content": "a"}]})", true);
  EXPECT_EQ(chat->requests[0].sampling.max_new_tokens, 62) << "as long as the model goes";
  EXPECT_TRUE(read_call(R"({"prompt": [5], "ignore_eos": true})")->requests[0].sampling.stop_ids.empty());
  EXPECT_TRUE(read_call(R"({"prompt": [5], "logit_bias": null, "echo": false, "whatever": null})").ok());
}

TEST(CompletionCallTest, PatternsAreTakenByEachOfTheirNames) {
  const auto pattern = [](const std::string& fields) {
    const auto call = read_call(R"({"prompt": [5], )" + fields + "}");
    return call.ok() ? call->requests[0].sampling.regex : call.error().to_string();
  };
  EXPECT_EQ(pattern(R"("n": 1)"), "");
  EXPECT_EQ(pattern(R"("guided_regex": "a+|b")"), "a+|b");
  EXPECT_EQ(pattern(R"("structured_outputs": {"regex": "a+|b"})"), "a+|b");
  EXPECT_EQ(pattern(R"("structured_outputs": {"choice": ["a.b", "c"], "json": null})"), "(a\\.b)|(c)");
  EXPECT_EQ(pattern(R"("guided_choice": ["a", "[b]"])"), "(a)|(\\[b\\])");
}

TEST(CompletionCallTest, ATrainersRandomKeyIsTaken) {
  const auto call = read_call(R"({"prompt": [5], "mortise": {"seed": 18446744073709551615, "step": 3,
    "first_row_id": 40}})");
  EXPECT_EQ(call->requests[0].seed, UINT64_MAX);
  EXPECT_EQ(call->requests[0].step, 3);
  EXPECT_EQ(call->requests[0].first_row_id, 40);
  EXPECT_THAT(call_error(R"({"prompt": [5], "mortise": {"step": 3}})"), HasSubstr("\"seed\""));
  EXPECT_THAT(call_error(R"({"prompt": [5], "mortise": {"seed": 1, "row": 3}})"), HasSubstr("'row' is unknown"));
}

TEST(CompletionCallTest, WhatCannotBeObeyedIsRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "'prompt' is missing"},
      {R"({"prompt": [1.5]})", "'prompt' must be a list of token ids"},
      {R"({"prompt": {"a": 1}})", "'prompt'"},
      {R"({"prompt": [5], "temprature": 1})", "'temprature' is unknown"},
      {R"({"prompt": [5], "temperature": "hot"})", "'temperature' must be a number"},
      {R"({"prompt": [5], "temperature": -1})", "'temperature' must be a number from 0"},
      {R"({"prompt": [5], "n": 0})", "'n' must be an integer from 1"},
      {R"({"prompt": [5], "n": 9999999})", "'n' must be an integer from 1"},
      {R"({"prompt": [[5],[5],[5]], "n": 4000})", "is more than 4096 completions"},
      {R"({"prompt": [5], "max_tokens": 0})", "'max_tokens'"},
      {R"({"prompt": [5], "best_of": 2})", "'best_of' must equal"},
      {R"({"prompt": [5], "echo": true})", "'echo' is not supported"},
      {R"({"prompt": [5], "logit_bias": {"5": 1}})", "'logit_bias' is not supported"},
      {R"({"prompt": [5], "prompt_logprobs": 1})", "'prompt_logprobs' is not supported"},
      {R"({"prompt": [5], "response_format": {"type": "json_object"}})", "'response_format'"},
      {R"({"prompt": [5], "response_format": {"type": "json_object"}})", "guided by regular expressions"},
      {R"({"prompt": [5], "guided_json": {"type": "object"}})", "'guided_json' is not supported"},
      {R"({"prompt": [5], "guided_regex": ""})", "'guided_regex' is empty"},
      {R"({"prompt": [5], "guided_choice": []})", "'guided_choice' must be a list of texts"},
      {R"({"prompt": [5], "guided_regex": "a", "guided_choice": ["a"]})", "more than one pattern"},
      {R"({"prompt": [5], "structured_outputs": "a"})", "'structured_outputs' must be an object"},
      {R"({"prompt": [5], "structured_outputs": {}})", "must have \"regex\" or \"choice\""},
      {R"({"prompt": [5], "structured_outputs": {"grammar": "root ::= a"}})", "'grammar' is not supported"},
      {R"({"prompt": [5], "structured_outputs": {"regexp": "a"}})", "'regexp' is unknown"},
      {R"({"prompt": [5], "stop": 5})", "'stop' must be a text or a list of texts"},
      {R"({"prompt": "\u00e4", "logprobs": 5000})", "'logprobs'"},
      {R"([])", "must be a JSON object"},
  };
  for (const auto& [json, why] : cases) EXPECT_THAT(call_error(json), HasSubstr(why)) << json;
  EXPECT_THAT(call_error(R"({"messages": []})", true), HasSubstr("'messages' must be a list of messages"));
  EXPECT_THAT(call_error(R"({"messages": [{"content": "a"}]})", true), HasSubstr("without a role"));
  EXPECT_THAT(call_error(R"({"messages": [{"role": "user", "content": "a"}], "top_logprobs": 2})", true),
              HasSubstr("needs \"logprobs\": true"));
}

TEST(CompletionCallTest, AFolderWithoutTokenizerTakesIds) {
  ServedTexts bare;
  const auto read = [&](std::string_view json) {
    const auto call = read_completion_call(parse_json(json, "test").value(), false, bare, kModel, 1);
    return call.ok() ? "" : call.error().to_string();
  };
  EXPECT_EQ(read(R"({"prompt": [5]})"), "");
  EXPECT_THAT(read(R"({"prompt": "a"})"), HasSubstr("no tokenizer"));
  EXPECT_THAT(read(R"({"prompt": [5], "stop": "a"})"), HasSubstr("tokenizer"));
  EXPECT_THAT(read(R"({"prompt": [5], "guided_regex": "a"})"), HasSubstr("tokenizer"));
}

}  // namespace
}  // namespace mortise::test
