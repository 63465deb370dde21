// How much memory reading JSON takes, counted at the allocator, over texts of the kinds that take the most.
#include <gtest/gtest.h>

#include "fuzz/allocations.h"
#include "parse/json.h"

namespace mortise::parse {
namespace {

std::string list_of(std::string_view piece, size_t bytes) {
  std::string out = "[";
  while (out.size() < bytes) out += piece;
  out.back() = ']';
  return out;
}

std::string object_of(size_t bytes, std::string_view value) {
  std::string out = "{";
  for (size_t i = 0; out.size() < bytes; ++i) {
    out += '"';
    out += std::to_string(i);
    out += "\":";
    out += value;
    out += ',';
  }
  out.back() = '}';
  return out;
}

struct Peak {
  bool is_read = false;
  size_t bytes = 0;
};

// Covers reading and deleting what was read.
template <class Read>
Peak peak_of(const std::string& text, Read read) {
  const fuzz::Allocations allocations;
  Peak peak;
  peak.is_read = read(text, JsonLimits{}).ok();
  peak.bytes = allocations.peak_bytes();
  return peak;
}

// As large as the largest tokenizer.json, without any white space: tokens with their ids, and pairs of tokens.
std::string tokenizer() {
  std::string vocabulary = "{";
  for (int i = 0; i < 262'000; ++i) vocabulary += "\"ab" + std::to_string(i) + "\":" + std::to_string(i) + ",";
  vocabulary.back() = '}';
  const std::string pair = "[\"wxyz\",\"uvw\"],";
  return "{\"vocab\":" + vocabulary + ",\"merges\":" + list_of(pair, pair.size() * 515'000) + "}";
}

// F2: what is accepted takes at most 64 MiB and 4 times its text (8 times, of the engine's readers); what would take
// more is refused before it does.
TEST(ParseMemory, IsAtMost64MiBAnd4Or8TimesTheText) {
  constexpr size_t kMiB = 1 << 20;
  const struct {
    const char* name;
    std::string text;
  } cases[] = {
      {"[1,1,...]", list_of("1,", 6 * kMiB)},
      {"[-0.1234567,...]", list_of("-0.1234567,", 24 * kMiB)},
      {"[[],[],...]", list_of("[],", 6 * kMiB)},
      {"[{},{},...]", list_of("{},", 6 * kMiB)},
      {"[\"\",\"\",...]", list_of("\"\",", 6 * kMiB)},
      {"[[1],[1],...]", list_of("[1],", 6 * kMiB)},
      {"[{\"a\":1},...]", list_of("{\"a\":1},", 6 * kMiB)},
      {"[\"sixteen bytes of\",...]", list_of("\"sixteen bytes of\",", 12 * kMiB)},
      {"{\"0\":1,...}", object_of(12 * kMiB, "1")},
      {"{\"0\":[],...}", object_of(12 * kMiB, "[]")},
      {"small list", list_of("1,", kMiB)},
      {"small list of lists", list_of("[],", kMiB)},
      {"small object", object_of(kMiB, "1")},
      {"a large tokenizer", tokenizer()},
  };
  for (const auto& test_case : cases) {
    const size_t size = test_case.text.size();
    const Peak sorted = peak_of(test_case.text, [](const auto&... given) { return parse_json(given...); });
    const Peak ordered = peak_of(test_case.text, [](const auto&... given) { return parse_ordered_json(given...); });
    EXPECT_LE(sorted.bytes, 64 * kMiB + 4 * size) << test_case.name;
    EXPECT_LE(ordered.bytes, 64 * kMiB + 8 * size) << test_case.name;
    const auto times = [&](const Peak& peak) {
      return static_cast<double>(peak.bytes) / static_cast<double>(test_case.text.size());
    };
    std::printf("%-26s %5.1f MiB: %s %5.1f times the text; ordered: %s %5.1f\n", test_case.name,
                static_cast<double>(size) / kMiB, sorted.is_read ? "read   " : "refused", times(sorted),
                ordered.is_read ? "read   " : "refused", times(ordered));
  }
  EXPECT_FALSE(parse_json(cases[0].text).ok()) << "24 times its text while it grows";
  for (const size_t small : {10, 11, 12}) EXPECT_TRUE(parse_json(cases[small].text).ok()) << "of 1 MiB";
  EXPECT_TRUE(parse_ordered_json(cases[13].text).ok());
}

// One long string: the parser's own buffers take the most.
TEST(ParseMemory, OfALongString) {
  const std::string text = "\"" + std::string(32 << 20, 'x') + "\"";
  const Peak peak = peak_of(text, [](const auto&... given) { return parse_json(given...); });
  EXPECT_TRUE(peak.is_read);
  EXPECT_LE(peak.bytes, (size_t{64} << 20) + 4 * text.size());
  EXPECT_LE(peak.bytes, 6 * text.size());
  std::printf("a string of 32 MiB: %.1f times the text\n",
              static_cast<double>(peak.bytes) / static_cast<double>(text.size()));
}

}  // namespace
}  // namespace mortise::parse
