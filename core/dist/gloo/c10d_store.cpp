// Opens a store of libtorch, and turns its exceptions into errors.
#include "dist/gloo/c10d_store.h"

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <fmt/core.h>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <stdexcept>
#include <thread>

#include "dist/gloo/c10d_handle.h"
#include "dist/launch/listener.h"

namespace mortise {

namespace {

// c10d's stores throw.
template <class Body>
auto guard_store(const Body& body) -> Result<decltype(body())> {
  try {
    return body();
  } catch (const c10::Error& error) {
    return Error{ErrorKind::kRankFailure, error.what_without_backtrace(), "store", {}};
  } catch (const std::exception& error) {
    return Error{ErrorKind::kRankFailure, error.what(), "store", {}};
  }
}

std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

constexpr std::chrono::milliseconds kLeastToConnect{1000};
constexpr std::chrono::milliseconds kSilence{1000};  // after the limit that c10d keeps itself

// When a connection closes, c10d warns with twenty lines of a stack. The watch says what happened in one.
void no_warnings_of_c10d() {
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = c10::GLOG_FATAL;
}

c10::intrusive_ptr<c10d::Store> open_store(const StorePlace& place, std::chrono::milliseconds timeout) {
  if (!place.file.empty()) return c10::make_intrusive<c10d::FileStore>(place.file, place.size);
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(place.port);
  options.isServer = place.serve;
  options.waitWorkers = false;  // join_ranks waits itself, and names the ranks that do not come
  options.timeout = timeout;
  return c10::make_intrusive<c10d::TCPStore>(place.address, options);
}

// c10d waits without a limit for a program that accepts connections, but is no store. Its thread is then left behind.
c10::intrusive_ptr<c10d::Store> open_store_in_time(const StorePlace& place, std::chrono::milliseconds timeout) {
  using Opening = std::packaged_task<c10::intrusive_ptr<c10d::Store>()>;
  const auto opening = std::make_shared<Opening>([place, timeout] { return open_store(place, timeout); });
  auto opened = opening->get_future();
  std::thread([opening] { (*opening)(); }).detach();
  if (opened.wait_for(timeout + kSilence) != std::future_status::ready)
    throw std::runtime_error("a program listens there, but it does not answer as the store of a run does");
  return opened.get();
}

}  // namespace

C10dStore::C10dStore(std::shared_ptr<Handle> handle) : handle_(std::move(handle)) {}

Result<> C10dStore::set(const std::string& key, const std::string& value) {
  TRY(guard_store([&] {
    handle_->store->set(key, value);
    return true;
  }));
  return {};
}

Result<bool> C10dStore::has(const std::string& key) {
  return guard_store([&] { return handle_->store->check({key}); });
}

Result<std::vector<std::string>> C10dStore::get_all(const std::vector<std::string>& keys) {
  return guard_store([&] {
    std::vector<std::string> values;
    for (const auto& bytes : handle_->store->multiGet(keys)) values.push_back(text_of(bytes));
    return values;
  });
}

Result<int64_t> C10dStore::add(const std::string& key, int64_t amount) {
  return guard_store([&] { return handle_->store->add(key, amount); });
}

Result<std::string> C10dStore::compare_set(const std::string& key, const std::string& expected,
                                           const std::string& desired) {
  return guard_store([&] { return handle_->store->compareSet(key, expected, desired); });
}

Result<std::unique_ptr<C10dStore>> connect_store(const StorePlace& place, std::chrono::milliseconds timeout,
                                                 std::optional<std::chrono::milliseconds> answer) {
  no_warnings_of_c10d();
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  const bool is_client = place.file.empty() && !place.serve;
  if (is_client && !wait_for_listener(place.address, place.port, timeout))
    return Error{ErrorKind::kRankFailure, "nothing listens there", "store", ""};
  return guard_store([&] {
    // The listener may end before c10d connects, and c10d then tries until its own limit: both share one limit.
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    const auto limit = std::max(left, kLeastToConnect);
    auto store = is_client ? open_store_in_time(place, limit) : open_store(place, limit);
    store->setTimeout(answer.value_or(timeout));
    auto handle = std::make_shared<C10dStore::Handle>();
    handle->store = c10::make_intrusive<c10d::PrefixStore>(place.prefix, std::move(store));
    return std::make_unique<C10dStore>(std::move(handle));
  });
}

std::unique_ptr<C10dStore> memory_store() {
  auto handle = std::make_shared<C10dStore::Handle>();
  handle->store = c10::make_intrusive<c10d::HashStore>();
  return std::make_unique<C10dStore>(std::move(handle));
}

}  // namespace mortise
