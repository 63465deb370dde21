// `mortise checkpoint`: what is in a run's folder. Every command but export only reads.
#include <fmt/core.h>

#include <algorithm>
#include <iostream>

#include "checkpoint/retention.h"
#include "checkpoint_command.h"
#include "command_line.h"
#include "foundation/base/clock.h"
#include "foundation/base/limits.h"
#include "foundation/base/shown_text.h"
#include "foundation/base/text.h"
#include "train/resume/checkpointing.h"
#include "unknown_word.h"

namespace mortise {
namespace {

namespace po = boost::program_options;
constexpr const char* kCheckpoint = "mortise checkpoint";
constexpr const char* kModelFolder = "huggingface";
constexpr const char* kCheckpointUsage =
    R"(usage: mortise checkpoint COMMAND [options]

  list RUN             lists the checkpoints of a run's folder
  verify PATH          compares every file of the checkpoint with its manifest; of a run, every checkpoint
  inspect PATH         shows what a checkpoint holds: files, plugins, counters, tensors
  diff PATH PATH       shows how two checkpoints differ: settings, plugins, state, weights
  export PATH DIR      verifies a checkpoint and copies its model folder, which transformers loads, to DIR

PATH is a checkpoint (runs/a/global_step_20) or a run's folder, whose newest complete checkpoint is meant.
Options: --json prints one JSON object on standard output.
)";

struct CheckpointArguments {
  std::vector<std::string> words;
  bool json = false;
};

Error checkpoint_usage_error(const std::string& what) {
  return {ErrorKind::kConfig, what, kCheckpoint, "`mortise checkpoint --help` shows the usage"};
}

// ---- list ----

struct Listed {
  CheckpointRef ref;
  std::string folder;   // empty: the run's own; else the one below it, "abandoned_1"
  std::string problem;  // empty: complete
  uint64_t size_bytes = 0;
  int64_t saved_ns = 0;
};

// Manifest and sizes only. `verify` reads every byte.
Listed look_at(Env& env, const CheckpointRef& ref, const std::string& folder) {
  Listed out{.ref = ref, .folder = folder, .problem = {}};
  const Path path = ref.path / kManifestFile;
  const auto info = env.info(path);
  if (!info.ok()) {
    out.problem = "it has no manifest.json";
    return out;
  }
  out.saved_ns = info->modified_ns;
  const auto text = env.read_file(path, limits::kMaxManifestBytes);
  const auto manifest = text.ok() ? parse_manifest(*text, path.string()) : Result<Manifest>(text.error());
  if (!manifest.ok()) {
    out.problem = manifest.error().what;
    return out;
  }
  for (const ManifestEntry& entry : manifest->entries) {
    out.size_bytes += entry.size_bytes;
    const auto file = env.info(ref.path / entry.path);
    if (!file.ok() || file->size_bytes != entry.size_bytes)
      out.problem = fmt::format("{} is {}", quote(entry.path), file.ok() ? "of another size" : "missing");
  }
  return out;
}

Result<std::vector<Listed>> look_at_run(Env& env, const Path& run) {
  if (!env.exists(run))
    return Error{ErrorKind::kData, "there is no such folder", run.string(), "name a run's trainer.default_local_dir"};
  std::vector<Listed> out;
  for (const CheckpointRef& ref : TRY(list_checkpoints(env, run))) out.push_back(look_at(env, ref, ""));
  for (const std::string& name : TRY(env.list_dir(run))) {
    if (!name.starts_with("abandoned_")) continue;
    for (const CheckpointRef& ref : TRY(list_checkpoints(env, run / name))) out.push_back(look_at(env, ref, name));
  }
  return out;
}

std::string name_of(const Listed& one) { return (Path(one.folder) / one.ref.path.filename()).string(); }

Result<> list_checkpoints_of(Env& env, const CheckpointArguments& args) {
  const Path run = args.words[0];
  const std::vector<Listed> all = TRY(look_at_run(env, run));
  const auto read = env.read_file(run / kLatestFile, 4096);
  const std::string latest = read.ok() ? std::string(trim(*read)) : "";
  if (args.json) {
    Json rows = Json::array();
    for (const Listed& one : all) {
      Json row = {{"name", name_of(one)},
                  {"step", one.ref.place.step},
                  {"bytes", one.size_bytes},
                  {"saved", format_time_utc(one.saved_ns)},
                  {"complete", one.problem.empty()},
                  {"latest", name_of(one) == latest}};
      if (one.ref.place.update) row["update"] = *one.ref.place.update;
      if (!one.problem.empty()) row["problem"] = one.problem;
      rows.push_back(std::move(row));
    }
    std::cout << dump_json(Json{{"run", run.string()}, {"checkpoints", rows}}) << "\n";
    return {};
  }
  if (all.empty()) {
    std::cout << fmt::format("{} has no checkpoint\n", run.string());
    return {};
  }
  size_t width = 0;
  for (const Listed& one : all) width = std::max(width, name_of(one).size());
  for (const Listed& one : all) {
    std::cout << fmt::format("{:<{}}  {:>10}  {}  {}\n", name_of(one), width, format_bytes(one.size_bytes),
                             format_time_utc(one.saved_ns),
                             !one.problem.empty()     ? "incomplete: " + one_line(one.problem)
                             : name_of(one) == latest ? "complete, the latest"
                                                      : "complete");
  }
  for (const Path& path : TRY(list_leftovers(env, run)))
    std::cout << fmt::format("{} was left by a killed process; the next save removes it\n", path.filename().string());
  return {};
}

// ---- verify ----

Result<> verify_checkpoints(Env& env, const CheckpointArguments& args) {
  const Path path = args.words[0];
  std::vector<Path> folders;
  if (!parse_checkpoint_name(path.filename().string()) && !env.exists(path / kManifestFile)) {
    for (const Listed& one : TRY(look_at_run(env, path))) folders.push_back(one.ref.path);
    if (folders.empty())
      return Error{ErrorKind::kData, "there is no checkpoint in this folder", path.string(),
                   "name a checkpoint or a run's folder"};
  } else {
    folders.push_back(path);
  }
  Json rows = Json::array();
  std::vector<Error> errors;
  for (const Path& folder : folders) {
    const auto manifest = verify_checkpoint(env, folder);
    Json row = {{"path", folder.string()}, {"whole", manifest.ok()}};
    if (manifest.ok())
      row["files"] = manifest->entries.size();
    else
      row["problem"] = manifest.error().what;
    rows.push_back(std::move(row));
    if (!args.json && manifest.ok())
      std::cout << fmt::format("{}: {} match the manifest\n", folder.string(),
                               counted(static_cast<int64_t>(manifest->entries.size()), "file"));
    if (!manifest.ok()) errors.push_back(manifest.error());
  }
  if (args.json) std::cout << dump_json(Json{{"whole", errors.empty()}, {"checkpoints", rows}}) << "\n";
  if (errors.empty()) return {};
  for (size_t i = 1; i < errors.size(); ++i) fail(errors[i]);
  return errors[0];
}

// ---- inspect ----

Json inspected(Env& env, const Checkpoint& checkpoint) {
  const Manifest& manifest = checkpoint.manifest();
  Json out = {{"path", checkpoint.path().string()}, {"name", checkpoint_name(manifest.place)}};
  out["info"] = manifest.info;
  Json& files = out["files"] = Json::array();
  for (const ManifestEntry& entry : manifest.entries)
    files.push_back({{"path", entry.path}, {"bytes", entry.size_bytes}, {"sha256", entry.sha256}});
  const auto lock = read_json_file(env, checkpoint.path() / kPackLockFile);
  const Json* uses = lock.ok() ? json_find(*lock, "uses") : nullptr;
  out["plugins"] = uses == nullptr || !uses->is_array() ? Json::array() : *uses;
  Json& objects = out["state"] = Json::object();
  for (const auto& [object, values] : checkpoint.state().scalars) {
    Json& scalars = objects[object]["scalars"] = Json::object();
    for (const auto& [key, value] : values) scalars[key] = state_scalar_text(value);
    objects[object]["tensors"] = Json::array();
  }
  for (const TensorView& view : checkpoint.state().tensors) {
    const size_t slash = view.name.find('/');
    objects[view.name.substr(0, slash)]["tensors"].push_back(
        {{"name", view.name.substr(slash + 1)}, {"dtype", dtype_name(view.dtype)}, {"shape", view.shape}});
  }
  return out;
}

// A text of the lock; "" if it is missing or no text. A checkpoint of someone else may hold anything.
std::string lock_text(const Json& use, std::string_view key) {
  const Json* text = json_find(use, key);
  return text != nullptr && text->is_string() ? one_line(text->get_ref<const std::string&>()) : std::string();
}

void print_inspected(const Json& all) {
  std::cout << fmt::format("{}\n\nfiles\n", all["path"].get<std::string>());
  for (const Json& file : all["files"])
    std::cout << fmt::format("  {:>10}  {}\n", format_bytes(file["bytes"].get<uint64_t>()),
                             one_line(file["path"].get<std::string>()));
  std::cout << "\nplugins\n";
  for (const Json& use : all["plugins"])
    std::cout << fmt::format("  {} {}: {} {}\n", lock_text(use, "kind"), lock_text(use, "name"), lock_text(use, "pack"),
                             lock_text(use, "version"));
  std::cout << "\nstate\n";
  for (const auto& [object, parts] : all["state"].items()) {
    std::cout << "  " << one_line(object);
    if (!parts["tensors"].empty())
      std::cout << ": " << counted(static_cast<int64_t>(parts["tensors"].size()), "tensor");
    std::cout << "\n";
    for (const auto& [key, value] : parts["scalars"].items())
      std::cout << fmt::format("    {} = {}\n", one_line(key), shorten(one_line(value.get<std::string>()), 90));
  }
  std::cout << "\n`mortise checkpoint inspect --json` lists the tensors and the hashes too.\n";
}

Result<> inspect_checkpoint(Env& env, const CheckpointArguments& args) {
  const Checkpoint checkpoint = TRY(open_checkpoint(env, args.words[0]));
  const Json all = inspected(env, checkpoint);
  if (args.json)
    std::cout << dump_json(all) << "\n";
  else
    print_inspected(all);
  return {};
}

// ---- diff ----

Result<> diff_checkpoint(Env& env, const CheckpointArguments& args) {
  const Checkpoint before = TRY(open_checkpoint(env, args.words[0]));
  const Checkpoint after = TRY(open_checkpoint(env, args.words[1]));
  const CheckpointDifferences differences = TRY(compare_checkpoints(env, before, after));
  if (args.json) {
    std::cout << dump_json(differences_json(differences)) << "\n";
    return {};
  }
  std::cout << fmt::format("{} -> {}\n", before.path().string(), after.path().string());
  print_differences(differences, std::cout);
  return {};
}

// ---- export ----

Result<> export_model(Env& env, const CheckpointArguments& args) {
  Path out = args.words[1];
  if (!out.has_filename()) out = out.parent_path();  // "model/" is the folder "model"
  if (env.exists(out))
    return Error{ErrorKind::kDisk, "the folder exists already", out.string(), "name a folder that is not there yet"};
  const Checkpoint checkpoint = TRY(open_checkpoint(env, args.words[0]));
  const std::string prefix = std::string(kModelFolder) + "/";
  // Under another name until it is complete, so that nobody loads half a model.
  Path parent = out.parent_path();
  if (parent.empty()) parent = ".";
  TRY(env.create_dirs(parent));
  const Path unfinished = parent / unique_name(env, fmt::format(".tmp_{}.", out.filename().string()));
  uint64_t size_bytes = 0;
  const auto copy = [&]() -> Result<> {
    for (const ManifestEntry& entry : checkpoint.manifest().entries) {
      if (!entry.path.starts_with(prefix)) continue;
      const Path target = unfinished / entry.path.substr(prefix.size());
      TRY(env.create_dirs(target.parent_path()));
      const MappedFile file = TRY(env.map_file(checkpoint.path() / entry.path));
      TRY(write_file(env, target, file.text()));
      size_bytes += entry.size_bytes;
    }
    if (size_bytes == 0)
      return Error{ErrorKind::kData, "the checkpoint has no model folder", checkpoint.path().string(), ""};
    return env.rename(unfinished, out);
  };
  if (const Result<> done = copy(); !done.ok()) {
    (void)remove_tree(env, unfinished);
    return done;
  }
  if (args.json)
    std::cout << dump_json(Json{{"from", checkpoint.path().string()}, {"to", out.string()}, {"bytes", size_bytes}})
              << "\n";
  else
    std::cout << fmt::format("{} is the model of {} ({})\n", out.string(), checkpoint.path().string(),
                             format_bytes(size_bytes));
  return {};
}

struct CheckpointCommand {
  const char* name;
  size_t num_words;
  Result<> (*run)(Env&, const CheckpointArguments&);
};

constexpr CheckpointCommand kCheckpointCommands[] = {{"list", 1, list_checkpoints_of},
                                                     {"verify", 1, verify_checkpoints},
                                                     {"inspect", 1, inspect_checkpoint},
                                                     {"diff", 2, diff_checkpoint},
                                                     {"export", 2, export_model}};

Result<> run_checkpoint(Arguments args) {
  std::vector<std::string> names;
  for (const CheckpointCommand& command : kCheckpointCommands) names.emplace_back(command.name);
  if (args.empty()) return missing_command(names, kCheckpoint);
  const auto* command = std::ranges::find(kCheckpointCommands, args[0], &CheckpointCommand::name);
  if (command == std::end(kCheckpointCommands)) return unknown_word("command", args[0], names, kCheckpoint);
  CheckpointArguments parsed;
  po::options_description options("options", kHelpWidth);
  options.add_options()("json", po::bool_switch(&parsed.json), "print one JSON object");
  parsed.words = words_of(TRY(parse_words(args.subspan(1), options, fmt::format("{} {}", kCheckpoint, command->name))));
  if (parsed.words.size() != command->num_words)
    return checkpoint_usage_error(fmt::format("{} takes {}, and you gave {}", command->name,
                                              counted(static_cast<int64_t>(command->num_words), "path"),
                                              parsed.words.size()));
  return command->run(default_env(), parsed);
}

}  // namespace

Result<Checkpoint> open_checkpoint(Env& env, const Path& path) {
  if (env.exists(path / kManifestFile)) return Checkpoint::open(env, path);
  const auto found = TRY(find_newest_valid(env, path));
  if (found) return Checkpoint::open(env, found->ref.path);
  return Error{ErrorKind::kData,
               env.exists(path) ? "this folder is no checkpoint and holds none" : "there is no such folder",
               path.string(), "name a checkpoint, such as runs/a/global_step_20, or a run's folder"};
}

int cmd_checkpoint(Arguments args) {
  if (wants_help(args)) {
    std::cout << kCheckpointUsage;
    return 0;
  }
  const Result<> done = run_checkpoint(args);
  return done.ok() ? 0 : fail(done.error());
}

}  // namespace mortise
