// mortise-worker with the system calls of a FaultySystem: the faults are the lines "call first code times" of the file
// that is named as this program was called, with ".faults" behind it.
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "plugin/worker/fork_server.h"
#include "plugin/worker/launcher.h"
#include "support/faulty_system.h"

int main(int, char** argv) {
  static mortise::test::FaultySystem system;
  std::ifstream lines(std::string(argv[0]) + ".faults");
  mortise::test::Fault fault;
  while (lines >> fault.call >> fault.first >> fault.code >> fault.times) system.fail(fault);
  const auto done = mortise::run_fork_server(mortise::Fd(mortise::kWorkerSocket), system);
  if (!done.ok()) std::fprintf(stderr, "faulty_worker: %s\n", done.error().to_string().c_str());
  ::_exit(done.ok() ? 0 : static_cast<int>(done.error().kind));
}
