// mortise generate: completions for a file of prompts, by the engine that training uses.

#include <fmt/core.h>
#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "command_line.h"
#include "config/check.h"
#include "config/fields.h"
#include "config/load.h"
#include "experience/data/misspelt_keys.h"
#include "experience/data/prompt_encoder.h"
#include "foundation/base/choice.h"
#include "foundation/base/log.h"
#include "foundation/base/signal.h"
#include "foundation/base/text.h"
#include "foundation/formats/json_number.h"
#include "foundation/formats/jsonl.h"
#include "foundation/formats/rows/row_reader.h"
#include "generate/engine.h"
#include "generate_turns.h"
#include "generated_rows.h"
#include "hub/config_names.h"
#include "keys_here.h"
#include "sampled_folder.h"
#include "train/run/policy_folder.h"
#include "train/run/run_device.h"
#include "train/run/threads.h"
#include "unknown_word.h"

namespace mortise {
namespace {

constexpr const char* kGenerateHelp =
    R"(usage: mortise generate --model DIR --prompts FILE --out FILE [--config RUN.toml] [KEY=VALUE ...] [--system TEXT] [--json]

--model    Hugging Face folder. It needs a tokenizer unless all prompts are token ids. Default: model.path of --config, with
           the adapter of model.lora_adapter_path if it is set.
--config   the file of a run. Its settings are the defaults of KEY=VALUE. Settings that only training reads have no effect.
           If rollout.multi_turn.enable is true, it plays whole episodes with the run's tools or environment.
--prompts  rows with "prompt" (text or messages), "messages" or "prompt_token_ids", in any format of docs/data.md. A row may
           have its own "seed". Its completions then depend on the seed and the row, not on its place in the file.
--out      JSONL rows in the same order: {"prompt_token_ids", "completions": [{"token_ids", "text", "log_probs",
           "finish_reason"}]}.
             log_probs           at the sampling temperature (at 1 if greedy), over the whole vocabulary
             filtered_log_probs  added if penalties, bad_words or filters change the distribution
             top_log_probs       added by rollout.top_log_probs: a list of [token id, log-prob] for each token
           With rollout.multi_turn.enable the file has a row for each completion, as in trainer.rollout_data_dir, with
           "turns", "response_mask" and the rewards of the environment. An interruption then leaves no file.
           The file appears when all rows are finished. Until then, and after an interruption, FILE.partial has the rows
           that are finished. The next command renames it to FILE.partial.before_N.
--system   system message for chats without one; the same as data.system_prompt
--json     print a summary as one JSON object on standard output

KEY is one of these. `mortise config explain KEY` explains each.
<keys>
Without rollout.response_length a completion has at most 512 tokens, or fewer if the model has less room.
)";

struct GenerateArguments {
  std::map<std::string, std::string> files;  // --model, --prompts, --out, --config
  std::vector<std::string> overrides;
  bool json = false;
};

std::span<const std::string> keys_here() { return keys_of(ConfigUse::kGenerate); }

bool acts_here(std::string_view key) {
  return std::ranges::count(keys_here(), key) > 0 || key.starts_with("data.apply_chat_template_kwargs.") ||
         key.starts_with("rollout.multi_turn.params.");
}

Error no_setting(const std::string& word, const std::string& key) {
  Error error{ErrorKind::kConfig, quote(word) + " has no effect on generate", "mortise generate", ""};
  if (find_field(key) == nullptr && find_table(key) == nullptr && word.find('=') != std::string::npos) {
    error.what = "unknown key " + quote(key);
    error.next = did_you_mean(key, keys_here());
  }
  if (error.next.empty()) error.next = "`mortise generate --help` lists the keys";
  return error;
}

Result<GenerateArguments> parse_generate(Arguments args) {
  const std::vector<std::string> names = {"--model", "--prompts", "--out", "--config", "--json", "--system"};
  GenerateArguments out;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& word = args[i];
    if (word == "--json") {
      out.json = true;
      continue;
    }
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    if (!word.starts_with("-")) {
      std::string key = name.substr(name.starts_with('+') ? 1 : 0);
      constexpr std::string_view kAlias = "actor_rollout_ref.";
      if (key.starts_with(kAlias)) key.erase(0, kAlias.size());
      if (equals == std::string::npos || !acts_here(key)) return no_setting(word, key);
      out.overrides.push_back(word);
      continue;
    }
    if (std::ranges::find(names, name) == names.end()) return unknown_word("option", name, names, "mortise generate");
    std::string value;
    if (equals != std::string::npos)
      value = word.substr(equals + 1);
    else if (i + 1 < args.size())
      value = args[++i];
    if (value.empty())
      return Error{ErrorKind::kConfig, fmt::format("option {} needs a value", name), "mortise generate",
                   "write it behind the option"};
    if (name == "--system")
      out.overrides.push_back("data.system_prompt=" + dump_json(Json(value)));
    else
      out.files[name] = value;
  }
  for (const char* name : {"--model", "--prompts", "--out"}) {
    if (out.files.contains(name) || (std::string_view(name) == "--model" && out.files.contains("--config"))) continue;
    return Error{ErrorKind::kConfig, fmt::format("option {} is missing", name), "mortise generate",
                 "`mortise generate --help` shows the usage"};
  }
  TRY(check_distinct({"--prompts", out.files["--prompts"]}, {"--out", out.files["--out"]}, "mortise generate"));
  TRY(check_distinct({"--prompts", out.files["--prompts"]},
                     {"the rows before they are all there", out.files["--out"] + ".partial"}, "mortise generate"));
  if (const auto config = out.files.find("--config"); config != out.files.end())
    TRY(check_distinct({"--config", config->second}, {"--out", out.files["--out"]}, "mortise generate"));
  return out;
}

// The prompt of a row in a folder without tokenizer.
Result<std::vector<int64_t>> bare_ids(const Json& row, const std::string& where) {
  const Json* const ids = json_find(row, "prompt_token_ids");
  if (ids == nullptr || !ids->is_array()) {
    const std::string known[] = {"prompt_token_ids"};
    const std::string hint = ids == nullptr ? misspelt_key(row, known) : "";
    return Error{ErrorKind::kData, "the model folder has no tokenizer, and the row has no prompt_token_ids", where,
                 hint.empty() ? "give token ids, or a folder with a tokenizer" : hint};
  }
  std::vector<int64_t> out;
  for (const Json& id : *ids) {
    if (!is_i64(id)) {
      return Error{ErrorKind::kData, fmt::format("'prompt_token_ids' has {}, which is not a token id", dump_json(id)),
                   where, "give whole numbers, as in [1, 5, 7]"};
    }
    out.push_back(id.get<int64_t>());
  }
  return out;
}

struct Prompts {
  std::vector<std::vector<int64_t>> ids;
  std::vector<std::optional<uint64_t>> seeds;  // a seed for each row that has one
  std::vector<std::string> where;
  int64_t longest_sequence = 0;  // prompt and completion together, if no option limits completions
};

// The longest completion of prompt i: the requested length, or by default as much of it as the model has room for.
int64_t completion_room(const Prompts& prompts, size_t i, int64_t asked) {
  const int64_t room = prompts.longest_sequence - static_cast<int64_t>(prompts.ids[i].size());
  return prompts.longest_sequence > 0 && room > 0 ? std::min(asked, room) : asked;
}

// If the model is short, completions of the default length end where the model ends.
void fit_default_length(const LoadedConfig& loaded, const ModelConfig& model, Prompts& prompts) {
  if (loaded.is_set("rollout.response_length") || loaded.is_set("data.max_response_length")) return;
  prompts.longest_sequence = model.max_length();
  const int64_t usual = response_length(loaded.config);
  int64_t num_short = 0;
  for (size_t i = 0; i < prompts.ids.size(); ++i) num_short += completion_room(prompts, i, usual) < usual ? 1 : 0;
  if (num_short == 0) return;
  log_info(fmt::format(
      "the model takes {} tokens at most, so completions of {} of {} prompts end before the default of {} tokens; set "
      "rollout.response_length to choose a length",
      prompts.longest_sequence, num_short, prompts.ids.size(), usual));
}

Result<std::optional<uint64_t>> seed_of(const Json& row, const std::string& where) {
  const Json* const seed = json_find(row, "seed");
  if (seed == nullptr || seed->is_null()) return std::optional<uint64_t>();
  if (!seed->is_number_integer() || (!seed->is_number_unsigned() && seed->get<int64_t>() < 0)) {
    return Error{ErrorKind::kData, fmt::format("'seed' must be an integer of at least 0, but is {}", dump_json(*seed)),
                 where, "correct it, or remove it and set rollout.seed for all rows"};
  }
  return std::optional<uint64_t>(seed->get<uint64_t>());
}

Result<Prompts> read_prompts(Env& env, const Path& path, const PolicyFolder* folder, const RunConfig& config,
                             int64_t vocab_size) {
  Prompts out;
  const auto reader = TRY(open_rows(env, path));
  while (const std::optional<RawRow> raw = TRY(reader->next())) {
    const Json row = TRY(reader->parse(*raw));
    out.where.push_back(reader->place(raw->number));
    out.seeds.push_back(TRY(seed_of(row, out.where.back())));
    if (folder != nullptr) {
      const Prompt prompt = TRY(folder->encoder(config).encode(row, out.where.back(), vocab_size));
      out.ids.push_back(prompt.token_ids);
    } else {
      out.ids.push_back(TRY(bare_ids(row, out.where.back())));
    }
  }
  return out;
}

// The completions of the prompts `which`.
Result<> complete(GenerateEngine& engine, const Prompts& prompts, std::span<const size_t> which,
                  const SamplingParams& sampling, const RunConfig& config, GeneratedRows& out) {
  const int64_t n = config.rollout.n;
  const auto seed = static_cast<uint64_t>(config.rollout.seed.value_or(config.trainer.seed));
  take_stop_requests();
  Result<> kept;
  const auto keep = [&](const GeneratedSequence& sequence) {
    if (kept.ok()) kept = out.add(sequence);
    return true;
  };
  const auto work = [&]() -> Result<uint64_t> {
    if (stop_requested())
      return Error{ErrorKind::kSignal, "stopped by a signal before all completions were sampled", "", ""};
    const uint64_t outstanding = TRY(engine.poll(keep, std::chrono::milliseconds(100)));
    TRY(kept);
    return outstanding;
  };
  for (size_t at = 0; at < which.size();) {
    const size_t i = which[at];
    const auto id = static_cast<int64_t>(i);
    GenerateRequest request{id, prompts.ids[i], n, id * n, seed, 0, sampling, config.rollout.top_log_probs};
    request.sampling.max_new_tokens = completion_room(prompts, i, sampling.max_new_tokens);
    if (prompts.seeds[i]) {
      request.seed = *prompts.seeds[i];
      request.first_row_id = 0;
    }
    auto taken = engine.submit({&request, 1});
    if (!taken.ok()) {
      taken.error().where = prompts.where[i];
      return std::move(taken).error();
    }
    at += *taken;
    if (*taken == 0) TRY(work());
  }
  while (TRY(work()) > 0) continue;
  return {};
}

// Longrope rotates a long sequence differently from its first token on. A completion that may grow that long therefore
// starts with the long factors. It depends only on its own prompt and length, not on the rest of the file.
Result<std::string> complete_all(Model& model, const EngineOptions& options, const Prompts& prompts,
                                 const SamplingParams& sampling, const RunConfig& config, GeneratedRows& out) {
  std::string path_name;
  const int64_t limit = model.config().rope_switch();
  std::vector<size_t> parts[2];
  for (size_t i = 0; i < prompts.ids.size(); ++i) {
    const bool is_long = static_cast<int64_t>(prompts.ids[i].size()) > limit - sampling.max_new_tokens;
    parts[limit > 0 && is_long ? 1 : 0].push_back(i);
  }
  for (const int part : {0, 1}) {
    if (parts[part].empty() && (part == 1 || !prompts.ids.empty())) continue;
    model.set_rope_length(limit + part);
    const auto engine = TRY(GenerateEngine::create(model, options));
    TRY(complete(*engine, prompts, parts[part], sampling, config, out));
    path_name = engine->path_name();
  }
  return path_name;
}

// The settings, checked. The file of a run has settings of training, which is no reason for a warning.
Result<LoadedConfig> load_settings(Env& env, const GenerateArguments& parsed) {
  const auto file = parsed.files.find("--config");
  const std::string path = file == parsed.files.end() ? "" : file->second;
  LoadedConfig loaded = TRY(load_config(env, path, parsed.overrides));
  if (const auto model = parsed.files.find("--model"); model != parsed.files.end()) {
    loaded.config.model.path = model->second;
    loaded.positions["model.path"] = "--model";
  }
  if (loaded.config.model.path.empty())
    return Error{ErrorKind::kConfig, "the file names no model", path, "set model.path there, or give --model"};
  for (const Error& warning : TRY(check_config(loaded, ConfigUse::kGenerate))) {
    if (path.empty() || warning.where.find("override") == 0) log_warn(warning.to_string());
  }
  TRY(resolve_hub_names(env, loaded, {}));
  if (!parsed.files.contains("--model")) loaded.config.model.path = sampled_folder(loaded.config.model).string();
  return loaded;
}

Result<int> generate(Arguments args) {
  GenerateArguments parsed = TRY(parse_generate(args));
  Env& env = default_env();
  LoadedConfig loaded = TRY(load_settings(env, parsed));
  RunConfig& config = loaded.config;
  const ComputeDevice device = TRY(open_sampling_device(loaded, ConfigUse::kGenerate));
  use_threads(config.trainer);
  if (config.rollout.multi_turn.enable) {
    const Json summary =
        TRY(generate_turns(env, loaded, device, parsed.files.at("--prompts"), parsed.files.at("--out")));
    if (parsed.json) std::cout << dump_json(summary) << "\n";
    return 0;
  }
  Model model = TRY(Model::load(env, config.model.path, std::string(choice_name(config.model.dtype))));
  TRY(model.move_to(device));
  std::optional<PolicyFolder> folder;
  const Path tokenizer_path = TRY(tokenizer_folder(env, config.model.path));
  if (!TRY(list_tokenizer_files(tokenizer_path, env)).empty()) folder = TRY(PolicyFolder::load(env, config));
  Prompts prompts = TRY(
      read_prompts(env, parsed.files.at("--prompts"), folder ? &*folder : nullptr, config, model.config().vocab_size));
  fit_default_length(loaded, model.config(), prompts);
  TRY(check_num_rows(loaded, static_cast<int64_t>(prompts.ids.size()), "rollout.n"));
  EngineOptions options = rollout_engine_options(config, folder ? &folder->tokenizer : nullptr);
  options.purpose = RandomPurpose::kValidation;
  const Sampling sampling = TRY(rollout_sampling(config, model.config(), options.tokenizer));
  if (model.dtype() != at::kFloat) options.path = GeneratePath::kPlain;
  GeneratedRows rows = TRY(GeneratedRows::create(env, parsed.files.at("--out"), prompts.ids, config.rollout.n,
                                                 options.tokenizer, config.rollout.calculate_log_probs));
  auto path_name = complete_all(model, options, prompts, sampling, config, rows);
  if (!path_name.ok()) return rows.unfinished(std::move(path_name).error());
  TRY(rows.commit());
  if (parsed.json) {
    std::cout << dump_json(Json{{"out", parsed.files.at("--out")},
                                {"prompts", prompts.ids.size()},
                                {"completion_tokens", rows.num_tokens()},
                                {"path", *path_name}})
              << "\n";
  }
  return 0;
}

}  // namespace

int cmd_generate(Arguments args) {
  if (wants_help(args)) {
    std::cout << usage_with_keys(kGenerateHelp, ConfigUse::kGenerate);
    return 0;
  }
  auto code = generate(args);
  return code.ok() ? *code : fail(code.error());
}

}  // namespace mortise
