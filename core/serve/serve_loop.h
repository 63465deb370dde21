// ServeLoop: the clients of one model. Requests come from any thread; run() works on them all together, a token for
// each running sample at a time, so that a new client never waits for an old one.
//
// Pausing (for new weights): "wait" lets what runs finish, "abort" ends it, "keep" freezes it. What comes meanwhile
// waits until resume. Thread rule: run() on one thread, which is the one that sinks and `done` functions are called on;
// everything else from any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "serve/engine_port.h"

namespace mortise {

// A client. `request` is the place in the list that was submitted.
class ServedSink {
 public:
  virtual ~ServedSink() = default;
  // What there is of a running sample, after each step; only if wants_progress().
  virtual void progress(size_t request, const ServedSequence& sequence) = 0;
  virtual void finished(size_t request, const ServedSequence& sequence) = 0;
  // Nothing more comes.
  virtual void failed(const Error& error) = 0;
  [[nodiscard]] virtual bool wants_progress() const = 0;
};

enum class PauseMode { kWait, kAbort, kKeep };

struct ServeStats {
  uint64_t num_running = 0;  // samples that run or wait in the model
  uint64_t num_tokens = 0;   // generated
  uint64_t num_finished = 0;
  uint64_t num_failed = 0;  // requests
  uint64_t num_updates = 0;
  int64_t version = kUnknownVersion;
  bool is_paused = false;
  bool is_broken = false;  // a load of weights failed
};

class ServeLoop {
 public:
  explicit ServeLoop(ServedModel& model) : model_(&model) {}
  ServeLoop(const ServeLoop&) = delete;
  ServeLoop& operator=(const ServeLoop&) = delete;

  using Done = std::function<void(const Result<>&)>;

  // Returns the job's id, for abort.
  int64_t submit(std::vector<ServedRequest> requests, std::shared_ptr<ServedSink> sink);
  void abort(int64_t job);  // its client has gone: nothing is told
  void abort_all();         // clients get what there is
  void pause(PauseMode mode, Done done);
  void resume(Done done);
  void load_weights(std::string folder, Done done);
  void set_version(int64_t version, Done done);
  void free_caches(Done done);
  [[nodiscard]] ServeStats stats() const;
  [[nodiscard]] const ServedModelInfo& info() const { return model_->info(); }

  // Returns after stop(); every client that is still there has then been told.
  void run();
  void stop();

 private:
  struct Job {
    std::shared_ptr<ServedSink> sink;
    uint64_t num_left = 0;
  };
  struct Place {
    int64_t job;
    size_t request;
  };

  void post(std::function<void()> work);
  void work_off(std::unique_lock<std::mutex>& lock);
  void begin(int64_t job, const std::vector<ServedRequest>& requests, std::shared_ptr<ServedSink> sink);
  void drop(int64_t job);
  void fail_job(int64_t job, const Error& error);
  void fail_all(const Error& error);
  void step();
  void set_paused(bool is_paused);
  void settle_pause();
  void take(int64_t id, const ServedSequence& sequence);
  void show_progress();

  ServedModel* model_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::function<void()>> posted_;
  ServeStats stats_;
  std::atomic<int64_t> next_job_{1};
  std::atomic<bool> is_stopped_ = false;
  bool is_over_ = false;  // nothing that is posted is done any more
  // Only for the thread of run().
  std::map<int64_t, Job> jobs_;
  std::map<int64_t, Place> places_;          // by the id in the model
  std::vector<std::function<void()>> held_;  // requests that came while paused
  int64_t next_id_ = 0;
  uint64_t outstanding_ = 0;
  bool is_paused_ = false;
  bool runs_on_ = true;  // a paused loop: do the running samples continue?
  std::vector<Done> waiting_pauses_;
};

}  // namespace mortise
