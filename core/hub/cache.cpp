// Reads and writes the hub's cache.
#include "hub/cache.h"

#include <fmt/core.h>

#include <algorithm>
#include <boost/uuid/detail/sha1.hpp>
#include <thread>

#include "foundation/base/log.h"
#include "foundation/base/text.h"
#include "foundation/formats/sha256.h"

namespace mortise {
namespace {

namespace fs = std::filesystem;

std::string folder_name(const HubName& name) {
  std::string text = name.full();
  for (size_t at = 0; (at = text.find('/', at)) != std::string::npos;) text.replace(at, 1, "--");
  return text;
}

// Git's id of a file: the SHA-1 of "blob SIZE", a zero byte, and its bytes.
std::string git_id(std::string_view bytes) {
  boost::uuids::detail::sha1 hash;
  const std::string head = fmt::format("blob {}", bytes.size());
  hash.process_bytes(head.c_str(), head.size() + 1);
  hash.process_bytes(bytes.data(), bytes.size());
  boost::uuids::detail::sha1::digest_type words;
  hash.get_digest(words);
  std::string text;
  for (const unsigned int word : words) text += fmt::format("{:08x}", word);
  return text;
}

}  // namespace

HubCache::HubCache(Env& env, const Path& root, const HubName& name)
    : env_(env), root_(root), repo_(folder_name(name)), folder_(root / repo_) {}

std::optional<std::string> HubCache::commit_of(const std::string& revision) const {
  if (is_commit(revision)) return revision;
  const Path ref = folder_ / "refs" / revision;
  constexpr uint64_t kMaxRefBytes = 1024;
  const auto text = env_.exists(ref) ? env_.read_file(ref, kMaxRefBytes) : Result<std::string>(std::string());
  const std::string commit(text.ok() ? trim(*text) : "");
  return is_commit(commit) ? std::optional(commit) : std::nullopt;
}

Result<> HubCache::remember(const std::string& revision, const std::string& commit) {
  if (is_commit(revision) || commit_of(revision) == commit) return {};
  const Path ref = folder_ / "refs" / revision;
  TRY(env_.create_dirs(ref.parent_path()));
  return write_file_atomic(env_, ref, commit);
}

std::vector<std::string> HubCache::files_of(const std::string& commit) const {
  std::vector<std::string> files;
  std::error_code failed;
  const Path root = snapshot(commit);
  for (fs::recursive_directory_iterator it(root, failed), end; !failed && it != end; it.increment(failed)) {
    std::error_code missing;
    if (fs::is_regular_file(it->path(), missing)) files.push_back(it->path().lexically_relative(root).string());
  }
  std::ranges::sort(files);
  return files;
}

Result<> HubCache::make_folders() {
  TRY(env_.create_dirs(folder_ / "blobs"));
  TRY(env_.create_dirs(folder_ / "snapshots"));
  return env_.create_dirs(root_ / ".locks" / repo_);
}

Result<FolderLock> HubCache::lock_blob(const std::string& etag) {
  const Path file = root_ / ".locks" / repo_ / (etag + ".lock");
  for (int tries = 0;; ++tries) {
    auto lock = FolderLock::take_file(file);
    if (lock.ok()) return lock;
    constexpr int kTellAfter = 20;
    if (tries == kTellAfter) log_info(fmt::format("waiting for another process that downloads a file of {}", repo_));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

Result<> HubCache::link(const std::string& commit, const std::string& path, const std::string& etag) {
  const Path pointer = snapshot(commit) / path;
  TRY(env_.create_dirs(pointer.parent_path()));
  std::error_code failed;
  const Path target = blob(etag).lexically_relative(pointer.parent_path());
  if (fs::is_symlink(pointer, failed) && fs::read_symlink(pointer, failed) == target) return {};
  fs::remove(pointer, failed);
  fs::create_symlink(target, pointer, failed);
  // Another process may have made it in between.
  if (failed && failed != std::errc::file_exists) return disk_error(failed.value(), "make a link", pointer);
  return {};
}

Result<> check_blob(Env& env, const Path& file, const std::string& etag) {
  constexpr size_t kSha256Digits = 64;
  std::string found;
  if (etag.size() == kSha256Digits) {
    found = TRY(sha256_file_hex(env, file));
  } else if (TRY(env.info(file)).size_bytes == 0) {
    found = git_id("");  // an empty file cannot be mapped
  } else {
    const MappedFile bytes = TRY(env.map_file(file));
    found = git_id(bytes.text());
  }
  if (found == etag) return {};
  return Error{ErrorKind::kData, fmt::format("the bytes that arrived have the hash {} instead of {}", found, etag),
               file.string(), "try again; a proxy may have changed them"};
}

}  // namespace mortise
