// See weight_receiver.h.
#include "weight_receiver.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>
#include <set>
#include <span>
#include <utility>

#include "dist/weights/weight_link.h"
#include "foundation/base/log.h"
#include "foundation/base/text.h"
#include "foundation/formats/json.h"

namespace mortise {
namespace {

constexpr const char* kParent = "/dev/shm";
constexpr std::string_view kPrefix = "mortise-received-";
constexpr size_t kAlignment = 64;  // a file's first number begins at a multiple
// Most that a server waits for a weight of a trainer that has stopped in the middle. Trainers have a limit of their own
// (update_limit), with the same default.
constexpr std::chrono::minutes kPatience{10};

Error untimely(const std::string& what, const std::string& next) { return {ErrorKind::kConfig, what, "", next}; }

uint64_t bytes_of(const IncomingWeight& weight) {
  uint64_t count = weight.dtype == "float32" ? 4 : 2;
  for (const int64_t size : weight.shape) count *= static_cast<uint64_t>(size);
  return count;
}

const char* format_of(const std::string& dtype) {
  return dtype == "float32" ? "F32" : dtype == "bfloat16" ? "BF16" : "F16";
}

// A safetensors file whose numbers are still to come.
class IncomingFile {
 public:
  static Result<std::unique_ptr<IncomingFile>> create(const Path& path, const std::vector<IncomingWeight>& weights) {
    Json header = {{"__metadata__", {{"format", "pt"}}}};
    uint64_t end = 0;
    for (const IncomingWeight& weight : weights) {
      const uint64_t begin = std::exchange(end, end + bytes_of(weight));
      header[weight.name] = {
          {"dtype", format_of(weight.dtype)}, {"shape", weight.shape}, {"data_offsets", {begin, end}}};
    }
    std::string text = dump_json(header);
    text.resize((8 + text.size() + kAlignment - 1) / kAlignment * kAlignment - 8, ' ');
    std::unique_ptr<IncomingFile> out(new IncomingFile);
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file < 0) return disk_error(errno, "receive weights", path);
    const auto size = static_cast<size_t>(8 + text.size() + end);
    // Without room a write to the mapping would end the process.
    const int failed = ::posix_fallocate(file, 0, static_cast<off_t>(size));
    void* const data = failed != 0 ? MAP_FAILED : ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    const int problem = failed != 0 ? failed : errno;
    ::close(file);
    if (data == MAP_FAILED) return disk_error(problem, "receive weights", path);
    out->all_ = {static_cast<std::byte*>(data), size};
    out->first_ = 8 + text.size();
    const uint64_t length = text.size();  // the format is little-endian, as this machine is
    std::memcpy(data, &length, sizeof length);
    std::memcpy(out->all_.data() + sizeof length, text.data(), text.size());
    return out;
  }
  IncomingFile(const IncomingFile&) = delete;
  IncomingFile& operator=(const IncomingFile&) = delete;
  ~IncomingFile() {
    if (!all_.empty()) ::munmap(all_.data(), all_.size());
  }
  [[nodiscard]] std::span<std::byte> numbers() const { return all_.subspan(first_); }

 private:
  IncomingFile() = default;
  std::span<std::byte> all_;
  size_t first_ = 0;
};

// Those of servers that were killed fill the shared memory.
void remove_orphans(Env& env) {
  const auto names = env.list_dir(kParent);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    if (!name.starts_with(kPrefix)) continue;
    const int64_t pid = parse_i64(name.substr(kPrefix.size(), name.rfind('-') - kPrefix.size())).value_or(0);
    if (pid > 0 && ::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH)
      static_cast<void>(remove_tree(env, Path(kParent) / name));
  }
}

class FolderReceiver final : public WeightReceiver, public std::enable_shared_from_this<FolderReceiver> {
 public:
  explicit FolderReceiver(Env& env) : env_(&env) {}

  // A link that waits for its sender cannot be interrupted. Its thread ends with its limit, and its news are nobody's.
  void join(const WeightSender& sender, Done done) override {
    WeightPlace place;
    place.address = sender.address;
    place.port = sender.port;
    place.prefix = "weights";
    place.rank = sender.rank;
    place.size = sender.size;
    place.timeout = kPatience;
    auto joining = std::make_shared<Connection>(std::make_unique<LateLink>(place));
    Done earlier;
    {
      const std::lock_guard lock(mutex_);
      connection_ = joining;
      folder_.reset();
      earlier = std::exchange(waits_, std::move(done));
    }
    if (earlier) earlier(untimely("another trainer has connected", "give each run servers of its own"));
    run(joining, [](WeightLink& link) { return link.join(); });
  }

  Result<> begin() override {
    const std::lock_guard lock(mutex_);
    if (!connection_) return untimely("no trainer is connected", "call /init_weight_transfer_engine first");
    if (waits_) return untimely("weights are on their way", "wait for the answer to the call before");
    static std::atomic<int> count = 0;
    const std::string path = fmt::format("{}/{}{}-{}", kParent, kPrefix, ::getpid(), ++count);
    TRY(env_->create_dirs(path));
    folder_ = Folder(new std::string(path), [env = env_](const std::string* gone) {
      static_cast<void>(remove_tree(*env, *gone));
      delete gone;
    });
    files_.clear();
    return {};
  }

  void receive(std::vector<IncomingWeight> weights, Done done) override {
    std::unique_lock lock(mutex_);
    if (!connection_ || waits_ || !folder_) {
      const Error error = untimely("no update of the weights has begun, or one is under way",
                                   "call /init_weight_transfer_engine and /start_weight_update first");
      lock.unlock();
      return done(error);
    }
    auto opened = open_file(weights);
    if (!opened.ok()) {
      connection_.reset();
      folder_.reset();
      lock.unlock();
      return done(opened.error());
    }
    waits_ = std::move(done);
    const auto connection = connection_;
    const auto take = [weights = std::move(weights), file = std::shared_ptr<IncomingFile>(std::move(*opened)),
                       folder = folder_](WeightLink& link) -> Result<> {
      std::span<std::byte> rest = file->numbers();
      for (const IncomingWeight& weight : weights) {
        TRY(link.receive(rest.first(bytes_of(weight))));
        rest = rest.subspan(bytes_of(weight));
      }
      return {};
    };
    lock.unlock();
    run(connection, take);
  }

  Result<Folder> finish() override {
    const std::lock_guard lock(mutex_);
    if (waits_ || !folder_ || files_.empty())
      return untimely("there are no new weights, or some are still on their way",
                      "send them with /start_weight_update and /update_weights first");
    Json map = Json::object();
    for (const auto& [file, names] : files_)
      for (const std::string& name : names) map[name] = file;
    const auto index = TRY(env_->open_for_write(Path(*folder_) / "model.safetensors.index.json", WriteMode::kTruncate));
    const std::string text = dump_json({{"weight_map", map}});
    TRY(index->append(std::as_bytes(std::span(text))));
    TRY(index->close());
    return std::exchange(folder_, nullptr);
  }

  void close() override {
    Done waits;
    {
      const std::lock_guard lock(mutex_);
      connection_.reset();
      folder_.reset();
      waits = std::exchange(waits_, nullptr);
    }
    if (waits) waits(Error{ErrorKind::kSignal, "the server stops", "", ""});
  }

 private:
  // Connects in its thread: a trainer that is not there must not hold up the server.
  class LateLink final : public WeightLink {
   public:
    explicit LateLink(WeightPlace place) : place_(std::move(place)) {}
    [[nodiscard]] int port() const override { return place_.port; }
    [[nodiscard]] std::string unique_id() const override { return ""; }
    Result<> set(const std::string& key, const std::string& value) override { return link_->set(key, value); }
    Result<> join() override {
      link_ = TRY(open_weight_link(place_));
      return link_->join();
    }
    Result<> send(std::span<const std::byte> piece) override { return link_->send(piece); }
    Result<> receive(std::span<std::byte> piece) override { return link_->receive(piece); }
    void stop() override {}  // Gloo cannot be interrupted

   private:
    WeightPlace place_;
    std::unique_ptr<WeightLink> link_;
  };
  using Connection = BackgroundLink;

  void run(const std::shared_ptr<Connection>& connection, BackgroundLink::Work work) {
    connection->start(std::move(work), [self = shared_from_this(), which = std::weak_ptr<Connection>(connection)](
                                           const Result<>& ended) { self->settle(which, ended); });
  }
  // Answers under the lock: close() waits for it, because the server ends after close().
  void settle(const std::weak_ptr<Connection>& which, const Result<>& ended) {
    const std::lock_guard lock(mutex_);
    const auto connection = which.lock();
    if (!connection || connection != connection_) return;  // another trainer has taken its place
    if (!ended.ok()) {
      log_warn("weights have not come: " + ended.error().to_string());
      connection_.reset();
      folder_.reset();
    }
    if (const Done waits = std::exchange(waits_, nullptr)) waits(ended);
  }
  Result<std::unique_ptr<IncomingFile>> open_file(const std::vector<IncomingWeight>& weights) {
    std::set<std::string> names;
    for (const auto& [file, taken] : files_) names.insert(taken.begin(), taken.end());
    std::set<std::string> added;
    for (const IncomingWeight& weight : weights) {
      if (!names.insert(weight.name).second)
        return Error{ErrorKind::kConfig, fmt::format("the weight {} comes twice", quote(weight.name)), "", ""};
      added.insert(weight.name);
    }
    const std::string name = fmt::format("model-{:05}.safetensors", files_.size() + 1);
    auto file = TRY(IncomingFile::create(Path(*folder_) / name, weights));
    files_.emplace_back(name, std::move(added));
    return file;
  }

  Env* env_;
  std::mutex mutex_;
  std::shared_ptr<Connection> connection_;
  Done waits_;  // for what the connection does; empty: it does nothing
  Folder folder_;
  std::vector<std::pair<std::string, std::set<std::string>>> files_;  // with the names of their weights
};

}  // namespace

std::shared_ptr<WeightReceiver> make_weight_receiver(Env& env) {
  remove_orphans(env);
  return std::make_shared<FolderReceiver>(env);
}

}  // namespace mortise
