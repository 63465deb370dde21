// The servers behind a rollout backend: who answers what, with which weights, and what happens when one does not.
//
// A server is probed, gets the newest weights, and is then ready. A failed connection, or several bad answers in a row,
// take it out for a pause that doubles; it comes back through a probe and the weights, because it may have started
// again. After a load that failed, and on a server that is paused, the weights come before the probes that sample: half
// loaded weights can kill vLLM, and a paused one answers no completion. Weights over the network have a connection for
// each server, which ends when the server is taken out (pool_transfer.cpp). A request goes to the ready server with the
// most free slots; later turns of a row go where its prefix is. Its answer counts once: an attempt is given up before
// the next begins, and an answer is taken whole or not at all. Threading: one thread at a time; none is left behind.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <mortise/cpp/plugin.hpp>

#include "http_calls.h"
#include "protocol.h"
#include "weight_sender.h"

namespace mortise {

inline constexpr int kPoolSliceMs = 50;     // how long one look at the network waits
inline constexpr double kProbeLimit = 120;  // seconds; a first request compiles, on some servers

struct PoolOptions {
  std::vector<std::string> urls;
  std::vector<std::string> headers;
  std::int64_t slots = 256;           // samples at the same time on one server
  std::int64_t retries = 5;           // further attempts of a request
  double request_limit = 600;         // seconds of one attempt
  double update_limit = 600;          // seconds of one call for new weights
  double start_limit = 600;           // seconds until the first server is ready
  double give_up = 600;               // seconds without any ready server
  double backoff = 0.5;               // seconds of the first pause; doubles, 30 at most
  std::int64_t breaker_failures = 5;  // bad answers in a row that take a server out
  std::string own_address;            // this machine's, for weights over the network; empty: as the server sees it
};

struct PoolSample {
  std::int64_t request_id = 0;
  ServerSample sample;
};

class ServerPool {
 public:
  ServerPool(std::unique_ptr<Protocol> protocol, PoolOptions options);

  // Waits until a server is ready; fails with what each of them said.
  void await_ready(Call call, double limit_s);
  [[nodiscard]] bool has_room() const;
  void submit(ServerRequest request);
  // Sends, waits up to timeout_ms for answers, and takes them. Fails where a request cannot be answered.
  void work(int timeout_ms, Call call);
  std::deque<PoolSample>& finished() { return finished_; }
  [[nodiscard]] std::uint64_t outstanding() const;
  // Gives up a request (-1: all): its samples come back empty.
  void abort(std::int64_t request_id);
  // From now on all servers need the weights in `folder`; those that are ready finish what they have first.
  void set_weights(const std::string& folder, std::int64_t version);
  // The same over the network.
  void set_image(std::shared_ptr<const WeightImage> image, std::int64_t version);
  // The same with a LoRA adapter instead. Precondition: takes_adapters().
  void set_adapter(const std::string& folder, std::int64_t version);
  // The version of weights that were never sent: the servers' own.
  void set_own_version(std::int64_t version) { own_version_ = version; }
  [[nodiscard]] bool takes_weights() const;
  [[nodiscard]] bool takes_adapters() const;

  struct Pending {
    ServerRequest request;
    std::int64_t num_tries = 0, not_before_ns = 0;
    std::size_t last_server = SIZE_MAX;
  };
  struct Flight {
    std::size_t server;
    Pending pending;
  };

 private:
  enum class Phase { kProbing, kUpdating, kReady, kOut };
  struct Server {
    std::string url;
    ServerFacts facts;
    Phase phase = Phase::kProbing;
    std::size_t step = 0;                // the probe or weight call that is next
    std::size_t next_probe = 0;          // after the weights; 0: none
    bool owes_load = false;              // its last load of whole weights did not end well
    bool is_known = false;               // its facts are complete: it was probed to the end
    std::vector<HttpCall> weight_steps;  // what the update calls, in this order
    std::int64_t control_id = 0;         // the call that runs for it; 0: none
    // The connection for weights over the network, and what the running update sends.
    std::unique_ptr<WeightSender> sender;
    TransferWay way;
    std::shared_ptr<const WeightImage> coming_image;
    bool has_side = false, is_answered = false;  // the sender works for the call `step`; the call itself has ended
    std::int64_t side_failed_ns = 0;
    std::int64_t version = -1;  // version of its weights, as far as we know
    std::int64_t update = -1;   // number of the update that gave it these
    // What the running update gives it, which may not be the newest by its end.
    std::int64_t coming_version = -1, coming_update = -1;
    std::int64_t in_flight = 0;                     // samples
    std::int64_t num_failures = 0, num_pauses = 0;  // in a row
    std::int64_t back_at_ns = 0;
    bool is_unfit = false;    // its probe says that waiting does not help
    bool has_remedy = false;  // the error of this probe says what to change
    bool checks_identity = false, checks_version = false;
    bool is_warned_of = false;  // that its restarts would not be noticed
    // Answers that wait until it is asked for its identity, or for its version, and those that the running question is
    // about: they came before it.
    std::vector<std::pair<Flight, HttpDone>> held, unconfirmed, asked;
    std::int64_t next_check_ns = 0, num_unanswered = 0;
    [[nodiscard]] std::array<std::vector<std::pair<Flight, HttpDone>>*, 3> waiting() {
      return {&held, &unconfirmed, &asked};
    }
    std::string first_error, last_error;  // since it was last in use
  };

  void advance(int timeout_ms, Call call);
  void tend(std::size_t index, Call call);
  void probe(std::size_t index, Call call);
  void control(std::size_t index, const HttpCall& next, double limit_s, Call call);
  void take_control(std::size_t index, HttpDone& done, Call call);
  void assign();
  [[nodiscard]] std::optional<std::size_t> choose(const Pending& pending) const;
  void take(HttpDone& done, Call call);
  void take_answer(Flight flight, HttpDone& done, Call call);
  void count_answer(Flight flight, const HttpDone& done, Call call);
  void confirm(Flight flight, HttpDone done, Call call);
  void check_identity(std::size_t index, Call call);
  void check_version(std::size_t index, Call call);
  void take_version(std::size_t index, const HttpDone& done, Call call);
  [[nodiscard]] std::int64_t name_of(std::int64_t version) const;
  void refuse_other_run(const Server& server, std::int64_t name) const;
  void refuse_whole_weights(const Server& server, std::int64_t name) const;
  void take_identity(std::size_t index, const HttpDone& done, Call call);
  [[nodiscard]] std::size_t index_of(const Server& server) const { return std::size_t(&server - servers_.data()); }
  [[nodiscard]] bool is_ready(const Server& server) const;
  void try_again(Flight flight, const std::string& why, bool takes_out, Call call);
  void take_out(std::size_t index, const std::string& why, Call call);
  [[nodiscard]] bool has_weights() const { return update_ > 0; }
  [[nodiscard]] bool needs_weights(const Server& server) const;
  void new_weights(std::int64_t version);
  std::vector<HttpCall> transfer_steps(Server& server, Call call);
  void begin_side(Server& server, HttpCall::Side side, Call call);
  bool tend_side(std::size_t index, Call call);
  static void close_side(Server& server);
  void warn_of_restarts(Server& server, Call call) const;
  void begin_weights(std::size_t index, Call call);
  void end_weights(Server& server);
  [[nodiscard]] bool has_lost_adapter(const Server& server, const HttpDone& done) const;
  [[nodiscard]] std::string all_errors() const;
  void check_hope();
  [[nodiscard]] bool can_take(const Server& server, const ServerRequest& request) const;
  void refuse_what_none_takes(const ServerRequest& request) const;

  std::unique_ptr<Protocol> protocol_;
  PoolOptions options_;
  HttpCalls calls_;
  std::vector<Server> servers_;
  std::map<std::int64_t, std::size_t> controls_;  // call -> server
  std::map<std::int64_t, Flight> flights_;        // by call
  std::deque<Pending> queue_;
  std::deque<PoolSample> finished_;
  std::map<std::pair<std::int64_t, std::int64_t>, std::size_t> homes_;  // (step, row) -> the server of its last turn
  std::string folder_;                                                  // the newest weights, or in image_
  std::shared_ptr<const WeightImage> image_;                            // null: in folder_
  std::int64_t version_ = -1, own_version_ = 0;
  std::int64_t update_ = 0;        // counts the newest weights: a version may be sent again
  bool is_adapter_ = false;        // what is in folder_
  std::int64_t num_adapters_ = 0;  // named so far
  std::int64_t num_senders_ = 0;   // the same for connections
  const std::int64_t began_ns_;    // part of their names, so that another run's on the same server have others
  std::int64_t next_call_ = 1;
  std::int64_t hope_ends_ns_ = 0;  // no server has been ready since; 0: one is
};

}  // namespace mortise
