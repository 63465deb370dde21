// mortise-worker: the process in which rewards run. The trainer starts it and talks to it over descriptor 3.
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "foundation/base/secrets.h"
#include "foundation/base/text.h"
#include "plugin/worker/environment.h"
#include "plugin/worker/fork_server.h"
#include "plugin/worker/launcher.h"

#if defined(MORTISE_ASAN)
// The leak checker traces its own process, which the filter of system calls forbids here: it would only report that it
// cannot. A worker ends by _exit or by a signal, so this is about plugins that call exit().
extern "C" __attribute__((visibility("default"))) int __lsan_is_turned_off();  // NOLINT(bugprone-reserved-identifier)
extern "C" int __lsan_is_turned_off() { return 1; }
#endif

int main(int argc, char** argv) {
  struct stat status {};
  const bool started_by_trainer = argc == 2 && std::strcmp(argv[1], mortise::kWorkerArgument) == 0 &&
                                  ::fstat(mortise::kWorkerSocket, &status) == 0 && S_ISSOCK(status.st_mode);
  if (!started_by_trainer) {
    std::puts(
        "mortise-worker runs plugins apart from the trainer. A reward that crashes or hangs costs one row; a policy loss,\n"
        "a KL estimator or an advantage estimator costs at most the current step. `mortise train`, `mortise eval` and\n"
        "`mortise plugin` start it; it is of no use by hand. See plugins.isolation, actor.policy_loss.isolation,\n"
        "actor.kl_isolation, algorithm.kl_isolation and algorithm.adv_isolation in `mortise config explain`.");
    return argc == 2 && std::strcmp(argv[1], "--help") == 0 ? 0 : 2;
  }
  if (const char* names = std::getenv(mortise::kAddedNames); names != nullptr) {
    for (const std::string_view name : mortise::split(names, ',')) mortise::add_secret_variable(std::string(name));
  }
  const auto done = mortise::run_fork_server(mortise::Fd(mortise::kWorkerSocket));
  if (!done.ok()) std::fprintf(stderr, "mortise-worker: %s\n", done.error().to_string().c_str());
  // No exit handlers: some are code of the pack, which is not to run outside a worker.
  ::_exit(done.ok() ? 0 : static_cast<int>(done.error().kind));
}
