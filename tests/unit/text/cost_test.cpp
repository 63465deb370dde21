// The cost of a tokenizer's files and of a chat template. Each case here once took seconds to days, or filled the
// memory. The limits are in CPU time, far above what the work takes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/cpu_time.h"
#include "support/long_run.h"
#include "support/temp_dir.h"
#include "support/this_build.h"
#include "text/template/chat_template.h"
#include "text/tokenizer/tokenizer.h"
#include "text_test_support.h"

namespace mortise {
namespace {

using ::testing::HasSubstr;

// The part of a rendering's work that the cases may do. The bounds are as much smaller.
const double kWorkShare = test::kSanitized ? 0.01 : test::is_long() ? 1 : 0.25;

// The length of a text. What grows faster than a text shows in the release build; a sanitizer needs each kind of text once.
size_t length(size_t count) { return test::kSanitized ? count / 10 : count; }

// Made once: an object of the engine looks a key up by a walk.
const Json& large_table() {
  static const Json table = [] {
    Json made = Json::object();
    for (int i = 0; i < 9000; ++i) made["k" + std::to_string(i)] = i;
    return made;
  }();
  return table;
}

// No text costs more than fifty times what plain loops take until a rendering has done all of its work.
double most_seconds(double work_share) {
  static const double loops = [] {
    const auto chat = ChatTemplate::parse(
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "t.jinja");
    RenderInput input;
    input.work_share = kWorkShare;
    return test::least_cpu_seconds_of([&] { EXPECT_FALSE(chat->render(input).ok()); });
  }();
  return 50 * loops * work_share / kWorkShare;
}

// What the template makes of one message with this content, or its error.
std::string render(const std::string& source, const std::string& content, double work_share = 1) {
  const auto chat = ChatTemplate::parse(source, "t.jinja");
  if (!chat.ok()) return chat.error().to_string();
  RenderInput input;
  input.messages = Json::array({{{"role", "user"}, {"content", content}}});
  if (source.find("table") != std::string::npos) input.kwargs = {{"table", large_table()}};
  input.work_share = work_share;
  std::optional<Result<Rendered>> rendered;
  const double seconds = test::cpu_seconds_of([&] { rendered = chat->render(input); });
  EXPECT_LT(seconds, most_seconds(work_share)) << source.substr(0, 200);
  return rendered->ok() ? (*rendered)->text : rendered->error().to_string();
}

std::string repeated(std::string_view text, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += text;
  return out;
}

TEST(TemplateCost, FiltersOfLongTextsAreLinear) {
  const std::string apply = "{{ messages[0].content | striptags }}";
  EXPECT_EQ(render(apply, repeated("<b>x</b> ", length(90'000))), repeated("x ", length(90'000) - 1) + "x");
  EXPECT_EQ(render(apply, repeated("<!-- c -->", length(80'000)) + "y"), "y");
  EXPECT_EQ(render(apply, " a <!-- < --> b\n\t&lt;<i \n>c</i>  <!- d <!--> e <!-- open"), "a b <c <!- d e <!-- open");
  const std::string pairs = repeated("ab", length(400'000)), accents = repeated("é", length(400'000));
  EXPECT_EQ(render("{{ messages[0].content[::-1] | reverse }}", pairs), pairs);
  EXPECT_EQ(render("{{ messages[0].content | last }}{{ messages[0].content | first }}", accents + "z"), "zé");
  EXPECT_EQ(render("{{ messages[0].content | urlencode }}", repeated("é", length(200'000))),
            repeated("%C3%A9", length(200'000)));
}

// The quadratic way of taking tags out, on drawn texts of what matters to it.
TEST(TemplateCost, StriptagsGivesWhatTheSlowWayGives) {
  const auto without = [](std::string text, const std::string& open, const std::string& close) {
    for (size_t at = text.find(open); at != std::string::npos; at = text.find(open, at)) {
      const size_t end = text.find(close, at);
      if (end == std::string::npos) break;
      text.erase(at, end + close.size() - at);
    }
    return text;
  };
  uint64_t state = 1;
  for (int i = 0; i < 2000; ++i) {
    std::string text = "x";
    for (int k = 0; k < 24; ++k) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      static constexpr const char* kParts[] = {"<", ">", "!", "--", "<!--", "-->", "a", "-"};
      text += kParts[state >> 61];
    }
    text += "x";
    const std::string slow = without(without(text, "<!--", "-->"), "<", ">");
    EXPECT_EQ(render("{{ messages[0].content | striptags }}", text), slow) << text;
  }
}

TEST(TemplateCost, GenerationBlocksCountTheTextOnce) {
  const std::string loop =
      "{{ messages[0].content }}{% for i in range(20000) %}{% generation %}x{% endgeneration %}{% endfor %}";
  EXPECT_EQ(render(loop, std::string(400'000, 'a')).size(), 420'000U);
}

// Work that no step counts: long arguments, long names, many names, copies of dicts, items behind a path.
TEST(TemplateCost, WorkOutsideOfStepsIsCharged) {
  const std::string loops = "{% for i in range(3000) %}{% for j in range(3000) %}";
  const std::string ends = "{% endfor %}{% endfor %}";
  std::string many_names;
  for (int i = 0; i < 8000; ++i) many_names += "{% set v" + std::to_string(i) + " = 1 %}";
  std::string many_attributes = "{% set ns = namespace() %}";
  for (int i = 0; i < 6000; ++i) many_attributes += "{% set ns.v" + std::to_string(i) + " = 1 %}";
  const std::string sources[] = {
      loops + "{% if ''.find(messages[0].content) %}{% endif %}" + ends,
      loops + "{% if '' | replace(messages[0].content, '') %}{% endif %}" + ends,
      loops + "{% if {}[messages[0].content] %}{% endif %}" + ends,
      loops + "{% if " + std::string(60'000, 'n') + " %}{% endif %}" + ends,
      loops + "{% if messages." + std::string(60'000, 'n') + " %}{% endif %}" + ends,
      many_names + loops + "{% if v7999 %}{% endif %}" + ends,
      many_attributes + loops + "{% if ns.v5999 %}{% endif %}" + ends,
      loops + "{% if dict(table) %}{% endif %}" + ends,
      loops + "{% if table[-1] %}{% endif %}" + ends,
      "{{ ([messages[0].content] * 3000) | sort | length }}",
      loops + "{% if range(99999) | map('abs') | list %}{% endif %}" + ends,
      loops + "{% if range(99999) | sum(attribute='" + repeated("a.", 20'000) + "a') %}{% endif %}" + ends,
      loops + "{% if 0.1 | round(300) %}{% endif %}" + ends,
      loops + "{% if '%.9999f' % 0.1 %}{% endif %}" + ends,
      loops + "{% if '{:.9999f}'.format(0.1) %}{% endif %}" + ends,
      "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"};
  for (const std::string& source : sources) {
    EXPECT_THAT(render(source, std::string(300'000, 'a'), kWorkShare), HasSubstr("t.jinja:1:"))
        << source.substr(0, 200);
  }
}

// What a template keeps is limited by the total that its rendering may hold at a time, not only by the size of one
// text.
TEST(TemplateCost, WhatIsKeptIsBounded) {
  const std::string sources[] = {
      "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = ns.l + ['a' * 100000] %}{% endfor %}",
      "{% macro m(n) %}{{ 'a' * 900000 }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
      "{% for i in range(99999) %}{% macro m() %}{% endmacro %}{% set x = 'a' * 9000 ~ i %}{% endfor %}",
      "{% for i in range(99999) %}{% for j in range(99) %}{% set x = namespace(a=1) %}{% endfor %}{% endfor %}",
      "{{ ('a' * 9000000) | list | length }}",
      "{{ ('a ' * 3000000).split() | length }}",
      "{{ (['<' * 3000] * 9000) | tojson }}"};
  for (const std::string& source : sources) {
    EXPECT_THAT(render(source, "x", kWorkShare), HasSubstr("too much")) << source;
  }
}

TEST(TemplateCost, ATemplateHasABoundedSize) {
  EXPECT_THAT(render(std::string(300'000, 'x'), ""), HasSubstr("at most 262144 are allowed"));
  EXPECT_EQ(render(repeated("{{ n }}", 30'000), ""), "");
  std::string names;
  for (int i = 0; i < 15'000; ++i) names += "{{ n" + std::to_string(i) + " }}";
  EXPECT_EQ(render(names, ""), "");
}

// --- tokenizers ---

Result<Tokenizer> load(const std::string& json) {
  const test::TempDir dir;
  dir.write("tokenizer.json", json);
  return Tokenizer::load(dir.path());
}

const Json kByteVocab = {{"a", 0}, {"b", 1}, {"x", 2}, {" ", 3}, {"u", 4}};

Json word_level() { return {{"type", "WordLevel"}, {"vocab", kByteVocab}, {"unk_token", "u"}}; }

Json times_ten() { return {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aaaaaaaaaa"}}; }

// The error of encoding, or "" where it worked.
std::string encode(const Json& spec, const std::string& text) {
  const auto tokenizer = load(spec.dump());
  if (!tokenizer.ok()) return "load: " + tokenizer.error().to_string();
  std::string error;
  const double seconds = test::cpu_seconds_of([&] {
    const auto ids = tokenizer->encode(text);
    if (!ids.ok()) error = ids.error().to_string();
  });
  EXPECT_LT(seconds, most_seconds(1));
  return error;
}

TEST(TokenizerCost, ChainsThatGrowATextAreAnError) {
  Json spec = {{"model", word_level()}, {"normalizer", {{"type", "Sequence"}, {"normalizers", Json::array()}}}};
  for (int i = 0; i < 10; ++i) spec["normalizer"]["normalizers"].push_back(times_ten());
  EXPECT_THAT(encode(spec, "a"), HasSubstr("normalizer Replace makes more than"));
  spec["normalizer"]["normalizers"] = Json::array({times_ten()});
  EXPECT_EQ(encode(spec, "a"), "");

  Json doubling = {{"model", word_level()},
                   {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", Json::array()}}}};
  for (int i = 0; i < 60; ++i) {
    doubling["pre_tokenizer"]["pretokenizers"].push_back(
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
  }
  EXPECT_THAT(encode(doubling, "é"), HasSubstr("chain of pre-tokenizers makes more than"));
}

TEST(TokenizerCost, DecodersThatGrowATextAreRefused) {
  Json spec = {{"model", word_level()}, {"decoder", {{"type", "Sequence"}, {"decoders", Json::array({times_ten()})}}}};
  EXPECT_EQ(encode(spec, "a"), "");
  spec["decoder"]["decoders"].push_back(times_ten());
  EXPECT_THAT(encode(spec, "a"), HasSubstr("Replace stages may make a text more than 64 times as long"));
  spec["decoder"] = {{"type", "Replace"}, {"pattern", {{"Regex", "x*"}}}, {"content", std::string(100, 'y')}};
  EXPECT_THAT(encode(spec, "a"), HasSubstr("Replace stages"));
}

TEST(TokenizerCost, ChainsHaveABoundedNumberOfStages) {
  for (const auto& [role, list, stage] :
       {std::tuple("normalizer", "normalizers", "Lowercase"),
        std::tuple("pre_tokenizer", "pretokenizers", "WhitespaceSplit"), std::tuple("decoder", "decoders", "Fuse")}) {
    Json spec = {{"model", word_level()}, {role, {{"type", "Sequence"}, {list, Json::array()}}}};
    for (int i = 0; i < 70; ++i) spec[role][list].push_back({{"type", stage}});
    EXPECT_THAT(encode(spec, "a"), HasSubstr("at most 64 are allowed")) << role;
  }
}

TEST(TokenizerCost, LongTokensThatOverlapAreAnError) {
  const std::string longest(40'000, 'a');
  Json vocab = Json::array({Json::array({"u", -1.0}), Json::array({"a", -1.0}), Json::array({longest, -1.0})});
  const Json unigram = {{"model", {{"type", "Unigram"}, {"vocab", vocab}, {"unk_id", 0}}}};
  EXPECT_THAT(encode(unigram, longest.substr(1)), HasSubstr("steps for each of its bytes"));
  EXPECT_EQ(encode(unigram, std::string(200, 'a')), "");

  Json added = {{"model", word_level()}, {"added_tokens", Json::array()}};
  added["added_tokens"].push_back({{"id", 9},
                                   {"content", longest},
                                   {"special", true},
                                   {"single_word", false},
                                   {"lstrip", false},
                                   {"rstrip", false},
                                   {"normalized", false}});
  EXPECT_THAT(encode(added, longest.substr(1)), HasSubstr("steps for each of its bytes"));
}

TEST(TokenizerCost, WordPiecesOfLongWordsAreLinear) {
  const Json spec = {{"model",
                      {{"type", "WordPiece"},
                       {"vocab", {{"u", 0}, {"a", 1}, {"##a", 2}, {"##aa", 3}}},
                       {"unk_token", "u"},
                       {"continuing_subword_prefix", "##"},
                       {"max_input_chars_per_word", 1'000'000}}}};
  EXPECT_EQ(encode(spec, std::string(500'000, 'a')), "");
}

TEST(TokenizerCost, LongRunsOfCombiningMarksAreSortedInLinearTime) {
  const std::string marks = repeated("\xCC\x81\xCC\xA3", 200'000);  // U+0301 (230), U+0323 (220)
  for (const char* form : {"NFC", "NFD", "NFKC", "NFKD"}) {
    const Json spec = {{"model", word_level()}, {"normalizer", {{"type", form}}}};
    EXPECT_EQ(encode(spec, "a" + marks), "") << form;
  }
}

TEST(TokenizerCost, ALargeIdTakesNoTable) {
  Json spec = {{"model", word_level()}};
  spec["model"]["vocab"]["far"] = 16'777'215;
  const auto tokenizer = load(spec.dump());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().to_string();
  EXPECT_EQ(tokenizer->vocab_size(), 16'777'216);
  EXPECT_EQ(tokenizer->token_text(16'777'215), "far");
  EXPECT_EQ(tokenizer->token_text(16'777'214), std::nullopt);
  EXPECT_EQ(tokenizer->token_text(2), "x");
}

}  // namespace
}  // namespace mortise
