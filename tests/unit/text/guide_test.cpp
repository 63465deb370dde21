// Patterns that guide sampling: the automaton against Python's re (guide_oracle.py), sets of tokens against each token's
// bytes one by one, for the tokenizers of tests/golden/text.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>

#include "foundation/base/text.h"
#include "text/guide/pattern_check.h"
#include "text/guide/pattern_tree.h"
#include "text/guide/token_guide.h"
#include "text_test_support.h"

namespace mortise {
namespace {

using testing_text::golden;
using testing_text::is_long;

ByteAutomaton automaton_of(std::string_view pattern) {
  auto made = ByteAutomaton::compile(pattern);
  EXPECT_TRUE(made.ok()) << pattern << ": " << (made.ok() ? "" : made.error().to_string());
  return *std::move(made);
}

std::string refusal_of(std::string_view pattern) {
  const auto made = ByteAutomaton::compile(pattern);
  return made.ok() ? "none" : made.error().what;
}

TEST(GuidePattern, MatchesAsPythonsReDoes) {
  const test::TempDir dir;
  const Path file = dir.path() / "patterns.jsonl";
  const Path script = Path(MORTISE_SOURCE_DIR) / "tests/unit/text/guide_oracle.py";
  const std::string command =
      "python3 '" + script.string() + "' '" + file.string() + "' " + (is_long() ? "60000" : "3000") + " 7";
  ASSERT_EQ(std::system(command.c_str()), 0);
  int num_matching = 0, num_texts = 0;
  for (const Json& row : testing_text::read_rows(file)) {
    const auto& pattern = row["pattern"].get_ref<const std::string&>();
    const auto automaton = ByteAutomaton::compile(pattern);
    ASSERT_TRUE(automaton.ok()) << pattern << ": " << automaton.error().to_string();
    for (size_t i = 0; i < row["texts"].size(); ++i) {
      const auto& text = row["texts"][i].get_ref<const std::string&>();
      ASSERT_EQ(automaton->matches(text), row["matches"][i].get<bool>()) << row["pattern"] << " " << row["texts"][i];
      num_matching += row["matches"][i].get<bool>() ? 1 : 0;
      ++num_texts;
    }
  }
  EXPECT_GT(num_texts, 20000);
  EXPECT_GT(num_matching * 4, num_texts);
  EXPECT_LT(num_matching * 4, num_texts * 3);
}

// Sets of characters that begin and end anywhere.
TEST(GuidePattern, TakesEachCharacterOfASetAndNoOther) {
  std::mt19937 random(5);
  const auto code = [&]() -> uint32_t {
    static constexpr uint32_t kEnds[] = {0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF, 0};
    const uint32_t any = random() % 3 == 0 ? kEnds[random() % std::size(kEnds)] : random() % 0x110000;
    return any >= 0xD800 && any <= 0xDFFF ? 0xE000 : any;
  };
  for (int round = 0; round < 60; ++round) {
    uint32_t first = code(), last = code();
    if (first > last) std::swap(first, last);
    const auto pattern = fmt::format("[\\u{{{:x}}}-\\u{{{:x}}}]", first, last);
    const ByteAutomaton automaton = automaton_of(pattern);
    for (int i = 0; i < 300; ++i) {
      const uint32_t c = i == 0 ? first : i == 1 ? last : code();
      std::string text;
      append_utf8(text, c);
      ASSERT_EQ(automaton.matches(text), c >= first && c <= last) << pattern << " " << c;
    }
    for (const char* const broken : {"\x80", "\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xFF", "\xC3"})
      EXPECT_FALSE(automaton.matches(broken));
  }
}

TEST(GuidePattern, SaysWhatItDoesNotTake) {
  using testing::HasSubstr;
  const std::pair<const char*, const char*> cases[] = {
      {"a(?=b)", "character 2: looking ahead is not supported"},
      {"a(?!b)", "looking ahead"},
      {"(?<=a)b", "looking behind"},
      {"(?<!a)b", "looking behind"},
      {"é(a)\\1", "character 5: a reference to a group is not supported"},
      {"\\k<a>", "a reference to a group"},
      {"\\bword", "a word boundary"},
      {"\\p{L}", "Unicode properties"},
      {"(?i)a", "this kind of group"},
      {"(?>a)", "this kind of group"},
      {"a$b", "character 2: '^' is supported as the first character"},
      {"a^b", "'^' is supported as the first"},
      {"a++", "a repeat is repeated"},
      {"a{2}{3}", "a repeat is repeated"},
      {"*a", "character 1: there is nothing to repeat"},
      {"{\"a\": 1}", "'{' is not behind anything"},
      {"a{x}", "'{' begins no repeat"},
      {"a{3,2}", "is below the least"},
      {"a{1", "not closed by '}'"},
      {"a{1,999999}", "the repeat is above 100000"},
      {"(a", "character 1: the group is not closed"},
      {"a)", "character 2: ')' closes no group"},
      {"[a", "the class is not closed"},
      {"[]a]", "the class has no characters"},
      {"[^\\u0000-\\u{10ffff}]", "the class has no characters"},
      {"[b-a]", "the range ends before it begins"},
      {"[\\d-z]", "a range needs a character on each side"},
      {"[[:alpha:]]", "POSIX classes"},
      {"\\x4", "needs 2 hexadecimal digits"},
      {"\\ud800", "no character of this number"},
      {"\\q", "there is no such escape"},
      {"a\\", "the escape is not finished"},
      {"\xFF", "not UTF-8 at byte 0"}};
  for (const auto& [pattern, what] : cases) EXPECT_THAT(refusal_of(pattern), HasSubstr(what)) << pattern;
  EXPECT_THAT(refusal_of(std::string(1000, '(')), HasSubstr("nested too deeply"));
  EXPECT_THAT(refusal_of(std::string(kMostPatternBytes + 1, 'a')), HasSubstr("at most 262144 are allowed"));
}

TEST(GuidePattern, EndsWithAnErrorIfItIsTooLarge) {
  EXPECT_THAT(refusal_of("((.{1000}){1000}){1000}"), testing::HasSubstr("needs more than 400000 states"));
  EXPECT_THAT(refusal_of(".*a.{30}"), testing::HasSubstr("the pattern needs too many states"));
  EXPECT_THAT(refusal_of("(a{0,300}){300}"), testing::HasSubstr("the pattern needs too many states"));
  EXPECT_THAT(refusal_of("((){100000}){100000}"), testing::HasSubstr("needs more than 400000 states"));
  EXPECT_EQ(refusal_of(".{0,4000}"), "none");
  EXPECT_EQ(refusal_of("((a*)*)*"), "none");
}

TEST(GuidePattern, AnEscapedTextMatchesItselfAlone) {
  const std::string text = "a.b*c\\d[e]{f}(g)|h^$?+ é\n";
  EXPECT_TRUE(automaton_of(escaped_pattern(text)).matches(text));
  EXPECT_FALSE(automaton_of(escaped_pattern(text)).matches("axb*c\\d[e]{f}(g)|h^$?+ é\n"));
}

std::shared_ptr<const VocabularyTrie> trie_of(const Tokenizer& tokenizer, int64_t more_ids = 3) {
  auto made = VocabularyTrie::create(tokenizer, tokenizer.vocab_size() + more_ids);
  EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().to_string());
  return std::make_shared<const VocabularyTrie>(*std::move(made));
}

class GuidedTokenizer : public testing::TestWithParam<const char*> {
 protected:
  static Tokenizer load() {
    auto loaded = Tokenizer::load(golden("tokenizers") / GetParam());
    EXPECT_TRUE(loaded.ok()) << (loaded.ok() ? "" : loaded.error().to_string());
    return *std::move(loaded);
  }
};

// The bytes of tokens, joined, are the decoded text behind a token that stands first.
TEST_P(GuidedTokenizer, BytesOfTokensAreTheirTexts) {
  const Tokenizer tokenizer = load();
  std::mt19937 random(3);
  const int64_t first = tokenizer.encode("a")->front();
  const std::string before = tokenizer.decode(std::vector<int64_t>{first});
  int num_checked = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<int64_t> ids = {first};
    std::string bytes = before;
    for (int i = 0; i < 2; ++i) {
      ids.push_back(static_cast<int64_t>(random()) % tokenizer.vocab_size());
      const auto own = tokenizer.token_bytes(ids.back());
      ASSERT_TRUE(own.ok()) << own.error().to_string();
      bytes += *own;
    }
    if (find_invalid_utf8(bytes)) continue;  // decoding shows U+FFFD there
    EXPECT_EQ(tokenizer.decode(ids), bytes) << Json(ids).dump();
    ++num_checked;
  }
  EXPECT_GT(num_checked, 500);
}

// Each token by itself: what set, count and next state of a guide must be.
void expect_set(const Tokenizer& tokenizer, TokenGuide& guide, const std::vector<int64_t>& ends, int64_t vocab_size,
                int32_t state, std::vector<int64_t>& next) {
  const ByteAutomaton& automaton = guide.automaton();
  const auto set = guide.allowed(state);
  int64_t count = 0;
  next.clear();
  for (int64_t id = 0; id < vocab_size; ++id) {
    const std::string bytes = tokenizer.is_special(id) ? "" : *tokenizer.token_bytes(id);
    int32_t behind = state;
    for (const char byte : bytes)
      behind = behind == ByteAutomaton::kDead ? behind : automaton.next(behind, static_cast<uint8_t>(byte));
    const bool is_end = std::ranges::count(ends, id) > 0;
    const bool may_come = is_end ? automaton.accepts(state) : !bytes.empty() && behind != ByteAutomaton::kDead;
    ASSERT_EQ(set->has(id), may_come) << id;
    count += may_come ? 1 : 0;
    if (!may_come || is_end) continue;
    next.push_back(id);
    ASSERT_EQ(guide.next(state, id), behind);
  }
  ASSERT_EQ(set->count, count);
  ASSERT_GT(count, 0);
  ASSERT_EQ(guide.next(state, ends[0]), state);
}

TEST_P(GuidedTokenizer, AllowsATokenIfAMatchGoesOnWithItsBytes) {
  const Tokenizer tokenizer = load();
  const auto trie = trie_of(tokenizer);
  std::mt19937 random(11);
  const std::vector<int64_t> ends = {2, trie->vocab_size() - 1};
  for (const std::string_view pattern : {R"(\d+(\.\d*)?)", R"(<think>.*</think>\n(yes|no))", R"([^a-z]{0,40}|é+)",
                                         R"((the |and )*\w+[.!?])", ".*", "()"}) {
    const auto guide = TokenGuide::create(trie, pattern, ends);
    ASSERT_TRUE(guide.ok()) << pattern << ": " << guide.error().to_string();
    for (int walk = 0; walk < 6; ++walk) {
      int32_t state = ByteAutomaton::kStart;
      for (int step = 0; step < 8; ++step) {
        std::vector<int64_t> next;
        expect_set(tokenizer, **guide, ends, trie->vocab_size(), state, next);
        if (HasFatalFailure()) FAIL() << pattern;
        if (next.empty()) break;
        state = (*guide)->next(state, next[random() % next.size()]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, GuidedTokenizer,
                         testing::Values("qwen2", "llama3", "llama2_prepend", "gemma_replace", "deepseek_digits"),
                         [](const auto& info) { return std::string(info.param); });

// A tokenizer of single characters.
class FewTokens : public testing::Test {
 protected:
  FewTokens() {
    CharTokenizerSpec spec;
    spec.characters = "0123abc";
    spec.special_tokens = {"<unk>", "<eos>"};
    spec.roles = {{"eos_token", "<eos>"}};
    const auto files = make_char_tokenizer(spec);
    dir.write("tokenizer.json", files->tokenizer_json);
    dir.write("tokenizer_config.json", files->tokenizer_config_json);
    tokenizer.emplace(*Tokenizer::load(dir.path()));
    trie = trie_of(*tokenizer, 0);
  }
  std::string allowed(TokenGuide& guide, std::string_view behind) const {
    int32_t state = ByteAutomaton::kStart;
    for (const char c : behind) state = guide.next(state, *tokenizer->token_id(std::string_view(&c, 1)));
    std::string out;
    for (int64_t id = 0; id < trie->vocab_size(); ++id)
      if (guide.allowed(state)->has(id)) out += id == 1 ? "$" : *tokenizer->token_text(id);
    return out;
  }
  const std::vector<int64_t> ends = {1};
  test::TempDir dir;
  std::optional<Tokenizer> tokenizer;
  std::shared_ptr<const VocabularyTrie> trie;
};

TEST_F(FewTokens, WaysWithoutTokensAreNeverEntered) {
  const auto guide = *TokenGuide::create(trie, "(a1x|b2|c3+z?|0[ab]y)1*", ends);
  EXPECT_EQ(allowed(*guide, ""), "bc");
  EXPECT_EQ(allowed(*guide, "b"), "2");
  EXPECT_EQ(allowed(*guide, "b2"), "$1");
  EXPECT_EQ(allowed(*guide, "c3"), "$13");
  const auto none = TokenGuide::create(trie, "a[xyz]", ends);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().what, "no text of this tokenizer's tokens matches the pattern");
}

TEST_F(FewTokens, EndsWhereNothingElseMayCome) {
  const auto guide = *TokenGuide::create(trie, "a(b|c0)?", ends);
  EXPECT_EQ(allowed(*guide, ""), "a");
  EXPECT_EQ(allowed(*guide, "a"), "$bc");
  EXPECT_EQ(allowed(*guide, "ab"), "$");
  EXPECT_EQ(allowed(*guide, "ac"), "0");
  const auto without = TokenGuide::create(trie, "a", {});
  ASSERT_FALSE(without.ok());
  EXPECT_EQ(without.error().what, "a pattern needs an end token, but the model names none");
}

// An end id that has a text ends completions all the same, so it is no part of the match.
TEST_F(FewTokens, AnEndIdIsNoPartOfTheText) {
  const std::vector<int64_t> with_digit = {1, *tokenizer->token_id("0")};
  const auto guide = *TokenGuide::create(trie, "[ab0]{2}0?", with_digit);
  EXPECT_EQ(allowed(*guide, ""), "ab");
  EXPECT_EQ(allowed(*guide, "ab"), "$0");
}

TEST(GuideText, RefusesATokenizerWhoseTokensHaveNoTextOfTheirOwn) {
  const Tokenizer tokenizer = *Tokenizer::load(golden("tokenizers") / "wordlevel");
  const auto made = VocabularyTrie::create(tokenizer, tokenizer.vocab_size());
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.error().what, testing::HasSubstr("the text of a token depends on other tokens"));
}

// Completions of others: an end id asks for the whole text, a limit or a stop text only for the beginning of one.
TEST_F(FewTokens, TellWhichCompletionsFollowThePattern) {
  const auto check = PatternCheck::create("(ab|c)0");
  ASSERT_TRUE(check.ok());
  const auto follows = [&](const std::string& text, bool has_end, PatternCheck::Extent extent) {
    std::vector<int64_t> ids = *tokenizer->encode(text);
    if (has_end) ids.push_back(1);
    return *check->follows(ids, ends, extent, *tokenizer);
  };
  using enum PatternCheck::Extent;
  EXPECT_TRUE(follows("ab0", true, kWhole));
  EXPECT_TRUE(follows("c0", false, kWhole));
  EXPECT_FALSE(follows("ab", true, kWhole));
  EXPECT_FALSE(follows("ab", false, kWhole));
  EXPECT_TRUE(follows("ab", false, kBeginning));
  EXPECT_FALSE(follows("ab", true, kBeginning));
  EXPECT_FALSE(follows("b", false, kBeginning));
  EXPECT_FALSE(follows("0c0", true, kWhole));
  EXPECT_FALSE(follows("", true, kWhole));
}

}  // namespace
}  // namespace mortise
