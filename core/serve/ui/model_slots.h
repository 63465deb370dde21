// ModelSlots: the models of a playground. A model is loaded when the first request names it. At most `most` are held:
// the one that was used longest ago leaves for a new one, as soon as it has answered everything. If the version of a
// name is another one than when its model was loaded, the name is loaded again.
//
// Thread rule: handle from any thread; versions, loading, and the models' handle, on the slots' own thread.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "foundation/base/result.h"
#include "serve/http/http_server.h"

namespace mortise {

// A model in memory, behind the endpoints of ServeService.
class LoadedModel {
 public:
  virtual ~LoadedModel() = default;  // ends what it still works on
  virtual void handle(HttpRequest request, std::shared_ptr<HttpReply> reply) = 0;
};

// What clients are told with status 503.
inline constexpr const char* kTooManyWait = "too many requests wait; send it again when some are answered";

class ModelSlots {
 public:
  using Load = std::function<Result<std::unique_ptr<LoadedModel>>(const std::string& name)>;
  using VersionOf = std::function<std::string(const std::string& name)>;
  static constexpr size_t kMostWaiting = 64;

  ModelSlots(Load load, VersionOf version_of, size_t most);
  ModelSlots(const ModelSlots&) = delete;
  ModelSlots& operator=(const ModelSlots&) = delete;
  ~ModelSlots() { stop(); }

  void handle(const std::string& name, HttpRequest request, std::shared_ptr<HttpReply> reply);
  [[nodiscard]] std::vector<std::string> loaded() const;
  void stop();

 private:
  struct Waiting {
    std::string name;
    HttpRequest request;
    std::shared_ptr<HttpReply> reply;
  };
  struct Slot {
    std::string name, version;
    bool is_outdated = false;  // it is not found any more, and leaves when it has answered everything
    std::unique_ptr<LoadedModel> model;
    std::shared_ptr<int> num_open = std::make_shared<int>(0);  // replies that are not done
  };
  struct Shared;  // mutex and bell, which outlive the slots with the last reply
  class CountedReply;

  void run();
  void serve(Waiting one, std::unique_lock<std::mutex>& lock);
  [[nodiscard]] bool has_room() const;
  std::list<Waiting>::iterator next_possible();
  std::list<Slot>::iterator place_of(const std::string& name);
  Slot* find(const std::string& name);
  void drop_other_version(const std::string& name, std::string_view version);
  std::unique_ptr<LoadedModel> take_idle();
  Result<Slot*> load(const std::string& name, const std::string& version, std::unique_lock<std::mutex>& lock);

  Load load_;
  VersionOf version_of_;
  size_t most_;
  std::shared_ptr<Shared> shared_;
  std::list<Waiting> waiting_;
  std::list<Slot> slots_;  // the one that was used last is last
  bool is_stopped_ = false;
  std::thread thread_;
};

}  // namespace mortise
