// Files that must be refused: made by hand, truncated at every byte, and mutated.
#include <gmock/gmock.h>

#include <cstring>

#include "foundation/base/rng.h"
#include "foundation/formats/safetensors.h"
#include "support/temp_dir.h"

namespace mortise {
namespace {

using test::error_of;
using ::testing::HasSubstr;

std::string file_of(std::string_view header, std::string_view data) {
  const uint64_t size = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &size, 8);
  return file + std::string(header) + std::string(data);
}

std::string refusal(std::string_view file) {
  return error_of(parse_safetensors(std::as_bytes(std::span(file.data(), file.size())), "x.safetensors"));
}

struct BadHeader {
  const char* header;
  size_t data_bytes;
  const char* expected;
};

// A tensor entry of four bytes of data with the given members.
#define ONE(members) "{\"a\":{" members "}}"
#define SHAPE "\"shape\":[1],"
#define F32 "\"dtype\":\"F32\","
#define AT "\"data_offsets\":[0,4]"

const BadHeader kBadHeaders[] = {
    {"", 0, "does not start with '{'"},
    {" {}", 0, "does not start with '{'"},
    {"[]", 0, "does not start with '{'"},
    {"null", 0, "does not start with '{'"},
    {"{", 0, "header of safetensors"},
    {"{}x", 0, "header of safetensors"},
    {"{}{}", 0, "header of safetensors"},
    {"{\"a\":1}", 0, "not described by an object"},
    {"{\"a\":null}", 0, "not described by an object"},
    {"{\"a\":[]}", 0, "not described by an object"},
    {"{\"\xFF\":{}}", 0, "header of safetensors"},
    {ONE(""), 4, "has no dtype"},
    {ONE(SHAPE AT), 4, "has no dtype"},
    {ONE("\"dtype\":1," SHAPE AT), 4, "has no dtype"},
    {ONE("\"dtype\":null," SHAPE AT), 4, "has no dtype"},
    {ONE("\"dtype\":\"f32\"," SHAPE AT), 4, "unknown dtype 'f32'"},
    {ONE("\"dtype\":\"\"," SHAPE AT), 4, "unknown dtype"},
    {ONE("\"dtype\":\"F8\"," SHAPE AT), 4, "unknown dtype"},
    {ONE(F32 AT), 4, "has no shape"},
    {ONE(F32 "\"shape\":1," AT), 4, "has no shape"},
    {ONE(F32 "\"shape\":{}," AT), 4, "has no shape"},
    {ONE(F32 "\"shape\":[-1]," AT), 4, "not made of whole numbers"},
    {ONE(F32 "\"shape\":[1.0]," AT), 4, "not made of whole numbers"},
    {ONE(F32 "\"shape\":[\"1\"]," AT), 4, "not made of whole numbers"},
    {ONE(F32 "\"shape\":[[1]]," AT), 4, "not made of whole numbers"},
    {ONE(F32 "\"shape\":[true]," AT), 4, "not made of whole numbers"},
    {ONE(F32 "\"shape\":[9223372036854775808]," AT), 4, "not made of whole numbers"},
    {ONE(F32 "\"shape\":[18446744073709551616]," AT), 4, "not made of whole numbers"},
    {ONE(F32 "\"shape\":[4611686018427387904]," AT), 4, "overflows"},
    {ONE(F32 "\"shape\":[4294967296,4294967296]," AT), 4, "overflows"},
    {ONE(F32 "\"shape\":[9223372036854775807,9223372036854775807,2]," AT), 4, "overflows"},
    {ONE(F32 "\"shape\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]," AT), 4, "more than 16 axes"},
    {ONE(F32 "\"shape\":[1]"), 4, "no pair of data_offsets"},
    {ONE(F32 SHAPE "\"data_offsets\":[]"), 4, "no pair of data_offsets"},
    {ONE(F32 SHAPE "\"data_offsets\":[0]"), 4, "no pair of data_offsets"},
    {ONE(F32 SHAPE "\"data_offsets\":[0,4,8]"), 4, "no pair of data_offsets"},
    {ONE(F32 SHAPE "\"data_offsets\":[-4,0]"), 4, "no pair of data_offsets"},
    {ONE(F32 SHAPE "\"data_offsets\":[0.0,4.0]"), 4, "no pair of data_offsets"},
    {ONE(F32 SHAPE "\"data_offsets\":[\"0\",\"4\"]"), 4, "no pair of data_offsets"},
    {ONE(F32 SHAPE "\"data_offsets\":{\"0\":4}"), 4, "no pair of data_offsets"},
    {ONE(F32 SHAPE "\"data_offsets\":null"), 4, "no pair of data_offsets"},
    {ONE(F32 SHAPE "\"data_offsets\":[4,0]"), 4, "end before they begin"},
    {ONE(F32 SHAPE "\"data_offsets\":[0,8]"), 4, "ends at data offset 8, but the file holds 4"},
    {ONE(F32 SHAPE "\"data_offsets\":[0,18446744073709551615]"), 4, "ends at data offset"},
    {ONE(F32 SHAPE "\"data_offsets\":[18446744073709551612,18446744073709551615]"), 4, "ends at data offset"},
    {ONE(F32 SHAPE "\"data_offsets\":[0,3]"), 4, "has 3 bytes, its dtype and shape need 4"},
    {ONE(F32 "\"shape\":[2]," AT), 4, "has 4 bytes, its dtype and shape need 8"},
    {ONE(F32 "\"shape\":[0]," AT), 4, "need 0"},
    {ONE("\"dtype\":\"F64\"," SHAPE AT), 4, "need 8"},
    {ONE("\"dtype\":\"BOOL\"," SHAPE AT), 4, "need 1"},
    {ONE(F32 SHAPE AT ",\"extra\":1"), 4, "unknown member 'extra'"},
    {ONE(F32 SHAPE AT "," AT), 4, "duplicate key 'data_offsets'"},
    {ONE(F32 SHAPE "\"shape\":[1]," AT), 4, "duplicate key 'shape'"},
    {ONE(F32 SHAPE AT), 5, "1 bytes after the last tensor"},
    {ONE(F32 SHAPE AT), 1000, "996 bytes after the last tensor"},
    {ONE(F32 SHAPE AT), 3, "ends at data offset 4, but the file holds 3"},
    {ONE(F32 SHAPE AT), 0, "ends at data offset 4"},
    {ONE(F32 SHAPE "\"data_offsets\":[1,5]"), 5, "leaves a hole"},
    {ONE(F32 "\"shape\":[0],\"data_offsets\":[4,4]"), 4, "leaves a hole"},
    {"{\"a\":{" F32 SHAPE AT "},\"a\":{" F32 SHAPE AT "}}", 4, "duplicate key 'a'"},
    {"{\"a\":{" F32 SHAPE AT "},\"\\u0061\":{" F32 SHAPE AT "}}", 4, "duplicate key 'a'"},
    {"{\"a\":{" F32 SHAPE AT "},\"b\":{" F32 SHAPE AT "}}", 4, "overlaps"},
    {"{\"a\":{" F32 SHAPE AT "},\"b\":{" F32 SHAPE "\"data_offsets\":[2,6]}}", 6, "overlaps"},
    {"{\"a\":{" F32 SHAPE AT "},\"b\":{" F32 SHAPE "\"data_offsets\":[5,9]}}", 9, "leaves a hole"},
    {"{\"a\":{" F32 "\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{" F32 "\"shape\":[0],\"data_offsets\":[4,4]}}", 8,
     "overlaps"},
    {"{\"__metadata__\":1}", 0, "'__metadata__' is not an object"},
    {"{\"__metadata__\":[]}", 0, "'__metadata__' is not an object"},
    {"{\"__metadata__\":null}", 0, "'__metadata__' is not an object"},
    {"{\"__metadata__\":{\"k\":1}}", 0, "entry 'k' is not a text"},
    {"{\"__metadata__\":{\"k\":null}}", 0, "entry 'k' is not a text"},
    {"{\"__metadata__\":{\"k\":{}}}", 0, "entry 'k' is not a text"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "duplicate key"},
    {"{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, "duplicate key 'a'"},
    {"{} ", 1, "1 bytes after"},
    {"\xEF\xBB\xBF{}", 0, "does not start with '{'"},
    {"{,}", 0, "header of safetensors"},
    {"{\"a\"}", 0, "header of safetensors"},
    {"{\"a\":}", 0, "header of safetensors"},
    {"{a:{}}", 0, "header of safetensors"},
    {"{'a':{}}", 0, "header of safetensors"},
    {"{\"a\":\"F32\"}", 0, "not described by an object"},
    {"{\"\\ud800\":{" F32 SHAPE AT "}}", 4, "header of safetensors"},
    {"{\"a\nb\":{" F32 SHAPE AT "}}", 4, "header of safetensors"},
    {"{\"a\":{" F32 SHAPE AT ",}}", 4, "header of safetensors"},
    {"{\"a\":{" F32 SHAPE AT "},}", 4, "header of safetensors"},
    {"{\"a\":{" F32 SHAPE AT "}} //", 4, "header of safetensors"},
    {ONE(F32 "\"shape\":[01]," AT), 4, "header of safetensors"},
    {ONE(F32 "\"shape\":[+1]," AT), 4, "header of safetensors"},
    {ONE(F32 "\"shape\":[NaN]," AT), 4, "header of safetensors"},
    {ONE(F32 "\"shape\":[1e0]," AT), 4, "not made of whole numbers"},
    {ONE(F32 SHAPE "\"data_offsets\":[-0,4]"), 4, "no pair of data_offsets"},
    {ONE("\"dtype\":{\"F32\":null}," SHAPE AT), 4, "has no dtype"},
    {ONE("\"dtype\":\"F4\"," SHAPE AT), 4, "unknown dtype 'F4'"},
    {ONE("\"DTYPE\":\"F32\"," SHAPE AT), 4, "unknown member 'DTYPE'"},
    {"{\"a\":[\"F32\",[1],[0,4]]}", 4, "not described by an object"},
};

TEST(SafetensorsBad, HandMadeHeadersAreRefusedWithKeyAndOffset) {
  static_assert(std::size(kBadHeaders) >= 90);
  for (const BadHeader& bad : kBadHeaders) {
    const std::string text = refusal(file_of(bad.header, std::string(bad.data_bytes, 'x')));
    EXPECT_THAT(text, HasSubstr(bad.expected)) << bad.header;
    EXPECT_THAT(text, testing::StartsWith("x.safetensors")) << bad.header;
    EXPECT_THAT(text, HasSubstr("(at byte ")) << bad.header;
  }
  EXPECT_THAT(refusal(file_of(ONE(F32 SHAPE AT), "")), HasSubstr("tensor 'a'"));
  for (const std::string_view tail : {std::string_view("\0", 1), std::string_view("\0}", 2)}) {
    EXPECT_THAT(refusal(file_of("{}" + std::string(tail), "")), HasSubstr("a NUL byte (at byte 10)"));
  }
  EXPECT_THAT(refusal(file_of("{\"a\":}", "")), HasSubstr("(at byte 13)"));  // the place of '}'
  EXPECT_THAT(refusal(file_of("{\"a\":{" F32 SHAPE AT "},\"bb\":{" F32 SHAPE AT "}}", "1234")),
              HasSubstr("tensor 'bb' overlaps the tensor before it (at byte 62)"));
}

TEST(SafetensorsBad, LengthsAreRefused) {
  EXPECT_THAT(refusal(""), HasSubstr("too short"));
  EXPECT_THAT(refusal("1234567"), HasSubstr("too short"));
  const auto with_length = [](uint64_t length) {
    std::string file(8, '\0');
    std::memcpy(file.data(), &length, 8);
    return file + "{}";
  };
  EXPECT_EQ(refusal(with_length(2)), "ok");
  EXPECT_THAT(refusal(with_length(3)), HasSubstr("claims 3 bytes"));
  EXPECT_THAT(refusal(with_length(100'000'000)), HasSubstr("claims 100000000 bytes, the file has 10"));
  EXPECT_THAT(refusal(with_length(100'000'001)), HasSubstr("at most 100000000"));
  EXPECT_THAT(refusal(with_length(~uint64_t{0})), HasSubstr("at most"));
  EXPECT_THAT(refusal(with_length(~uint64_t{0} - 7)), HasSubstr("at most"));
}

TEST(SafetensorsBad, AFileOfAnotherFormatIsCalledByItsName) {
  const std::string jsonl = "{\"prompt\": \"1+1=\"}\n";
  EXPECT_EQ(refusal(jsonl), "x.safetensors: this is a JSON or JSONL file, not safetensors; name a .safetensors file");
  EXPECT_THAT(refusal("\n  " + jsonl), HasSubstr("this is a JSON or JSONL file"));
  EXPECT_THAT(refusal("<!DOCTYPE html>"), HasSubstr("this is a web page"));
  EXPECT_THAT(refusal("GGUF" + std::string("\3\0\0\0\0\0\0\0", 8)), HasSubstr("this is a GGUF file"));
  EXPECT_THAT(refusal(std::string("PK\3\4\0\0\x08\x08\0\0", 10)), HasSubstr("this is a zip file"));
  EXPECT_THAT(refusal("\x80\x02\x8a\x0al\xfc\x9c\x46\xf9"), HasSubstr("this is a Python pickle"));
}

TEST(SafetensorsBad, DeepNestingIsRefused) {
  EXPECT_THAT(refusal(file_of("{\"a\":" + std::string(100'000, '['), "")), HasSubstr("nested deeper"));
}

std::string golden() {
  return *default_env().read_file(Path(MORTISE_SOURCE_DIR) / "tests/golden/formats/all_dtypes.safetensors");
}

TEST(SafetensorsBad, EveryTruncationIsRefused) {
  const std::string file = golden();
  ASSERT_EQ(refusal(file), "ok");
  for (size_t n = 0; n < file.size(); ++n) ASSERT_NE(refusal(std::string_view(file).substr(0, n)), "ok") << n;
  ASSERT_NE(refusal(file + "x"), "ok");
}

// Every accepted mutated file is sound: views are inside the file, sizes fit, and no two names are equal.
TEST(SafetensorsBad, MutatedFilesAreRefusedOrSound) {
  const std::string good = golden();
  const int rounds = std::getenv("MORTISE_LONG") != nullptr ? 1'000'000 : 20'000;
  int accepted = 0;
  for (int round = 0; round < rounds; ++round) {
    RandomStream random({.seed = 1, .purpose = RandomPurpose::kTest, .sample = static_cast<uint64_t>(round)});
    std::string file = good;
    const uint64_t header_end = 8 + 944;
    for (uint64_t edits = 1 + random.next_below(3); edits > 0; --edits) {
      const uint64_t at = random.next_below(header_end);
      switch (random.next_below(3)) {
        case 0:
          file[at] = static_cast<char>(random.next_u32());
          break;
        case 1:
          file[at] = "0123456789[]{}\",:-"[random.next_below(18)];
          break;
        default:
          file[at] = file[random.next_below(header_end)];
          break;
      }
    }
    const auto content = parse_safetensors(std::as_bytes(std::span(file.data(), file.size())), "m");
    if (!content.ok()) continue;
    ++accepted;
    const auto* begin = reinterpret_cast<const std::byte*>(file.data());
    for (const TensorView& tensor : content->tensors) {
      ASSERT_GE(tensor.bytes.data(), begin) << round;
      ASSERT_LE(tensor.bytes.data() + tensor.bytes.size(), begin + file.size()) << round;
      ASSERT_EQ(static_cast<size_t>(*num_elements(tensor.shape)) * dtype_bytes(tensor.dtype), tensor.bytes.size())
          << round;
    }
  }
  EXPECT_GT(accepted, 0);  // a changed letter of a name is a sound file
  EXPECT_LT(accepted, rounds);
}

}  // namespace
}  // namespace mortise
