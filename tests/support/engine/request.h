// How a test's engine is asked for: engine_client.cpp sends a request to engine_server.cpp, which forks a process that has
// libtorch loaded already. Loading it takes a quarter of a second of processor time, and the tests start thousands of engines.
//
// Bytes of a request, over a Unix socket: its size, then texts that each end with a 0. With the size come the descriptors.
// The answer is the engine's process id, or 0 where the two processes differ in something that a new program inherits or
// reads while it is loaded. At the end comes the engine's status, as of waitpid.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace mortise::test {

struct EngineRequest {
  std::vector<std::string> words, variables;  // as main gets them
  std::string conditions;
  std::vector<int> descriptors;  // all that are open; in the other process they get the same numbers
  int folder = -1;               // the working folder
};

// Lines of /proc/self/status.
constexpr std::array<std::string_view, 10> kInherited{
    "Umask:", "Uid:", "Gid:", "Groups:", "SigBlk:", "Cap", "NoNewPrivs:", "Seccomp:", "Cpus_allowed:", "Mems_allowed:"};

// `mortise` ignores SIGPIPE and SIGXFSZ, and so will the engine. posix_spawn ignores the two signals of the C library.
constexpr uint64_t kIgnoredAnyway = 1ULL << (SIGPIPE - 1) | 1ULL << (SIGXFSZ - 1) | 1ULL << 31 | 1ULL << 32;

// What both processes must have in common. `variables` are those that the program began with.
inline std::string conditions_of_process(const std::vector<std::string>& variables) {
  std::vector<std::string> read_while_loading;
  for (const char* start :
       {"OMP_", "GOMP_", "KMP_", "MKL_", "LD_", "MALLOC_", "GLIBC_", "TORCH", "PYTORCH_", "ATEN_", "C10_"})
    for (const std::string& one : variables)
      if (one.starts_with(start)) read_while_loading.push_back(one);
  std::sort(read_while_loading.begin(), read_while_loading.end());
  std::string text;
  for (const std::string& one : read_while_loading) text += one + "\n";

  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("SigIgn:"))
      line = std::to_string(std::stoull(line.substr(7), nullptr, 16) & ~kIgnoredAnyway);
    else if (std::ranges::none_of(kInherited, [&](std::string_view name) { return line.starts_with(name); }))
      continue;
    text += line + "\n";
  }
  text += std::to_string(::sched_getscheduler(0)) + " " + std::to_string(::getpriority(PRIO_PROCESS, 0)) + "\n";
  for (int kind = 0; kind < RLIMIT_NLIMITS; ++kind) {
    rlimit limit{};
    ::getrlimit(static_cast<__rlimit_resource>(kind), &limit);
    // `mortise` raises its limit on open files; the engine does that again.
    text += (kind == RLIMIT_NOFILE ? "" : std::to_string(limit.rlim_cur)) + " " + std::to_string(limit.rlim_max) + "\n";
  }
  for (const char* kind : {"cgroup", "ipc", "mnt", "net", "pid", "user", "uts"}) {
    std::error_code missing;
    text += std::filesystem::read_symlink(std::string("/proc/self/ns/") + kind, missing).string() + "\n";
  }
  return text;
}

// The socket lies in the folder of the programs. A path of any length works through the folder's descriptor.
struct EngineAddress {
  explicit EngineAddress(const std::filesystem::path& programs)
      : folder(::open(programs.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)) {
    name.sun_family = AF_UNIX;
    const std::string path = "/proc/self/fd/" + std::to_string(folder) + "/engine.socket";
    std::copy_n(path.begin(), std::min(path.size(), sizeof name.sun_path - 1), name.sun_path);
  }
  EngineAddress(const EngineAddress&) = delete;
  EngineAddress& operator=(const EngineAddress&) = delete;
  ~EngineAddress() { ::close(folder); }
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }

  int folder;
  sockaddr_un name{};
};

inline bool write_all(int socket, const void* bytes, size_t size) {
  for (size_t done = 0; done < size;) {
    const ssize_t sent = ::send(socket, static_cast<const char*>(bytes) + done, size - done, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    done += static_cast<size_t>(sent);
  }
  return true;
}

inline bool read_all(int socket, void* bytes, size_t size) {
  for (size_t done = 0; done < size;) {
    const ssize_t got = ::recv(socket, static_cast<char*>(bytes) + done, size - done, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    done += static_cast<size_t>(got);
  }
  return true;
}

// The kernel passes at most 253 descriptors in one message.
constexpr size_t kMostDescriptors = 253;

inline bool send_request(int socket, const EngineRequest& request) {
  std::string text = request.conditions + '\0';
  for (const auto* list : {&request.words, &request.variables}) {
    text += std::to_string(list->size()) + '\0';
    for (const std::string& one : *list) text += one + '\0';
  }
  for (const int number : request.descriptors) text += std::to_string(number) + '\0';

  std::vector<int> passed = request.descriptors;
  passed.push_back(request.folder);
  if (passed.size() > kMostDescriptors) return false;
  std::vector<char> control(CMSG_SPACE(passed.size() * sizeof(int)));
  uint64_t size = text.size();
  iovec bytes{&size, sizeof size};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(passed.size() * sizeof(int));
  std::memcpy(CMSG_DATA(header), passed.data(), passed.size() * sizeof(int));
  return ::sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof size) &&
         write_all(socket, text.data(), text.size());
}

// The received descriptors, in the order of `request.descriptors`, with the folder last; empty if no whole request came.
inline std::vector<int> receive_request(int socket, EngineRequest& request) {
  std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> control{};
  uint64_t size = 0;
  iovec bytes{&size, sizeof size};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  if (::recvmsg(socket, &message, 0) != static_cast<ssize_t>(sizeof size)) return {};
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return {};
  std::vector<int> passed((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
  std::memcpy(passed.data(), CMSG_DATA(header), passed.size() * sizeof(int));

  std::string text(size, '\0');
  if (!read_all(socket, text.data(), text.size())) return {};
  std::string_view rest = text;
  const auto next = [&rest] {
    const std::string one(rest.substr(0, rest.find('\0')));
    rest.remove_prefix(one.size() + 1);
    return one;
  };
  request.conditions = next();
  for (auto* list : {&request.words, &request.variables}) {
    list->resize(std::stoull(next()));
    for (std::string& one : *list) one = next();
  }
  while (!rest.empty()) request.descriptors.push_back(std::stoi(next()));
  if (passed.size() != request.descriptors.size() + 1) return {};
  return passed;
}

// The numbers of all descriptors that a new program would inherit.
inline std::vector<int> inherited_descriptors() {
  std::vector<int> numbers;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int number = std::stoi(entry.path().filename().string());
    const int flags = ::fcntl(number, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC) == 0) numbers.push_back(number);
  }
  return numbers;
}

}  // namespace mortise::test
