// mortise sft: supervised warm start.
#include "foundation/base/log.h"

#include <fmt/core.h>
#include "as_rank.h"
#include "run_command.h"
#include "train/loop/sft.h"

namespace mortise {

namespace {

Result<int> sft_as_rank(const RunCommand& command, Communicator& ranks) {
  const SftSummary summary = TRY(sft(default_env(), command.config, resume_request(command), ranks));
  std::string text = summary.train.stopped_by_signal ? "stopped by a signal, the same command resumes it: " : "done: ";
  text += std::to_string(summary.train.steps) + " updates";
  if (summary.val_accuracy >= 0) text += ", validation reward " + std::to_string(summary.val_accuracy);
  if (!summary.train.last_checkpoint.empty())
    text += fmt::format("; model in {}/huggingface", summary.train.last_checkpoint);
  log_info(text);
  return summary.train.stopped_by_signal ? static_cast<int>(ErrorKind::kSignal) : 0;
}

Result<int> run_sft(Arguments args, const boost::program_options::options_description& options) {
  const RunCommand command = TRY(parse_run_command(args, options, ConfigUse::kSft));
  if (TRY(print_dry_run(command, ConfigUse::kSft))) return 0;
  return run_as_rank(command.config.config, [&](Communicator& ranks) { return sft_as_rank(command, ranks); });
}

}  // namespace

int cmd_sft(Arguments args) {
  boost::program_options::options_description options("options", kHelpWidth);
  options.add_options()("help,h", "this text");
  add_dry_run_options(options);
  add_resume_options(options);
  if (wants_help(args)) {
    print_run_help(
        "sft",
        "Trains the policy on prompts with given completions (data.response_key), or on whole chats\n"
        "(data.messages_key). The loss is the mean cross-entropy of the completions' tokens, of all tokens of the\n"
        "chats, or of the assistant's tokens with sft.assistant_only_loss. It reads the tables [sft], [model],\n"
        "[data], [actor.optim] and [trainer].",
        options);
    return 0;
  }
  return finish_run(run_sft(args, options));
}

}  // namespace mortise
