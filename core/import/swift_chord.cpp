// ms-swift's chord_*: supervised rows within each update, the table [sft_mix].
//
// ms-swift draws chord_sft_per_device_train_batch_size rows in every micro-step of every process, while mu is above 0. An
// update's supervised loss is the mean over these draws of their means over tokens: sft_mix.rows_per_mean. The last update of an
// epoch may have fewer micro-steps, and draws as many fewer rows, as here. mu follows the number of updates.
#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <vector>

#include "foundation/base/text.h"
#include "import/frameworks.h"

namespace mortise {
namespace {

constexpr std::string_view kRows = "chord_sft_dataset", kBatch = "chord_sft_per_device_train_batch_size",
                           kPhi = "chord_enable_phi_function", kWarmup = "chord_mu_warmup_steps",
                           kDecay = "chord_mu_decay_steps", kPeak = "chord_mu_peak", kValley = "chord_mu_valley";

// ms-swift has no defaults for these.
bool has_all(Translation& t) {
  std::vector<std::string> missing;
  for (const std::string_view name : {kBatch, kWarmup, kDecay, kPeak, kValley}) {
    if (t.is_null(name)) missing.emplace_back(name);
  }
  if (missing.empty()) return true;
  t.problem(kRows, fmt::format("chord_sft_dataset needs {}", join(missing, ", ")), "add them, as ms-swift asks");
  return false;
}

void set_rows(Translation& t) {
  const std::vector<std::string> files = t.texts(kRows);
  if (!std::ranges::all_of(files, is_local_data)) {
    t.problem(kRows, fmt::format("chord_sft_dataset {} is not a file of rows", quote(join(files, ", "))),
              "name local files, or hf://datasets/ORGANISATION/NAME/SPLIT, in sft_mix.files of the result");
    return;
  }
  t.set("sft_mix.files", files, {kRows});
  t.set("sft.assistant_only_loss", true, {kRows}, "the chat template must mark the assistant's text");
  if (!t.is_null("max_length")) t.set("sft.max_length", t.integer("max_length"), {kRows, "max_length"});
  const std::vector<std::string> scale = t.texts("loss_scale");
  if (scale != std::vector<std::string>{"default"}) {
    t.warn(kRows,
           "ms-swift learns only the last answer of each chat of chord_sft_dataset unless loss_scale is default. Here "
           "all answers are learned: give rows of several turns as a prompt and a completion");
  }
}

}  // namespace

void translate_swift_chord(Translation& t, const HfBatches& batches) {
  if (t.texts(kRows).empty())
    return t.note_given({kBatch, kPhi, kWarmup, kDecay, kPeak, kValley}, "only with chord_sft_dataset");
  if (!has_all(t)) return;
  set_rows(t);
  const int64_t rows = t.integer(kBatch);
  if (rows < 1 || rows > 1'000'000)
    return t.problem(kBatch, fmt::format("{} must be from 1 to 1,000,000, but is {}", kBatch, rows), "");
  t.set("sft_mix.train_batch_size", rows * batches.micro_steps, {kBatch, "gradient_accumulation_steps"},
        "rows per update, of all micro-steps and processes");
  if (batches.micro_steps > 1) t.set("sft_mix.rows_per_mean", rows, {kBatch});
  t.set("sft_mix.phi", t.flag(kPhi), {kPhi});
  t.set("sft_mix.mu_peak", t.number(kPeak), {kPeak});
  t.set("sft_mix.mu_valley", t.number(kValley), {kValley});
  t.set("sft_mix.mu_warmup_steps", t.integer(kWarmup), {kWarmup});
  t.set("sft_mix.mu_decay_steps", t.integer(kDecay), {kDecay});
}

}  // namespace mortise
