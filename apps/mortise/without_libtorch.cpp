// The commands of `mortise` that need libtorch: each replaces the process by mortise-engine, which has them. Process id,
// environment, open files and words stay. It costs a few milliseconds.
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>

#include "commands.h"
#include "engine_parts.h"
#include "foundation/base/log.h"
#include "foundation/base/this_program.h"
#include "pack_command.h"

namespace mortise {
namespace {

Result<> become_engine() {
  log_flush();
  std::cout.flush();
  const auto self = this_program();
  const std::string engine = self.empty() ? "mortise-engine" : (self.parent_path() / "mortise-engine").string();
  ::execvp(engine.c_str(), g_program_words);
  return Error{ErrorKind::kInternal, fmt::format("{} cannot be started: {}", engine, std::strerror(errno)), "mortise",
               "install mortise and mortise-engine of one build in the same folder"};
}

int run_in_engine() { return fail(become_engine().error()); }

}  // namespace

void prepare_engine() { g_become_engine = become_engine; }
std::optional<Error> engine_error(const std::exception& /*exception*/) { return std::nullopt; }

int cmd_train(Arguments /*args*/) { return run_in_engine(); }
int cmd_sft(Arguments /*args*/) { return run_in_engine(); }
int cmd_eval(Arguments /*args*/) { return run_in_engine(); }
int cmd_objective(Arguments /*args*/) { return run_in_engine(); }
int cmd_generate(Arguments /*args*/) { return run_in_engine(); }
int cmd_model(Arguments /*args*/) { return run_in_engine(); }
int cmd_checkpoint(Arguments /*args*/) { return run_in_engine(); }
int cmd_serve(Arguments /*args*/) { return run_in_engine(); }
int cmd_doctor(Arguments /*args*/) { return run_in_engine(); }
Result<> pack_lock(Arguments /*args*/) { return become_engine(); }

}  // namespace mortise
