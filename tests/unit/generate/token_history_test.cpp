// What penalties count and what is forbidden, from the ids only; and texts that end a completion.
#include "foundation/batch/token_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "foundation/base/env.h"
#include "generate/sample/stop_strings.h"

namespace mortise {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

std::vector<std::pair<int64_t, int64_t>> seen(TokenHistory& history) {
  std::vector<std::pair<int64_t, int64_t>> out;
  for (const SeenToken& token : history.edits().seen) out.emplace_back(token.id, token.count);
  return out;
}
std::vector<int64_t> barred(TokenHistory& history) {
  const auto ids = history.edits().barred;
  return {ids.begin(), ids.end()};
}

TEST(TokenHistory, CountsTheCompletionAndKnowsThePrompt) {
  Sampling params;
  params.repetition_penalty = 1.1;
  TokenHistory history;
  history.start(params, std::vector<int64_t>{4, 7, 4});
  EXPECT_THAT(seen(history), UnorderedElementsAre(std::pair(4, 0), std::pair(7, 0)));
  for (const int64_t id : {7, 9, 7}) history.push(id);
  EXPECT_THAT(seen(history), UnorderedElementsAre(std::pair(4, 0), std::pair(7, 2), std::pair(9, 1)));
}

TEST(TokenHistory, TheOtherPenaltiesLeaveThePromptAlone) {
  Sampling params;
  params.frequency_penalty = 0.5;
  TokenHistory history;
  history.start(params, std::vector<int64_t>{4, 7});
  EXPECT_THAT(seen(history), IsEmpty());
  history.push(4);
  EXPECT_THAT(seen(history), ElementsAre(std::pair(4, 1)));
}

TEST(TokenHistory, EndsAreBarredUntilTheyMayCome) {
  Sampling params;
  params.stop_ids = {1, 2};
  params.min_new_tokens = 2;
  TokenHistory history;
  history.start(params, {});
  EXPECT_THAT(barred(history), ElementsAre(1, 2));
  history.push(5);
  EXPECT_THAT(barred(history), ElementsAre(1, 2));
  history.push(5);
  EXPECT_THAT(barred(history), IsEmpty());
}

TEST(TokenHistory, BadWordsBarTheirLastTokenWhereTheOthersCame) {
  Sampling params;
  params.bad_words = {{8}, {3, 4}, {9, 3, 5}};
  TokenHistory history;
  history.start(params, std::vector<int64_t>{9, 3});  // the prompt counts
  EXPECT_THAT(barred(history), UnorderedElementsAre(8, 4, 5));
  history.push(3);
  EXPECT_THAT(barred(history), UnorderedElementsAre(8, 4));
  history.push(9);
  EXPECT_THAT(barred(history), ElementsAre(8));
  history.push(3);
  EXPECT_THAT(barred(history), UnorderedElementsAre(8, 4, 5));
  TokenHistory fresh;
  fresh.start(params, {});
  EXPECT_THAT(barred(fresh), ElementsAre(8));
}

Tokenizer golden_tokenizer(const char* name) {
  auto tokenizer = Tokenizer::load(Path(MORTISE_SOURCE_DIR) / "tests/golden/text/tokenizers" / name);
  EXPECT_TRUE(tokenizer.ok());
  return *std::move(tokenizer);
}

// The place of the token that ends `text`, or -1.
int64_t place_of_stop(const Tokenizer& tokenizer, const std::string& text, const std::vector<std::string>& stops) {
  const auto ids = tokenizer.encode(text);
  EXPECT_TRUE(ids.ok());
  StopStringFinder finder(tokenizer, stops);
  for (size_t i = 0; i < ids->size(); ++i) {
    if (finder.push((*ids)[i])) return static_cast<int64_t>(i);
  }
  return -1;
}

TEST(StopStrings, EndWithTheTokenThatCompletesOne) {
  for (const char* const name : {"qwen2", "llama3", "llama2_prepend"}) {
    const Tokenizer tokenizer = golden_tokenizer(name);
    const std::string text = "The answer is 42.</answer> And then é漢字🙂 some more";
    const auto ids = *tokenizer.encode(text);
    for (const std::string stop : {"</answer>", "42", ".", "é", "漢字", "🙂", " some mo"}) {
      const int64_t place = place_of_stop(tokenizer, text, {"never", stop});
      ASSERT_GE(place, 0) << name << stop;
      const auto at = static_cast<std::ptrdiff_t>(place);
      const auto shown = [&](std::ptrdiff_t count) {
        IncrementalDecoder decoder = tokenizer.incremental_decoder();
        std::string out;
        for (auto id = ids.begin(); id != ids.begin() + count; ++id) out += decoder.push(*id);
        return out;
      };
      EXPECT_EQ(shown(at).find(stop), std::string::npos) << name << stop;
      EXPECT_NE(shown(at + 1).find(stop), std::string::npos) << name << stop;
    }
    EXPECT_EQ(place_of_stop(tokenizer, text, {"never", "</answers"}), -1);
  }
}

TEST(StopStrings, SpecialTokensCountWithTheirText) {
  const Tokenizer tokenizer = golden_tokenizer("qwen2");
  EXPECT_EQ(place_of_stop(tokenizer, "<|im_end|>", {"<|im_end|>"}), 0);
}

}  // namespace
}  // namespace mortise
