// The JSON reader for untrusted text: limits on depth, size, count and memory.
#include <gmock/gmock.h>

#include <cstring>
#include <limits>

#include "parse/json.h"
#include "support/this_build.h"

namespace mortise::parse {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Kind = JsonFault::Kind;

std::string repeated(std::string_view part, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += part;
  return out;
}

// All three readers report the same fault, or none.
std::optional<JsonFault> fault_of(std::string_view text, const JsonLimits& limits = {}) {
  const auto sorted = parse_json(text, limits);
  const auto ordered = parse_ordered_json(text, limits);
  const auto checked = check_json(text, limits);
  EXPECT_EQ(sorted.ok(), ordered.ok());
  EXPECT_EQ(sorted.ok(), !checked.has_value());
  if (sorted) return std::nullopt;
  EXPECT_EQ(sorted.fault().to_string(), ordered.fault().to_string());
  EXPECT_EQ(sorted.fault().to_string(), checked->to_string());
  return sorted.fault();
}

TEST(ParseJson, Values) {
  const auto value = parse_json(R"({"b":[1,-2,18446744073709551615,2.5,true,null,"\u00e9"],"a":{}})");
  ASSERT_TRUE(value.ok());
  EXPECT_EQ(value->dump(), "{\"a\":{},\"b\":[1,-2,18446744073709551615,2.5,true,null,\"\xC3\xA9\"]}");
  EXPECT_EQ(parse_ordered_json(R"({"b":1,"a":2})")->dump(), R"({"b":1,"a":2})");
}

TEST(ParseJson, ASecondValueOfAKeyWinsOrIsRefused) {
  EXPECT_EQ(parse_json(R"({"a":[1,2],"b":0,"a":{"c":3}})")->dump(), R"({"a":{"c":3},"b":0})");
  const auto ordered = parse_ordered_json(R"({"a":1,"a":2})");
  ASSERT_FALSE(ordered.ok());
  EXPECT_EQ(ordered.fault().kind, Kind::kDuplicateKey);
  EXPECT_EQ(ordered.fault().to_string(), "line 1, column 10: duplicate key 'a'");
}

TEST(ParseJson, TheDepthLimitHoldsBeforeADeepValueExists) {
  const std::string good = std::string(128, '[') + std::string(128, ']');
  EXPECT_FALSE(fault_of(good).has_value());
  for (const std::string& deep :
       {std::string(300'000, '['), repeated("{\"a\":", 300'000), repeated("[{\"a\":[", 100'000),
        std::string(300'000, '[') + std::string(300'000, ']')}) {
    const auto fault = fault_of(deep);
    ASSERT_TRUE(fault.has_value());
    EXPECT_EQ(fault->kind, Kind::kLimit);
    EXPECT_EQ(fault->what, "nested deeper than 128 levels");
    EXPECT_LT(fault->offset, 128u * 8);
  }
  EXPECT_EQ(fault_of("[[1]]", {.max_depth = 1})->to_string(), "line 1, column 2: nested deeper than 1 levels");
}

TEST(ParseJson, SizeAndCountLimits) {
  EXPECT_THAT(fault_of("[1,2]", {.max_bytes = 4})->what, HasSubstr("has 5 bytes, at most 4"));
  EXPECT_FALSE(fault_of("[1,2]", {.max_bytes = 5}).has_value());
  EXPECT_EQ(fault_of("[1,\n {\"a\":2}]", {.max_values = 3})->to_string(), "line 2, column 8: more than 3 values");
  EXPECT_FALSE(fault_of("[1,{\"a\":2}]", {.max_values = 4}).has_value());
  EXPECT_EQ(fault_of(repeated("[],", 10), {.max_values = 4})->kind, Kind::kSyntax);
  EXPECT_EQ(fault_of("[" + repeated("{},", 10), {.max_values = 4})->kind, Kind::kLimit);
}

// parse_memory_test measures what is allocated.
TEST(ParseJson, MemoryIsBoundedByTheSizeOfTheText) {
  for (const char* piece : {"1,", "{},", "{\"a\":{\"b\":[]}},"}) {
    const auto list_of = [&](size_t bytes) {
      std::string text = "[" + repeated(piece, bytes / std::strlen(piece));
      text.back() = ']';
      return text;
    };
    const std::string text = list_of(size_t{8} << 20);
    const auto refused = parse_json(text);
    const auto ordered = parse_ordered_json(text);
    const auto checked = check_json(text);
    ASSERT_TRUE(!refused && !ordered && checked) << piece;
    EXPECT_EQ(refused.fault().kind, Kind::kLimit);
    EXPECT_EQ(refused.fault().what, "the values take more than 95 MiB of memory, too much for a text of this size");
    EXPECT_EQ(ordered.fault().what, "the values take more than 127 MiB of memory, too much for a text of this size");
    EXPECT_EQ(refused.fault().to_string(), checked->to_string());
    EXPECT_FALSE(fault_of(list_of(size_t{1} << 20)).has_value()) << piece << ": small texts have room for anything";
  }
  // Files as there are: a vocabulary, merges in pairs, ids, numbers, prose. Under a sanitizer each has a tenth of the size.
  const int kPart = test::kSanitized ? 10 : 1;
  std::string vocabulary = "{";
  for (int i = 0; i < 260'000 / kPart; ++i)
    vocabulary += "\"token" + std::to_string(i) + "\":" + std::to_string(i) + ",";
  vocabulary.back() = '}';
  std::string all = "{\"vocab\":" + vocabulary + ",\"merges\":[" + repeated("[\"abcd\",\"efghij\"],", 300'000 / kPart);
  all.back() = ']';
  all += "}";
  EXPECT_FALSE(fault_of(all).has_value());
  EXPECT_FALSE(fault_of("[\"" + std::string(20'000'000 / kPart, 'x') + "\"]").has_value());
  std::string numbers = "[" + repeated("-0.1234567,", 1'000'000 / kPart);
  numbers.back() = ']';
  EXPECT_FALSE(fault_of(numbers).has_value());
}

TEST(ParseJson, CborHasTheSameLimits) {
  const nlohmann::ordered_json value = {{"b", {1, -2, 0.5, std::numeric_limits<double>::infinity(), nullptr}},
                                        {"a", "\0x"}};
  const auto bytes_of = [](const nlohmann::ordered_json& from) {
    const auto bytes = nlohmann::ordered_json::to_cbor(from);
    return std::string(bytes.begin(), bytes.end());
  };
  ASSERT_TRUE(parse_cbor(bytes_of(value)).ok());
  EXPECT_EQ(*parse_cbor(bytes_of(value)), value);
  for (const char opened : {'\x81', '\x9f'}) {
    const auto deep = parse_cbor(std::string(3'000'000, opened));  // arrays in arrays: nlohmann's reader recurses
    ASSERT_FALSE(deep.ok());
    EXPECT_EQ(deep.fault().what, "nested deeper than 128 levels");
  }
  EXPECT_EQ(parse_cbor(bytes_of({1, 2, 3}), {.max_values = 3}).fault().kind, Kind::kLimit);
  EXPECT_FALSE(
      parse_cbor("\x9b\x7f\xff\xff\xff\xff\xff\xff\xff").ok());  // an array of 2^63 - 1 elements, with none in the file
  EXPECT_FALSE(parse_cbor(bytes_of(value) + "x").ok());
}

TEST(ParseJson, FaultsSayWhere) {
  EXPECT_THAT(fault_of("[1,\n 2,]")->to_string(), StartsWith("line 2, column 4: syntax error"));
  EXPECT_EQ(fault_of(std::string_view("{}\0", 3))->to_string(), "line 1, column 3: a NUL byte");
  EXPECT_THAT(fault_of("1e999")->what, HasSubstr("number overflow"));
}

TEST(ParseJson, AMessageDoesNotRepeatALongToken) {
  const auto fault = fault_of("[\"" + repeated("\xC3\xA9", 100'000) + "\x01\"]");
  ASSERT_TRUE(fault.has_value());
  EXPECT_LT(fault->what.size(), 250u);
  EXPECT_THAT(fault->what, ::testing::EndsWith("..."));
  EXPECT_THAT(fault_of("[" + std::string(100'000, '7') + "x]")->what.size(), ::testing::Lt(250u));
}

}  // namespace
}  // namespace mortise::parse
