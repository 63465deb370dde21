// EventHub: server-sent events for any number of pages. Each page has a source of its own, which knows how far the page
// is. One thread asks the sources for news and writes them.
//
// Thread rule: add, start and stop from any thread; sources are called and dropped on the hub's thread. Start it before
// the first add. Every reply is dropped at stop().
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "serve/http/http_server.h"

namespace mortise {

struct UiEvent {
  std::string name;
  std::string id;    // where a new stream continues after this event; empty: the place does not change
  std::string data;  // one line
};

// The event as it is sent.
std::string event_text(const UiEvent& event);

class EventHub {
 public:
  // What is new since the last call.
  using Source = std::function<std::vector<UiEvent>()>;

  explicit EventHub(std::chrono::milliseconds period = std::chrono::milliseconds(500)) : period_(period) {}
  EventHub(const EventHub&) = delete;
  EventHub& operator=(const EventHub&) = delete;
  ~EventHub() { stop(); }

  void start();
  // Makes the reply a stream of the source's events, until the page leaves.
  void add(Source source, std::shared_ptr<HttpReply> reply);
  void stop();
  [[nodiscard]] size_t num_pages() const;

 private:
  struct Page {
    Source source;
    std::shared_ptr<HttpReply> reply;
    std::shared_ptr<bool> has_left;  // guarded by mutex_
    std::chrono::steady_clock::time_point last_written{};
  };
  void run();
  bool serve(Page& page);  // false: the page failed, and gets no more

  std::chrono::milliseconds period_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::shared_ptr<Page>> pages_;
  bool is_stopped_ = false;
  bool has_new_ = false;
  std::thread thread_;
};

}  // namespace mortise
