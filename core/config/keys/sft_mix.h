// [sft_mix]: supervised rows within each update of reinforcement learning (CHORD, arXiv 2508.11408).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mortise {

struct SftMixConfig {
  std::vector<std::string> files;        // rows to learn; empty = none are mixed in
  int64_t train_batch_size = 32;         // rows per update
  std::optional<int64_t> rows_per_mean;  // null = one mean over all tokens of the update's rows
  double mu_peak = 0.1;                  // share of the supervised loss after the warm-up
  std::optional<double> mu_valley;       // share after the decay; null = mu_peak
  int64_t mu_warmup_steps = 0;           // in actor.optim.schedule_unit
  int64_t mu_decay_steps = 0;            // in actor.optim.schedule_unit, after the warm-up
  bool phi = false;                      // weights tokens by p (1 - p)
  bool operator==(const SftMixConfig&) const = default;

  [[nodiscard]] bool is_on() const { return !files.empty(); }
  [[nodiscard]] double valley() const { return mu_valley.value_or(mu_peak); }
};

#ifdef MORTISE_CONFIG_RECORDS  // read by fields.cpp alone, so that a new text recompiles one file

template <class Keys>
void describe_sft_mix_schedule(Keys& keys) {
  keys.compared("mu_peak", &SftMixConfig::mu_peak,
                "mu at the end of the warm-up: the loss is (1 - mu) x the loss of reinforcement learning + mu x the "
                "supervised loss. ms-swift: chord_mu_peak.")
      .at_least(0)
      .at_most(1)
      .no_effect(
          kInTrain,
          [](const auto& k) {
            const SftMixConfig& mix = k.config.sft_mix;
            return mix.is_on() && mix.mu_valley && mix.mu_warmup_steps == 0 && mix.mu_decay_steps == 0;
          },
          "mu is sft_mix.mu_valley from the start, without a warm-up and a decay");
  keys.compared("mu_valley", &SftMixConfig::mu_valley,
                "mu after the decay, until the run ends. null: mu_peak, so that mu is constant after the warm-up. "
                "ms-swift: chord_mu_valley.")
      .at_least(0)
      .at_most(1);
  keys.compared("mu_warmup_steps", &SftMixConfig::mu_warmup_steps,
                "Length of the linear rise of mu from 0 to mu_peak, counted in actor.optim.schedule_unit. ms-swift: "
                "chord_mu_warmup_steps, in updates.")
      .at_least(0);
  keys.compared("mu_decay_steps", &SftMixConfig::mu_decay_steps,
                "Length of the cosine from mu_peak to mu_valley after the warm-up, counted in "
                "actor.optim.schedule_unit. ms-swift: chord_mu_decay_steps, in updates.")
      .at_least(0)
      .no_effect(
          kInTrain,
          [](const auto& k) {
            return k.config.sft_mix.is_on() && k.config.sft_mix.valley() == k.config.sft_mix.mu_peak;
          },
          "sft_mix.mu_valley is not another number than sft_mix.mu_peak");
}

template <class Keys>
void describe_sft_mix(Keys& keys) {
  keys.compared(
      "files", &SftMixConfig::files,
      "Files of rows whose completions, or whole chats, every update learns next to the sampled completions. All "
      "formats and patterns of data.train_files. The rows are read as in `mortise sft`: data.response_key, "
      "data.messages_key, sft.assistant_only_loss, sft.completion_only_loss and sft.max_length hold for them. "
      "ms-swift: chord_sft_dataset.");
  keys.compared("train_batch_size", &SftMixConfig::train_batch_size,
                "Rows of `files` in each update. A smaller update at the end of an epoch (actor.carry_rows) takes its "
                "share. They are drawn in a new random order in each pass over the files. "
                "ms-swift: chord_sft_per_device_train_batch_size x gradient_accumulation_steps x processes.")
      .at_least(1);
  keys.compared("rows_per_mean", &SftMixConfig::rows_per_mean,
                "The supervised loss is the mean over so many rows' tokens, and then over these means. It must divide "
                "train_batch_size. null: one mean over all tokens. ms-swift: chord_sft_per_device_train_batch_size.")
      .at_least(1);
  describe_sft_mix_schedule(keys);
  keys.compared("phi", &SftMixConfig::phi,
                "Weight each supervised token by p (1 - p), where p is its probability under the policy (CHORD-phi). "
                "Tokens that the policy knows, and tokens that it finds very unlikely, then change little. ms-swift: "
                "chord_enable_phi_function.");
}

template <class Catalog>
void describe_sft_mix_section(Catalog& catalog) {
  auto keys = catalog.table("sft_mix",
                            "Supervised rows within each update of reinforcement learning (CHORD, arXiv 2508.11408).",
                            [](auto& run) -> SftMixConfig& { return run.sft_mix; });
  keys.unread_by(kInSft);
  keys.no_effect(
      kInTrain, [](const auto& k) { return !k.config.sft_mix.is_on(); }, "sft_mix.files is empty");
  describe_sft_mix(keys);
}

#endif  // MORTISE_CONFIG_RECORDS

}  // namespace mortise
