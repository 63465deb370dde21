// [data]: the rows: where they are, how long, in which order.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/formats/json.h"

namespace mortise {

// Which part of a prompt that is too long is cut away; error: the run stops.
enum class Truncation { kError, kLeft, kRight, kMiddle };
constexpr auto choice_names(Truncation) { return std::array<std::string_view, 4>{"error", "left", "right", "middle"}; }

// What happens to a row that cannot be used.
enum class OnBadRow { kError, kSkip };
constexpr auto choice_names(OnBadRow) { return std::array<std::string_view, 2>{"error", "skip"}; }

// When an epoch over weighted files ends.
enum class StoppingStrategy { kFirstExhausted, kAllExhausted };
constexpr auto choice_names(StoppingStrategy) {
  return std::array<std::string_view, 2>{"first_exhausted", "all_exhausted"};
}

enum class CurriculumOrder { kAscending, kDescending };
constexpr auto choice_names(CurriculumOrder) { return std::array<std::string_view, 2>{"ascending", "descending"}; }

struct DataConfig {
  std::vector<std::string> train_files;  // files, patterns, folders; a single one may be written as a string
  std::vector<std::string> val_files;
  Json val_sets = Json::object();  // further validation sets by name (val_sets.h)
  OnBadRow on_bad_row = OnBadRow::kError;
  std::vector<double> train_weights;  // share of each entry of train_files; empty = all rows of all files
  StoppingStrategy stopping_strategy = StoppingStrategy::kFirstExhausted;  // where train_weights ends an epoch
  std::optional<std::string> curriculum_key;                               // column of numbers to sort rows by
  CurriculumOrder curriculum_order = CurriculumOrder::kAscending;
  bool curriculum_by_reward = false;           // sort rows by the mean reward that they had so far
  bool streaming = false;                      // read rows from the files while training
  int64_t shuffle_buffer_size = 1000;          // rows, where they are streamed
  std::string prompt_key = "prompt";           // column of the prompt (text, or list of {role, content})
  std::string response_key = "response";       // `mortise sft`: column of the completion to learn
  std::string messages_key = "messages";       // `mortise sft`: column of a whole chat to learn
  int64_t max_prompt_length = 512;             // tokens
  int64_t max_response_length = 512;           // tokens (TRL: max_completion_length)
  bool filter_overlong_prompts = false;        // drop rows with prompts longer than max_prompt_length before training
  Truncation truncation = Truncation::kError;  // what happens to a longer prompt
  bool shuffle = true;                         // a new order each epoch (TRL: shuffle_dataset)
  std::optional<int64_t> seed;                 // decides the order of the data; null = trainer.seed
  int64_t train_batch_size = 1024;             // prompts per step
  std::optional<int64_t> gen_batch_size;  // prompts drawn at once by algorithm.filter_groups; null = train_batch_size
  int64_t train_max_samples = -1;         // rows kept of the training files; -1 = all
  int64_t val_max_samples = -1;           // rows kept of the validation files; -1 = all
  std::optional<std::string> system_prompt;          // system message of chats that have none; null = none
  Json columns = Json::object();                     // column -> text, integer, number or json
  Json apply_chat_template_kwargs = Json::object();  // extra variables of the chat template
  bool operator==(const DataConfig&) const = default;
  [[nodiscard]] bool validates() const { return !val_files.empty() || !val_sets.empty(); }
};

#ifdef MORTISE_CONFIG_RECORDS  // read by fields.cpp alone, so that a new text recompiles one file

template <class Keys>
void describe_data_files(Keys& keys) {
  keys.compared(
          "train_files", &DataConfig::train_files,
          "Training rows: a file, or a list of files that are read in this order. Formats: JSONL, JSON, CSV, TSV (each "
          "also .gz or .zst), Parquet, Arrow. A pattern such as data/*.parquet means its files, sorted by name. A "
          "folder is one that datasets' save_to_disk wrote. hf://datasets/openai/gsm8k/main/train names rows on the hub. "
          "Relative paths start at the working directory.")
      .trl("dataset_name");
  keys.free("val_files", &DataConfig::val_files, "Validation rows: files as in train_files.");
  keys.free(
      "val_sets", &DataConfig::val_sets,
      "Further validation sets by name, in addition to val_files: [data.val_sets.aime] files = \"aime.jsonl\", n = "
      "32, temperature = 0.6, do_sample = true. A set has the keys of rollout.val_kwargs, which are its defaults, "
      "with files, max_samples, and rewards (names of [[reward]] tables; default: all).");
  keys.compared(
      "on_bad_row", &DataConfig::on_bad_row,
      "What happens to a row that cannot be used: it does not parse, has no prompt, or is too long. error stops before "
      "the first step. skip leaves it out, and rejects.jsonl in the run's folder lists it.");
  keys.compared("prompt_key", &DataConfig::prompt_key,
                "Column of the prompt: text, or a list of {role, content} messages.")
      .as_in_verl("\"prompt\"")
      .read_by(kInGenerate);
  // Training has such rows only with sft_mix.files. A run without them may change these keys at a resume, because
  // neither key says anything of the prompts that it samples from.
  auto of_rows = keys.of_supervised_rows();
  of_rows.compared(
      "response_key", &DataConfig::response_key,
      "Column of the completion to learn: text, or a list of {role, content} messages that continue the prompt's "
      "(TRL: completion). `mortise sft` reads it, and training for the rows of sft_mix.files.");
  of_rows.compared(
      "messages_key", &DataConfig::messages_key,
      "Column of a whole chat to learn, for rows without a completion: a list of {role, content} messages. "
      "`mortise sft` reads it, and training for the rows of sft_mix.files.");
}

template <class Keys>
void describe_data_lengths(Keys& keys) {
  keys.compared("max_prompt_length", &DataConfig::max_prompt_length,
                "Longest prompt in tokens, including the chat template. truncation says what happens to longer ones.")
      .at_least(1)
      .at_most(1 << 24)
      .as_in_verl("512");
  keys.compared("max_response_length", &DataConfig::max_response_length, "Longest completion in tokens.")
      .at_least(1)
      .at_most(1 << 24)
      .as_in_verl("512")
      .trl("max_completion_length", "512")
      .read_by(kInGenerate);
  keys.compared(
          "filter_overlong_prompts", &DataConfig::filter_overlong_prompts,
          "Drop rows whose prompt is longer than max_prompt_length when the files are read. The run logs how many.")
      .as_in_verl("false");
  keys.compared(
          "truncation", &DataConfig::truncation,
          "What happens to a prompt longer than max_prompt_length. error stops the run. left and right cut tokens "
          "from that side. middle keeps both ends.")
      .as_in_verl("\"error\"")
      .no_effect(
          kInTrain | kInSft | kInEval,
          [](const auto& k) {
            return k.config.data.filter_overlong_prompts && k.config.data.truncation != Truncation::kError;
          },
          "data.filter_overlong_prompts drops such rows");
}

template <class Keys>
void describe_data_sources(Keys& keys) {
  keys.compared(
      "train_weights", &DataConfig::train_weights,
      "Share of each entry of train_files in every batch: positive numbers, of any sum. A batch is within one row "
      "of these shares. Empty: each row of all files once per epoch. (ms-swift: interleave_prob.)");
  keys.compared(
          "stopping_strategy", &DataConfig::stopping_strategy,
          "When an epoch with train_weights ends. first_exhausted: as soon as an entry has no more rows. all_exhausted: "
          "when all rows were read; smaller entries begin again.")
      .no_effect(
          kLearning, [](const auto& k) { return k.config.data.train_weights.empty(); },
          "data.train_weights is not set");
  keys.compared(
      "curriculum_key", &DataConfig::curriculum_key,
      "Column of numbers by which the rows of each epoch are sorted, or a dotted path into a column. Equal numbers keep "
      "the order that shuffle gives. null: not sorted.");
  keys.compared("curriculum_order", &DataConfig::curriculum_order,
                "Direction of data.curriculum_key or data.curriculum_by_reward. ascending: small numbers first.")
      .no_effect(
          kLearning, [](const auto& k) { return !k.config.data.curriculum_key && !k.config.data.curriculum_by_reward; },
          "neither data.curriculum_key nor data.curriculum_by_reward is set");
  keys.compared(
          "curriculum_by_reward", &DataConfig::curriculum_by_reward,
          "Sort the rows of each epoch by the mean reward that their completions had in the run so far. ascending: "
          "hard rows first. descending: easy rows first. Rows without a reward so far come last, in the order that "
          "shuffle gives.")
      .not_in_sft("sft has no rewards of training rows");
  keys.compared(
      "streaming", &DataConfig::streaming,
      "Read the training rows from their files while training, for data sets that are larger than memory. All rows are "
      "still read and checked once before the first step. (TRL: dataset_streaming.)");
  keys.compared("shuffle_buffer_size", &DataConfig::shuffle_buffer_size,
                "Rows in memory from which data.streaming draws at random. A larger buffer shuffles better.")
      .at_least(1)
      .no_effect(
          kLearning, [](const auto& k) { return !k.config.data.streaming || !k.config.data.shuffle; },
          "data.streaming or data.shuffle is false");
}

template <class Keys>
void describe_data_order(Keys& keys) {
  keys.compared("shuffle", &DataConfig::shuffle,
                "Read the training rows in a new random order each epoch. false keeps the order of the files.")
      .as_in_verl("true")
      .trl("shuffle_dataset");
  keys.compared("seed", &DataConfig::seed, "Seed of the order of the rows. null: trainer.seed.")
      .at_least(0)
      .as_in_verl("null")
      .transformers("data_seed", "null")
      .no_effect(
          kLearning, [](const auto& k) { return !k.config.data.shuffle; }, "data.shuffle is false");
  describe_data_sources(keys);
  keys.compared("train_batch_size", &DataConfig::train_batch_size,
                "Prompts per step. Each prompt gets rollout.n completions. The last, incomplete batch of an epoch is "
                "dropped.")
      .at_least(1)
      .as_in_verl("1024")
      .trl("generation_batch_size (there in completions)")
      .own_key_in_sft("sft.train_batch_size");
  keys.compared(
          "gen_batch_size", &DataConfig::gen_batch_size,
          "Prompts in one generation batch of algorithm.filter_groups. A step draws such batches until it has enough "
          "groups. null: train_batch_size.")
      .at_least(1)
      .no_effect(
          kInTrain, [](const auto& k) { return !k.config.algorithm.filter_groups.enable; },
          "algorithm.filter_groups.enable is false");
  keys.compared("train_max_samples", &DataConfig::train_max_samples,
                "Use only the first N training rows (verl draws them at random if shuffle is true). -1: all.")
      .at_least(-1)
      .as_in_verl("-1");
  keys.free("val_max_samples", &DataConfig::val_max_samples, "Use only the first N validation rows. -1: all.")
      .at_least(-1)
      .as_in_verl("-1")
      .no_effect(
          kInTrain | kInSft | kInEval, [](const auto& k) { return k.config.data.val_files.empty(); },
          "data.val_files is not given");
}

template <class Keys>
void describe_data_columns(Keys& keys) {
  keys.compared("system_prompt", &DataConfig::system_prompt,
                "System message that is added to every chat without one. Rows whose prompt is text are then an error. "
                "null: none. ms-swift calls it system.")
      .read_by(kInGenerate);
  keys.compared(
      "columns", &DataConfig::columns,
      "Types of data columns as rewards see them: columns = { answer = \"text\" }. The types are text, integer, "
      "number and json. Set it only if the values of a column have several types. text and json take every "
      "value; a list becomes its JSON text. Other columns get their type from all training and validation rows.");
  keys.compared("apply_chat_template_kwargs", &DataConfig::apply_chat_template_kwargs,
                "Further variables for the chat template, for example enable_thinking = false.")
      .as_in_verl("{}")
      .trl("chat_template_kwargs", "null")
      .read_by(kInGenerate);
}

template <class Catalog>
void describe_data_section(Catalog& catalog) {
  auto keys = catalog.table("data", "The rows: their files, lengths and order.",
                            [](auto& run) -> DataConfig& { return run.data; });
  describe_data_files(keys);
  describe_data_lengths(keys);
  describe_data_order(keys);
  describe_data_columns(keys);
}

#endif  // MORTISE_CONFIG_RECORDS

}  // namespace mortise
