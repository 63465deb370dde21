// The commands of the program: each takes the words after its name and returns the exit code (docs/exit_codes.md).
#pragma once

#include <iostream>
#include <span>
#include <string>

#include "foundation/base/result.h"
#include "foundation/base/shown_text.h"

namespace mortise {

using Arguments = std::span<const std::string>;

// Columns of the options' help, as wide as the other help texts.
inline constexpr unsigned kHelpWidth = 110;

int cmd_train(Arguments args);
int cmd_sft(Arguments args);
int cmd_launch(Arguments args);
int cmd_eval(Arguments args);
int cmd_objective(Arguments args);
int cmd_generate(Arguments args);
int cmd_model(Arguments args);
int cmd_model_save(Arguments args);  // `model save`
int cmd_checkpoint(Arguments args);
int cmd_tokenizer(Arguments args);
int cmd_chat(Arguments args);
int cmd_plugin(Arguments args);
int cmd_pack(Arguments args);
int cmd_doctor(Arguments args);
int cmd_report(Arguments args);
int cmd_top(Arguments args);
int cmd_serve(Arguments args);
int cmd_config(Arguments args);

// Prints "error: ..." to standard error and returns the kind's exit code. An error may quote a file of someone else:
// nothing that a terminal would obey is printed.
inline int fail(const Error& error) {
  std::cerr << "error: " << without_controls(error.to_string()) << "\n";
  return static_cast<int>(error.kind);
}

inline bool wants_help(Arguments args) {
  for (const std::string& arg : args) {
    if (arg == "--help" || arg == "-h") return true;
    if (arg == "--") return false;
  }
  return false;
}

}  // namespace mortise
