// See server_pool.h.
#include "server_pool.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "../../shared/deadline.h"
#include "version_names.h"

namespace mortise {
namespace {

constexpr double kMaxPause = 30;
constexpr std::size_t kMaxHomes = 1 << 20;

std::int64_t to_ns(double seconds) { return std::int64_t(seconds * 1e9); }

std::int64_t wall_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Weights that give numbers which are not finite, in the words of vLLM and of `mortise serve`.
bool has_diverged(const HttpDone& done) {
  return done.status >= 400 && (done.body.find("Out of range float values") != std::string::npos ||
                                done.body.find("NumericsError") != std::string::npos);
}

}  // namespace

ServerPool::ServerPool(std::unique_ptr<Protocol> protocol, PoolOptions options)
    : protocol_(std::move(protocol)), options_(std::move(options)), calls_(options_.headers), began_ns_(wall_ns()) {
  for (const std::string& url : options_.urls) servers_.emplace_back().url = url;
}

bool ServerPool::takes_weights() const { return !protocol_->weight_calls("", 0).empty(); }

bool ServerPool::needs_weights(const Server& server) const {
  return has_weights() && server.update != update_ && takes_weights();
}

bool ServerPool::is_ready(const Server& server) const {
  return server.phase == Phase::kReady && !needs_weights(server);
}

std::string ServerPool::all_errors() const {
  std::string out;
  for (const Server& server : servers_) {
    if (server.last_error.empty()) continue;
    out += (out.empty() ? "" : "; ") + server.url + ": ";
    if (server.num_pauses > 1 && !server.is_unfit && server.first_error != server.last_error)
      out += server.first_error + "; later: ";
    out += server.last_error;
  }
  return out.empty() ? "they have not answered" : out;
}

void ServerPool::await_ready(Call call, double limit_s) {
  const std::int64_t deadline = monotonic_ns() + to_ns(limit_s);
  const auto all = [&](auto is_so) { return std::all_of(servers_.begin(), servers_.end(), is_so); };
  // A paused server waits for the weights of this run, which come when all is set up.
  const auto is_enough = [&](const Server& server) {
    return is_ready(server) || (!has_weights() && takes_weights() && server.facts.is_paused);
  };
  const auto any_ready = [&] { return std::any_of(servers_.begin(), servers_.end(), is_enough); };
  const auto is_settled = [&](const Server& server) { return is_ready(server) || server.phase == Phase::kOut; };
  do {
    if (call.cancelled()) fail(MORTISE_CANCELLED, "cancelled");
    const bool is_late = monotonic_ns() > deadline;
    if (is_late && any_ready()) return;
    if (is_late || all([](const Server& server) { return server.is_unfit; })) {
      const auto any = [&](auto is_so) { return std::any_of(servers_.begin(), servers_.end(), is_so); };
      const char* next = ". Start the servers, or correct the address and the key";
      if (any([](const Server& server) { return server.is_unfit; })) {
        const bool lacks_remedy = any([](const Server& server) { return server.is_unfit && !server.has_remedy; });
        next = lacks_remedy ? ". Correct the address, or take the backend for this kind of server" : "";
      }
      fail(MORTISE_UNAVAILABLE, "no rollout server became ready: " + all_errors() + next);
    }
    advance(kPoolSliceMs, call);
  } while (!any_ready() || !all(is_settled));
}

bool ServerPool::has_room() const {
  const std::size_t slots = std::size_t(options_.slots) * servers_.size();
  return queue_.size() + flights_.size() < 4 * slots + 1024;
}

void ServerPool::submit(ServerRequest request) {
  refuse_what_none_takes(request);
  queue_.push_back({std::move(request), 0, 0, SIZE_MAX});
}

std::uint64_t ServerPool::outstanding() const {
  std::uint64_t out = finished_.size();
  for (const Pending& pending : queue_) out += std::uint64_t(pending.request.num_samples);
  for (const auto& [id, flight] : flights_) out += std::uint64_t(flight.pending.request.num_samples);
  for (const Server& server : servers_)
    for (const auto* const waiting : {&server.held, &server.unconfirmed, &server.asked})
      for (const auto& [flight, answer] : *waiting) out += std::uint64_t(flight.pending.request.num_samples);
  return out;
}

void ServerPool::abort(std::int64_t request_id) {
  const auto give_back = [&](const ServerRequest& request) {
    for (std::int64_t i = 0; i < request.num_samples; ++i) {
      PoolSample& out = finished_.emplace_back();
      out.request_id = request.id;
      out.sample.index = i;
      out.sample.finish_reason = MORTISE_FINISH_ABORT;
      out.sample.weight_version = has_weights() ? version_ : own_version_;
    }
  };
  const auto is_meant = [&](const ServerRequest& request) { return request_id < 0 || request.id == request_id; };
  for (auto it = flights_.begin(); it != flights_.end();) {
    if (!is_meant(it->second.pending.request)) {
      ++it;
      continue;
    }
    calls_.cancel(it->first);
    servers_[it->second.server].in_flight -= it->second.pending.request.num_samples;
    give_back(it->second.pending.request);
    it = flights_.erase(it);
  }
  for (Server& server : servers_) {
    for (auto* const waiting : server.waiting()) {
      const auto gives_back = [&](const std::pair<Flight, HttpDone>& one) {
        const ServerRequest& request = one.first.pending.request;
        if (!is_meant(request)) return false;
        server.in_flight -= request.num_samples;
        give_back(request);
        return true;
      };
      waiting->erase(std::remove_if(waiting->begin(), waiting->end(), gives_back), waiting->end());
    }
  }
  for (auto it = queue_.begin(); it != queue_.end();) {
    if (is_meant(it->request)) give_back(it->request);
    it = is_meant(it->request) ? queue_.erase(it) : it + 1;
  }
}

bool ServerPool::takes_adapters() const {
  const auto is_mortise = [](const Server& server) { return server.facts.is_mortise; };
  return !protocol_->adapter_calls("", {}).empty() && std::none_of(servers_.begin(), servers_.end(), is_mortise);
}

void ServerPool::set_adapter(const std::string& folder, std::int64_t version) {
  is_adapter_ = true;
  set_weights(folder, version);
}

bool ServerPool::can_take(const Server& server, const ServerRequest& request) const {
  return protocol_->refusal(request, server.facts).empty();
}

void ServerPool::refuse_what_none_takes(const ServerRequest& request) const {
  const Server* one = nullptr;  // that refuses it
  for (const Server& server : servers_) {
    if (!server.is_known) continue;
    if (can_take(server, request)) return;
    if (one == nullptr) one = &server;
  }
  if (one == nullptr) return;
  fail(MORTISE_INVALID_ARGUMENT, one->url + " cannot " + protocol_->refusal(request, one->facts));
}

// The whole update is of what is the newest now: there may be newer weights before it ends.
void ServerPool::begin_weights(std::size_t index, Call call) {
  Server& server = servers_[index];
  if (is_adapter_ && (server.facts.was_updated || server.facts.is_paused)) {
    server.is_unfit = server.has_remedy = true;
    const char* const why =
        server.facts.was_updated
            ? "it no longer has the weights that it was started with, because a run sent it whole weights. Restart it, or "
              "set rollout.send_adapter to false"
            : "it is paused, so a run may have sent it a part of its weights. Restart it, or set "
              "rollout.send_adapter to false";
    return take_out(index, why, call);
  }
  server.phase = Phase::kUpdating;
  server.step = 0;
  server.coming_version = version_;
  server.coming_update = update_;
  if (is_adapter_)
    server.facts.next_adapter = "mortise-" + std::to_string(began_ns_) + "-" + std::to_string(++num_adapters_);
  server.weight_steps = is_adapter_ ? protocol_->adapter_calls(folder_, server.facts)
                        : image_    ? transfer_steps(server, call)
                                    : protocol_->weight_calls(folder_, name_of(version_));
}

void ServerPool::end_weights(Server& server) {
  server.step = std::exchange(server.next_probe, 0);
  server.phase = server.step == 0 ? Phase::kReady : Phase::kProbing;
  server.owes_load = server.facts.is_paused = false;
  server.version = server.coming_version;
  server.update = server.coming_update;
  server.facts.adapter = std::exchange(server.facts.next_adapter, {});
  server.facts.left_adapters.clear();
  server.coming_image.reset();
  if (server.sender && !server.sender->place().shared.empty()) server.sender.reset();  // frees the GPU's memory
}

// A server that was started again knows the adapter's name no more, and says so with the name.
bool ServerPool::has_lost_adapter(const Server& server, const HttpDone& done) const {
  return is_adapter_ && (done.status == 400 || done.status == 404) && !server.facts.adapter.empty() &&
         done.body.find(server.facts.adapter) != std::string::npos;
}

void ServerPool::set_weights(const std::string& folder, std::int64_t version) {
  folder_ = folder;
  new_weights(version);
}

void ServerPool::new_weights(std::int64_t version) {
  version_ = version;
  ++update_;
  homes_.clear();  // no prefix is worth anything now
  for (Server& server : servers_) {
    if (server.phase == Phase::kOut) server.back_at_ns = std::min(server.back_at_ns, monotonic_ns());
  }
}

void ServerPool::control(std::size_t index, const HttpCall& next, double limit_s, Call call) {
  Server& server = servers_[index];
  server.control_id = next_call_++;
  controls_[server.control_id] = index;
  calls_.start(server.control_id, server.url, next, limit_s);
  begin_side(server, next.side, call);
}

// What is to be done for a server now: the next call of its probe or of its weights.
void ServerPool::tend(std::size_t index, Call call) {
  Server& server = servers_[index];
  if (server.has_side && !tend_side(index, call)) return;
  if (server.control_id != 0) return;
  if (server.phase == Phase::kOut && monotonic_ns() >= server.back_at_ns) {
    server.phase = Phase::kProbing;
    server.step = server.next_probe = 0;
    server.facts.is_paused = server.facts.was_updated = server.facts.gives_back_version = false;
  }
  if (server.phase == Phase::kReady && needs_weights(server) && server.in_flight == 0) begin_weights(index, call);
  if (server.phase == Phase::kProbing) probe(index, call);
  if (server.phase == Phase::kUpdating && server.control_id == 0) {
    const std::vector<HttpCall>& steps = server.weight_steps;
    if (server.step < steps.size()) return control(index, steps[server.step], options_.update_limit, call);
    end_weights(server);
    if (server.phase == Phase::kProbing) probe(index, call);
  }
  check_identity(index, call);
  check_version(index, call);
  if (!is_ready(server)) return;
  if (server.num_pauses > 0) call.log(MORTISE_LOG_INFO, server.url + " is back");
  server.num_pauses = 0;
}

// Its next probe, or what follows the last one.
void ServerPool::probe(std::size_t index, Call call) {
  Server& server = servers_[index];
  const std::vector<HttpCall> probes = protocol_->probes(server.facts);
  if (server.step >= probes.size()) {
    server.phase = Phase::kReady;
    server.is_known = true;
    server.step = 0;
    warn_of_restarts(server, call);
    if (needs_weights(server)) begin_weights(index, call);
    return;
  }
  const HttpCall& next = probes[server.step];
  if (!next.samples || !(server.owes_load || server.facts.is_paused)) return control(index, next, kProbeLimit, call);
  if (needs_weights(server)) {
    server.next_probe = server.step;
    return begin_weights(index, call);
  }
  // Only a run that has weights may end the pause: nobody else knows what the server has.
  take_out(index, "it is paused, because a run loads weights into it or ended meanwhile. If no run uses it, restart it",
           call);
}

// A server behind several processes has no start time. Then stale weights could not be told from new ones.
void ServerPool::warn_of_restarts(Server& server, Call call) const {
  const bool tells = server.facts.tells_versions || !server.facts.identity.empty();
  if (tells || !takes_weights() || std::exchange(server.is_warned_of, true)) return;
  call.log(MORTISE_LOG_WARN, server.url +
                                 " gives neither weight versions nor process_start_time_seconds in /metrics: if "
                                 "it is started again, nobody notices that its weights are old. With vLLM, start "
                                 "one API server (--api-server-count 1)");
}

void ServerPool::take_control(std::size_t index, HttpDone& done, Call call) {
  Server& server = servers_[index];
  server.control_id = 0;
  if (server.checks_identity) return take_identity(index, done, call);
  if (server.checks_version) return take_version(index, done, call);
  const bool probes = server.phase == Phase::kProbing;
  const std::vector<HttpCall> steps = probes ? protocol_->probes(server.facts) : server.weight_steps;
  const bool is_known = server.step < steps.size();
  const bool may_lack = is_known && steps[server.step].optional, removes = is_known && steps[server.step].removes;
  std::string fault = done.error;
  const bool takes_any = is_known && steps[server.step].any_answer && done.status != 0;
  if (takes_any || (may_lack && (done.status == 404 || done.status == 405)) ||
      (removes && (done.status == 400 || done.status == 404))) {
    fault.clear();
    if (!probes && may_lack) server.facts.gives_back_version = false;  // nor was it given this one
  } else if (fault.empty()) {
    fault = probes ? protocol_->read_probe(server.step, done, server.facts)
                   : protocol_->read_weight_answer(server.step, done.body);
  }
  if (fault.empty()) {
    if (!done.own_address.empty()) server.facts.own_address = done.own_address;
    server.is_answered = server.has_side;  // the next step waits for the sender too
    if (!server.has_side) ++server.step;
    if (!removes) server.is_unfit = false;
    return;
  }
  // A server without these calls will not have them later.
  server.is_unfit = (probes || is_adapter_) && done.status != 0 && !done.may_pass;
  server.has_remedy = done.has_remedy;
  const std::string what = server.step < steps.size() ? steps[server.step].path + ": " : "";
  take_out(index, what + fault, call);
}

// Is it still the process that was given the weights? Then the answers that waited for this count.
void ServerPool::take_identity(std::size_t index, const HttpDone& done, Call call) {
  Server& server = servers_[index];
  server.checks_identity = false;
  std::vector<std::pair<Flight, HttpDone>> held = std::exchange(server.asked, {});
  const bool is_same = done.error.empty() && protocol_->read_identity(done.body) == server.facts.identity;
  for (auto& [flight, answer] : held) {
    if (is_same && server.phase == Phase::kReady)
      confirm(std::move(flight), std::move(answer), call);
    else
      try_again(std::move(flight), is_same ? server.last_error : "the server was started again meanwhile", false, call);
  }
  if (!is_same) take_out(index, "it was started again, and has lost its weights", call);
}

void ServerPool::take_out(std::size_t index, const std::string& why, Call call) {
  Server& server = servers_[index];
  if (server.num_pauses == 0) server.first_error = why;
  server.last_error = why;
  server.owes_load = server.owes_load || (server.phase == Phase::kUpdating && !is_adapter_);
  server.version = server.update = -1;
  close_side(server);
  for (std::string* adapter : {&server.facts.adapter, &server.facts.next_adapter})
    if (!adapter->empty()) server.facts.left_adapters.push_back(std::exchange(*adapter, {}));
  server.num_failures = 0;
  if (server.control_id != 0) {
    calls_.cancel(server.control_id);
    controls_.erase(server.control_id);
    server.control_id = 0;
  }
  const double pause =
      std::min(options_.backoff * std::pow(2.0, double(std::min<std::int64_t>(server.num_pauses, 16))), kMaxPause);
  if (server.num_pauses++ == 0)
    call.log(MORTISE_LOG_WARN, server.url + " is out of use: " + why + ". Its requests go to others, or wait for it");
  server.phase = Phase::kOut;
  server.back_at_ns = monotonic_ns() + to_ns(pause);
  // What it still has is lost, or was made by weights that we know nothing of.
  std::vector<Flight> lost;
  server.checks_identity = server.checks_version = false;
  server.num_unanswered = 0;
  for (auto* const waiting : server.waiting())
    for (auto& [flight, answer] : std::exchange(*waiting, {})) lost.push_back(std::move(flight));
  for (auto it = flights_.begin(); it != flights_.end();) {
    if (it->second.server != index) {
      ++it;
      continue;
    }
    calls_.cancel(it->first);
    lost.push_back(std::move(it->second));
    it = flights_.erase(it);
  }
  for (Flight& flight : lost) try_again(std::move(flight), why, false, call);
}

std::optional<std::size_t> ServerPool::choose(const Pending& pending) const {
  const ServerRequest& request = pending.request;
  const auto room = [&](std::size_t i) {
    const Server& server = servers_[i];
    const bool is_asked = server.control_id != 0 && !server.checks_version;  // that question takes no answer away
    if (!is_ready(server) || is_asked || !can_take(server, request)) return std::int64_t(-1);
    const std::int64_t free = options_.slots - server.in_flight;
    return server.in_flight == 0 || free >= request.num_samples ? std::max<std::int64_t>(free, 0) : -1;
  };
  const auto home = homes_.find({request.step, request.first_row_id});
  if (home != homes_.end() && home->second != pending.last_server && room(home->second) >= 0) return home->second;
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < servers_.size(); ++i) {
    if (room(i) < 0) continue;
    // Another server than the one that failed, if there is one.
    const bool better = !best || (*best == pending.last_server && i != pending.last_server) ||
                        (room(i) > room(*best) && i != pending.last_server);
    if (better) best = i;
  }
  return best;
}

void ServerPool::assign() {
  const std::int64_t now = monotonic_ns();
  for (auto it = queue_.begin(); it != queue_.end();) {
    if (it->not_before_ns > now) {
      ++it;
      continue;
    }
    const std::optional<std::size_t> chosen = choose(*it);
    if (!chosen) {
      refuse_what_none_takes(it->request);
      const auto refuses = [&](const Server& server) { return !can_take(server, it->request); };
      if (std::none_of(servers_.begin(), servers_.end(), refuses)) return;  // a large group is not overtaken for ever
      ++it;  // it waits for one of a few servers, which the others need not wait for
      continue;
    }
    Server& server = servers_[*chosen];
    const std::int64_t id = next_call_++;
    calls_.start(id, server.url, protocol_->generate(it->request, server.facts), options_.request_limit);
    server.in_flight += it->request.num_samples;
    if (homes_.size() > kMaxHomes) homes_.clear();
    homes_[{it->request.step, it->request.first_row_id}] = *chosen;
    ++it->num_tries;
    flights_.emplace(id, Flight{*chosen, std::move(*it)});
    it = queue_.erase(it);
  }
}

// The attempt is over; the request waits for its next one, or is the error of the call.
void ServerPool::try_again(Flight flight, const std::string& why, bool takes_out, Call call) {
  Server& server = servers_[flight.server];
  server.in_flight -= flight.pending.request.num_samples;
  server.last_error = why;
  Pending& pending = flight.pending;
  if (pending.num_tries > options_.retries) {
    fail(MORTISE_UNAVAILABLE, "the completions of prompt " + std::to_string(pending.request.id) + " failed " +
                                  std::to_string(pending.num_tries) + " times, the last time at " + server.url + ": " +
                                  why + ". Look at the server's log, or raise `retries`");
  }
  const double pause = std::min(options_.backoff * std::pow(2.0, double(pending.num_tries - 1)), kMaxPause);
  pending.last_server = flight.server;
  pending.not_before_ns = monotonic_ns() + to_ns(pause);
  queue_.push_front(std::move(pending));
  if (takes_out) take_out(flight.server, why, call);
}

void ServerPool::take_answer(Flight flight, HttpDone& done, Call call) {
  Server& server = servers_[flight.server];
  const ServerRequest& request = flight.pending.request;
  if (has_diverged(done))
    fail(MORTISE_DATA_LOSS, server.url + " says that the weights give numbers that are not finite: " + done.error);
  if (!done.error.empty()) {
    if (has_lost_adapter(server, done))
      return try_again(std::move(flight), "it has lost the adapter: " + done.error, true, call);
    if (!done.may_pass)
      fail(MORTISE_INVALID_ARGUMENT, server.url + " refuses prompt " + std::to_string(request.id) + ": " + done.error +
                                         ". Change the setting that it names, or look at the server's log");
    // Without an answer the server may have gone, and may come back with other weights.
    const bool is_gone = done.status == 0;
    return try_again(std::move(flight), done.error, is_gone || ++server.num_failures >= options_.breaker_failures,
                     call);
  }
  // A new connection may lead to a new process, which says nothing of its weights.
  if (done.new_connection && !is_adapter_ && !server.facts.tells_versions && !server.facts.identity.empty() &&
      has_weights()) {
    server.held.emplace_back(std::move(flight), std::move(done));
    return check_identity(index_of(server), call);
  }
  confirm(std::move(flight), std::move(done), call);
}

void ServerPool::count_answer(Flight flight, const HttpDone& done, Call call) {
  Server& server = servers_[flight.server];
  const ServerRequest& request = flight.pending.request;
  std::vector<ServerSample> samples;
  const Fault fault = protocol_->read_answer(done.body, request, server.facts, samples);
  if (fault) {
    if (fault.is_final) fail(fault.code, server.url + ": " + fault.what);
    return try_again(std::move(flight), fault.what, ++server.num_failures >= options_.breaker_failures, call);
  }
  const bool was_given = has_weights() && takes_weights();
  const std::int64_t expected = was_given ? server.version : own_version_;
  for (const ServerSample& sample : samples) {
    if (is_adapter_) refuse_whole_weights(server, sample.weight_version);
    // An adapter's name is its version: the server would not have found another one.
    const bool says = !is_adapter_ && (sample.weight_version >= 0 || server.facts.tells_versions);
    if (!was_given || !says || sample.weight_version == name_of(expected)) continue;
    refuse_other_run(server, sample.weight_version);
    const std::string why = "sample " + std::to_string(sample.index) + " is of " +
                            (sample.weight_version < 0 ? std::string("an unknown weight version")
                                                       : "weight version " + std::to_string(sample.weight_version)) +
                            ", but the server was given version " +
                            std::to_string(sample.weight_version < 0 ? expected : name_of(expected));
    return try_again(std::move(flight), why, true, call);  // it gets the weights again
  }
  server.in_flight -= request.num_samples;
  server.num_failures = 0;
  for (ServerSample& sample : samples) {
    sample.weight_version = expected;
    finished_.push_back({request.id, std::move(sample)});
  }
}

void ServerPool::take(HttpDone& done, Call call) {
  if (const auto control = controls_.find(done.id); control != controls_.end()) {
    const std::size_t index = control->second;
    controls_.erase(control);
    return take_control(index, done, call);
  }
  const auto found = flights_.find(done.id);
  if (found == flights_.end()) return;
  Flight flight = std::move(found->second);
  flights_.erase(found);
  take_answer(std::move(flight), done, call);
}

// Fails when no server that can take the next request has been in use for too long. A probe of a server that was out of
// use is no hope yet, because it may hang. A load may take its time, but what fails after it has had its chance.
void ServerPool::check_hope() {
  const auto takes_next = [&](const Server& server) {
    return queue_.empty() || can_take(server, queue_.front().request);
  };
  const bool any = std::any_of(servers_.begin(), servers_.end(),
                               [&](const Server& server) { return server.num_pauses == 0 && takes_next(server); });
  if (any) {
    hope_ends_ns_ = 0;
    return;
  }
  const std::int64_t now = monotonic_ns();
  if (hope_ends_ns_ == 0) hope_ends_ns_ = now + to_ns(options_.give_up);
  const bool loads = std::any_of(servers_.begin(), servers_.end(),
                                 [](const Server& server) { return server.phase == Phase::kUpdating; });
  if (now > hope_ends_ns_ && !loads) fail(MORTISE_UNAVAILABLE, "all rollout servers are out of use: " + all_errors());
}

void ServerPool::advance(int timeout_ms, Call call) {
  for (std::size_t i = 0; i < servers_.size(); ++i) tend(i, call);
  assign();
  for (HttpDone& done : calls_.wait(timeout_ms)) take(done, call);
}

void ServerPool::work(int timeout_ms, Call call) {
  advance(timeout_ms, call);
  check_hope();
}

}  // namespace mortise
