// See serve_loop.h.
#include "serve/serve_loop.h"

#include <algorithm>
#include <utility>

namespace mortise {
namespace {

Error unfinished(uint64_t count) {
  return {ErrorKind::kConfig, std::to_string(count) + " completions are unfinished, and new weights would mix with old",
          "", "pause with mode=wait or mode=abort first"};
}

Error broken() {
  return {ErrorKind::kInternal, "the last load of weights failed, so the model's weights are a mixture", "",
          "load a good folder before you sample"};
}

}  // namespace

void ServeLoop::post(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    if (is_over_) return;  // dropped with its client's reply, which then says so
    posted_.push_back(std::move(work));
  }
  wake_.notify_one();
}

int64_t ServeLoop::submit(std::vector<ServedRequest> requests, std::shared_ptr<ServedSink> sink) {
  const int64_t job = next_job_++;
  post([this, job, requests = std::move(requests), sink = std::move(sink)] { begin(job, requests, sink); });
  return job;
}

void ServeLoop::begin(int64_t job, const std::vector<ServedRequest>& requests, std::shared_ptr<ServedSink> sink) {
  if (is_stopped_) return sink->failed({ErrorKind::kSignal, "the server stops", "", ""});
  if (is_paused_) {
    held_.push_back([this, job, requests, sink] { begin(job, requests, sink); });
    return;
  }
  if (stats().is_broken) return sink->failed(broken());
  Job& entry = jobs_[job];
  entry.sink = std::move(sink);
  for (size_t i = 0; i < requests.size(); ++i) {
    const int64_t id = next_id_++;
    places_[id] = {job, i};
    if (const auto taken = model_->submit(id, requests[i]); !taken.ok()) {
      places_.erase(id);
      return fail_job(job, taken.error());
    }
    entry.num_left += static_cast<uint64_t>(requests[i].num_samples);
    outstanding_ += static_cast<uint64_t>(requests[i].num_samples);
  }
}

// Ends the job's requests in the model; what they give is nobody's.
void ServeLoop::drop(int64_t job) {
  jobs_.erase(job);
  for (auto it = places_.begin(); it != places_.end();) {
    if (it->second.job != job) {
      ++it;
      continue;
    }
    model_->abort(it->first);
    it = places_.erase(it);
  }
}

void ServeLoop::fail_job(int64_t job, const Error& error) {
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return;
  const auto sink = found->second.sink;
  drop(job);
  {
    const std::lock_guard lock(mutex_);
    ++stats_.num_failed;
  }
  sink->failed(error);
}

void ServeLoop::fail_all(const Error& error) {
  while (!jobs_.empty()) fail_job(jobs_.begin()->first, error);
}

void ServeLoop::abort(int64_t job) {
  post([this, job] { drop(job); });
}

void ServeLoop::abort_all() {
  post([this] { model_->abort(-1); });
}

// Before the client's answer, so that it finds what it asked for.
void ServeLoop::set_paused(bool is_paused) {
  is_paused_ = is_paused;
  const std::lock_guard lock(mutex_);
  stats_.is_paused = is_paused;
}

void ServeLoop::pause(PauseMode mode, Done done) {
  post([this, mode, done = std::move(done)] {
    set_paused(true);
    runs_on_ = mode != PauseMode::kKeep;
    if (mode == PauseMode::kAbort) model_->abort(-1);
    if (mode == PauseMode::kKeep) return done({});
    waiting_pauses_.push_back(done);
  });
}

void ServeLoop::resume(Done done) {
  post([this, done = std::move(done)] {
    set_paused(false);
    runs_on_ = true;
    for (const Done& one : std::exchange(waiting_pauses_, {})) one({});
    for (const auto& work : std::exchange(held_, {})) work();
    done({});
  });
}

void ServeLoop::load_weights(std::string folder, Done done) {
  post([this, folder = std::move(folder), done = std::move(done)] {
    if (outstanding_ > 0) return done(unfinished(outstanding_));
    const auto loaded = model_->load_weights(folder);
    const auto named = model_->set_version(kUnknownVersion);
    {
      const std::lock_guard lock(mutex_);
      stats_.is_broken = !loaded.ok();
      stats_.version = kUnknownVersion;
      if (loaded.ok()) ++stats_.num_updates;
    }
    done(loaded.ok() ? named : loaded);
  });
}

void ServeLoop::set_version(int64_t version, Done done) {
  post([this, version, done = std::move(done)] {
    if (outstanding_ > 0) return done(unfinished(outstanding_));
    const auto set = model_->set_version(version);
    if (set.ok()) {
      const std::lock_guard lock(mutex_);
      stats_.version = version;
    }
    done(set);
  });
}

void ServeLoop::free_caches(Done done) {
  post([this, done = std::move(done)] {
    model_->free_caches();
    done({});
  });
}

ServeStats ServeLoop::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void ServeLoop::take(int64_t id, const ServedSequence& sequence) {
  const auto place = places_.find(id);
  if (place == places_.end()) return;  // its client has gone
  const auto [job_id, request] = place->second;
  Job& job = jobs_.at(job_id);
  {
    const std::lock_guard lock(mutex_);
    ++stats_.num_finished;
    stats_.num_tokens += sequence.ids.size();
  }
  const auto sink = job.sink;
  if (--job.num_left == 0) drop(job_id);
  sink->finished(request, sequence);
}

void ServeLoop::show_progress() {
  const auto streams = [](const auto& job) { return job.second.sink->wants_progress(); };
  if (std::none_of(jobs_.begin(), jobs_.end(), streams)) return;
  model_->visit_running([this](int64_t id, const ServedSequence& sequence) {
    const auto place = places_.find(id);
    if (place == places_.end()) return;
    const Job& job = jobs_.at(place->second.job);
    if (job.sink->wants_progress()) job.sink->progress(place->second.request, sequence);
  });
}

void ServeLoop::step() {
  const auto left = model_->step([this](int64_t id, const ServedSequence& sequence) { take(id, sequence); });
  if (left.ok()) {
    outstanding_ = *left;
    return show_progress();
  }
  // The numbers of the weights are bad, or a pass failed: whatever runs cannot continue.
  fail_all(left.error());
  model_->abort(-1);
  const auto emptied = model_->step([](int64_t, const ServedSequence&) {});
  outstanding_ = emptied.ok() ? *emptied : 0;
}

void ServeLoop::settle_pause() {
  if (outstanding_ > 0 || waiting_pauses_.empty()) return;
  for (const Done& one : std::exchange(waiting_pauses_, {})) one({});
}

void ServeLoop::work_off(std::unique_lock<std::mutex>& lock) {
  while (!posted_.empty()) {
    const auto work = std::exchange(posted_, {});
    lock.unlock();
    for (const auto& one : work) one();
    lock.lock();
  }
}

void ServeLoop::run() {
  if (const auto unnamed = model_->set_version(kUnknownVersion); !unnamed.ok()) return;  // nobody has named them yet
  std::unique_lock lock(mutex_);
  while (true) {
    stats_.num_running = outstanding_;
    stats_.is_paused = is_paused_;
    const bool has_work = outstanding_ > 0 && (!is_paused_ || runs_on_);
    if (!has_work) wake_.wait(lock, [this] { return !posted_.empty() || is_stopped_; });
    work_off(lock);
    if (is_stopped_) break;
    lock.unlock();
    if (outstanding_ > 0 && (!is_paused_ || runs_on_)) step();
    settle_pause();
    lock.lock();
  }
  work_off(lock);
  is_over_ = true;
  lock.unlock();
  const Error stopped{ErrorKind::kSignal, "the server stops", "", ""};
  for (const auto& work : std::exchange(held_, {})) work();  // each hears that the server stops
  for (const Done& one : std::exchange(waiting_pauses_, {})) one(stopped);
  fail_all(stopped);
}

void ServeLoop::stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
  }
  wake_.notify_all();
}

}  // namespace mortise
