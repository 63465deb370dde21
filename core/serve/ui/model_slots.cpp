// See model_slots.h.
#include "serve/ui/model_slots.h"

#include <algorithm>
#include <condition_variable>
#include <utility>

#include "serve/api/answers.h"

namespace mortise {

struct ModelSlots::Shared {
  std::mutex mutex;
  std::condition_variable wake;
};

// Counts down when the model is done with it.
class ModelSlots::CountedReply final : public HttpReply, public std::enable_shared_from_this<CountedReply> {
 public:
  CountedReply(std::shared_ptr<HttpReply> reply, std::shared_ptr<Shared> shared, std::shared_ptr<int> num_open)
      : reply_(std::move(reply)), shared_(std::move(shared)), num_open_(std::move(num_open)) {}
  CountedReply(const CountedReply&) = delete;
  CountedReply& operator=(const CountedReply&) = delete;
  ~CountedReply() override {
    {
      const std::lock_guard lock(shared_->mutex);
      --*num_open_;
    }
    shared_->wake.notify_all();
  }
  void send(int status, std::string body, std::string_view type) override {
    reply_->send(status, std::move(body), type);
  }
  void start_stream(std::string_view type) override { reply_->start_stream(type); }
  void write(std::string piece) override { reply_->write(std::move(piece)); }
  void end_stream() override { reply_->end_stream(); }
  // The call reaches into the model, which may be gone once this reply is.
  void on_close(std::function<void()> then) override {
    reply_->on_close([self = weak_from_this(), then = std::move(then)] {
      if (const auto alive = self.lock()) then();
    });
  }

 private:
  std::shared_ptr<HttpReply> reply_;
  std::shared_ptr<Shared> shared_;
  std::shared_ptr<int> num_open_;
};

ModelSlots::ModelSlots(Load load, size_t most)
    : load_(std::move(load)), most_(most), shared_(std::make_shared<Shared>()), thread_([this] { run(); }) {}

void ModelSlots::handle(const std::string& name, HttpRequest request, std::shared_ptr<HttpReply> reply) {
  {
    const std::lock_guard lock(shared_->mutex);
    if (is_stopped_) return;  // dropped with its reply, which says so
    waiting_.push_back({name, std::move(request), std::move(reply)});
  }
  shared_->wake.notify_all();
}

std::vector<std::string> ModelSlots::loaded() const {
  const std::lock_guard lock(shared_->mutex);
  std::vector<std::string> names;
  for (const Slot& slot : slots_) names.push_back(slot.name);
  return names;
}

ModelSlots::Slot* ModelSlots::find(const std::string& name) {
  const auto found = std::ranges::find(slots_, name, &Slot::name);
  return found == slots_.end() ? nullptr : &*found;
}

// The first request whose model is here, or can come.
std::list<ModelSlots::Waiting>::iterator ModelSlots::next_possible() {
  const bool has_room =
      slots_.size() < most_ || std::ranges::any_of(slots_, [](const Slot& slot) { return *slot.num_open == 0; });
  return std::ranges::find_if(waiting_, [&](const Waiting& one) { return has_room || find(one.name) != nullptr; });
}

// Removes the model that was used longest ago among those that nobody uses, if there is no room for another one.
std::unique_ptr<LoadedModel> ModelSlots::take_idle() {
  if (slots_.size() < most_) return nullptr;
  const auto idle = std::ranges::find_if(slots_, [](const Slot& slot) { return *slot.num_open == 0; });
  std::unique_ptr<LoadedModel> model = std::move(idle->model);
  slots_.erase(idle);
  return model;
}

Result<ModelSlots::Slot*> ModelSlots::load(const std::string& name, std::unique_lock<std::mutex>& lock) {
  std::unique_ptr<LoadedModel> idle = take_idle();
  lock.unlock();
  idle.reset();  // its memory is free before the new one is read
  auto model = load_(name);
  lock.lock();
  if (!model.ok()) return std::move(model).error();
  Slot& slot = slots_.emplace_back();
  slot.name = name;
  slot.model = *std::move(model);
  return &slot;
}

void ModelSlots::run() {
  std::unique_lock lock(shared_->mutex);
  while (!is_stopped_) {
    const auto next = next_possible();
    if (next == waiting_.end()) {
      shared_->wake.wait(lock);
      continue;
    }
    Waiting one = std::move(*next);
    waiting_.erase(next);
    Slot* slot = find(one.name);
    if (slot == nullptr) {
      const auto loaded = load(one.name, lock);
      if (!loaded.ok()) {
        one.reply->send(status_of(loaded.error()), error_body(loaded.error()));
        continue;
      }
      slot = *loaded;
    }
    slots_.splice(slots_.end(), slots_, std::ranges::find(slots_, one.name, &Slot::name));
    ++*slot->num_open;
    LoadedModel& model = *slot->model;
    auto reply = std::make_shared<CountedReply>(std::move(one.reply), shared_, slot->num_open);
    lock.unlock();  // only this thread removes slots
    model.handle(std::move(one.request), std::move(reply));
    lock.lock();
  }
}

void ModelSlots::stop() {
  {
    const std::lock_guard lock(shared_->mutex);
    is_stopped_ = true;
  }
  shared_->wake.notify_all();
  if (thread_.joinable()) thread_.join();
  waiting_.clear();
  slots_.clear();
}

}  // namespace mortise
