// See model_slots.h.
#include "serve/ui/model_slots.h"

#include <fmt/core.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
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

namespace {

Error internal(const std::exception& error) {
  return {ErrorKind::kInternal, fmt::format("internal error: {}", error.what()), "", ""};
}

}  // namespace

ModelSlots::ModelSlots(Load load, VersionOf version_of, size_t most)
    : load_(std::move(load)),
      version_of_(std::move(version_of)),
      most_(most),
      shared_(std::make_shared<Shared>()),
      thread_([this] { run(); }) {}

void ModelSlots::handle(const std::string& name, HttpRequest request, std::shared_ptr<HttpReply> reply) {
  {
    const std::lock_guard lock(shared_->mutex);
    if (is_stopped_) return;  // dropped with its reply, which says so
    if (waiting_.size() < kMostWaiting) {
      waiting_.push_back({name, std::move(request), std::move(reply)});
      reply = nullptr;
    }
  }
  if (reply) return reply->send(503, error_body(503, kTooManyWait));
  shared_->wake.notify_all();
}

std::vector<std::string> ModelSlots::loaded() const {
  const std::lock_guard lock(shared_->mutex);
  std::vector<std::string> names;
  for (const Slot& slot : slots_) {
    if (!slot.is_outdated) names.push_back(slot.name);
  }
  return names;
}

std::list<ModelSlots::Slot>::iterator ModelSlots::place_of(const std::string& name) {
  return std::ranges::find_if(slots_, [&](const Slot& slot) { return !slot.is_outdated && slot.name == name; });
}

ModelSlots::Slot* ModelSlots::find(const std::string& name) {
  const auto found = place_of(name);
  return found == slots_.end() ? nullptr : &*found;
}

bool ModelSlots::has_room() const {
  return slots_.size() < most_ || std::ranges::any_of(slots_, [](const Slot& slot) { return *slot.num_open == 0; });
}

// The first request whose model is here, or can come.
std::list<ModelSlots::Waiting>::iterator ModelSlots::next_possible() {
  const bool can_load = has_room();
  return std::ranges::find_if(waiting_, [&](const Waiting& one) { return can_load || find(one.name) != nullptr; });
}

// A model of another version is not found any more, and leaves before all others.
void ModelSlots::drop_other_version(const std::string& name, std::string_view version) {
  const auto found = place_of(name);
  if (found == slots_.end() || found->version == version) return;
  found->is_outdated = true;
  slots_.splice(slots_.begin(), slots_, found);
}

// Removes a model that nobody uses: one that is out of date, or, if there is no room for another one, the one that was
// used longest ago.
std::unique_ptr<LoadedModel> ModelSlots::take_idle() {
  const bool is_full = slots_.size() >= most_;
  const auto idle = std::ranges::find_if(
      slots_, [&](const Slot& slot) { return *slot.num_open == 0 && (is_full || slot.is_outdated); });
  if (idle == slots_.end()) return nullptr;
  std::unique_ptr<LoadedModel> model = std::move(idle->model);
  slots_.erase(idle);
  return model;
}

Result<ModelSlots::Slot*> ModelSlots::load(const std::string& name, const std::string& version,
                                           std::unique_lock<std::mutex>& lock) {
  std::unique_ptr<LoadedModel> idle = take_idle();
  lock.unlock();
  idle.reset();  // its memory is free before the new one is read
  auto model = [&]() -> Result<std::unique_ptr<LoadedModel>> {
    try {
      return load_(name);
    } catch (const std::exception& error) {
      return internal(error);
    }
  }();
  lock.lock();
  if (!model.ok()) return std::move(model).error();
  Slot& slot = slots_.emplace_back();
  slot.name = name;
  slot.version = version;
  slot.model = *std::move(model);
  return &slot;
}

// Only this thread removes slots, so that they stay while the lock is open.
void ModelSlots::serve(Waiting one, std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  std::string version;
  try {
    version = version_of_(one.name);
  } catch (const std::exception& error) {
    one.reply->send(500, error_body(internal(error)));
    lock.lock();
    return;
  }
  lock.lock();
  drop_other_version(one.name, version);
  Slot* slot = find(one.name);
  if (slot == nullptr && !has_room()) {  // it waits for an answer of the model that is out of date
    waiting_.push_front(std::move(one));
    return;
  }
  if (slot == nullptr) {
    const auto loaded = load(one.name, version, lock);
    if (!loaded.ok()) return one.reply->send(status_of(loaded.error()), error_body(loaded.error()));
    slot = *loaded;
  }
  slots_.splice(slots_.end(), slots_, place_of(one.name));
  ++*slot->num_open;
  LoadedModel& model = *slot->model;
  std::shared_ptr<HttpReply> reply = std::make_shared<CountedReply>(std::move(one.reply), shared_, slot->num_open);
  lock.unlock();
  try {
    model.handle(std::move(one.request), reply);
  } catch (const std::exception& error) {
    reply->send(500, error_body(internal(error)));
  }
  reply.reset();  // it takes the lock if it is the last one
  lock.lock();
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
    serve(std::move(one), lock);
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
