// Starts the servers, and sends them cases one at a time.
#include "conformance/server_pool.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>

#include "conformance/server.h"
#include "foundation/base/signal.h"

extern char** environ;

namespace mortise::check {
namespace {

Error no_process(int code) {
  return {ErrorKind::kInternal, std::string("cannot start a process for the cases: ") + ::strerror(code),
          "plugin check", "try --jobs 1, or free memory"};
}

}  // namespace

Result<ServerPool> ServerPool::start(std::vector<std::string> command, int num_jobs) {
  if (command.empty()) command = {"/proc/self/exe", "plugin", "check", "--serve-cases"};
  ServerPool pool;
  for (int i = 0; i < num_jobs; ++i) pool.servers_.push_back(TRY(spawn(command)));
  return pool;
}

Result<ServerPool::Server> ServerPool::spawn(const std::vector<std::string>& command) {
  int requests[2], replies[2];
  if (::pipe2(requests, O_CLOEXEC) != 0) return no_process(errno);
  if (::pipe2(replies, O_CLOEXEC) != 0) {
    ::close(requests[0]);
    ::close(requests[1]);
    return no_process(errno);
  }
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, requests[0], 0);
  ::posix_spawn_file_actions_adddup2(&actions, replies[1], 1);
  pid_t pid = -1;
  const int code = ::posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(requests[0]);
  ::close(replies[1]);
  if (code != 0) {
    ::close(requests[1]);
    ::close(replies[0]);
    return no_process(code);
  }
  return Server{pid, requests[1], replies[0], {}};
}

ServerPool::ServerPool(ServerPool&& other) noexcept : servers_(std::move(other.servers_)) { other.servers_.clear(); }

ServerPool::~ServerPool() {
  for (Server& server : servers_) {
    ::close(server.to);  // its requests end, and then the process
    ::close(server.from);
  }
  for (const Server& server : servers_) {
    if (stop_requested()) ::kill(server.pid, SIGTERM);
    int status = 0;
    while (::waitpid(server.pid, &status, 0) < 0 && errno == EINTR) {
    }
  }
}

void ServerPool::ask(Server& server, const Request& request, Outcome& outcome) {
  outcome.status = "failed";
  outcome.text = "the process that runs the cases has ended; this is a bug in Mortise";
  if (!write_all(server.to, dump_json(request_json(request)) + "\n")) return;
  size_t end = 0;
  while ((end = server.buffer.find('\n')) == std::string::npos) {
    char piece[65536];
    const ssize_t count = ::read(server.from, piece, sizeof piece);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;
    server.buffer.append(piece, static_cast<size_t>(count));
  }
  const auto reply = parse_json(std::string_view(server.buffer).substr(0, end), "reply");
  server.buffer.erase(0, end + 1);
  if (!reply.ok()) {
    outcome.text = reply.error().to_string();
    return;
  }
  outcome.status = reply->value("status", outcome.status);
  outcome.text = reply->value("text", std::string());
  outcome.output = reply->value("output", std::string());
  outcome.seconds = reply->value("seconds", 0.0);
}

void ServerPool::run(std::span<const Request> requests, const std::vector<size_t>& open,
                     std::vector<Outcome>& outcomes) {
  std::atomic<size_t> next = 0;
  const auto work = [&](Server& server) {
    while (!stop_requested()) {
      const size_t place = next++;
      if (place >= open.size()) return;
      ask(server, requests[open[place]], outcomes[open[place]]);
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < servers_.size(); ++i) threads.emplace_back(work, std::ref(servers_[i]));
  work(servers_.front());
  for (std::thread& thread : threads) thread.join();
}

}  // namespace mortise::check
