// Weights over the network: while a server works on some of the calls of its update, its sender connects or sends.
#include <utility>

#include "../../shared/deadline.h"
#include "server_pool.h"

namespace mortise {
namespace {

// A server that refuses weights closes its connection, and says why in its answer, which may come a little later.
constexpr std::int64_t kAnswerNs = 2'000'000'000;

}  // namespace

void ServerPool::set_image(std::shared_ptr<const WeightImage> image, std::int64_t version) {
  image_ = std::move(image);
  new_weights(version);
}

std::vector<HttpCall> ServerPool::transfer_steps(Server& server, Call call) {
  const bool is_new = !server.sender;
  if (is_new) {
    const std::string number = std::to_string(began_ns_) + "-" + std::to_string(++num_senders_);
    const std::string& address = options_.own_address.empty() ? server.facts.own_address : options_.own_address;
    server.way = protocol_->transfer_way(server.facts, number);
    server.sender =
        std::make_unique<WeightSender>(server.way, address, server.facts.num_ranks + 1, options_.update_limit, call);
  }
  if (server.way.carrier == "cuda_ipc") server.sender->share(image_, call);
  server.coming_image = image_;
  server.facts.may_be_torn = server.owes_load || server.facts.is_paused;
  const SenderPlace* const place = is_new ? &server.sender->place() : nullptr;
  return protocol_->transfer_calls(server.facts, server.way, place, *image_, name_of(version_));
}

void ServerPool::begin_side(Server& server, HttpCall::Side side, Call call) {
  server.has_side = side != HttpCall::Side::kNone;
  server.is_answered = false;
  server.side_failed_ns = 0;
  if (side == HttpCall::Side::kJoin) server.sender->join(call);
  if (side == HttpCall::Side::kSend) server.sender->send(server.coming_image, server.way.bucket_bytes, call);
}

// True when there is more to do for the server: the sender is done, and the call has been answered.
bool ServerPool::tend_side(std::size_t index, Call call) {
  Server& server = servers_[index];
  const WeightSender::State state = server.sender->state();
  if (!state.failure.empty()) {
    const std::int64_t now = monotonic_ns();
    if (server.side_failed_ns == 0) server.side_failed_ns = now;
    if (server.control_id == 0 || now - server.side_failed_ns > kAnswerNs)
      take_out(index, "the weights did not reach the server: " + state.failure, call);
    return false;
  }
  if (state.is_busy || !server.is_answered) return false;
  server.has_side = server.is_answered = false;
  ++server.step;
  return true;
}

// The next update makes a new connection.
void ServerPool::close_side(Server& server) {
  server.has_side = server.is_answered = false;
  server.sender.reset();
  server.coming_image.reset();
}

}  // namespace mortise
