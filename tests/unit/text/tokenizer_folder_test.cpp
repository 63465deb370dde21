// Folders: what is read, what is refused and how, the written files, threads, streams.
#include <thread>

#include "text/tokenizer/chat_templates.h"
#include "text_test_support.h"

namespace mortise {
namespace {

using test::error_of;
using testing::AllOf;
using testing::HasSubstr;
using testing_text::golden;

Json word_level() {
  return Json::parse(R"({"version":"1.0","added_tokens":[],"normalizer":null,"pre_tokenizer":{"type":"WhitespaceSplit"},
    "post_processor":null,"decoder":null,"model":{"type":"WordLevel","vocab":{"<unk>":0,"a":1,"b":2},"unk_token":"<unk>"}})");
}

Result<Tokenizer> load_with(const test::TempDir& dir, const std::string& key, const Json& value) {
  Json spec = word_level();
  spec[key] = value;
  dir.write("tokenizer.json", spec.dump());
  return Tokenizer::load(dir.path());
}

TEST(TokenizerFolder, RefusesTextThatIsNotUtf8WithTheOffset) {
  const auto tokenizer = Tokenizer::load(golden("tokenizers/qwen2"));
  ASSERT_OK(tokenizer);
  EXPECT_THAT(error_of(tokenizer->encode("ab\xFFz")), HasSubstr("byte 2"));
  EXPECT_THAT(error_of(tokenizer->encode("\xED\xA0\x80")), HasSubstr("byte 0"));  // a surrogate
  EXPECT_OK(tokenizer->encode(std::string_view("nul \0 inside", 12)));
}

TEST(TokenizerFolder, NamesWhatItDoesNotSupportAndTheFile) {
  const test::TempDir dir;
  const auto unsupported = [&](const std::string& key, const char* value) {
    return error_of(load_with(dir, key, Json::parse(value)));
  };
  EXPECT_THAT(unsupported("normalizer", R"({"type":"Nmt"})"),
              AllOf(HasSubstr("normalizer 'Nmt'"), HasSubstr("tokenizer.json")));
  EXPECT_THAT(unsupported("pre_tokenizer", R"({"type":"UnicodeScripts"})"),
              HasSubstr("pre-tokenizer 'UnicodeScripts'"));
  EXPECT_THAT(unsupported("pre_tokenizer", R"({"type":"Sequence","pretokenizers":[{"type":"Nope"}]})"),
              HasSubstr("pre-tokenizer 'Nope'"));
  EXPECT_THAT(unsupported("post_processor", R"({"type":"Nope"})"), HasSubstr("post-processor 'Nope'"));
  EXPECT_THAT(unsupported("decoder", R"({"type":"CTC"})"), HasSubstr("decoder 'CTC'"));
  EXPECT_THAT(unsupported("model", R"({"type":"Nope"})"), HasSubstr("model 'Nope'"));
  EXPECT_THAT(unsupported("model", R"({"type":"BPE","dropout":0.1,"vocab":{},"merges":[]})"), HasSubstr("dropout"));
}

TEST(TokenizerFolder, DeeplyNestedFilesAreRefused) {
  const std::string deep = std::string(300'000, '[') + std::string(300'000, ']');
  const test::TempDir dir;
  dir.write("tokenizer.json", "{\"model\":" + deep + "}");
  EXPECT_THAT(error_of(Tokenizer::load(dir.path())),
              AllOf(HasSubstr("tokenizer.json"), HasSubstr("nested deeper than 128 levels")));
}

std::string base64(const std::string& bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t j = 0; j < 3; ++j)
      bits = bits << 8 | (i + j < bytes.size() ? static_cast<uint8_t>(bytes[i + j]) : uint32_t{0});
    for (size_t j = 0; j < 4; ++j) out += i + j <= bytes.size() ? kDigits[bits >> (18 - 6 * j) & 63] : '=';
  }
  return out;
}

// A table of one key, "a": the root's children from place 256 on, the key's value at place 512.
std::string one_key_table(uint32_t value, const std::string& replacements) {
  std::vector<uint32_t> units(513, 0x80000000U);
  constexpr uint32_t kPlace = 256 ^ 'a';
  units[0] = 256U << 10;
  units[kPlace] = 'a' | 256U | (kPlace ^ 512U) << 10;
  units[512] = 0x80000000U | value;
  std::string bytes;
  const auto put = [&](uint32_t word) {
    for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(word >> shift & 0xFF));
  };
  put(static_cast<uint32_t>(units.size() * 4));
  for (const uint32_t unit : units) put(unit);
  return bytes + replacements;
}

TEST(TokenizerFolder, PrecompiledReplacesAndStaysInsideItsTable) {
  const test::TempDir dir;
  const auto load = [&](const std::string& table) {
    Json spec = {{"type", "Precompiled"}, {"precompiled_charsmap", base64(table)}};
    Json file = word_level();
    file["model"] = {{"type", "WordLevel"}, {"unk_token", "?"}, {"vocab", {{"?", 0}, {"bxyzb", 1}, {"bab", 2}}}};
    file["normalizer"] = spec;
    file["pre_tokenizer"] = nullptr;
    dir.write("tokenizer.json", file.dump());
    return Tokenizer::load(dir.path());
  };
  const std::string replacements("one\0xyz\0", 8);
  const auto good = load(one_key_table(4, replacements));
  ASSERT_OK(good);
  EXPECT_THAT(*good->encode("bab"), testing::ElementsAre(1));
  const auto outside = load(one_key_table(4000, replacements));  // the value points behind the table
  ASSERT_OK(outside);
  EXPECT_THAT(*outside->encode("bab"), testing::ElementsAre(2));
  EXPECT_THAT(error_of(load(one_key_table(0, replacements).substr(0, 900))), HasSubstr("cut off"));
  EXPECT_THAT(error_of(load("abc")), HasSubstr("cut off"));
  EXPECT_THAT(error_of(load(one_key_table(0, "\xFF"))), HasSubstr("not UTF-8"));
  EXPECT_THAT(error_of(load_with(dir, "normalizer", Json{{"type", "Precompiled"}, {"precompiled_charsmap", "a?=="}})),
              HasSubstr("base64"));
}

TEST(TokenizerFolder, SaysWhatIsWrongInAFile) {
  const test::TempDir dir;
  const auto broken = [&](const std::string& key, const char* value) {
    return error_of(load_with(dir, key, Json::parse(value)));
  };
  EXPECT_THAT(broken("model", R"({"type":"BPE","vocab":{"a":0,"b":1},"merges":["a b"]})"),
              AllOf(HasSubstr("merge number 0"), HasSubstr("'ab'")));
  EXPECT_THAT(broken("model", R"({"type":"BPE","vocab":{"a":0},"merges":["a"]})"), HasSubstr("merge number 0"));
  EXPECT_THAT(broken("model", R"({"type":"BPE","unk_token":"?","vocab":{"a":0},"merges":[]})"),
              HasSubstr("unknown token '?'"));
  EXPECT_THAT(broken("model", R"({"type":"WordLevel","unk_token":"?","vocab":{"a":-1}})"), HasSubstr("-1"));
  EXPECT_THAT(broken("model", R"({"type":"WordLevel","unk_token":"?","vocab":{"a":1.5}})"), HasSubstr("whole number"));
  EXPECT_THAT(broken("normalizer", R"({"type":"Replace","pattern":{"Regex":"("},"content":""})"),
              HasSubstr("regular expression"));
  EXPECT_THAT(broken("added_tokens", R"([{"id":5}])"), HasSubstr("'content'"));
  dir.write("tokenizer.json", "{\"model\": ");
  EXPECT_THAT(error_of(Tokenizer::load(dir.path())), HasSubstr("tokenizer.json:1"));
}

TEST(TokenizerFolder, SaysWhatIsMissing) {
  const test::TempDir dir;
  EXPECT_THAT(error_of(Tokenizer::load(dir.path())), HasSubstr("no tokenizer.json"));
  dir.write("tokenizer.model", "x");
  EXPECT_THAT(error_of(Tokenizer::load(dir.path())), HasSubstr("no SentencePiece model"));
  dir.write("vocab.json", "{\"a\": 0}");
  dir.write("merges.txt", "#version: 0.2\n");
  EXPECT_THAT(error_of(Tokenizer::load(dir.path())), HasSubstr("tokenizer class"));
  dir.write("tokenizer_config.json", "{\"tokenizer_class\": \"GPT2Tokenizer\"}");
  EXPECT_OK(Tokenizer::load(dir.path()));
  dir.write("merges.txt", "#version: 0.2\na b c\n");
  EXPECT_THAT(error_of(Tokenizer::load(dir.path())), HasSubstr("merges.txt:2"));
  dir.write("merges.txt", "a \xFF\n");
  EXPECT_THAT(error_of(Tokenizer::load(dir.path())), HasSubstr("not UTF-8 at byte 2"));
}

TEST(TokenizerFolder, AWordWithoutUnknownTokenIsAnError) {
  const test::TempDir dir;
  const auto tokenizer =
      load_with(dir, "model", Json::parse(R"({"type":"WordLevel","unk_token":"?","vocab":{"a":0}})"));
  ASSERT_OK(tokenizer);
  EXPECT_THAT(error_of(tokenizer->encode("a c")), HasSubstr("'c'"));
}

// As in the tokenizers library: the fallback uses the character as the vocabulary has it inside or after a word.
TEST(TokenizerFolder, BytesThatFallBackAreThoseOfPrefixAndSuffixToo) {
  Json vocab = {{"a", 0}, {"##b", 1}, {"b", 2}};
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(byte));
    vocab[name] = 100 + byte;
  }
  const test::TempDir dir;
  const auto ids = [&](const char* key, const char* value, std::string_view text) {
    Json model = {{"type", "BPE"}, {"byte_fallback", true}, {"vocab", vocab}, {"merges", Json::array()}};
    model[key] = value;
    const auto tokenizer = load_with(dir, "model", model);
    return tokenizer.ok() ? *tokenizer->encode(text) : std::vector<int64_t>{-1};
  };
  using Ids = std::vector<int64_t>;
  EXPECT_EQ(ids("continuing_subword_prefix", "##", "ab\xC3\xA9"), (Ids{0, 1, 135, 135, 295, 269}));
  EXPECT_EQ(ids("end_of_word_suffix", "~", "a\xC3\xA9"), (Ids{0, 295, 269, 226}));
  EXPECT_EQ(ids("end_of_word_suffix", "~", "\xC3\xA9 a"), (Ids{295, 269, 226, 197, 226}));
}

TEST(TokenizerFolder, ReadsSpecialTokensInTheirForms) {
  const test::TempDir dir;
  dir.write("tokenizer.json", word_level().dump());
  dir.write("tokenizer_config.json",
            R"({"eos_token": {"content": "</s>", "rstrip": true}, "bos_token": null, "pad_token": "a"})");
  dir.write("special_tokens_map.json",
            R"({"bos_token": "<s>", "eos_token": "ignored", "additional_special_tokens": ["<x>"]})");
  ASSERT_OK_AND_ASSIGN(const Tokenizer tokenizer, Tokenizer::load(dir.path()));
  EXPECT_EQ(tokenizer.eos_id(), 3);  // not in the vocabulary: numbered behind it
  EXPECT_EQ(tokenizer.pad_id(), 1);
  EXPECT_EQ(tokenizer.bos_id(), 4);
  EXPECT_EQ(tokenizer.token_id("<x>"), 5);
  EXPECT_EQ(tokenizer.vocab_size(), 6);
  EXPECT_TRUE(tokenizer.is_special(3));
  EXPECT_TRUE(tokenizer.is_special(1));
  EXPECT_FALSE(tokenizer.is_special(2));
  EXPECT_EQ(tokenizer.token_text(4), "<s>");
  EXPECT_EQ(tokenizer.token_text(99), std::nullopt);
  EXPECT_EQ(tokenizer.encode("b</s>  b").value(), (std::vector<int64_t>{2, 3, 2}));
  EXPECT_EQ(tokenizer.decode(std::vector<int64_t>{2, 3, 77, -5}, true), "b");
}

TEST(TokenizerFolder, AddBosAndEosOfTheConfigMakeThePostProcessor) {
  const test::TempDir dir;
  dir.write("tokenizer.json", word_level().dump());
  dir.write("tokenizer_config.json",
            R"({"bos_token": "a", "eos_token": "b", "add_bos_token": true, "add_eos_token": true})");
  ASSERT_OK_AND_ASSIGN(const Tokenizer tokenizer, Tokenizer::load(dir.path()));
  EXPECT_EQ(tokenizer.encode("b", true).value(), (std::vector<int64_t>{1, 2, 2}));
  EXPECT_EQ(tokenizer.encode("b", false).value(), (std::vector<int64_t>{2}));
}

TEST(TokenizerFolder, SplitSpecialTokensLeavesThemAsText) {
  const test::TempDir dir;
  dir.write("tokenizer.json", word_level().dump());
  dir.write("tokenizer_config.json", R"({"eos_token": "<e>", "split_special_tokens": true})");
  ASSERT_OK_AND_ASSIGN(const Tokenizer tokenizer, Tokenizer::load(dir.path()));
  EXPECT_EQ(tokenizer.encode("a <e>").value(), (std::vector<int64_t>{1, 0}));
}

TEST(TokenizerFolder, ChoosesTheChatTemplate) {
  const test::TempDir dir;
  dir.write("tokenizer.json", word_level().dump());
  EXPECT_EQ(Tokenizer::load(dir.path())->chat_template(), nullptr);
  dir.write("tokenizer_config.json",
            R"({"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]})");
  EXPECT_EQ(Tokenizer::load(dir.path())->chat_template(false)->text, "d");
  EXPECT_EQ(Tokenizer::load(dir.path())->chat_template(true)->text, "t");
  dir.write("chat_template.jinja", "file");
  dir.write("additional_chat_templates/rag.jinja", "r");
  ASSERT_OK_AND_ASSIGN(const Tokenizer tokenizer, Tokenizer::load(dir.path()));
  EXPECT_EQ(tokenizer.chat_template(false)->text, "file");
  EXPECT_EQ(tokenizer.chat_templates().at("rag").text, "r");
}

TEST(TokenizerFolder, APointerOfGitLfsIsToldAsOne) {
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    const test::TempDir dir;
    dir.write(name, "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n");
    EXPECT_THAT(error_of(Tokenizer::load(dir.path())),
                AllOf(HasSubstr((dir / name).string() + ": this is a pointer of git-lfs"), HasSubstr("git lfs pull")));
  }
}

// In a file or under a key: the place in the folder, and the place in the text.
TEST(TokenizerFolder, ABadChatTemplateIsNamedByItsFile) {
  const test::TempDir dir;
  dir.write("tokenizer.json", word_level().dump());
  const auto error = [&] {
    const auto tokenizer = Tokenizer::load(dir.path());
    return tokenizer.ok() ? error_of(ChatTemplates::of_folder(*tokenizer)) : error_of(tokenizer);
  };
  dir.write("tokenizer_config.json", R"({"chat_template": "a\n{% frob %}"})");
  EXPECT_THAT(error(), ::testing::StartsWith((dir / "tokenizer_config.json: chat_template:2:4: ").string()));
  dir.write("tokenizer_config.json",
            R"({"chat_template": [{"name": "default", "template": ""}, {"name": "tool_use", "template": "{{ ] }}"}]})");
  EXPECT_THAT(error(), ::testing::StartsWith((dir / "tokenizer_config.json: chat_template 'tool_use':1:4: ").string()));
  dir.write("chat_template.jinja", "{{ (1] }}");
  EXPECT_THAT(error(), ::testing::StartsWith((dir / "chat_template.jinja:1:6: ").string()));
}

TEST(TokenizerFolder, FilesAreCopiedByteForByte) {
  const test::TempDir source;
  const test::TempDir target;
  const std::string json = word_level().dump() + "\r\n ";
  source.write("tokenizer.json", json);
  source.write("tokenizer_config.json", "{}");
  source.write("additional_chat_templates/x.jinja", "y");
  source.write("model.safetensors", "not a tokenizer file");
  ASSERT_OK(save_tokenizer_files(source.path(), target.path()));
  EXPECT_EQ(target.read("tokenizer.json"), json);
  EXPECT_EQ(target.read("additional_chat_templates/x.jinja"), "y");
  EXPECT_FALSE(default_env().exists(target / "model.safetensors"));
  EXPECT_OK(Tokenizer::load(target.path()));
}

TEST(CharTokenizer, EachCharacterIsAToken) {
  CharTokenizerSpec spec;
  spec.characters = "0123456789+= \né";
  spec.special_tokens = {"<unk>", "<eos>"};
  spec.roles = {{"eos_token", "<eos>"}, {"pad_token", "<eos>"}};
  spec.chat_template = "{{ messages }}";
  ASSERT_OK_AND_ASSIGN(const CharTokenizerFiles files, make_char_tokenizer(spec));
  const test::TempDir dir;
  dir.write("tokenizer.json", files.tokenizer_json);
  dir.write("tokenizer_config.json", files.tokenizer_config_json);
  ASSERT_OK_AND_ASSIGN(const Tokenizer tokenizer, Tokenizer::load(dir.path()));
  EXPECT_EQ(tokenizer.vocab_size(), 17);
  EXPECT_EQ(tokenizer.eos_id(), 1);
  const auto ids = tokenizer.encode("1+ é\n<eos>?").value();
  EXPECT_EQ(ids, (std::vector<int64_t>{3, 12, 14, 16, 15, 1, 0}));
  EXPECT_EQ(tokenizer.decode(ids, true), "1+ é\n");
  EXPECT_EQ(tokenizer.chat_template()->text, "{{ messages }}");
}

TEST(CharTokenizer, RefusesWhatCannotBe) {
  EXPECT_THAT(error_of(make_char_tokenizer({"ab", {}, {}, ""})), HasSubstr("special token"));
  EXPECT_THAT(error_of(make_char_tokenizer({"aa", {"<u>"}, {}, ""})), HasSubstr("twice"));
  EXPECT_THAT(error_of(make_char_tokenizer({"a\xFF", {"<u>"}, {}, ""})), HasSubstr("UTF-8"));
  EXPECT_THAT(error_of(make_char_tokenizer({"a", {"<u>"}, {{"eos_token", "<e>"}}, ""})), HasSubstr("'<e>'"));
}

TEST(TokenizerThreads, EncodeFromManyThreadsAtOnce) {
  const auto tokenizer = Tokenizer::load(golden("tokenizers/llama3"));
  ASSERT_OK(tokenizer);
  const auto rows = testing_text::read_rows(golden("tokenizers/llama3/cases.jsonl"));
  std::vector<std::thread> threads;
  std::vector<size_t> wrong(4, 0);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 5; ++round) {
        for (const Json& row : rows) {
          const auto ids = tokenizer->encode(row["text"].get<std::string>());
          wrong[t] += !ids.ok() || *ids != testing_text::ids_of(row["ids"]);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<size_t>(4, 0));
}

}  // namespace
}  // namespace mortise
