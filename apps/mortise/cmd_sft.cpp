// mortise sft: supervised warm start.
#include "foundation/base/log.h"
#include "run_command.h"
#include "train/sft.h"

namespace mortise {

namespace {

Result<int> run_sft(Arguments args, const boost::program_options::options_description& options) {
  const RunCommand command = TRY(parse_run_command(args, options, ConfigUse::kSft));
  const SftSummary summary = TRY(sft(default_env(), command.config, resume_request(command)));
  std::string text = summary.train.stopped_by_signal ? "stopped by a signal, the same command resumes it: " : "done: ";
  text += std::to_string(summary.train.steps) + " updates";
  if (summary.val_accuracy >= 0) text += ", validation reward " + std::to_string(summary.val_accuracy);
  if (!summary.train.last_checkpoint.empty()) text += "; model in " + summary.train.last_checkpoint + "/huggingface";
  log_info(text);
  return summary.train.stopped_by_signal ? static_cast<int>(ErrorKind::kSignal) : 0;
}

}  // namespace

int cmd_sft(Arguments args) {
  boost::program_options::options_description options("options", kHelpWidth);
  options.add_options()("help,h", "this text");
  add_resume_options(options);
  if (wants_help(args)) {
    print_run_help(
        "sft",
        "Trains the policy on prompts and given completions (data.response_key), or on whole chats\n"
        "(data.messages_key): the mean cross-entropy of the completion's tokens, of all tokens of a chat, or\n"
        "with sft.assistant_only_loss of the assistant's. Settings: [sft], [model], [data], [actor.optim],\n"
        "[trainer].",
        options);
    return 0;
  }
  return finish_run(run_sft(args, options));
}

}  // namespace mortise
