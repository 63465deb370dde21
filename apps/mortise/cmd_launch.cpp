// mortise launch: several processes of one run on this machine.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "command_line.h"
#include "commands.h"
#include "dist/launch/local_group.h"
#include "foundation/base/cpus.h"
#include "foundation/base/log.h"
#include "foundation/base/private_folder.h"
#include "foundation/base/text.h"
#include "foundation/base/this_program.h"

namespace mortise {

namespace po = boost::program_options;

namespace {

constexpr const char* kName = "mortise launch";
constexpr int kMostProcesses = 1024;  // on one machine

constexpr const char* kUsage =
    "usage: mortise launch --nproc N [options] [--] COMMAND [its words]\n\n"
    "Starts a command as N processes (ranks) on this machine, for example\n"
    "  mortise launch --nproc 4 train run.toml\n"
    "Rank 0 writes to this terminal, the others to rank_1.log, rank_2.log, ... If a rank fails, the others stop, and\n"
    "the exit code is that of the rank that failed first. SIGINT and SIGTERM go to all ranks. Each rank computes with\n"
    "its share of the processors, unless OMP_NUM_THREADS or trainer.num_threads is set. On several machines, start the\n"
    "ranks with torchrun, srun or mpirun (docs/ranks.md).\n";

struct LaunchCommand {
  int nproc = 0;
  int port = 0;
  std::string log_dir;
  std::vector<std::string> words;  // the command
};

po::options_description launch_options(LaunchCommand& command) {
  po::options_description options("options", kHelpWidth);
  options.add_options()("help,h", "this text")("nproc", po::value(&command.nproc), "number of ranks")(
      "master-port", po::value(&command.port), "TCP port at which the ranks meet; default: a free one")(
      "log-dir", po::value(&command.log_dir),
      "folder for the logs of ranks 1, 2, ...; default: a temporary folder, which is removed if all goes well");
  return options;
}

// The options before the command are launch's; the command has its own.
size_t num_own_words(Arguments args) {
  size_t i = 0;
  while (i < args.size() && args[i].starts_with('-') && args[i] != "--")
    i += args[i].find('=') == std::string::npos ? 2 : 1;
  return std::min(i, args.size());
}

Result<LaunchCommand> parse_launch(Arguments args) {
  LaunchCommand command;
  const size_t own = num_own_words(args);
  TRY(parse_words(args.first(own), launch_options(command), kName));
  Arguments rest = args.subspan(own);
  if (!rest.empty() && rest.front() == "--") rest = rest.subspan(1);
  command.words.assign(rest.begin(), rest.end());
  if (command.nproc < 1 || command.nproc > kMostProcesses)
    return Error{ErrorKind::kConfig, fmt::format("--nproc is not a number from 1 to {}", kMostProcesses), kName,
                 "say how many ranks to start: `mortise launch --nproc 2 train run.toml`"};
  if (command.port < 0 || command.port > 65535)
    return Error{ErrorKind::kConfig, "--master-port is not a port", kName, "give a number from 1 to 65535"};
  if (command.words.empty())
    return Error{ErrorKind::kConfig, "no command was given", kName,
                 "name one after the options: `mortise launch --nproc 2 train run.toml`"};
  return command;
}

Result<Path> make_log_folder(const LaunchCommand& command) {
  if (command.log_dir.empty()) return make_private_folder("mortise_ranks_");
  TRY(default_env().create_dirs(command.log_dir));
  return Path(command.log_dir);
}

// The last lines of the log of a rank that failed: mostly its error.
std::string end_of_log(const Path& file) {
  const auto text = default_env().read_file(file);
  if (!text.ok()) return {};
  constexpr size_t kLines = 5;
  size_t begin = text->size();
  for (size_t lines = 0; begin > 0 && lines <= kLines; --begin)
    if ((*text)[begin - 1] == '\n' && begin != text->size() && ++lines == kLines) break;
  return text->substr(begin);
}

int threads_per_rank(int num_ranks) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr || std::getenv("MKL_NUM_THREADS") != nullptr) return 0;
  return std::max(1, usable_cpus() / num_ranks);
}

Result<int> run_launch(Arguments args) {
  const LaunchCommand command = TRY(parse_launch(args));
  LocalGroupOptions options;
  options.num_ranks = command.nproc;
  options.port = command.port;
  const auto program = this_program();
  if (program.empty()) return Error{ErrorKind::kInternal, "the path of this program is unknown", kName, "mount /proc"};
  options.command = {program.string()};
  options.command.insert(options.command.end(), command.words.begin(), command.words.end());
  options.threads_per_rank = threads_per_rank(command.nproc);
  options.log_folder = TRY(make_log_folder(command));
  const GroupEnd end = TRY(run_local_group(options));
  const bool temporary = command.log_dir.empty();
  if (end.code == 0 || end.code == static_cast<int>(ErrorKind::kSignal) || command.nproc == 1) {
    if (temporary) TRY(remove_tree(default_env(), options.log_folder));
    if (end.code == 0) return 0;
  }
  if (end.code == static_cast<int>(ErrorKind::kSignal) || command.nproc == 1) return end.code;
  const Path log = options.log_folder / fmt::format("rank_{}.log", end.rank);
  const std::string tail = end.rank > 0 ? end_of_log(log) : "";
  if (!tail.empty()) log_info(fmt::format("the end of {}:\n{}", log.string(), tail));
  const std::string logs =
      command.nproc == 2 ? "the log of rank 1 is" : fmt::format("the logs of ranks 1 to {} are", command.nproc - 1);
  log_error(fmt::format("{}; {} in {}", end.text, logs, options.log_folder.string()));
  return end.code;
}

}  // namespace

int cmd_launch(Arguments args) {
  if (wants_help(args.first(num_own_words(args)))) {
    LaunchCommand unused;
    std::cout << kUsage << "\n" << launch_options(unused);
    return 0;
  }
  const Result<int> code = run_launch(args);
  return code.ok() ? *code : fail(code.error());
}

}  // namespace mortise
