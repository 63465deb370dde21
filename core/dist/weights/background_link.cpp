// The thread of a link: see weight_link.h.
#include <mutex>
#include <thread>
#include <utility>

#include "dist/weights/weight_link.h"

namespace mortise {

struct BackgroundLink::State {
  std::unique_ptr<WeightLink> link;
  mutable std::mutex mutex;
  bool runs = false;
  Result<> last;
};

BackgroundLink::BackgroundLink(std::unique_ptr<WeightLink> link) : state_(std::make_shared<State>()) {
  state_->link = std::move(link);
}

// The thread has a share of the state, so the link lives as long as its call.
BackgroundLink::~BackgroundLink() { state_->link->stop(); }

void BackgroundLink::start(Work work, Done done) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->runs = true;
  }
  std::thread([state = state_, work = std::move(work), done = std::move(done)]() mutable {
    Result<> ended = work(*state->link);
    work = nullptr;  // gives back what it holds
    {
      const std::lock_guard lock(state->mutex);
      state->last = ended;
      state->runs = false;
    }
    if (done) done(ended);
  }).detach();
}

std::optional<Result<>> BackgroundLink::look() const {
  const std::lock_guard lock(state_->mutex);
  if (state_->runs) return std::nullopt;
  return state_->last;
}

WeightLink& BackgroundLink::link() const { return *state_->link; }

}  // namespace mortise
