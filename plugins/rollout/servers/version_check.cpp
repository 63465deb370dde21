// Are the server's weights still those that this run has loaded? Where answers do not tell their version (vLLM), they wait
// until the server has been asked for it. Weights of another run end the run: each would go on overwriting the other's.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>

#include "../../shared/deadline.h"
#include "server_pool.h"
#include "version_names.h"

namespace mortise {
namespace {

constexpr std::int64_t kCheckPauseNs = 500'000'000;  // between two checks while further answers are to come

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// FNV-1a
std::uint64_t hash_of(const std::string& text) {
  std::uint64_t hash = 14695981039346656037U;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return hash;
}

// What all ranks of this run share and no other run has; empty for a run of one process.
bool has_ranks() {
  constexpr std::array kSizes = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"};
  return std::any_of(kSizes.begin(), kSizes.end(),
                     [](const char* name) { return std::atol(variable(name).c_str()) > 1; });
}
std::string shared_by_ranks() {
  std::string all;
  for (const char* const name :
       {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID"})
    all += variable(name) + "\n";
  if (all.find_first_not_of('\n') == std::string::npos) return "";
  const std::string address = variable("MASTER_ADDR");
  if (address != "localhost" && address.rfind("127.", 0) != 0 && address != "::1") return all;
  std::array<char, 256> host{};  // the ranks are on one machine, and other machines have the same address
  ::gethostname(host.data(), host.size() - 1);
  return all + host.data();
}

std::int64_t make_mark() {
  constexpr std::uint64_t kFirst = 100'000, kNumber = 900'000;
  if (!has_ranks()) return std::int64_t(kFirst + std::random_device{}() % kNumber);
  const std::string shared = shared_by_ranks();
  return shared.empty() ? 0 : std::int64_t(kFirst + hash_of(shared) % kNumber);
}

}  // namespace

std::int64_t run_mark() {
  static const std::int64_t mark = make_mark();
  return mark;
}

std::int64_t ServerPool::name_of(std::int64_t version) const {
  return protocol_->takes_marks() ? version_name(version) : version;
}

// Only where this run sends whole weights: it then knows what the server must have.
void ServerPool::refuse_other_run(const Server& server, std::int64_t name) const {
  if (!protocol_->takes_marks() || mark_of(name) == 0 || mark_of(name) == run_mark()) return;
  fail(MORTISE_FAILED_PRECONDITION,
       server.url + " has the weights of another run (version " + std::to_string(version_of(name)) + " of run " +
           std::to_string(mark_of(name)) + "; this is run " + std::to_string(run_mark()) +
           "), which has loaded them over those of this run. Give each run servers of its own, then resume this one");
}

// Asks which process it is, if answers wait for that.
void ServerPool::check_identity(std::size_t index) {
  Server& server = servers_[index];
  if (server.phase != Phase::kReady || server.control_id != 0 || server.held.empty()) return;
  server.checks_identity = true;
  control(index, protocol_->identity_call(), kProbeLimit);
}

// Counts an answer, or keeps it until the server has said whose weights it has.
void ServerPool::confirm(Flight flight, HttpDone done, Call call) {
  Server& server = servers_[flight.server];
  if (!server.facts.gives_back_version || is_adapter_ || folder_.empty() || !takes_weights())
    return count_answer(std::move(flight), done, call);
  server.unconfirmed.emplace_back(std::move(flight), std::move(done));
}

// Asks once no further answer is to come, and at times before.
void ServerPool::check_version(std::size_t index) {
  Server& server = servers_[index];
  if (server.phase != Phase::kReady || server.control_id != 0 || server.unconfirmed.empty()) return;
  std::int64_t num_samples = 0;
  for (const auto& [flight, answer] : server.unconfirmed) num_samples += flight.pending.request.num_samples;
  if (num_samples < server.in_flight && monotonic_ns() < server.next_check_ns) return;
  server.checks_version = true;
  control(index, protocol_->version_call(), kProbeLimit);
}

void ServerPool::take_version(std::size_t index, const HttpDone& done, Call call) {
  Server& server = servers_[index];
  server.checks_version = false;
  server.next_check_ns = monotonic_ns() + kCheckPauseNs;
  if (!done.error.empty()) return take_out(index, "it does not say which weights it has: " + done.error, call);
  const std::int64_t name = protocol_->read_version_answer(done.body);
  refuse_other_run(server, name);
  if (name != name_of(server.version)) {
    const std::string has =
        name < 0 ? "weights without a version" : "weight version " + std::to_string(version_of(name));
    return take_out(index, "it has " + has + ", but was given version " + std::to_string(server.version), call);
  }
  for (auto& [flight, answer] : std::exchange(server.unconfirmed, {})) {
    if (server.phase == Phase::kReady)
      count_answer(std::move(flight), answer, call);
    else  // a bad answer before has taken the server out of use, and its version with it
      try_again(std::move(flight), server.last_error, false, call);
  }
}

}  // namespace mortise
