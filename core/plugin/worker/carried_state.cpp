#include "plugin/worker/carried_state.h"

#include <utility>

namespace mortise {
namespace {

constexpr int kTimeoutMs = 60'000;

}  // namespace

CarriedState::CarriedState(const ReadyMessage& ready, std::string label) : label_(std::move(label)) {
  if (ready.has_state) bytes_ = ready.state;
}

Result<Frame> CarriedState::ask(Crew& crew, Seat& seat, uint32_t kind, std::string_view body) const {
  TRY(seat.channel.send(kind, body, {}, kTimeoutMs));
  while (true) {
    auto frame = TRY(seat.channel.receive(kTimeoutMs));
    if (!frame) return Error{ErrorKind::kPlugin, "its worker did not answer about its state", label_, ""};
    if (frame->kind == kError) return decode_error(frame->body);
    if (frame->kind == kState) return std::move(*frame);
    TRY(crew.take_ready(seat, *frame));
  }
}

Result<> CarriedState::bring(Crew& crew, Seat& seat) const {
  if (!bytes_ || seat.state_count == count_) return {};
  TRY(ask(crew, seat, kLoadState, *bytes_));
  seat.state_count = count_;
  return {};
}

Result<> CarriedState::keep(Crew& crew, Seat& seat) {
  if (!bytes_) return {};
  const Frame frame = TRY(ask(crew, seat, kSaveState, {}));
  StateMessage message;
  TRY(decode(frame.body, message));
  bytes_ = std::move(message.bytes);
  seat.state_count = ++count_;
  return {};
}

Result<> CarriedState::replace(Crew& crew, Seat& seat, std::string_view bytes) {
  TRY(ask(crew, seat, kLoadState, bytes));
  bytes_ = bytes;
  seat.state_count = ++count_;
  return {};
}

}  // namespace mortise
