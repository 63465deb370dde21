// Reads the variables of each launcher, and names those that are missing or wrong.
#include "dist/launch/rank_place.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "dist/launch/slurm_hosts.h"
#include "foundation/base/text.h"

namespace mortise {

namespace {

constexpr int kMaxRanks = 1 << 20;

// The variables in which a launcher says the same things. The first that is set counts; errors name the last.
struct LauncherVariables {
  const char* launcher;
  std::vector<std::string> rank;
  std::vector<std::string> size;
  std::vector<std::string> local_rank;
  std::vector<std::string> local_size;
  std::vector<std::string> attempt;
};

const LauncherVariables& torchrun_variables() {
  static const LauncherVariables variables{
      "torchrun", {"RANK"}, {"WORLD_SIZE"}, {"LOCAL_RANK"}, {}, {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}};
  return variables;
}

const std::vector<LauncherVariables>& cluster_variables() {
  static const std::vector<LauncherVariables> all{
      {"srun",
       {"SLURM_PROCID"},
       {"SLURM_STEP_NUM_TASKS", "SLURM_NPROCS", "SLURM_NTASKS"},
       {"SLURM_LOCALID"},
       {},
       {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"}},
      {"mpirun",
       {"OMPI_COMM_WORLD_RANK"},
       {"OMPI_COMM_WORLD_SIZE"},
       {"OMPI_COMM_WORLD_LOCAL_RANK"},
       {"OMPI_COMM_WORLD_LOCAL_SIZE"},
       {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}},
      {"mpiexec", {"PMI_RANK"}, {"PMI_SIZE"}, {"MPI_LOCALRANKID"}, {"MPI_LOCALNRANKS"}, {"PMI_ID"}}};
  return all;
}

class Reader {
 public:
  Reader(const Variables& variables, const char* launcher) : variables_(variables), launcher_(launcher) {}

  [[nodiscard]] std::optional<std::string> text(const std::vector<std::string>& names) const {
    for (const std::string& name : names)
      if (auto value = variables_(name)) return value;
    return std::nullopt;
  }
  Result<std::string> required(const std::vector<std::string>& names) const {
    if (auto value = text(names)) return *value;
    return missing(names.back());
  }
  Result<int> number(const std::vector<std::string>& names, int min, int max) const {
    for (const std::string& name : names) {
      const auto value = variables_(name);
      if (!value) continue;
      const auto parsed = parse_i64(*value);
      if (parsed && *parsed >= min && *parsed <= max) return static_cast<int>(*parsed);
      return Error{
          ErrorKind::kConfig, fmt::format("{}={} is not a whole number from {} to {}", name, quote(*value), min, max),
          "environment", fmt::format("start every rank with {}, or unset its variables to run one process", launcher_)};
    }
    return missing(names.back());
  }

  [[nodiscard]] Error missing(const std::string& name) const {
    return {ErrorKind::kConfig, fmt::format("{} is not set, but other variables of {} are", name, launcher_),
            "environment",
            fmt::format("start every rank with {}, or unset its variables to run one process", launcher_)};
  }

 private:
  const Variables& variables_;
  const char* launcher_;
};

// A port that all ranks of a job compute alike, for launchers that give none.
int port_of_job(const std::string& job) {
  uint32_t hash = 2166136261U;  // FNV-1a: the same on every machine
  for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
  return 20000 + static_cast<int>(hash % 10000);
}

std::string attempt_of(const Variables& variables, const LauncherVariables& names) {
  std::string attempt;
  for (const std::string& name : names.attempt) attempt += variables(name).value_or("0") + "/";
  return attempt;
}

// Where rank 0 is, by the launcher's own variables. Slurm lists the hosts, the first of which has rank 0.
Result<std::string> address_by_launcher(const Variables& variables, const LauncherVariables& names, int size) {
  const Reader reader(variables, names.launcher);
  if (std::string_view(names.launcher) == "srun") {
    if (const auto list = reader.text({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"})) {
      if (auto host = first_slurm_host(*list)) return *host;
      return Error{ErrorKind::kConfig, fmt::format("the list of hosts {} is malformed", quote(*list)), "environment",
                   "set MASTER_ADDR to the host of rank 0"};
    }
    if (auto address = variables("SLURM_LAUNCH_NODE_IPADDR")) return *address;
    return reader.missing("SLURM_JOB_NODELIST");
  }
  const auto local_size = reader.text(names.local_size);
  if (local_size && *local_size == std::to_string(size)) return std::string("127.0.0.1");
  return Error{
      ErrorKind::kConfig, fmt::format("MASTER_ADDR is not set, and {} does not say where rank 0 is", names.launcher),
      "environment", "set MASTER_ADDR to the host of rank 0 for all ranks (Open MPI: mpirun -x MASTER_ADDR=host)"};
}

Result<RankPlace> place_by(const Variables& variables, const LauncherVariables& names) {
  const Reader reader(variables, names.launcher);
  RankPlace place;
  place.launcher = names.launcher;
  place.size = TRY(reader.number(names.size, 1, kMaxRanks));
  place.rank = TRY(reader.number(names.rank, 0, kMaxRanks));
  if (place.rank >= place.size)
    return Error{ErrorKind::kConfig,
                 fmt::format("{} is {}, but {} is {}", names.rank.front(), place.rank, names.size.back(), place.size),
                 "environment", "ranks count from 0; start every rank with the same size"};
  if (reader.text(names.local_rank)) place.local_rank = TRY(reader.number(names.local_rank, 0, kMaxRanks));
  place.attempt = attempt_of(variables, names);
  if (place.size == 1) return place;
  const bool torchrun = &names == &torchrun_variables();
  const std::vector<std::string> address{"MASTER_ADDR"};
  const std::vector<std::string> port{"MASTER_PORT"};
  if (torchrun || reader.text(address))
    place.address = TRY(reader.required(address));
  else
    place.address = TRY(address_by_launcher(variables, names, place.size));
  place.port = torchrun || reader.text(port) ? TRY(reader.number(port, 1, 65535)) : port_of_job(place.attempt);
  place.store_served = torchrun && variables("TORCHELASTIC_USE_AGENT_STORE") == "True";
  return place;
}

// srun's variables also exist in a batch script, which is one process: a step has an id of its own.
bool is_launched_by(const Variables& variables, const LauncherVariables& names) {
  if (std::string_view(names.launcher) == "srun" && !variables("SLURM_STEP_ID")) return false;
  return variables(names.rank.front()).has_value() ||
         std::any_of(names.size.begin(), names.size.end(), [&](const std::string& name) {
           return std::string_view(names.launcher) != "srun" && variables(name).has_value();
         });
}

}  // namespace

Variables process_variables() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr || *value == '\0') return std::nullopt;
    return std::string(value);
  };
}

Result<RankPlace> find_rank_place(const Variables& variables) {
  // Batch scripts of Slurm often export WORLD_SIZE and MASTER_ADDR and leave the rank to srun.
  const bool has_rank = variables("RANK").has_value();
  if (!has_rank) {
    for (const LauncherVariables& names : cluster_variables())
      if (is_launched_by(variables, names)) return place_by(variables, names);
  }
  if (has_rank || variables("WORLD_SIZE")) return place_by(variables, torchrun_variables());
  return RankPlace{};
}

}  // namespace mortise
