// How a test's engine is asked for: engine_client.cpp sends a request to engine_server.cpp, which forks a process that has
// libtorch loaded already. Loading it takes a quarter of a second of processor time, and the tests start thousands of engines.
//
// Bytes of a request, over a Unix socket: its size, then texts that each end with a 0. With the size come the descriptors.
// The answer is the engine's process id, or 0 where the two processes differ in something that a new program inherits or
// reads while it is loaded, or where the fork cannot take the descriptors. At the end comes the engine's status, as of
// waitpid.
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
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace mortise::test {

struct EngineRequest {
  std::vector<std::string> words, variables;  // as main gets them
  std::string conditions;
  uint64_t ignored = 0;          // signals: bit i is signal i + 1
  std::vector<int> descriptors;  // all that are open; in the other process they get the same numbers
  int folder = -1;               // the working folder
};

// Lines of /proc/self/status.
constexpr std::array<std::string_view, 10> kInherited{
    "Umask:", "Uid:", "Gid:", "Groups:", "SigBlk:", "Cap", "NoNewPrivs:", "Seccomp", "Cpus_allowed:", "Mems_allowed:"};

// Variables that no library reads while it is loaded. A fork may have others than the server. Any other variable may be
// read then, so it must be the same.
constexpr std::array<std::string_view, 20> kReadLater{
    // Shells set these.
    "HOME=", "PATH=", "PWD=", "OLDPWD=", "SHLVL=", "_=", "TERM=", "TMPDIR=", "XDG_",
    // Mortise, its ranks and its tests read these.
    "MORTISE_", "GAME_", "HF_", "NO_COLOR=", "no_proxy=", "RANK=", "WORLD_SIZE=", "LOCAL_RANK=", "LOCAL_WORLD_SIZE=",
    "MASTER_ADDR=", "MASTER_PORT="};

inline std::string variables_read_while_loading(std::vector<std::string> variables) {
  std::erase_if(variables, [](const std::string& one) {
    return std::ranges::any_of(kReadLater, [&](std::string_view start) { return one.starts_with(start); });
  });
  std::ranges::sort(variables);
  std::string text;
  for (const std::string& one : variables) text += one + "\n";
  return text;
}

// What both processes must have in common. `variables` are those that the program began with.
inline std::string conditions_of_process(const std::vector<std::string>& variables) {
  std::string text = variables_read_while_loading(variables);
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (std::ranges::any_of(kInherited, [&](std::string_view name) { return line.starts_with(name); }))
      text += line + "\n";
  text += std::to_string(::sched_getscheduler(0)) + " " + std::to_string(::getpriority(PRIO_PROCESS, 0)) + "\n";
  for (int kind = 0; kind < RLIMIT_NLIMITS; ++kind) {
    rlimit limit{};
    ::getrlimit(static_cast<__rlimit_resource>(kind), &limit);
    // `mortise` raises its limit on open files; the engine does that again.
    text += (kind == RLIMIT_NOFILE ? "" : std::to_string(limit.rlim_cur)) + " " + std::to_string(limit.rlim_max) + "\n";
  }
  for (const char* kind : {"cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"}) {
    std::error_code missing;
    text += std::filesystem::read_symlink(std::string("/proc/self/ns/") + kind, missing).string() + "\n";
  }
  std::string score;
  std::getline(std::ifstream("/proc/self/oom_score_adj"), score);
  return text + score + "\n";
}

// The signals that this process ignores. A fork takes these over: programs that a script starts in the background
// ignore SIGINT and SIGQUIT, and the ranks of `mortise launch` do not.
inline uint64_t ignored_signals() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("SigIgn:")) return std::stoull(line.substr(7), nullptr, 16);
  return 0;
}

// Ignores these and no others. Handlers stay: a library may have installed them while it was loaded.
inline void ignore_signals(uint64_t ignored) {
  const uint64_t changed = ignored ^ ignored_signals();
  for (int number = 1; number < NSIG; ++number)
    if ((changed >> (number - 1) & 1) != 0) std::signal(number, (ignored >> (number - 1) & 1) != 0 ? SIG_IGN : SIG_DFL);
}

inline std::vector<std::string> variables_of_process() {
  std::vector<std::string> all;
  for (char** one = environ; *one != nullptr; ++one) all.emplace_back(*one);
  return all;
}

// The server of a program, which a build may replace, and of a set of conditions. The name is an abstract one: it is free
// again when the server ends.
struct EngineAddress {
  EngineAddress(const std::filesystem::path& programs, const std::string& conditions) {
    struct stat server {};
    ::stat((programs / "engine_server").c_str(), &server);
    std::string text = "mortise-engine";
    for (const uint64_t number : {uint64_t{server.st_dev}, uint64_t{server.st_ino}, uint64_t(server.st_mtim.tv_sec),
                                  uint64_t(server.st_mtim.tv_nsec), uint64_t{std::hash<std::string>{}(conditions)}})
      text += " " + std::to_string(number);
    name.sun_family = AF_UNIX;
    std::ranges::copy(text, name.sun_path + 1);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  }
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }

  sockaddr_un name{};
  socklen_t size = 0;
};

// Anybody on this machine may take or ask for an abstract name.
inline bool is_of_this_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::geteuid();
}

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

// A message of one number, and room for the descriptors that come with it.
struct NumberMessage {
  explicit NumberMessage(size_t num_descriptors) : control(CMSG_SPACE(num_descriptors * sizeof(int))) {
    header.msg_iov = &bytes;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }
  NumberMessage(const NumberMessage&) = delete;
  NumberMessage& operator=(const NumberMessage&) = delete;

  uint64_t number = 0;
  iovec bytes{&number, sizeof number};
  std::vector<char> control;
  msghdr header{};
};

inline bool send_request(int socket, const EngineRequest& request) {
  std::string text = request.conditions + '\0' + std::to_string(request.ignored) + '\0';
  for (const auto* list : {&request.words, &request.variables}) {
    text += std::to_string(list->size()) + '\0';
    for (const std::string& one : *list) text += one + '\0';
  }
  for (const int number : request.descriptors) text += std::to_string(number) + '\0';

  std::vector<int> passed = request.descriptors;
  passed.push_back(request.folder);
  if (passed.size() > kMostDescriptors) return false;
  NumberMessage message(passed.size());
  message.number = text.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message.header);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(passed.size() * sizeof(int));
  std::memcpy(CMSG_DATA(header), passed.data(), passed.size() * sizeof(int));
  return ::sendmsg(socket, &message.header, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof message.number) &&
         write_all(socket, text.data(), text.size());
}

// The received descriptors, in the order of `request.descriptors`, with the folder last; empty if no whole request came.
inline std::vector<int> receive_request(int socket, EngineRequest& request) {
  NumberMessage message(kMostDescriptors);
  if (::recvmsg(socket, &message.header, 0) != static_cast<ssize_t>(sizeof message.number)) return {};
  const cmsghdr* const header = CMSG_FIRSTHDR(&message.header);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return {};
  std::vector<int> passed((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
  std::memcpy(passed.data(), CMSG_DATA(header), passed.size() * sizeof(int));

  std::string text(message.number, '\0');
  if (!read_all(socket, text.data(), text.size())) return {};
  std::string_view rest = text;
  const auto next = [&rest] {
    const std::string one(rest.substr(0, rest.find('\0')));
    rest.remove_prefix(one.size() + 1);
    return one;
  };
  request.conditions = next();
  request.ignored = std::stoull(next());
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
