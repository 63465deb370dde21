// See weight_folder.h.
#include "weight_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>

#include <mortise/cpp/plugin.hpp>

#include "bfloat16.h"

namespace mortise {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kHeaderRoom = std::size_t(256) << 10;  // header of a file: some thousand tensors
constexpr std::uint64_t kMaxShardBytes = std::uint64_t(4) << 30;
constexpr const char* kPrefix = "mortise-weights-";

// Folders of processes that were killed fill the shared memory.
void remove_orphans(const std::string& parent) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind(kPrefix, 0) != 0) continue;
    const long pid = std::strtol(name.c_str() + std::strlen(kPrefix), nullptr, 10);
    if (pid > 0 && ::kill(pid_t(pid), 0) != 0 && errno == ESRCH) fs::remove_all(entry.path(), ignored);
  }
}

std::string shard_file(int number) {
  char name[48];
  std::snprintf(name, sizeof name, "model-%05d.safetensors", number);
  return name;
}

}  // namespace

WeightFolder::WeightFolder(std::string parent, bool bfloat16) : parent_(std::move(parent)), bfloat16_(bfloat16) {
  remove_orphans(parent_);
  static int count = 0;  // several backends in one process
  base_ = parent_ + "/" + kPrefix + std::to_string(::getpid()) + "-" + std::to_string(++count);
  std::error_code code;
  fs::create_directories(base_, code);
  if (code) fail_writing("cannot make the folder " + base_ + ": " + code.message());
}

WeightFolder::~WeightFolder() {
  if (fd_ >= 0) ::close(fd_);
  std::error_code ignored;
  fs::remove_all(base_, ignored);
}

void WeightFolder::fail_writing(const std::string& what) const {
  fail(MORTISE_RESOURCE_EXHAUSTED,
       what + ". Set weights_dir to a folder with room for the weights that the servers see too");
}

void WeightFolder::begin(std::int64_t version) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
  partial_ = base_ + "/partial";
  std::error_code code;
  fs::remove_all(partial_, code);
  fs::create_directories(partial_, code);
  if (code) fail_writing("cannot make the folder " + partial_ + ": " + code.message());
  old_ = whole_;
  whole_ = base_ + "/version-" + std::to_string(version);
  if (whole_ == old_) whole_ += "-again";
  num_shards_ = 0;
  total_bytes_ = 0;
  index_.clear();
  open_shard();
}

void WeightFolder::open_shard() {
  const std::string path = partial_ + "/" + shard_file(++num_shards_);
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0 || ::lseek(fd_, off_t(8 + kHeaderRoom), SEEK_SET) < 0)
    fail_writing("cannot write " + path + ": " + std::strerror(errno));
  shard_bytes_ = 0;
  header_ = R"({"__metadata__":{"format":"pt"})";
}

void WeightFolder::write(const void* data, std::size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t done = ::write(fd_, at, size);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) fail_writing("cannot write the weights to " + partial_ + ": " + std::strerror(errno));
    at += done;
    size -= std::size_t(done);
  }
}

void WeightFolder::close_shard() {
  header_ += '}';
  header_.resize(kHeaderRoom, ' ');
  unsigned char length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<unsigned char>(std::uint64_t(kHeaderRoom) >> (8 * i));
  const bool written = ::lseek(fd_, 0, SEEK_SET) == 0;
  if (written) {
    write(length, sizeof length);
    write(header_.data(), header_.size());
  }
  const int closed = ::close(fd_);
  fd_ = -1;
  if (!written || closed != 0) fail_writing("cannot write the weights to " + partial_ + ": " + std::strerror(errno));
}

void WeightFolder::add(std::string_view name, const std::int64_t* shape, std::int64_t num_dims, const float* data) {
  std::uint64_t count = 1;
  std::string dims;
  for (std::int64_t d = 0; d < num_dims; ++d) {
    count *= std::uint64_t(shape[d]);
    dims += (d > 0 ? "," : "") + std::to_string(shape[d]);
  }
  const std::uint64_t bytes = count * (bfloat16_ ? 2 : 4);
  const std::string entry = ",\"" + std::string(name) + "\":{\"dtype\":\"" + (bfloat16_ ? "BF16" : "F32") +
                            "\",\"shape\":[" + dims + "],\"data_offsets\":[";
  if (shard_bytes_ > 0 && (header_.size() + entry.size() + 64 > kHeaderRoom || shard_bytes_ + bytes > kMaxShardBytes)) {
    close_shard();
    open_shard();
  }
  header_ += entry + std::to_string(shard_bytes_) + "," + std::to_string(shard_bytes_ + bytes) + "]}";
  index_ += (index_.empty() ? "\"" : ",\"") + std::string(name) + "\":\"" + shard_file(num_shards_) + "\"";
  if (bfloat16_) {
    rounded_.resize(count);
    for (std::uint64_t i = 0; i < count; ++i) rounded_[i] = to_bfloat16(data[i]);
    write(rounded_.data(), bytes);
  } else {
    write(data, bytes);
  }
  shard_bytes_ += bytes;
  total_bytes_ += bytes;
}

std::string WeightFolder::finish() {
  close_shard();
  const std::string index =
      "{\"metadata\":{\"total_size\":" + std::to_string(total_bytes_) + "},\"weight_map\":{" + index_ + "}}\n";
  write_text("model.safetensors.index.json", index);
  return publish();
}

std::string WeightFolder::finish_adapter(const std::string& config) {
  close_shard();
  if (num_shards_ > 1) fail(MORTISE_INVALID_ARGUMENT, "the adapter is too large for one file");
  std::error_code code;
  fs::rename(partial_ + "/" + shard_file(1), partial_ + "/adapter_model.safetensors", code);
  if (code) fail_writing("cannot rename the adapter in " + partial_ + ": " + code.message());
  write_text("adapter_config.json", config);
  return publish();
}

void WeightFolder::write_text(const char* name, const std::string& text) {
  const std::string path = partial_ + "/" + name;
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail_writing("cannot write " + path + ": " + std::strerror(errno));
  write(text.data(), text.size());
  ::close(fd_);
  fd_ = -1;
}

std::string WeightFolder::publish() {
  std::error_code code;
  fs::rename(partial_, whole_, code);
  if (code) fail_writing("cannot rename " + partial_ + ": " + code.message());
  return whole_;
}

void WeightFolder::forget_old() {
  std::error_code ignored;
  if (!old_.empty() && old_ != whole_) fs::remove_all(old_, ignored);
  old_.clear();
}

}  // namespace mortise
