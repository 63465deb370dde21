// Makes the quickstart's task: additions of two-digit numbers, a tokenizer with characters as tokens, and a tiny Qwen2
// model with fresh weights.
//
//   make_task DIR [--seed N] [--tiny | --experts | --fused | --gpt-oss | --vocabulary]
//     DIR/model/                    a normal Hugging Face folder
//     DIR/data/{sft,train}.jsonl    {"prompt": "12+34=", "response": "46", "answer": "46", "data_source": "addition"}
//     DIR/data/val.jsonl            pairs that are in neither of them
// Deterministic in the seed. --tiny: a model too small to learn it, for tests of everything else. --experts: a small
// Qwen3-MoE. --fused: a small Phi-3, whose files have fused matrices. --gpt-oss: a small gpt-oss. --vocabulary: --tiny, whose
// embedding and head have 40,000 rows, most of which the tokenizer does not know.
#include <fmt/core.h>

#include <cstdio>
#include <string>
#include <vector>

#include "foundation/base/rng.h"
#include "foundation/base/text.h"
#include "foundation/formats/jsonl.h"
#include "model/families/families.h"
#include "model/model.h"
#include "text/tokenizer/tokenizer.h"

namespace mortise {

namespace {

constexpr int64_t kFirst = 10, kLast = 99;
constexpr int64_t kNumValidation = 500;

Result<> write_rows(const Path& path, const std::vector<int64_t>& order, int64_t begin, int64_t end) {
  JsonlWriterOptions options;
  options.append = false;
  JsonlWriter writer = TRY(JsonlWriter::open(default_env(), path, options));
  for (int64_t i = begin; i < end; ++i) {
    const int64_t pair = order[static_cast<size_t>(i)];
    const int64_t span = kLast - kFirst + 1;
    const int64_t a = kFirst + pair / span;
    const int64_t b = kFirst + pair % span;
    const std::string sum = std::to_string(a + b);
    TRY(writer.write(Json{
        {"prompt", fmt::format("{}+{}=", a, b)}, {"response", sum}, {"answer", sum}, {"data_source", "addition"}}));
  }
  return writer.close();
}

Result<> write_data(const Path& dir, uint64_t seed) {
  TRY(default_env().create_dirs(dir));
  const int64_t num_pairs = (kLast - kFirst + 1) * (kLast - kFirst + 1);
  const std::vector<int64_t> order = random_permutation(num_pairs, seed, RandomPurpose::kDataShuffle, 0);
  TRY(write_rows(dir / "val.jsonl", order, 0, kNumValidation));
  TRY(write_rows(dir / "train.jsonl", order, kNumValidation, num_pairs));
  return write_rows(dir / "sft.jsonl", order, kNumValidation, num_pairs);
}

enum class TaskModel { kQuickstart, kTiny, kExperts, kFused, kGptOss, kVocabulary };

constexpr int64_t kLargeVocabulary = 40000;

void add_experts(ModelConfig& config) {
  config.family = find_family("qwen3_moe");
  config.qkv_bias = false;
  config.qk_norm = true;
  config.initializer_range = 0.2;
  config.moe = {.num_experts = 16, .experts_per_token = 4, .expert_size = 24, .is_dense = {}};
  config.moe.is_dense.assign(static_cast<size_t>(config.num_layers), false);
  config.moe.normalizes = true;
}

void fuse_projections(ModelConfig& config) {
  config.family = find_family("phi3");
  config.qkv_bias = false;
  config.fused_projections = true;
}

void make_gpt_oss(ModelConfig& config) {
  config.family = find_family("gpt_oss");
  config.attention_sinks = config.qkv_bias = config.o_bias = true;
  config.initializer_range = 0.2;
  config.intermediate_size = 24;
  config.moe = {.num_experts = 4, .experts_per_token = 2, .expert_size = 24, .is_dense = {}};
  config.moe.is_dense.assign(static_cast<size_t>(config.num_layers), false);
  config.moe.normalizes = config.moe.is_gpt_oss = true;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) config.windows.push_back(layer % 2 == 0 ? 5 : 0);
}

Result<> write_model(const Path& dir, uint64_t seed, TaskModel kind) {
  TRY(default_env().create_dirs(dir));
  CharTokenizerSpec spec;
  spec.characters = "0123456789+=";
  spec.special_tokens = {"<|pad|>", "<|end|>"};
  spec.roles = {{"pad_token", "<|pad|>"}, {"eos_token", "<|end|>"}};
  const CharTokenizerFiles files = TRY(make_char_tokenizer(spec));
  TRY(write_file(default_env(), dir / "tokenizer.json", files.tokenizer_json));
  TRY(write_file(default_env(), dir / "tokenizer_config.json", files.tokenizer_config_json));
  Qwen2Shape shape;
  shape.vocab_size = static_cast<int64_t>(spec.characters.size() + spec.special_tokens.size());
  if (kind == TaskModel::kVocabulary) shape.vocab_size = kLargeVocabulary;
  const bool is_small = kind != TaskModel::kQuickstart;
  shape.hidden_size = is_small ? 32 : 128;
  shape.intermediate_size = is_small ? 64 : 512;
  shape.num_layers = kind == TaskModel::kTiny || kind == TaskModel::kVocabulary ? 1 : 3;
  shape.num_heads = 4;
  shape.num_kv_heads = 2;
  shape.max_position_embeddings = 64;
  shape.rope_theta = 10000.0;
  ModelConfig config = TRY(make_qwen2_config(shape));
  config.pad_token_id = 0;
  config.eos_token_ids = {1};
  if (kind == TaskModel::kExperts) add_experts(config);
  if (kind == TaskModel::kFused) fuse_projections(config);
  if (kind == TaskModel::kGptOss) make_gpt_oss(config);
  const Model model = TRY(Model::random(config, seed));
  return model.save(default_env(), dir);
}

Result<> make_task(const std::string& dir, uint64_t seed, TaskModel kind) {
  TRY(write_data(Path(dir) / "data", seed));
  return write_model(Path(dir) / "model", seed, kind);
}

}  // namespace

}  // namespace mortise

int main(int argc, char** argv) {
  constexpr const char* kUsage =
      "usage: make_task DIR [--seed N] [--tiny | --experts | --fused | --gpt-oss | --vocabulary]\n\n"
      "Writes the quickstart's task into DIR: DIR/data has pairs such as 12+34=46, DIR/model an untrained model.\n"
      "  --seed N  seed of the pairs and of the weights (default: 42)\n"
      "  --tiny    a model too small to learn the task, for tests\n"
      "  --experts a small mixture of experts\n"
      "  --fused   a small Phi-3\n"
      "  --gpt-oss a small gpt-oss\n"
      "  --vocabulary  as --tiny, with 40,000 tokens\n";
  std::vector<std::string> args(argv + 1, argv + argc);
  if (args.size() == 1 && (args[0] == "--help" || args[0] == "-h")) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  std::optional<uint64_t> seed = 42;
  mortise::TaskModel kind = mortise::TaskModel::kQuickstart;
  if (!args.empty() && args.back() == "--tiny") kind = mortise::TaskModel::kTiny;
  if (!args.empty() && args.back() == "--experts") kind = mortise::TaskModel::kExperts;
  if (!args.empty() && args.back() == "--fused") kind = mortise::TaskModel::kFused;
  if (!args.empty() && args.back() == "--gpt-oss") kind = mortise::TaskModel::kGptOss;
  if (!args.empty() && args.back() == "--vocabulary") kind = mortise::TaskModel::kVocabulary;
  if (kind != mortise::TaskModel::kQuickstart) args.pop_back();
  if (args.size() == 3 && args[1] == "--seed") seed = mortise::parse_u64(args[2]);
  if ((args.size() != 1 && args.size() != 3) || !seed || args[0].starts_with('-')) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  const auto result = mortise::make_task(args[0], *seed, kind);
  if (result.ok()) return 0;
  std::fprintf(stderr, "error: %s\n", result.error().to_string().c_str());
  return static_cast<int>(result.error().kind);
}
