// JSON values: numbers keep their bits, faults have places, limits hold.
#include "foundation/formats/json.h"

#include <gmock/gmock.h>

#include <cmath>

#include "support/temp_dir.h"

namespace mortise {
namespace {

using test::error_of;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string error_for(std::string_view text) { return error_of(parse_json(text, "f.json")); }

TEST(Json, KeepsOrderAndTypes) {
  ASSERT_OK_AND_ASSIGN(const Json value,
                       parse_json(R"({"z":1,"a":[true,null,-2,1.5,"\u00e9\ud83d\ude00"],"m":{}})", "f"));
  EXPECT_EQ(dump_json(value), "{\"z\":1,\"a\":[true,null,-2,1.5,\"\xC3\xA9\xF0\x9F\x98\x80\"],\"m\":{}}");
  EXPECT_TRUE(parse_json("\xEF\xBB\xBF[1]", "f").ok());  // byte order mark
}

TEST(Json, DoublesReadBackAsTheSameBits) {
  for (const double value : {0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308, -0.0, 1e22, 123456789.123456789}) {
    ASSERT_OK_AND_ASSIGN(const Json back, parse_json(dump_json(Json(value)), "f"));
    EXPECT_EQ(back.get<double>(), value);
    EXPECT_EQ(std::signbit(back.get<double>()), std::signbit(value));
  }
  EXPECT_EQ(dump_json(Json(NAN)), "null");
  EXPECT_EQ(dump_json(Json("\xFF")), "\"\xEF\xBF\xBD\"");
}

TEST(Json, RefusesWithPlace) {
  EXPECT_THAT(error_for("{\"a\":1,\n \"a\":2}"), StartsWith("f.json:2:4: duplicate key 'a'"));
  EXPECT_THAT(error_for("[1,\n 2,]"), StartsWith("f.json:2:4: syntax error"));
  EXPECT_THAT(error_for("{\"a\":}"), StartsWith("f.json:1:6:"));
  for (const char* bad : {"",     " ",     "nul",       "NaN",   "[NaN]",    "Infinity",    "-",         "01",
                          "1.",   "[1 2]", "{\"a\" 1}", "{a:1}", "'x'",      "\"\n\"",      "\"\\x\"",   "\"\\ud800\"",
                          "[1]]", "[1] 2", "// c\n1",   "1e999", "\"\xFF\"", "[\"a\xC3\"]", "{\"k\":1}x"})
    EXPECT_THAT(error_for(bad), StartsWith("f.json:1:")) << bad;
  EXPECT_THAT(error_for(std::string_view("{}\0", 3)), StartsWith("f.json:1:3: a NUL byte"));
  EXPECT_THAT(error_for(std::string_view("{}\0}", 4)), StartsWith("f.json:1:3: a NUL byte"));
}

TEST(Json, DuplicateKeysInLargeAndNestedObjects) {
  std::string text = "{";
  for (int i = 0; i < 5000; ++i) text += "\"k" + std::to_string(i) + "\":" + std::to_string(i) + ",";
  EXPECT_OK(parse_json(text + "\"last\":0}", "f"));
  EXPECT_THAT(error_for(text + "\"k4321\":0}"), HasSubstr("duplicate key 'k4321'"));
  EXPECT_THAT(error_for("{\"a\":{\"b\":1},\"c\":{\"b\":1},\"d\":[{\"x\":1,\"x\":1}]}"), HasSubstr("duplicate key 'x'"));
}

TEST(Json, DepthLimit) {
  const auto nested = [](int depth) {
    return std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']');
  };
  EXPECT_OK(parse_json(nested(128), "f"));
  EXPECT_THAT(error_for(nested(129)), HasSubstr("nested deeper than 128"));
  EXPECT_THAT(error_for(std::string(1'000'000, '[')), HasSubstr("nested deeper"));
}

TEST(Json, LargeObjectsKeepTheirValues) {
  std::string text = "{\"vocab\":{";
  for (int i = 0; i < 150'000; ++i) text += (i > 0 ? ",\"t" : "\"t") + std::to_string(i) + "\":" + std::to_string(i);
  ASSERT_OK_AND_ASSIGN(const Json value, parse_json(text + "},\"after\":[1]}", "f"));
  int64_t expected = 0;
  for (const auto& [key, id] : value["vocab"].get_ref<const Json::object_t&>()) {
    ASSERT_EQ(key, "t" + std::to_string(expected));
    ASSERT_EQ(id.get<int64_t>(), expected++);
  }
  EXPECT_EQ(expected, 150'000);
  EXPECT_EQ(value["after"][0], 1);
}

TEST(Json, TypedAccess) {
  const Json object = *parse_json(R"({"s":"x","i":3,"d":2.5,"b":true,"big":18446744073709551615})", "f");
  EXPECT_EQ(*json_string(object, "s", "w"), "x");
  EXPECT_EQ(*json_int(object, "i", "w"), 3);
  EXPECT_EQ(*json_double(object, "i", "w"), 3.0);
  EXPECT_EQ(*json_bool(object, "b", "w"), true);
  EXPECT_EQ(error_of(json_string(object, "nope", "w")), "w: key 'nope' is missing");
  EXPECT_EQ(error_of(json_int(object, "d", "w")), "w: key 'd' must be an integer of 64 bits, is number");
  EXPECT_FALSE(json_int(object, "big", "w").ok());
  EXPECT_EQ(json_find(Json(3), "x"), nullptr);
}

TEST(Json, EveryPrefixIsRefused) {
  const std::string text = R"({"a":[1,-2.5e3,"x\n\u00e9"],"b":{"c":null,"d":true}})";
  ASSERT_OK(parse_json(text, "f"));
  for (size_t n = 0; n < text.size(); ++n) EXPECT_FALSE(parse_json(std::string_view(text).substr(0, n), "f").ok()) << n;
}

TEST(Json, FileErrorsNameTheFile) {
  const test::TempDir dir;
  const Path path = dir.write("c.json", "{\n  \"a\": tru\n}");
  EXPECT_THAT(error_of(read_json_file(default_env(), path)), StartsWith(path.string() + ":2:"));
}

}  // namespace
}  // namespace mortise
