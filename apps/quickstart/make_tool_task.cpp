// Makes the task of configs/tools.toml: products of two-digit numbers that a tiny model can only get from a tool. With
// --search that of configs/search.toml: numbers that are written in the documents of a corpus alone.
//
//   make_tool_task DIR [--search] [--seed N]
//     DIR/model/                    a Qwen2 folder with fresh weights, characters as tokens, and a chat template
//     DIR/tools.py                  the tool mul(a, b); with --search DIR/search.py, the tool search(query)
//     DIR/corpus.jsonl              with --search: {"text": "tabo 4821"}, a line per document
//     DIR/data/sft.jsonl            {"messages": [...]}: some chats call the tool, most guess
//     DIR/data/{train,val}.jsonl    {"prompt": [{"role": "user", "content": "37*84"}], "answer": "3108"}
// Deterministic in the seed.
#include <fmt/core.h>

#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/rng.h"
#include "foundation/base/text.h"
#include "foundation/formats/jsonl.h"
#include "model/model.h"
#include "text/tokenizer/tokenizer.h"

namespace mortise {

namespace {

// Products have four digits.
constexpr int64_t kFirst = 32, kLast = 99, kSpan = kLast - kFirst + 1;
constexpr int64_t kNumValidation = 200;
constexpr int64_t kCallsOfTen = 3;  // chats out of ten that call the tool

constexpr const char* kTemplate =
    "{% for m in messages %}{% if m.role == 'user' %}?{{ m.content }}={% elif m.role == 'tool' %}>{{ m.content }}="
    "{% elif m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}{% endif %}"
    "{% endfor %}";

constexpr const char* kTools = R"(def mul(a: int, b: int) -> int:
    """
    Multiplies two numbers.

    Args:
        a: the first number
        b: the second number
    """
    return a * b
)";

constexpr const char* kSearchTool =
    R"py(# A search tool over the documents of corpus.jsonl: SQLite's full-text index FTS5, which comes with Python.
# Each worker builds the index in memory. For a large corpus, build it once into a file and open that file here.
import json
import os
import re
import sqlite3

CORPUS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus.jsonl")


def build(path):
    index = sqlite3.connect(":memory:", check_same_thread=False)
    index.execute("CREATE VIRTUAL TABLE documents USING fts5(text)")
    with open(path, encoding="utf-8") as lines:
        rows = [(json.loads(line)["text"],) for line in lines if line.strip()]
    index.executemany("INSERT INTO documents VALUES (?)", rows)
    return index


INDEX = build(CORPUS)


def search(query: str) -> str:
    """
    Searches the documents, and returns the one that fits best.

    Args:
        query: words to look for
    """
    words = re.findall(r"\w+", str(query))[:20]
    if not words:
        return "no words"
    wanted = " OR ".join('"%s"' % word for word in words)  # quoted, so that no word is an operator of FTS5
    found = INDEX.execute("SELECT text FROM documents WHERE documents MATCH ? ORDER BY rank, rowid LIMIT 1", (wanted,))
    best = found.fetchone()
    return best[0] if best else "nothing found"
)py";

// Names of documents: two syllables.
constexpr std::string_view kConsonants = "bdfklmnprt", kVowels = "aeiou";
constexpr int64_t kSyllables = 50, kNames = kSyllables * kSyllables;

// What a row asks, and how a chat gets there with the tool.
struct Question {
  std::string text, call, observation, answer;
};

struct Task {
  const char* characters;  // the vocabulary, one token for each
  const char* source;      // the data_source column
  int64_t num_questions;
  Question (*question)(int64_t number, uint64_t seed);
};

Question product_of(int64_t pair, uint64_t /*seed*/) {
  const int64_t a = kFirst + pair / kSpan, b = kFirst + pair % kSpan;
  const std::string product = std::to_string(a * b);
  return {fmt::format("{}*{}", a, b), fmt::format("[mul(a={},b={})]", a, b), product, product};
}

std::string name_of(int64_t number) {
  std::string name;
  for (const int64_t syllable : {number / kSyllables, number % kSyllables}) {
    name += kConsonants[static_cast<size_t>(syllable / 5)];
    name += kVowels[static_cast<size_t>(syllable % 5)];
  }
  return name;
}

// The number of a name is random, so that only its document tells it.
Question number_of(int64_t name_number, uint64_t seed) {
  RandomStream random({seed, RandomPurpose::kDataShuffle, 2, static_cast<uint64_t>(name_number), 0});
  const std::string name = name_of(name_number), number = std::to_string(1000 + random.next_below(9000));
  return {name, fmt::format("[search(query='{}')]", name), name + " " + number, number};
}

constexpr Task kProducts = {"0123456789*=?>[](),abmul", "products", kSpan* kSpan, product_of};
constexpr Task kDocuments = {"0123456789=?>[](),' abcdefghijklmnopqrstuvwxyz", "documents", kNames, number_of};

Json message(const char* role, const std::string& content) { return {{"role", role}, {"content", content}}; }

Result<JsonlWriter> new_file(const Path& path) {
  JsonlWriterOptions options;
  options.append = false;
  return JsonlWriter::open(default_env(), path, options);
}

Result<> write_prompts(const Task& task, const Path& path, std::span<const int64_t> numbers, uint64_t seed) {
  JsonlWriter writer = TRY(new_file(path));
  for (const int64_t number : numbers) {
    const Question question = task.question(number, seed);
    TRY(writer.write(Json{{"prompt", Json::array({message("user", question.text)})},
                          {"answer", question.answer},
                          {"data_source", task.source}}));
  }
  return writer.close();
}

Result<> write_chats(const Task& task, const Path& path, const std::vector<int64_t>& order, int64_t begin,
                     uint64_t seed) {
  JsonlWriter writer = TRY(new_file(path));
  for (size_t i = static_cast<size_t>(begin); i < order.size(); ++i) {
    const Question question = task.question(order[i], seed);
    RandomStream random({seed, RandomPurpose::kDataShuffle, 1, i, 0});
    Json chat = Json::array({message("user", question.text)});
    if (random.next_below(10) < kCallsOfTen) {
      chat.push_back(message("assistant", question.call));
      chat.push_back(message("tool", question.observation));
      chat.push_back(message("assistant", question.answer));
    } else {
      chat.push_back(message("assistant", std::to_string(1000 + random.next_below(9000))));
    }
    TRY(writer.write(Json{{"messages", chat}}));
  }
  return writer.close();
}

// A document for each name, and others that have names and no number.
Result<> write_corpus(const Path& path, uint64_t seed) {
  JsonlWriter writer = TRY(new_file(path));
  for (int64_t i = 0; i < kNames; ++i) {
    RandomStream random({seed, RandomPurpose::kDataShuffle, 3, static_cast<uint64_t>(i), 0});
    const auto other = [&] { return name_of(static_cast<int64_t>(random.next_below(kNames))); };
    TRY(writer.write(Json{{"text", fmt::format("{} met {} and {}", name_of(i), other(), other())}}));
    TRY(writer.write(Json{{"text", number_of(i, seed).observation}}));
  }
  return writer.close();
}

Result<> write_model(const Task& task, const Path& dir, uint64_t seed) {
  TRY(default_env().create_dirs(dir));
  CharTokenizerSpec spec;
  spec.characters = task.characters;
  spec.special_tokens = {"<|pad|>", "<|end|>"};
  spec.roles = {{"pad_token", "<|pad|>"}, {"eos_token", "<|end|>"}};
  spec.chat_template = kTemplate;
  const CharTokenizerFiles files = TRY(make_char_tokenizer(spec));
  TRY(write_file(default_env(), dir / "tokenizer.json", files.tokenizer_json));
  TRY(write_file(default_env(), dir / "tokenizer_config.json", files.tokenizer_config_json));
  Qwen2Shape shape;
  shape.vocab_size = static_cast<int64_t>(spec.characters.size() + spec.special_tokens.size());
  shape.hidden_size = 64;
  shape.intermediate_size = 128;
  shape.num_layers = 2;
  shape.num_heads = 4;
  shape.num_kv_heads = 2;
  shape.max_position_embeddings = 128;
  shape.rope_theta = 1000.0;
  ModelConfig config = TRY(make_qwen2_config(shape));
  config.pad_token_id = 0;
  config.eos_token_ids = {1};
  const Model model = TRY(Model::random(config, seed));
  return model.save(default_env(), dir);
}

Result<> make_tool_task(const Task& task, const Path& dir, uint64_t seed) {
  const Path data = dir / "data";
  TRY(default_env().create_dirs(data));
  const std::vector<int64_t> order = random_permutation(task.num_questions, seed, RandomPurpose::kDataShuffle, 0);
  const std::span<const int64_t> numbers(order);
  TRY(write_prompts(task, data / "val.jsonl", numbers.first(kNumValidation), seed));
  TRY(write_prompts(task, data / "train.jsonl", numbers.subspan(kNumValidation), seed));
  TRY(write_chats(task, data / "sft.jsonl", order, kNumValidation, seed));
  const bool searches = &task == &kDocuments;
  if (searches) TRY(write_corpus(dir / "corpus.jsonl", seed));
  TRY(write_file(default_env(), dir / (searches ? "search.py" : "tools.py"), searches ? kSearchTool : kTools));
  return write_model(task, dir / "model", seed);
}

}  // namespace

}  // namespace mortise

int main(int argc, char** argv) {
  std::vector<std::string> args(argv + 1, argv + argc);
  const bool searches = std::erase(args, "--search") > 0;
  std::optional<uint64_t> seed = 42;
  if (args.size() == 3 && args[1] == "--seed") seed = mortise::parse_u64(args[2]);
  if ((args.size() != 1 && args.size() != 3) || !seed) {
    std::fprintf(stderr, "usage: make_tool_task DIR [--search] [--seed N]\n");
    return 2;
  }
  const auto& task = searches ? mortise::kDocuments : mortise::kProducts;
  const auto result = mortise::make_tool_task(task, args[0], *seed);
  if (result.ok()) return 0;
  std::fprintf(stderr, "error: %s\n", result.error().to_string().c_str());
  return static_cast<int>(result.error().kind);
}
