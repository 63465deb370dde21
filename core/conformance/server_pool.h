// Processes that serve cases (server.h), one per job, started from this program.
//
// Threading: start and destroy on one thread, the main one: the processes end with the thread that started them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "conformance/check.h"
#include "conformance/subject.h"
#include "foundation/base/result.h"

namespace mortise::check {

class ServerPool {
 public:
  // `command`: program and arguments; empty: this program, `plugin check --serve-cases`.
  static Result<ServerPool> start(std::vector<std::string> command, int num_jobs);
  ServerPool(ServerPool&& other) noexcept;
  ServerPool(const ServerPool&) = delete;
  ServerPool& operator=(const ServerPool&) = delete;
  ServerPool& operator=(ServerPool&&) = delete;
  ~ServerPool();

  // Runs requests[i] for every i of `open` and fills outcomes[i]. Stops early if a stop of the program was requested.
  void run(std::span<const Request> requests, const std::vector<size_t>& open, std::vector<Outcome>& outcomes);

 private:
  struct Server {
    int pid = -1;
    int to = -1, from = -1;
    std::string buffer;
  };
  ServerPool() = default;
  static Result<Server> spawn(const std::vector<std::string>& command);
  static void ask(Server& server, const Request& request, Outcome& outcome);
  std::vector<Server> servers_;
};

}  // namespace mortise::check
