// Opens, reads, hashes and seals a pack file.
#include "plugin/pack/pack_file.h"

#include <fmt/core.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "foundation/base/env.h"
#include "foundation/base/limits.h"
#include "foundation/base/open_files.h"
#include "foundation/base/text.h"
#include "foundation/formats/sha256.h"
#include "plugin/pack/audit.h"
#include "plugin/pack/elf_reader.h"
#include "plugin/pack/note.h"
#include "plugin/pack/seal_memory.h"

namespace mortise {
namespace {

constexpr uint64_t kMaxPackBytes = 2048 * limits::kMiB;
constexpr const char* kSealNext = "use a kernel (3.17 or later) and a sandbox that allow memfd_create with seals";
constexpr const char* kBusyNext =
    "something else holds the memory of the copy; start again when the machine is less busy";

Error plugin_error(std::string what, const std::string& path, std::string next) {
  return {ErrorKind::kPlugin, std::move(what), path, std::move(next)};
}

Result<std::unique_ptr<std::byte[]>> read_all(int fd, uint64_t size, const std::string& path) {
  auto bytes = std::make_unique_for_overwrite<std::byte[]>(size);
  uint64_t done = 0;
  while (done < size) {
    const ssize_t count = ::pread(fd, bytes.get() + done, size - done, static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return disk_error(errno, "read", path);
    if (count == 0)
      return plugin_error("the file became shorter while it was read", path, "try again when its build is done");
    done += static_cast<uint64_t>(count);
  }
  return bytes;
}

// -1 if there is none.
int executable_memory(const std::string& name) {
#ifdef MFD_EXEC
  const int made = ::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_EXEC);
  if (made >= 0 || errno != EINVAL) return made;
#endif
  return ::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

bool write_all(int fd, std::span<const std::byte> bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t count = ::write(fd, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    done += static_cast<size_t>(count);
  }
  return true;
}

}  // namespace

Result<PackFile> PackFile::open(const std::filesystem::path& path) {
  PackFile file;
  std::error_code ignored;
  const auto absolute = std::filesystem::absolute(path, ignored).lexically_normal();
  file.path_ = absolute.empty() ? path.string() : absolute.string();
  // O_NONBLOCK: a fifo under a pack's name must not hang the scan.
  file.fd_ = ::open(file.path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.fd_ < 0) {
    const int code = errno;
    Error error = disk_error(code, "open", file.path_);
    if (code != EIO && code != EMFILE && code != ENFILE) error.kind = ErrorKind::kData;  // what was named is not there
    return error;
  }
  struct stat status {};
  if (::fstat(file.fd_, &status) != 0) return disk_error(errno, "look at", file.path_);
  if (!S_ISREG(status.st_mode)) return plugin_error("not a regular file", file.path_, "name the pack's shared object");
  file.size_ = static_cast<size_t>(status.st_size);
  if (file.size_ > kMaxPackBytes) return plugin_error("larger than 2 GiB", file.path_, "keep data out of the pack");
  file.bytes_ = TRY(read_all(file.fd_, file.size_, file.path_));
  file.sha256_ = to_hex(mortise::sha256(file.bytes()));
  return file;
}

PackFile::PackFile(PackFile&& other) noexcept
    : path_(std::move(other.path_)),
      sha256_(std::move(other.sha256_)),
      bytes_(std::move(other.bytes_)),
      size_(std::exchange(other.size_, 0)),
      fd_(std::exchange(other.fd_, -1)) {}

PackFile& PackFile::operator=(PackFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(sha256_, other.sha256_);
  std::swap(bytes_, other.bytes_);
  std::swap(size_, other.size_);
  std::swap(fd_, other.fd_);
  return *this;
}

PackFile::~PackFile() {
  if (fd_ >= 0) ::close(fd_);
}

Result<> PackFile::seal() {
  const auto cannot = [&](std::string_view what, std::string next) {
    return plugin_error("cannot be sealed before it is loaded: " + std::string(what), path_, std::move(next));
  };
  // The limit on the length of files holds for memory too, and ends the process that passes it.
  rlimit longest{};
  if (::getrlimit(RLIMIT_FSIZE, &longest) == 0 && longest.rlim_cur != RLIM_INFINITY && longest.rlim_cur < size_)
    return cannot(fmt::format("the limit on the length of files is {}, the pack has {}", format_bytes(longest.rlim_cur),
                              format_bytes(size_)),
                  "raise the limit (ulimit -f, or the worker's) above the size of the pack");
  const int copy = executable_memory(std::filesystem::path(path_).filename().string().substr(0, 200));
  if (copy < 0) return cannot(std::string("memfd_create: ") + std::strerror(errno), resource_advice(errno, kSealNext));
  constexpr int kAllSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;
  const bool written = write_all(copy, bytes());
  if (!written || !seal_memory(copy, kAllSeals)) {
    const int reason = errno;
    ::close(copy);
    return cannot(
        fmt::format("{}: {}", written ? "its seals cannot be set" : "no memory for its copy", std::strerror(reason)),
        written && reason == EBUSY ? kBusyNext : kSealNext);
  }
  ::close(fd_);
  fd_ = copy;
  return {};
}

std::string PackFile::descriptor_path() const { return "/proc/self/fd/" + std::to_string(fd_); }

Result<PackInfo> inspect_pack(const PackFile& file, std::string_view host_torch) {
  const ElfSummary elf = TRY(read_elf(file.bytes(), file.path()));
  TRY(audit_major(elf, file.path()));
  const std::string_view note = TRY(find_note(elf, file.path()));
  PackInfo pack = TRY(parse_note(note, file.path()));
  pack.path = file.path();
  pack.sha256 = file.sha256();
  TRY(audit_elf(elf, file.path()));
  TRY(audit_pack(elf, pack, host_torch));
  return pack;
}

Result<PackInfo> inspect_pack(const std::filesystem::path& path, std::string_view host_torch) {
  const PackFile file = TRY(PackFile::open(path));
  return inspect_pack(file, host_torch);
}

}  // namespace mortise
