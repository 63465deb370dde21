// UiService: the endpoints behind the pages of `mortise serve --ui`: the report, its events, the playground, scores, and
// the API of every checkpoint.
//
// What an answer holds is the UiPort's business. Thread rule: handle and gate on the HTTP server's thread; they never
// wait. Files are read on one thread of its own, rewards are computed on another.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "foundation/formats/json.h"
#include "serve/http/http_server.h"
#include "serve/ui/access.h"
#include "serve/ui/event_hub.h"
#include "serve/ui/model_slots.h"
#include "serve/ui/work_thread.h"

namespace mortise {

// The runs and models behind the pages. Files' functions on one thread, score and data_row on another, open_events on
// any.
class UiPort {
 public:
  virtual ~UiPort() = default;
  virtual Result<std::string> report_page() = 0;      // HTML
  virtual Result<std::string> playground_page() = 0;  // HTML
  // The completions of a step, as a JSON list.
  virtual Result<std::string> rows(int64_t run, int64_t step) = 0;
  // {"models": [{"name", ...}], ...}: what the playground can choose from.
  virtual Result<Json> models() = 0;
  // {"prompt" or "messages", "columns", ...} of a row of the run's data.
  virtual Result<Json> data_row(const Json& body) = 0;
  virtual Result<Json> score(const Json& body) = 0;
  // The news of the runs from `place` on, which the page or an event's id has told.
  virtual EventHub::Source open_events(const std::string& place) = 0;
  // The next two are called on the model slots' thread. The version changes when the name means other weights.
  virtual std::string version_of(const std::string& name) = 0;
  virtual Result<std::unique_ptr<LoadedModel>> load_model(const std::string& name) = 0;
};

class UiService {
 public:
  static constexpr size_t kMostModels = 2;  // one for each side of the playground

  UiService(UiPort& port, UiAccess access);
  UiService(const UiService&) = delete;
  UiService& operator=(const UiService&) = delete;

  [[nodiscard]] std::optional<HttpRefusal> gate(const HttpRequest& head) const;
  void handle(HttpRequest request, const std::shared_ptr<HttpReply>& reply);
  // Before the server stops: no reply is left then.
  void stop();

 private:
  using Reply = std::shared_ptr<HttpReply>;

  void get(const HttpRequest& request, const Reply& reply);
  void post(HttpRequest request, const Reply& reply);
  // Answers 500 if the work throws, and 503 if the thread has too much to do.
  void post_to(WorkThread& thread, const Reply& reply, std::function<void()> work);
  void list_models(const Reply& reply);
  void page(Result<std::string> (UiPort::*make)(), const Reply& reply);
  void answer(Result<Json> (UiPort::*compute)(const Json&), const Json& body, const Reply& reply);

  UiPort* port_;
  UiAccess access_;
  EventHub hub_;
  WorkThread files_, scores_;
  ModelSlots models_;
};

}  // namespace mortise
