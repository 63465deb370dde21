// `mortise doctor`: tries what a run needs of this machine, and says what does not work and what to do.
#include <ATen/Version.h>
#include <fmt/core.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>

#include "command_line.h"
#include "experience/plugin_settings.h"
#include "foundation/base/cpus.h"
#include "foundation/base/folder_lock.h"
#include "foundation/base/log.h"
#include "foundation/base/private_folder.h"
#include "foundation/base/shown_text.h"
#include "foundation/base/text.h"
#include "foundation/formats/json.h"
#include "model/device/compute_device.h"
#include "model/device/kernel_table.h"
#include "model/tensor/torch_version.h"
#include "mortise/pack.h"
#include "packs/admission.h"
#include "packs/store.h"
#include "plugin/worker/child.h"
#include "plugin/worker/launcher.h"
#include "plugin/worker/reward_function.h"

namespace mortise {
namespace {

namespace po = boost::program_options;
constexpr const char* kDoctorUsage =
    "usage: mortise doctor [--dir DIR] [--json]\n\n"
    "Checks what a run needs of this machine: processor, memory, packs, workers, sandbox, disk. For everything that does\n"
    "not work it says what to do. The exit code is 0 if nothing fails.\n\n"
    "--dir    folder in which runs are to write; the command creates it, and writes, syncs and removes a small\n         file there. Default: .\n"
    "--json   print one JSON object\n";

// kNote: it works with a restriction that somebody should know.
enum class Health { kOk, kNote, kFails };

struct MachineFinding {
  std::string subject;
  Health health = Health::kOk;
  std::string text;                     // what was found
  std::string next;                     // what to do; empty if nothing
  ErrorKind kind = ErrorKind::kConfig;  // the exit code, if the state is kFails
};

MachineFinding failed(std::string subject, const Error& error) {
  return {std::move(subject), Health::kFails,
          error.where.empty() ? error.what : fmt::format("{}: {}", error.where, error.what), error.next, error.kind};
}

MachineFinding look_at_processor() {
  const std::string level = at::get_cpu_capability();
  MachineFinding out{.subject = "processor",
                     .text = fmt::format("{} of {} processors may be used; libtorch {} uses {}", usable_cpus(),
                                         sysconf(_SC_NPROCESSORS_ONLN), kTorchVersion, level),
                     .next = {}};
  if (level == "DEFAULT") {
    out.health = Health::kNote;
    out.next = "this processor lacks AVX2: training works, but slowly";
  }
  return out;
}

std::vector<MachineFinding> threads_and_load() {
  std::vector<MachineFinding> out;
  for (const char* name : {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || parse_i64(value).value_or(usable_cpus()) <= usable_cpus()) continue;
    out.push_back({"threads", Health::kNote,
                   fmt::format("{} is {}, more than the {} processors that may be used", name, value, usable_cpus()),
                   "unset it, or set trainer.num_threads"});
  }
  double load = 0.0;
  if (getloadavg(&load, 1) == 1 && load > 0.5 * usable_cpus() + 0.5)
    out.push_back({"load", Health::kNote, fmt::format("the load of the last minute is {:.1f}", load),
                   "other programs are busy on this machine: a run will be slower"});
  return out;
}

MachineFinding look_at_memory() {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  double kib = 0.0, total = 0.0, available = 0.0;
  while (file >> name >> kib && std::getline(file, unit)) {
    if (name == "MemTotal:") total = kib;
    if (name == "MemAvailable:") available = kib;
  }
  constexpr double kKibPerGib = 1024.0 * 1024.0;
  return {.subject = "memory",
          .text = fmt::format("{:.1f} GiB of {:.1f} GiB are available. `mortise train RUN.toml --dry-run` says what a "
                              "run needs",
                              available / kKibPerGib, total / kKibPerGib),
          .next = {}};
}

MachineFinding look_at_gpu(Env& env) {
  const auto gpu = ask_driver({}, 0, /*needs_bfloat16=*/false);
  if (!gpu.ok()) return {.subject = "GPU", .text = "none that a run could use: " + gpu.error().what, .next = {}};
  MachineFinding out{
      .subject = "GPU",
      .text = fmt::format("{} with {}, for model.device = \"cuda\"", gpu->name, format_bytes(gpu->memory_bytes)),
      .next = {}};
  if (!env.exists(Path(cuda_library_folder()) / kCudaLibrary)) {
    out.health = Health::kNote;
    out.next = "fetch libtorch's CUDA half with `./dev deps --cuda` to use it";
  } else if (const std::string why = why_no_gpu_kernels(); !why.empty()) {
    out.health = Health::kNote;
    out.next = fmt::format("{}: install nvcc and build again, so that runs have kernels of their own", why);
  }
  return out;
}

MachineFinding look_at_open_files() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);  // main has raised the soft limit already
  MachineFinding out{.subject = "open files", .text = fmt::format("up to {}", limit.rlim_cur), .next = {}};
  if (limit.rlim_cur < 256) {
    out.health = Health::kNote;
    out.next = "raise the hard limit (ulimit -Hn): large batches with many workers need some hundred";
  }
  return out;
}

// ---- the folder of runs ----

Result<> try_folder(Env& env, const Path& folder) {
  TRY(env.create_dirs(folder));
  const Path probe = folder / unique_name(env, ".mortise_doctor_");
  const auto work = [&]() -> Result<> {
    TRY(env.create_dirs(probe));
    TRY(write_file_atomic(env, probe / "file", "written by mortise doctor\n"));
    TRY(FolderLock::take(probe));
    return env.sync_dir(probe);
  };
  const Result<> done = work();
  (void)remove_tree(env, probe);
  return done;
}

MachineFinding folder_of_runs(Env& env, const Path& folder) {
  if (const auto done = try_folder(env, folder); !done.ok()) return failed("disk", done.error());
  const auto free = env.free_bytes(folder);
  MachineFinding out{.subject = "disk",
                     .text = fmt::format("{} can be written, synced and locked; {} are free", folder.string(),
                                         free.ok() ? format_bytes(*free) : "an unknown number of bytes"),
                     .next = {}};
  if (free.ok() && *free < (uint64_t{1} << 30)) {
    out.health = Health::kNote;
    out.next = "free some room, or name another folder with trainer.default_local_dir";
  }
  return out;
}

// ---- packs and workers ----

std::vector<MachineFinding> packs_of(const PluginRegistry& registry) {
  std::vector<MachineFinding> out;
  size_t num_plugins = 0, num_packs = 0;
  for (const Candidate& candidate : registry.candidates()) {
    if (!candidate.hidden_by.empty()) continue;
    ++num_packs;
    num_plugins += candidate.info.plugins.size();
  }
  MachineFinding found{.subject = "packs",
                       .text = fmt::format("{} with {}", counted(static_cast<int64_t>(num_packs), "pack"),
                                           counted(static_cast<int64_t>(num_plugins), "plugin")),
                       .next = {}};
  if (num_packs == 0) {
    found.health = Health::kFails;
    found.kind = ErrorKind::kPlugin;
    found.next = "install the program with its packs (lib/mortise/packs), or set MORTISE_PLUGIN_PATH";
  }
  out.push_back(std::move(found));
  for (const RejectedCandidate& rejected : registry.rejected())
    out.push_back({"packs", Health::kNote, fmt::format("{} is refused: {}", rejected.path, rejected.reason.what),
                   rejected.reason.next});
  return out;
}

std::vector<MachineFinding> store_of_packs(Env& env) {
  const PackPlaces places = known_pack_places();
  if (places.store.empty() || !env.exists(places.store)) return {};
  std::vector<DamagedEntry> damaged;
  const auto packs = PackStore(env, places.store).list(&damaged);
  if (!packs.ok()) return {failed("store of packs", packs.error())};
  std::vector<MachineFinding> out{
      {.subject = "store of packs",
       .text = fmt::format("{} installed in {}", counted(static_cast<int64_t>(packs->size()), "pack"),
                           places.store.string()),
       .next = {}}};
  for (const DamagedEntry& entry : damaged) out.push_back(failed("store of packs", entry.error));
  return out;
}

// Creates the reward in a worker of its own, as a run does. That starts the worker program, bubblewrap and the filter of
// system calls, and what the reward itself needs.
Result<> try_reward(PluginRegistry& registry, const Candidate& pack, const PluginInfo& plugin) {
  IsolationOptions options;
  options.mode = Isolation::kProcess;
  options.num_workers = 1;
  TRY(make_reward_function(registry, fmt::format("{}/{}", pack.info.id, plugin.name), Json::object(), {}, options));
  return {};
}

bool needs_settings(const PluginInfo& plugin) {
  return std::ranges::any_of(plugin.params, [](const ParamInfo& param) { return !param.default_text; });
}

// The first reward of the pack that works without settings; nothing if it has none to try.
std::optional<MachineFinding> try_pack(PluginRegistry& registry, const Candidate& pack) {
  std::optional<MachineFinding> out;
  for (const PluginInfo& plugin : pack.info.plugins) {
    if (plugin.kind != MORTISE_KIND_REWARD || needs_settings(plugin)) continue;
    if ((plugin.flags & MORTISE_FLAG_NEEDS_ENGINE) != 0) continue;
    if (const auto tried = try_reward(registry, pack, plugin); !tried.ok()) {
      out = failed("workers", tried.error());
      continue;
    }
    return MachineFinding{.subject = "workers",
                          .text = fmt::format("the reward {} of {} started in a worker", plugin.name, pack.info.id),
                          .next = {}};
  }
  return out;
}

std::vector<MachineFinding> try_workers(PluginRegistry& registry) {
  std::vector<MachineFinding> out;
  if (const auto able = check_worker_support(); !able.ok()) return {failed("workers", able.error())};
  if (const auto program = find_worker_program(); !program.ok()) return {failed("workers", program.error())};
  for (const Candidate& pack : registry.candidates()) {
    if (!pack.hidden_by.empty() || pack.origin != PackOrigin::kBuiltin) continue;
    if (auto tried = try_pack(registry, pack)) out.push_back(*std::move(tried));
  }
  if (find_bubblewrap().empty())
    out.push_back({"sandbox", Health::kNote, "bubblewrap (bwrap) is not installed",
                   "install it: without it workers see the files of this user"});
  return out;
}

// ---- what only some runs need ----

MachineFinding program_that_runs(Env& env, const std::string& subject, const std::vector<std::string>& words,
                                 const std::string& works, const std::string& next) {
  const auto folder = make_private_folder("mortise_doctor_");
  if (!folder.ok()) {
    MachineFinding out = failed("temporary files", folder.error());
    out.health = Health::kNote;  // only some commands need them
    return out;
  }
  const auto outcome = run_child(words, *folder, *folder / "log", std::chrono::seconds(60));
  (void)remove_tree(env, *folder);
  if (outcome.ok() && outcome->code == 0) return {.subject = subject, .text = works, .next = {}};
  return {subject, Health::kNote, fmt::format("{} does not work", subject), next};
}

std::vector<MachineFinding> examine(Env& env, const Path& folder) {
  std::vector<MachineFinding> all{look_at_processor(), look_at_memory(), look_at_gpu(env), look_at_open_files()};
  const auto add = [&](std::vector<MachineFinding> some) {
    all.insert(all.end(), std::make_move_iterator(some.begin()), std::make_move_iterator(some.end()));
  };
  add(threads_and_load());
  all.push_back(folder_of_runs(env, folder));
  LoadedConfig nothing_set;
  RegistryOptions options = registry_options(nothing_set, kTorchVersion);
  auto admit = pack_admission(env, known_pack_places());
  if (!admit.ok()) {
    all.push_back(failed("trust", admit.error()));
    return all;
  }
  options.admit = *admit;
  auto registry = PluginRegistry::open(options);
  if (!registry.ok()) {
    all.push_back(failed("packs", registry.error()));
    return all;
  }
  add(packs_of(*registry));
  add(store_of_packs(env));
  add(try_workers(*registry));
  all.push_back(program_that_runs(env, "python3",
                                  {"/usr/bin/env", "python3", "-c", "import sys; sys.exit(sys.version_info < (3, 8))"},
                                  "rewards in Python and programs that a model writes can run",
                                  "install Python 3.8 or newer if a reward is a Python function"));
  return all;
}

const char* health_name(Health health) {
  switch (health) {
    case Health::kOk:
      return "ok";
    case Health::kNote:
      return "note";
    case Health::kFails:
      break;
  }
  return "fails";
}

struct DoctorArguments {
  std::string dir = ".";
  bool json = false;
};

po::options_description doctor_options(DoctorArguments& args) {
  po::options_description options("options", kHelpWidth);
  options.add_options()("dir", po::value(&args.dir), "folder in which runs are to write")(
      "json", po::bool_switch(&args.json), "print one JSON object");
  return options;
}

}  // namespace

int cmd_doctor(Arguments args) {
  if (wants_help(args)) {
    std::cout << kDoctorUsage;
    return 0;
  }
  DoctorArguments parsed;
  const auto given = parse_words(args, doctor_options(parsed), "mortise doctor");
  if (!given.ok()) return fail(given.error());
  if (!words_of(*given).empty())
    return fail({ErrorKind::kConfig, "doctor takes no word " + quote(words_of(*given)[0]), "mortise doctor",
                 "`mortise doctor --help` shows the usage"});
  LogOptions log;
  log.console_level = LogLevel::kWarn;  // where each worker runs is no finding
  (void)log_init(log);
  const std::vector<MachineFinding> all = examine(default_env(), parsed.dir);
  int code = 0;
  Json rows = Json::array();
  for (const MachineFinding& finding : all) {
    if (finding.health == Health::kFails && code == 0) code = static_cast<int>(finding.kind);
    Json row = {{"subject", finding.subject}, {"health", health_name(finding.health)}, {"text", finding.text}};
    if (!finding.next.empty()) row["next"] = finding.next;
    rows.push_back(std::move(row));
    if (parsed.json) continue;
    std::cout << fmt::format("{:<6}{:<16}{}\n", health_name(finding.health), finding.subject, one_line(finding.text));
    if (!finding.next.empty()) std::cout << fmt::format("{:22}{}\n", "", one_line(finding.next));
  }
  if (parsed.json) std::cout << dump_json(Json{{"works", code == 0}, {"findings", rows}}) << "\n";
  return code;
}

}  // namespace mortise
