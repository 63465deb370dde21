// RankStore on libtorch's stores: TCPStore, FileStore, and HashStore for threads of one process in tests.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dist/launch/rank_place.h"
#include "dist/watch/rank_store.h"

namespace c10d {
class Store;
}  // namespace c10d

namespace mortise {

// Where the store is.
struct StorePlace {
  std::string address;  // TCPStore: host and port
  int port = 0;
  bool serve = false;  // this process serves it
  std::string file;    // FileStore, if not empty
  int size = 1;        // connections of all ranks; FileStore deletes its file after the last
  std::string prefix;  // every key begins with it
};

class C10dStore : public RankStore {
 public:
  struct Handle;  // c10d's store, whose headers take seconds to read
  explicit C10dStore(std::shared_ptr<Handle> handle);

  Result<> set(const std::string& key, const std::string& value) override;
  Result<bool> has(const std::string& key) override;
  Result<std::vector<std::string>> get_all(const std::vector<std::string>& keys) override;
  Result<int64_t> add(const std::string& key, int64_t amount) override;
  Result<std::string> compare_set(const std::string& key, const std::string& expected,
                                  const std::string& desired) override;

  [[nodiscard]] const std::shared_ptr<Handle>& handle() const { return handle_; }

 private:
  std::shared_ptr<Handle> handle_;
};

// Connects; retries until the time is over. Each later call may take as long, or `answer` if that is given. With `serve`,
// the store ends with the last object made from this one.
Result<std::unique_ptr<C10dStore>> connect_store(const StorePlace& place, std::chrono::milliseconds timeout,
                                                 std::optional<std::chrono::milliseconds> answer = {});
// A store in memory, for tests: every object made from one handle is the same store.
std::unique_ptr<C10dStore> memory_store();

}  // namespace mortise
