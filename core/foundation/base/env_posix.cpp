// The real Env on POSIX system calls. It repeats interrupted calls, and opens every file close-on-exec, so that worker
// processes inherit none.
#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <ctime>

#include "foundation/base/env.h"

namespace mortise {
namespace {

// Closes a descriptor at the end of a scope.
class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  void reset(int fd) {
    std::swap(fd_, fd);
    if (fd >= 0) ::close(fd);
  }
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool ok() const { return fd_ >= 0; }

 private:
  int fd_;
};

template <class Call>
auto retry(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

int open_file(const Path& path, int flags) {
  return retry([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); });
}

// Reading failed. If the path leads to nothing readable, the caller's path is at fault, not the disk.
Error read_error(int code, std::string_view operation, const Path& path) {
  Error error = disk_error(code, operation, path);
  switch (code) {
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case EACCES:
    case EPERM:
    case ELOOP:
    case ENAMETOOLONG:
    case EINVAL:
      error.kind = ErrorKind::kData;
      break;
    default:
      break;
  }
  return error;
}

// Opens a regular file for reading. Refuses pipes and devices, which could block or never end: a model folder of
// someone else may hold them. Allows paths in /dev and /proc, because shells pass them for <(command).
Result<struct stat> open_for_read(const Path& path, Fd& fd) {
  fd.reset(open_file(path, O_RDONLY | O_NONBLOCK));  // without O_NONBLOCK a pipe without a writer waits for ever
  if (!fd.ok()) return read_error(errno, "open", path);
  struct stat status {};
  if (::fstat(fd.get(), &status) < 0) return read_error(errno, "look at", path);
  if (S_ISREG(status.st_mode)) return status;
  if (S_ISDIR(status.st_mode)) return read_error(EISDIR, "read", path);
  const std::string name = path.string();
  const bool is_named = name.starts_with("/dev/") || name.starts_with("/proc/");
  if (!is_named || (!S_ISFIFO(status.st_mode) && !S_ISCHR(status.st_mode))) {
    return Error{ErrorKind::kData, "this is a pipe, a device or a socket, not a file", name,
                 "put a regular file in its place"};
  }
  ::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) & ~O_NONBLOCK);
  return status;
}

class PosixFile final : public WritableFile {
 public:
  PosixFile(Path path, int fd) : path_(std::move(path)), fd_(fd) {}
  ~PosixFile() override {
    if (fd_ >= 0) ::close(fd_);
  }

  Result<> append(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const size_t chunk = std::min(bytes.size(), limits::kWriteChunkBytes);
      const ssize_t written = retry([&] { return ::write(fd_, bytes.data(), chunk); });
      if (written < 0) return disk_error(errno, "write", path_);
      bytes = bytes.subspan(static_cast<size_t>(written));
    }
    return {};
  }
  Result<> sync() override {
    if (retry([&] { return ::fsync(fd_); }) < 0) return disk_error(errno, "fsync", path_);
    return {};
  }
  Result<> close() override {
    if (fd_ < 0) return {};
    const int fd = fd_;
    fd_ = -1;
    // After EINTR Linux has closed it already; a second close could hit someone else's descriptor.
    if (::close(fd) < 0 && errno != EINTR) return disk_error(errno, "close", path_);
    return {};
  }
  [[nodiscard]] const Path& path() const override { return path_; }

 private:
  Path path_;
  int fd_;
};

class PosixEnv final : public Env {
 public:
  Result<std::string> read_file(const Path& path, uint64_t max_bytes) override {
    Fd fd(-1);
    const struct stat status = TRY(open_for_read(path, fd));
    // Pipes and /proc report size 0, so read to the end and check the limit meanwhile.
    std::string text;
    text.reserve(std::min<uint64_t>(static_cast<uint64_t>(status.st_size), max_bytes) + 1);
    const auto too_large = [&] {
      return Error{ErrorKind::kData, fmt::format("file is larger than the {} bytes allowed here", max_bytes),
                   path.string(), "check that it is the right file"};
    };
    if (static_cast<uint64_t>(status.st_size) > max_bytes) return too_large();
    while (true) {
      const size_t old_size = text.size();
      text.resize(std::max<size_t>(text.capacity(), old_size + 4096));
      const ssize_t got = retry([&] { return ::read(fd.get(), text.data() + old_size, text.size() - old_size); });
      if (got < 0) return read_error(errno, "read", path);
      text.resize(old_size + static_cast<size_t>(got));
      if (text.size() > max_bytes) return too_large();
      if (got == 0) return text;
    }
  }

  Result<MappedFile> map_file(const Path& path) override {
    Fd fd(-1);
    const struct stat status = TRY(open_for_read(path, fd));
    if (!S_ISREG(status.st_mode))
      return Error{ErrorKind::kData, "this is a pipe or a device, which cannot be read twice", path.string(),
                   "write its contents to a file, and name that file"};
    const auto size = static_cast<size_t>(status.st_size);
    if (size == 0) return MappedFile(path, nullptr, 0);
    void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (address == MAP_FAILED) return read_error(errno, "map", path);
    return MappedFile(path, address, size);
  }

  Result<FileInfo> info(const Path& path) override {
    struct stat status {};
    if (::stat(path.c_str(), &status) < 0) return read_error(errno, "look at", path);
    FileInfo info;
    info.size_bytes = static_cast<uint64_t>(status.st_size);
    info.modified_ns = int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
    info.is_file = S_ISREG(status.st_mode);
    info.is_directory = S_ISDIR(status.st_mode);
    return info;
  }

  // Links may lead in a circle. Reading them is an error, even where a missing file is not.
  bool exists(const Path& path) override { return ::access(path.c_str(), F_OK) == 0 || errno == ELOOP; }

  Result<std::vector<std::string>> list_dir(const Path& path) override {
    DIR* dir = ::opendir(path.c_str());
    if (dir == nullptr) return read_error(errno, "list", path);
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = ::readdir(dir)) {  // each DIR has its own buffer, so readdir is safe across threads
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
    }
    const int code = errno;
    ::closedir(dir);
    if (code != 0) return disk_error(code, "list", path);
    std::sort(names.begin(), names.end());
    return names;
  }

  Result<uint64_t> free_bytes(const Path& path) override {
    struct statvfs status {};
    if (retry([&] { return ::statvfs(path.c_str(), &status); }) < 0) return disk_error(errno, "look at", path);
    if (status.f_blocks == 0) return UINT64_MAX;  // a file system that does not report it
    return static_cast<uint64_t>(status.f_bavail) * static_cast<uint64_t>(status.f_frsize);
  }

  Result<std::unique_ptr<WritableFile>> open_for_write(const Path& path, WriteMode mode) override {
    const int flags = mode == WriteMode::kTruncate ? O_TRUNC : mode == WriteMode::kAppend ? O_APPEND : O_EXCL;
    const int fd = open_file(path, O_WRONLY | O_CREAT | flags);
    if (fd < 0) return disk_error(errno, "open for writing", path);
    return std::unique_ptr<WritableFile>(std::make_unique<PosixFile>(path, fd));
  }

  Result<> rename(const Path& from, const Path& to) override {
    if (std::rename(from.c_str(), to.c_str()) < 0) return disk_error(errno, "rename to " + to.string(), from);
    return {};
  }
  Result<> unlink(const Path& path) override {
    if (::unlink(path.c_str()) < 0) return disk_error(errno, "delete", path);
    return {};
  }
  Result<> remove_dir(const Path& path) override {
    if (::rmdir(path.c_str()) < 0) return disk_error(errno, "delete", path);
    return {};
  }
  Result<> create_dirs(const Path& path) override {
    std::error_code code;
    std::filesystem::create_directories(path, code);
    if (code) return disk_error(code.value(), "make folder", path);
    return {};
  }
  Result<> sync_dir(const Path& path) override {
    const Fd fd(open_file(path, O_RDONLY | O_DIRECTORY));
    if (!fd.ok()) return disk_error(errno, "open", path);
    // EINVAL: this kind of file system has nothing to sync for a folder.
    if (retry([&] { return ::fsync(fd.get()); }) < 0 && errno != EINVAL) return disk_error(errno, "fsync", path);
    return {};
  }

  int64_t wall_time_ns() override { return read_clock(CLOCK_REALTIME); }
  int64_t monotonic_ns() override { return read_clock(CLOCK_MONOTONIC); }

  void random_bytes(std::span<std::byte> out) override {
    while (!out.empty()) {
      const ssize_t got = retry([&] { return ::getrandom(out.data(), out.size(), 0); });
      if (got <= 0) std::abort();  // cannot happen on Linux >= 3.17 once the pool is up
      out = out.subspan(static_cast<size_t>(got));
    }
  }

 private:
  static int64_t read_clock(clockid_t id) {
    timespec now{};
    ::clock_gettime(id, &now);
    return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  }
};

}  // namespace

Env& default_env() {
  static auto* env = new PosixEnv;  // never destroyed: threads and exit handlers may still use it
  return *env;
}

}  // namespace mortise
