// Are the server's weights still those that this run has loaded? Where answers do not tell their version (vLLM), they wait
// until the server has been asked for it. Weights of another run end the run: each would go on overwriting the other's.
#include <string>
#include <utility>

#include "../../shared/deadline.h"
#include "server_pool.h"
#include "version_names.h"

namespace mortise {
namespace {

constexpr std::int64_t kCheckPauseNs = 500'000'000;  // between two checks while further answers are to come

constexpr std::int64_t kMostUnanswered = 5;  // questions in a row that fail and may pass

std::int64_t num_samples_of(const std::vector<std::pair<ServerPool::Flight, HttpDone>>& answers) {
  std::int64_t out = 0;
  for (const auto& [flight, answer] : answers) out += flight.pending.request.num_samples;
  return out;
}

std::string run_text(std::int64_t mark) { return mark == 0 ? "a run without a mark" : "run " + std::to_string(mark); }

}  // namespace

std::int64_t ServerPool::name_of(std::int64_t version) const {
  return protocol_->takes_marks() ? version_name(version) : version;
}

// Only where this run sends whole weights: it then knows what the server must have. Plain numbers are the names of a run
// without a mark, or of a program that gave none.
void ServerPool::refuse_other_run(const Server& server, std::int64_t name) const {
  if (!protocol_->takes_marks() || name < 0 || mark_of(name) == run_mark()) return;
  fail(MORTISE_FAILED_PRECONDITION,
       server.url + " has the weights of another run (version " + std::to_string(version_of(name)) + " of " +
           run_text(mark_of(name)) + "; this is " + run_text(run_mark()) +
           "), which has loaded them over those of this run. Give each run servers of its own, then resume this one");
}

// An adapter needs the base that the server was started with, and that one has no name of ours.
void ServerPool::refuse_whole_weights(const Server& server, std::int64_t name) const {
  if (!protocol_->takes_marks() || name < 0) return;
  fail(MORTISE_FAILED_PRECONDITION,
       server.url + " no longer has the base of this run's adapter: " + run_text(mark_of(name)) +
           " has loaded whole weights (version " + std::to_string(version_of(name)) +
           "). Restart the server, give each run servers of its own, then resume this one");
}

// Asks which process it is, if answers wait for that.
void ServerPool::check_identity(std::size_t index, Call call) {
  Server& server = servers_[index];
  if (server.phase != Phase::kReady || server.control_id != 0 || server.held.empty()) return;
  server.checks_identity = true;
  server.asked = std::exchange(server.held, {});
  control(index, protocol_->identity_call(), kProbeLimit, call);
}

// Counts an answer, or keeps it until the server has said whose weights it has.
void ServerPool::confirm(Flight flight, HttpDone done, Call call) {
  Server& server = servers_[flight.server];
  if (!server.facts.gives_back_version || !has_weights() || !takes_weights())
    return count_answer(std::move(flight), done, call);
  server.unconfirmed.emplace_back(std::move(flight), std::move(done));
}

// Asks once no further answer is to come, when answers that wait take the room of requests, and at times before.
void ServerPool::check_version(std::size_t index, Call call) {
  Server& server = servers_[index];
  if (server.phase != Phase::kReady || server.control_id != 0 || server.unconfirmed.empty()) return;
  const bool is_full = !queue_.empty() && options_.slots - server.in_flight < queue_.front().request.num_samples;
  const bool waits_for_all = num_samples_of(server.unconfirmed) < server.in_flight && !is_full;
  if ((waits_for_all || server.num_unanswered > 0) && monotonic_ns() < server.next_check_ns) return;
  server.checks_version = true;
  // Answers that come after the question need another one: the weights may change between the two.
  server.asked = std::exchange(server.unconfirmed, {});
  control(index, protocol_->version_call(), kProbeLimit, call);
}

void ServerPool::take_version(std::size_t index, const HttpDone& done, Call call) {
  Server& server = servers_[index];
  server.checks_version = false;
  server.next_check_ns = monotonic_ns() + kCheckPauseNs;
  if (!done.error.empty()) {
    // A proxy may fail once where the server is well. Without any answer the server may have gone.
    if (!done.may_pass || done.status == 0 || ++server.num_unanswered >= kMostUnanswered)
      return take_out(index, "it does not say which weights it has: " + done.error, call);
    for (auto& one : std::exchange(server.asked, {})) server.unconfirmed.push_back(std::move(one));
    return;
  }
  server.num_unanswered = 0;
  const std::int64_t name = protocol_->read_version_answer(done.body);
  if (is_adapter_)
    refuse_whole_weights(server, name);
  else
    refuse_other_run(server, name);
  if (!is_adapter_ && name != name_of(server.version)) {
    const std::string has = name < 0 ? "weights without a version" : "weight version " + std::to_string(name);
    const std::string given = std::to_string(name < 0 ? server.version : name_of(server.version));
    return take_out(index, "it has " + has + ", but was given version " + given, call);
  }
  for (auto& [flight, answer] : std::exchange(server.asked, {})) {
    if (server.phase == Phase::kReady)
      count_answer(std::move(flight), answer, call);
    else  // a bad answer before has taken the server out of use, and its version with it
      try_again(std::move(flight), server.last_error, false, call);
  }
}

}  // namespace mortise
