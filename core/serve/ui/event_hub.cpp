// See event_hub.h.
#include "serve/ui/event_hub.h"

#include <fmt/core.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "foundation/base/log.h"

namespace mortise {
namespace {

// A page that has gone is noticed when something is written to it, and a page notices a stream that has died.
constexpr std::chrono::seconds kHeartbeat{15};

}  // namespace

std::string event_text(const UiEvent& event) {
  std::string text;
  if (!event.id.empty()) text += fmt::format("id: {}\n", event.id);
  return text + fmt::format("event: {}\ndata: {}\n\n", event.name, event.data);
}

void EventHub::start() {
  thread_ = std::thread([this] { run(); });
}

void EventHub::add(Source source, std::shared_ptr<HttpReply> reply) {
  auto page = std::make_shared<Page>();
  page->source = std::move(source);
  page->has_left = std::make_shared<bool>(false);
  page->reply = reply;
  reply->start_stream("text/event-stream; charset=utf-8");
  {
    const std::lock_guard lock(mutex_);
    if (is_stopped_) return;
    pages_.push_back(page);
    has_new_ = true;
  }
  wake_.notify_one();
  reply->on_close([this, has_left = page->has_left] {
    const std::lock_guard lock(mutex_);
    *has_left = true;
  });
}

bool EventHub::serve(Page& page) {
  std::string text;
  try {
    for (const UiEvent& event : page.source()) text += event_text(event);
  } catch (const std::exception& error) {
    log_warn(fmt::format("a page gets no more events: {}", error.what()));
    page.reply->end_stream();
    return false;
  }
  const auto now = std::chrono::steady_clock::now();
  if (text.empty() && now - page.last_written >= kHeartbeat) text = event_text({"heartbeat", "", "{}"});
  if (text.empty()) return true;
  page.last_written = now;
  page.reply->write(std::move(text));
  return true;
}

void EventHub::run() {
  std::unique_lock lock(mutex_);
  while (!is_stopped_) {
    std::erase_if(pages_, [](const auto& page) { return *page->has_left; });
    const auto pages = pages_;
    has_new_ = false;
    lock.unlock();
    std::vector<std::shared_ptr<Page>> failed;
    for (const auto& page : pages) {
      if (!serve(*page)) failed.push_back(page);
    }
    lock.lock();
    for (const auto& page : failed) *page->has_left = true;
    wake_.wait_for(lock, period_, [this] { return is_stopped_ || has_new_; });
  }
  const auto left = std::exchange(pages_, {});
  lock.unlock();
}

void EventHub::stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

size_t EventHub::num_pages() const {
  const std::lock_guard lock(mutex_);
  return static_cast<size_t>(std::ranges::count_if(pages_, [](const auto& page) { return !*page->has_left; }));
}

}  // namespace mortise
