// [sft]: `mortise sft`. Model, data, optimizer and trainer are those of training. Its keys for the encoding of rows also
// hold for the rows of [sft_mix].
#pragma once

#include <cstdint>
#include <optional>

namespace mortise {

struct SftConfig {
  int64_t total_training_steps = 100;        // updates
  int64_t train_batch_size = 128;            // rows per update
  int64_t test_freq = -1;                    // updates between validations; -1 = only after the last
  std::optional<double> stop_val_accuracy;   // stop as soon as a validation reaches it
  bool assistant_only_loss = false;          // in chats, learn only what the template marks as the assistant's
  std::optional<bool> completion_only_loss;  // null = only completions if rows have them, else all tokens
  std::optional<int64_t> max_length;         // tokens of a chat; null = longest prompt + longest response
  bool operator==(const SftConfig&) const = default;
};

#ifdef MORTISE_CONFIG_RECORDS  // read by fields.cpp alone, so that a new text recompiles one file

template <class Keys>
void describe_sft_run(Keys& keys) {
  keys.length("total_training_steps", &SftConfig::total_training_steps, "Number of updates.")
      .at_least(1)
      .trl("max_steps");
  keys.compared("train_batch_size", &SftConfig::train_batch_size, "Rows per update.").at_least(1);
  keys.free("test_freq", &SftConfig::test_freq,
            "Updates between validations. The last update is always validated. -1 or 0: only the last.")
      .at_least(-1)
      .no_effect(
          kInSft, [](const auto& k) { return !k.config.data.validates(); }, "data.val_files is not given");
  keys.free("stop_val_accuracy", &SftConfig::stop_val_accuracy,
            "Stop as soon as a validation (mean reward of greedy completions) reaches this value. null: never.")
      .at_least(0)
      .at_most(1);
}

// What of a row is learnt: for the rows of sft_mix.files as well.
template <class Keys>
void describe_sft_rows(Keys keys) {
  keys.compared(
          "assistant_only_loss", &SftConfig::assistant_only_loss,
          "Learn only the parts of each chat that its chat template marks as the assistant's with {% generation %} "
          "... {% endgeneration %}. A template without these marks is an error, and so is a row that is not a chat.")
      .trl("assistant_only_loss");
  keys.compared(
          "completion_only_loss", &SftConfig::completion_only_loss,
          "true: learn completions (data.response_key) but not their prompts. false: learn both. null: true for rows "
          "with a completion; all tokens of whole chats (data.messages_key).")
      .trl("completion_only_loss");
  keys.compared(
          "max_length", &SftConfig::max_length,
          "Longest chat in tokens. data.truncation says what happens to longer ones. null: data.max_prompt_length + "
          "data.max_response_length.")
      .at_least(2)
      .at_most(1 << 24)
      .trl("max_length");
}

template <class Catalog>
void describe_sft_section(Catalog& catalog) {
  auto keys = catalog.table(
      "sft",
      "`mortise sft`: supervised learning of data.response_key, or of whole chats. Model, data and optimizer are set "
      "as for training.",
      [](auto& run) -> SftConfig& { return run.sft; });
  describe_sft_rows(keys.of_supervised_rows());
  keys.unread_by(kInTrain);
  describe_sft_run(keys);
}

#endif  // MORTISE_CONFIG_RECORDS

}  // namespace mortise
