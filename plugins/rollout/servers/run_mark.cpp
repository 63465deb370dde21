// The mark of a run: by chance for one process, and made from what the launcher tells all ranks for several.
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <random>
#include <string>

#include "version_names.h"

namespace mortise {
namespace {

constexpr std::int64_t kFirst = 100'000, kNumber = 900'000;

std::string of_environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// FNV-1a
std::uint64_t hash_of(const std::string& text) {
  std::uint64_t hash = 14695981039346656037U;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return hash;
}

// Is this process one of several ranks? As the engine finds its rank (docs/ranks.md): a size alone, as in a batch script
// of Slurm or in an exported WORLD_SIZE, makes no rank.
bool is_rank(const Variable& variable) {
  struct Launcher {
    const char* rank;
    std::array<const char*, 3> sizes;
  };
  constexpr Launcher kLaunchers[] = {{"RANK", {"WORLD_SIZE", "", ""}},
                                     {"SLURM_PROCID", {"SLURM_STEP_NUM_TASKS", "SLURM_NPROCS", "SLURM_NTASKS"}},
                                     {"OMPI_COMM_WORLD_RANK", {"OMPI_COMM_WORLD_SIZE", "", ""}},
                                     {"PMI_RANK", {"PMI_SIZE", "", ""}}};
  for (const Launcher& launcher : kLaunchers) {
    if (variable(launcher.rank).empty()) continue;
    if (launcher.rank == std::string("SLURM_PROCID") && variable("SLURM_STEP_ID").empty()) continue;  // a batch script
    for (const char* const size : launcher.sizes)
      if (const std::string value = variable(size); !value.empty()) return std::atol(value.c_str()) > 1;
  }
  return false;
}

// What all ranks of this run share and no other run has; empty: nothing is known.
std::string shared_by_ranks(const Variable& variable) {
  std::string job;
  for (const char* const name : {"SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE"}) job += variable(name);
  const std::string elastic = variable("TORCHELASTIC_RUN_ID");
  if (elastic != "none") job += elastic;  // torchrun's default is no name
  std::string all = job + "\n" + variable("MASTER_PORT");
  // A job has a name of its own. Its ranks may spell the address differently, so this counts only without one.
  if (!job.empty()) return all;
  const std::string address = variable("MASTER_ADDR");
  if (address.empty()) return "";
  all += "\n" + address;
  if (address != "localhost" && address.rfind("127.", 0) != 0 && address != "::1") return all;
  std::array<char, 256> host{};  // the ranks are on one machine, and other machines have the same address
  ::gethostname(host.data(), host.size() - 1);
  return all + host.data();
}

}  // namespace

std::int64_t make_run_mark(const Variable& variable) {
  if (!is_rank(variable)) return std::int64_t(kFirst + std::random_device{}() % std::uint64_t(kNumber));
  const std::string shared = shared_by_ranks(variable);
  return shared.empty() ? 0 : kFirst + std::int64_t(hash_of(shared) % std::uint64_t(kNumber));
}

std::int64_t run_mark() {
  static const std::int64_t mark = make_run_mark(of_environment);
  return mark;
}

bool is_one_of_ranks() { return is_rank(of_environment); }

}  // namespace mortise
