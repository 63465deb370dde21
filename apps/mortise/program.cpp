// What `mortise` and `mortise-engine` have in common: find the command, run it, return its exit code (docs/exit_codes.md).
// engine_parts.h says how they differ.
#include <fmt/core.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string_view>
#include <vector>

#include "caught.h"
#include "commands.h"
#include "dist/launch/rank_place.h"
#include "engine_parts.h"
#include "foundation/base/cpus.h"
#include "foundation/base/log.h"
#include "foundation/base/open_files.h"
#include "foundation/base/signal.h"
#include "foundation/base/text.h"
#include "plugin/host/process_watch.h"
#include "plugin/host/running_code.h"
#include "unknown_word.h"

namespace {

struct Command {
  const char* name;
  const char* summary;
  int (*run)(mortise::Arguments);
  bool joins_ranks = false;  // it calls join_ranks (core/dist/join.h); the others are one process
};

constexpr std::array kCommands{
    Command{"train", "train by reinforcement learning with the settings of a TOML file", mortise::cmd_train, true},
    Command{"sft", "fine-tune on given answers, as a warm start", mortise::cmd_sft, true},
    Command{"launch", "start a command as several processes on this machine", mortise::cmd_launch},
    Command{"eval", "validate a model on the validation files", mortise::cmd_eval, true},
    Command{"generate", "write completions for the prompts of a file", mortise::cmd_generate},
    Command{"serve", "serve a model over HTTP, as vLLM does", mortise::cmd_serve},
    Command{"model", "compute log-probs and logits of given tokens", mortise::cmd_model},
    Command{"checkpoint", "list, verify, inspect, compare and export checkpoints", mortise::cmd_checkpoint},
    Command{"tokenizer", "turn text into ids and back", mortise::cmd_tokenizer},
    Command{"chat", "turn messages into text with a chat template", mortise::cmd_chat},
    Command{"plugin", "list, describe and run plugins", mortise::cmd_plugin},
    Command{"pack", "build, sign, install and remove packs of plugins", mortise::cmd_pack},
    Command{"objective", "compute the actor's loss on given tensors", mortise::cmd_objective},
    Command{"top", "show what a run does now, from its files", mortise::cmd_top},
    Command{"report", "show what runs did, as one HTML page", mortise::cmd_report},
    Command{"doctor", "check what a run needs of this machine", mortise::cmd_doctor},
    Command{"config", "show, explain and import settings", mortise::cmd_config},
};

void print_usage(std::FILE* out) {
  std::fprintf(out,
               "mortise %s - RL post-training for language models, every algorithm a plugin\n\nusage: mortise COMMAND "
               "[options]\n\n",
               MORTISE_VERSION);
  for (const Command& command : kCommands) std::fprintf(out, "  %-10s %s\n", command.name, command.summary);
  std::fprintf(
      out,
      "\n`mortise COMMAND --help` says more. Exit codes: 0 done, 1 internal error, 2 command line or config,\n"
      "3 input files, 4 plugins, 5 numerics, 6 writing files, 7 another rank, 8 stopped by a signal, 9 rewards.\n"
      "First steps: `./dev quickstart`, then `mortise config explain actor`.\n");
}

// Several processes that each do the whole work, and write the same files, are never what was meant.
mortise::Error cannot_be_ranks(const std::string& command, const mortise::RankPlace& place) {
  return {mortise::ErrorKind::kConfig,
          fmt::format("this is rank {} of {} by the environment ({}), but `mortise {}` runs as one process", place.rank,
                      place.size, place.launcher, command),
          "mortise " + command, "start it once, without a launcher"};
}

int run(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.empty() || words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    print_usage(words.empty() ? stderr : stdout);
    return words.empty() ? 2 : 0;
  }
  if (words[0] == "--version" || words[0] == "version") {
    std::printf("mortise %s\n", MORTISE_VERSION);
    return 0;
  }
  const auto command =
      std::find_if(kCommands.begin(), kCommands.end(), [&](const Command& c) { return words[0] == c.name; });
  if (command == kCommands.end()) {
    std::vector<std::string> names;
    for (const Command& c : kCommands) names.emplace_back(c.name);
    return mortise::fail(
        words[0].starts_with('-')
            ? mortise::unknown_word("option", words[0], std::vector<std::string>{"--help", "--version"}, "mortise")
            : mortise::unknown_word("command", words[0], names, "mortise"));
  }
  std::error_code gone;
  (void)std::filesystem::current_path(gone);
  if (gone && !mortise::wants_help(mortise::Arguments(words)))  // libraries end the process without it
    return mortise::fail({mortise::ErrorKind::kConfig, "the working folder cannot be found: " + gone.message(),
                          "mortise", "change into a folder that exists"});
  if (!command->joins_ranks) {
    const auto place = mortise::find_rank_place(mortise::process_variables());
    if (place.ok() && place->size > 1) return mortise::fail(cannot_be_ranks(words[0], *place));
  }
  return command->run(mortise::Arguments(words).subspan(1));
}

// For `mortise plugin list | head`: the other end of the pipe is closed.
bool reader_has_gone() {
  pollfd output{STDOUT_FILENO, POLLOUT, 0};
  return poll(&output, 1, 0) == 1 && (output.revents & POLLERR) != 0;
}

// Ends silently by SIGPIPE, as other programs do. Shells show 141.
void end_by_broken_pipe() {
  mortise::log_flush();
  std::signal(SIGPIPE, SIG_DFL);
  std::raise(SIGPIPE);
}

}  // namespace

namespace mortise {

int run_program(int argc, char** argv) {
  g_program_words = argv;
  prepare_engine();
  ask_for_short_slices();
  raise_open_files_limit();
  install_stop_signals();
  // Cases of `plugin check` run in processes of their own, which tell by themselves how they ended.
  const bool checks = argc > 2 && std::string_view(argv[1]) == "plugin" && std::string_view(argv[2]) == "check";
  if (!checks) {
    install_crash_reports();
    install_process_watch();
  }
  int code = 1;
  try {
    code = run(argc, argv);
  } catch (const std::exception& exception) {  // the border to libtorch and to allocation failures
    const Error error = engine_error(exception).value_or(caught_error(exception));
    log_error(error);  // a run's log.txt has it too
    code = static_cast<int>(error.kind);
  }
  // A run's results are in its folder; every other command's are what it prints.
  const bool is_run = argc > 1 && (std::string_view(argv[1]) == "train" || std::string_view(argv[1]) == "sft");
  const bool printed = std::cout.flush().good() && std::fflush(stdout) == 0;
  if (!printed && !is_run && reader_has_gone()) end_by_broken_pipe();
  if (code == 0 && !is_run && !printed)
    code = fail({ErrorKind::kDisk, "standard output could not be written", "mortise", "look for a full disk"});
  log_flush();
  return code;
}

}  // namespace mortise
