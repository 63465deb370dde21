// mortise model save: writes a model folder, or an adapter merged into its base, again: other dtype, other shards.
#include "command_line.h"

#include <fmt/core.h>

#include "config/keys/trainer.h"
#include "foundation/base/text.h"
#include "hub/config_names.h"
#include "model/model.h"
#include "text/tokenizer/tokenizer.h"
#include "train/run/policy_folder.h"

namespace mortise {
namespace {

namespace po = boost::program_options;
constexpr const char* kCommand = "mortise model save";
constexpr const char* kSaveUsage =
    "usage: mortise model save --model DIR --out DIR [--dtype D] [--max-shard-size N] [--lora merged|apart]\n\n"
    "Writes a Hugging Face folder (weights, configuration, tokenizer files) that transformers loads. --model may be a\n"
    "folder of a LoRA adapter. It is then merged into its base, unless you give --lora apart.\n";

// The values of --dtype: those of trainer.save_dtype without "train", since nothing is trained here.
std::string dtype_list() {
  constexpr auto kNames = choice_names(SaveDtype{});
  std::vector<std::string> names;
  for (const std::string_view name : kNames) {
    if (name != choice_name(SaveDtype::kTrain)) names.emplace_back(name);
  }
  return join(names, ", ");
}

struct SaveArguments {
  std::string model, out, dtype, max_shard_size, lora;
};

po::options_description save_options(SaveArguments& a) {
  po::options_description options("options", kHelpWidth);
  auto add = options.add_options();
  add("model", po::value(&a.model), "folder to read");
  add("out", po::value(&a.out), "folder to write; must differ from --model");
  add("dtype", po::value(&a.dtype)->default_value("stored"),
      (dtype_list() + "; stored: the same bytes as in the files of --model").c_str());
  add("max-shard-size", po::value(&a.max_shard_size)->default_value("0"),
      "maximum size of a weight file, such as 500MB or 5GB; 0: with --dtype stored as in --model, else one file");
  add("lora", po::value(&a.lora)->default_value("merged"),
      "merged: adapter and base as one model; apart: only the adapter");
  return options;
}

Error bad(const std::string& option, const std::string& problem, const std::string& next) {
  return {ErrorKind::kConfig, fmt::format("option --{} {}", option, problem), kCommand, next};
}

Result<SaveArguments> parse_save(Arguments args) {
  SaveArguments a;
  const auto words = words_of(TRY(parse_words(args, save_options(a), kCommand)));
  if (!words.empty())
    return Error{ErrorKind::kConfig, "unexpected word " + quote(words.front()), kCommand,
                 "`mortise model save --help` shows the usage"};
  if (a.model.empty()) return bad("model", "is missing", "name the folder to read");
  if (a.out.empty()) return bad("out", "is missing", "name the folder to write");
  const auto dtype = parse_choice<SaveDtype>(a.dtype);
  if (!dtype || dtype == SaveDtype::kTrain) {
    return bad("dtype", "is " + quote(a.dtype), "use one of " + dtype_list());
  }
  if (a.lora != "merged" && a.lora != "apart") return bad("lora", "is " + quote(a.lora), "use merged or apart");
  TRY(check_distinct({"--model", a.model}, {"--out", a.out}, kCommand));
  return a;
}

Result<int64_t> parse_size(const std::string& text) {
  const std::optional<int64_t> bytes = parse_byte_size(text);
  if (bytes) return *bytes;
  return bad("max-shard-size", "is " + quote(text), "write a number of bytes, or a size such as 500MB, 5GB or 2GiB");
}

Result<> run_save(const SaveArguments& given) {
  SaveArguments a = given;
  a.model = TRY(model_folder(default_env(), a.model)).string();
  Env& env = default_env();
  SaveOptions options;
  options.dtype = a.dtype;
  options.max_shard_bytes = TRY(parse_size(a.max_shard_size));
  options.lora = a.lora == "apart" ? LoraSave::kApart : LoraSave::kMerged;
  if (is_adapter_folder(env, a.model)) {
    const Path base = TRY(find_model_folder(env, a.model));
    TRY(check_distinct({"the adapter's base", base.string()}, {"--out", a.out}, kCommand));
  }
  const Model model = TRY(Model::load(env, a.model, a.dtype == "float64" ? "float64" : "float32"));
  if (options.lora == LoraSave::kApart && model.has_adapter()) {
    const LoraConfig config = TRY(read_lora_config(env, a.model));
    // A relative path would be looked up from the new folder.
    const Path base = TRY(find_base_folder(env, a.model, config));
    if (Path(config.base_model).is_relative()) options.base_model = std::filesystem::absolute(base).lexically_normal();
  }
  TRY(model.save(env, a.out, options));
  return save_tokenizer_files(TRY(tokenizer_folder(env, a.model)), a.out, env);
}

}  // namespace

int cmd_model_save(Arguments args) {
  return run_parsed<SaveArguments>(args, kSaveUsage, save_options, parse_save, run_save);
}

}  // namespace mortise
