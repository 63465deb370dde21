// Makes the task of configs/tools.toml: products of two-digit numbers that a tiny model can only get from a tool.
//
//   make_tool_task DIR [--seed N]
//     DIR/model/                    a Qwen2 folder with fresh weights, characters as tokens, and a chat template
//     DIR/tools.py                  the tool: mul(a, b)
//     DIR/data/sft.jsonl            {"messages": [...]}: some chats call the tool, most guess
//     DIR/data/{train,val}.jsonl    {"prompt": [{"role": "user", "content": "37*84"}], "answer": "3108"}
// Deterministic in the seed.
#include <fmt/core.h>

#include <cstdio>
#include <string>
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

struct Product {
  int64_t a, b;
  [[nodiscard]] std::string question() const { return fmt::format("{}*{}", a, b); }
  [[nodiscard]] std::string answer() const { return std::to_string(a * b); }
};

Product product_of(int64_t pair) { return {kFirst + pair / kSpan, kFirst + pair % kSpan}; }

Json message(const char* role, const std::string& content) { return {{"role", role}, {"content", content}}; }

Result<JsonlWriter> new_file(const Path& path) {
  JsonlWriterOptions options;
  options.append = false;
  return JsonlWriter::open(default_env(), path, options);
}

Result<> write_prompts(const Path& path, const std::vector<int64_t>& order, int64_t begin, int64_t end) {
  JsonlWriter writer = TRY(new_file(path));
  for (int64_t i = begin; i < end; ++i) {
    const Product product = product_of(order[static_cast<size_t>(i)]);
    TRY(writer.write(Json{{"prompt", Json::array({message("user", product.question())})},
                          {"answer", product.answer()},
                          {"data_source", "products"}}));
  }
  return writer.close();
}

Result<> write_chats(const Path& path, const std::vector<int64_t>& order, int64_t begin, uint64_t seed) {
  JsonlWriter writer = TRY(new_file(path));
  for (size_t i = static_cast<size_t>(begin); i < order.size(); ++i) {
    const Product product = product_of(order[i]);
    RandomStream random({seed, RandomPurpose::kDataShuffle, 1, i, 0});
    Json chat = Json::array({message("user", product.question())});
    if (random.next_below(10) < kCallsOfTen) {
      chat.push_back(message("assistant", fmt::format("[mul(a={},b={})]", product.a, product.b)));
      chat.push_back(message("tool", product.answer()));
      chat.push_back(message("assistant", product.answer()));
    } else {
      chat.push_back(message("assistant", std::to_string(1000 + random.next_below(9000))));
    }
    TRY(writer.write(Json{{"messages", chat}}));
  }
  return writer.close();
}

Result<> write_model(const Path& dir, uint64_t seed) {
  TRY(default_env().create_dirs(dir));
  CharTokenizerSpec spec;
  spec.characters = "0123456789*=?>[](),abmul";
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

Result<> make_tool_task(const Path& dir, uint64_t seed) {
  const Path data = dir / "data";
  TRY(default_env().create_dirs(data));
  const std::vector<int64_t> order = random_permutation(kSpan * kSpan, seed, RandomPurpose::kDataShuffle, 0);
  TRY(write_prompts(data / "val.jsonl", order, 0, kNumValidation));
  TRY(write_prompts(data / "train.jsonl", order, kNumValidation, kSpan * kSpan));
  TRY(write_chats(data / "sft.jsonl", order, kNumValidation, seed));
  TRY(write_file(default_env(), dir / "tools.py", kTools));
  return write_model(dir / "model", seed);
}

}  // namespace

}  // namespace mortise

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  std::optional<uint64_t> seed = 42;
  if (args.size() == 3 && args[1] == "--seed") seed = mortise::parse_u64(args[2]);
  if ((args.size() != 1 && args.size() != 3) || !seed) {
    std::fprintf(stderr, "usage: make_tool_task DIR [--seed N]\n");
    return 2;
  }
  const auto result = mortise::make_tool_task(args[0], *seed);
  if (result.ok()) return 0;
  std::fprintf(stderr, "error: %s\n", result.error().to_string().c_str());
  return static_cast<int>(result.error().kind);
}
