// Folders with only tokenizer.model: hand-made files that are read or refused, and models that the sentencepiece
// library trained, with its ids and texts (sentencepiece_oracle.py).
#include <cstring>
#include <map>
#include <random>

#include "text/tokenizer/sentencepiece_file.h"
#include "text_test_support.h"

namespace mortise {
namespace {

using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;
using testing_text::golden_folders;
using testing_text::ids_of;
using testing_text::is_long;
using testing_text::oracle_command;
using testing_text::read_rows;

// --- files made by hand ---

std::string varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  return out + static_cast<char>(value);
}
std::string number(int field, uint64_t value) { return varint(static_cast<uint64_t>(field) << 3) + varint(value); }
std::string bytes(int field, const std::string& content) {
  return varint(static_cast<uint64_t>(field) << 3 | 2) + varint(content.size()) + content;
}
std::string piece(const std::string& text, float score, int type) {
  char raw[4];
  std::memcpy(raw, &score, 4);
  return bytes(1, bytes(1, text) + varint(2 << 3 | 5) + std::string(raw, 4) + number(3, static_cast<uint64_t>(type)));
}
std::string pieces() {
  return piece("<unk>", 0, 2) + piece("\xE2\x96\x81", -3, 1) + piece("a", -1, 1) + piece("b", -2, 1) +
         piece("ab", -1.5F, 1);
}
const std::string kPlain = bytes(3, number(3, 0) + number(4, 0));  // no space in front, all spaces remain

Result<Tokenizer> load_sentencepiece(const std::string& model) {
  const test::TempDir dir;
  dir.write("tokenizer.model", model);
  return Tokenizer::load(dir.path());
}

TEST(SentencePiece, ReadsFilesMadeByHand) {
  const auto unigram = load_sentencepiece(pieces() + kPlain);
  ASSERT_OK(unigram);
  EXPECT_THAT(*unigram->encode("ab aa"), ElementsAre(4, 1, 2, 2));
  EXPECT_THAT(*unigram->encode("a??b"), ElementsAre(2, 0, 3));  // unknown ones are one
  const auto bpe = load_sentencepiece(pieces() + kPlain + bytes(2, number(3, 2)));
  ASSERT_OK(bpe);
  EXPECT_THAT(*bpe->encode("ab ba??"), ElementsAre(4, 1, 3, 2, 0));
  EXPECT_THAT(*load_sentencepiece(pieces())->encode("  a  b "), ElementsAre(1, 2, 1, 3));  // the defaults of the format
  // Fields that are not known are passed over, negative numbers have ten bytes.
  const auto odd = load_sentencepiece(number(9, 1) + pieces() + kPlain +
                                      bytes(2, number(43, ~uint64_t{0}) + bytes(60, "x")) + bytes(77, "y"));
  ASSERT_OK(odd);
  EXPECT_EQ(odd->pad_id(), std::nullopt);
}

TEST(SentencePiece, RefusesWhatItCannotReadOrDo) {
  const std::map<std::string, const char*> bad = {
      {"", "holds no pieces"},
      {"bm9wZSAwCg==\n", "byte"},  // tiktoken's kind of file
      {pieces() + "\x0A\x7F", "reaches over its message's end"},
      {pieces() + "\x0A\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01", "ten bytes"},
      // Keys and lengths of more than 32 bits, whose low ones would be in order.
      {pieces() + varint((uint64_t{1} << 35) | (9 << 3)) + varint(0), "no valid number"},
      {pieces() + varint(9 << 3 | 2) + varint((uint64_t{1} << 32) | 1) + "x", "reaches over its message's end"},
      {pieces() + varint(1 << 3 | 2) + varint((uint64_t{1} << 32) | 1) + "x", "reaches over its message's end"},
      {pieces() + varint(9 << 3 | 1) + "1234567", "reaches over its message's end"},
      {pieces() + "\x1B", "wire type"},
      {pieces() + std::string(1, '\0'), "no valid number"},
      {pieces() + number(1, 5), "wrong wire type"},
      {bytes(1, number(1, 5)), "'piece' has the wrong wire type"},
      {bytes(1, bytes(1, "\xFF")), "'piece' is not UTF-8"},
      {bytes(1, bytes(1, "a") + number(3, 9)), "unknown type 9"},
      {bytes(1, bytes(1, "a") + varint(2 << 3 | 5) + std::string("\0\0\xC0\x7F", 4)), "not finite"},
      {pieces() + bytes(2, number(3, 7)), "unknown type 7"},
      {pieces() + bytes(2, number(3, 3)), "word and character models"},
      {pieces() + bytes(2, number(24, 1)), "as a suffix"},
      {pieces() + bytes(3, number(5, 0)), "keeps spaces"},
      {pieces() + bytes(5, bytes(2, "x")), "denormalizer"},
      {pieces() + bytes(3, bytes(2, "xyz")), "cut off"},
      {pieces() + piece("z", -9, 5), "unused pieces ('z')"},
      {pieces() + piece("a", -9, 1), "'a' is given twice"},
      {pieces() + piece("", -9, 1), "a piece is empty"},
      {pieces() + piece("<u>", 0, 2), "there are 2"},
      {piece("a", -1, 1), "there are 0"},
  };
  for (const auto& [model, text] : bad) {
    EXPECT_THAT(error_of(load_sentencepiece(model)), HasSubstr(text));
    EXPECT_THAT(error_of(load_sentencepiece(model)), HasSubstr("tokenizer.model"));
  }
}

// Like Llama's: byte-pair merges, a space in front, all spaces remain.
std::string llama_like() {
  return piece("<unk>", 0, 2) + piece("<s>", 0, 3) + piece("</s>", 0, 3) + piece("\xE2\x96\x81", -5, 1) +
         piece("t", -6, 1) + piece("h", -7, 1) + piece("e", -8, 1) + piece("th", -1, 1) + piece("the", -2, 1) +
         piece("\xE2\x96\x81the", -3, 1) + bytes(3, number(4, 0)) + bytes(2, number(3, 2));
}

TEST(SentencePiece, SpecialTokensAsTransformersHasThem) {
  const auto tokenizer = load_sentencepiece(llama_like());
  ASSERT_OK(tokenizer);
  EXPECT_EQ(tokenizer->bos_id(), 1);
  EXPECT_EQ(tokenizer->eos_id(), 2);
  EXPECT_EQ(tokenizer->pad_id(), std::nullopt);
  EXPECT_TRUE(tokenizer->is_special(1));
  EXPECT_EQ(tokenizer->special_tokens().at("unk_token"), "<unk>");
  EXPECT_THAT(*tokenizer->encode("the"), ElementsAre(9));
  EXPECT_THAT(*tokenizer->encode("the", true), ElementsAre(1, 9));
  const auto inside = tokenizer->encode("<s>the</s>");  // not at the text's start: no space in front of it
  ASSERT_OK(inside);
  EXPECT_THAT(*inside, ElementsAre(1, 8, 2));
  EXPECT_EQ(tokenizer->decode(*inside), "<s>the</s>");
  EXPECT_EQ(tokenizer->decode(*inside, true), "the");
  EXPECT_EQ(tokenizer->decode(*tokenizer->encode("the the")), "the the");
  // "legacy": a space in front of every stretch between added tokens.
  const test::TempDir dir;
  dir.write("tokenizer.model", llama_like());
  dir.write("tokenizer_config.json", R"({"legacy": true, "add_bos_token": false, "add_eos_token": true})");
  const auto legacy = Tokenizer::load(dir.path());
  ASSERT_OK(legacy);
  EXPECT_THAT(*legacy->encode("<s>the</s>"), ElementsAre(1, 9, 2));
  EXPECT_THAT(*legacy->encode("the", true), ElementsAre(9, 2));
}

// Damaged files: an error, or a tokenizer whose ids are in range.
TEST(SentencePiece, DamagedFilesAreNoHarm) {
  std::mt19937 random(7);  // NOLINT(cert-msc51-cpp): the same files at every run
  const int count = is_long() ? 20000 : 500;
  int num_loaded = 0;
  for (const std::string& good : {llama_like(), pieces() + kPlain}) {
    for (int i = 0; i < count; ++i) {
      std::string model = good;
      for (uint32_t k = random() % 4; k > 0; --k) model[random() % model.size()] = static_cast<char>(random());
      if (random() % 2 == 0) model.resize(random() % model.size());
      const auto tokenizer = load_sentencepiece(model);
      if (!tokenizer.ok()) continue;
      ++num_loaded;
      const auto ids = tokenizer->encode("the ab\xE3\x80\x80 \xF0\x9F\xA6\x9C", true);
      if (!ids.ok()) continue;
      for (const int64_t id : *ids) ASSERT_TRUE(id >= 0 && id < tokenizer->vocab_size());
      (void)tokenizer->decode(*ids);
    }
  }
  EXPECT_GT(num_loaded, 0);
}

// MORTISE_ORACLES_PYTHON names the Python that has the library; without it the test is skipped, aloud.
TEST(SentencePieceOracle, TrainedModelsGiveTheSame) {
  std::string command = oracle_command("sentencepiece_oracle.py");
  if (command.empty())
    GTEST_SKIP() << "MORTISE_ORACLES_PYTHON is not set: the sentencepiece wheel did not judge its models";
  const test::TempDir dir;
  const int count = is_long() ? 50'000 : 1'000;
  command += " '" + (dir / "models").string() + "' " + std::to_string(count) + " 7" + golden_folders();
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  const std::vector<std::string> names = *default_env().list_dir(dir / "models");
  EXPECT_EQ(names.size(), 6U);
  for (const std::string& name : names) {
    const auto tokenizer = Tokenizer::load(dir / "models" / name);
    ASSERT_OK(tokenizer);
    int num_different = 0;
    for (const Json& row : read_rows(dir / "models" / name / "rows.jsonl")) {
      const auto ids = tokenizer->encode(row["text"].get<std::string>());
      ASSERT_OK(ids);
      const std::string decoded = tokenizer->decode(*ids);
      if (*ids == ids_of(row["ids"]) && (row["decoded"].is_null() || Json(decoded) == row["decoded"])) continue;
      if (++num_different <= 3) ADD_FAILURE() << name << " " << row << " " << Json(*ids) << " " << Json(decoded);
    }
    EXPECT_EQ(num_different, 0) << name;
  }
}

}  // namespace
}  // namespace mortise
