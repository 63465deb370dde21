// Asks a worker for its state, and gives it to the next worker.
#include "plugin/worker/carried_state.h"

#include <utility>

namespace mortise {
namespace {

constexpr int kTimeoutMs = 60'000;

}  // namespace

CarriedState::CarriedState(const ReadyMessage& ready, std::string label) : label_(std::move(label)) {
  if (ready.has_state) bytes_ = ready.state;
}

Result<Frame> CarriedState::ask(Supervisor& supervisor, Slot& slot, uint32_t kind, std::string_view body) const {
  TRY(slot.channel.send(kind, body, {}, kTimeoutMs));
  while (true) {
    auto frame = TRY(supervisor.receive(slot, kTimeoutMs));
    if (!frame) return Error{ErrorKind::kPlugin, "its worker did not answer about its state", label_, ""};
    if (frame->kind == kError) return decode_error(frame->body);
    if (frame->kind == kState) return std::move(*frame);
    TRY(supervisor.take_message(slot, *frame));
  }
}

Result<> CarriedState::bring(Supervisor& supervisor, Slot& slot) const {
  if (!bytes_ || slot.state_count == count_) return {};
  TRY(ask(supervisor, slot, kLoadState, *bytes_));
  slot.state_count = count_;
  return {};
}

Result<> CarriedState::keep(Supervisor& supervisor, Slot& slot) {
  if (!bytes_) return {};
  const Frame frame = TRY(ask(supervisor, slot, kSaveState, {}));
  StateMessage message;
  TRY(decode(frame.body, message));
  bytes_ = std::move(message.bytes);
  slot.state_count = ++count_;
  return {};
}

void CarriedState::take(Slot& slot, std::string bytes) {
  bytes_ = std::move(bytes);
  slot.state_count = ++count_;
}

Result<> CarriedState::replace(Supervisor& supervisor, Slot& slot, std::string_view bytes) {
  TRY(ask(supervisor, slot, kLoadState, bytes));
  bytes_ = bytes;
  slot.state_count = ++count_;
  return {};
}

}  // namespace mortise
