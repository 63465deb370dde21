// mortise-worker: the process in which rewards run. The trainer starts it and talks to it over descriptor 3.
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstring>

#include "plugin/worker/launcher.h"
#include "plugin/worker/zygote.h"

int main(int argc, char** argv) {
  struct stat status {};
  const bool started_by_trainer = argc == 2 && std::strcmp(argv[1], mortise::kWorkerArgument) == 0 &&
                                  ::fstat(mortise::kWorkerSocket, &status) == 0 && S_ISSOCK(status.st_mode);
  if (!started_by_trainer) {
    std::puts(
        "mortise-worker runs reward plugins apart from the trainer, so that a crash or a hang costs one row.\n"
        "`mortise train` and `mortise eval` start it; it is of no use by hand. See plugins.isolation in\n"
        "`mortise config explain plugins`.");
    return argc == 2 && std::strcmp(argv[1], "--help") == 0 ? 0 : 2;
  }
  const auto done = mortise::run_zygote(mortise::Fd(mortise::kWorkerSocket));
  if (done.ok()) return 0;
  std::fprintf(stderr, "mortise-worker: %s\n", done.error().to_string().c_str());
  return static_cast<int>(done.error().kind);
}
