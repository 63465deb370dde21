// [rollout]: how completions are sampled.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/keys/multi_turn.h"
#include "config/keys/ranks.h"
#include "foundation/base/device_name.h"
#include "foundation/batch/sampling.h"
#include "foundation/formats/json.h"

namespace mortise {

// Numbers of the matrices while decoding; auto: those of model.dtype.
enum class DecodeDtype { kAuto, kFloat32, kBfloat16 };
constexpr auto choice_names(DecodeDtype) { return std::array<std::string_view, 3>{"auto", "float32", "bfloat16"}; }

// The code that decodes.
enum class DecodeKernels { kAuto, kPlain, kBase, kAvx2, kAvx512, kAvx512Bf16 };
constexpr auto choice_names(DecodeKernels) {
  return std::array<std::string_view, 6>{"auto", "plain", "base", "avx2", "avx512", "avx512bf16"};
}

struct ValKwargs {  // how validation samples; other filters are off
  int64_t n = 1;    // completions per prompt
  double temperature = 0.0;
  int64_t top_k = -1;
  double top_p = 1.0;
  double min_p = 0.0;
  bool do_sample = false;       // false = greedy, whatever the temperature
  std::vector<int64_t> pass_k;  // k of pass@k; empty = powers of two below n, and n
  bool operator==(const ValKwargs&) const = default;
};

// What samples validations: this process, or the backend that samples training.
enum class ValEngine { kNative, kRollout };
constexpr auto choice_names(ValEngine) { return std::array<std::string_view, 2>{"native", "rollout"}; }

struct RolloutConfig {
  std::string name = "native";                          // rollout backend plugin: native, replay, ...
  int64_t n = 1;                                        // completions per prompt (TRL: num_generations)
  double temperature = 1.0;                             // also divides the logits of every log-prob; 0 = greedy
  int64_t top_k = -1;                                   // -1 = off (0 is read as off too)
  double top_p = 1.0;                                   // 1 = off
  double min_p = 0.0;                                   // 0 = off
  double typical_p = 1.0;                               // 1 = off
  double repetition_penalty = 1.0;                      // 1 = off; of tokens in prompt or completion
  double presence_penalty = 0.0;                        // 0 = off; of tokens in the completion
  double frequency_penalty = 0.0;                       // 0 = off; times how often they came
  std::vector<std::string> stop;                        // texts that end a completion, as the end tokens do
  std::vector<int64_t> stop_token_ids;                  // ids that do
  std::vector<std::string> bad_words;                   // texts that are never sampled
  std::optional<std::string> structured_outputs_regex;  // completions match it; null = any text
  int64_t top_log_probs = 0;                            // most likely tokens that `mortise generate` writes
  bool ignore_eos = false;                              // continue to response_length
  int64_t min_new_tokens = 0;                           // no end of sequence before this many tokens
  std::optional<int64_t> response_length;               // tokens; null = data.max_response_length
  int64_t max_num_seqs = 256;                           // rows decoded at once
  std::optional<int64_t> max_num_batched_tokens;        // most tokens of a pass; null = 256, on a GPU 2,048
  int64_t kv_cache_mib = 4096;                          // memory for keys and values; rows wait if it is full
  bool enforce_eager = false;                           // no CUDA graphs
  int64_t reuse_forward_mib = 1024;                     // memory for what the update need not compute again; 0 = none
  DecodeDtype dtype = DecodeDtype::kAuto;               // matrices while decoding; auto = model.dtype
  DecodeKernels kernels = DecodeKernels::kAuto;         // what decodes
  bool deterministic = false;              // same tokens for any order of prompts, max_num_seqs and threads
  double over_sampling = 1.0;              // groups that are sampled per group that a step learns from
  int64_t tensor_model_parallel_size = 1;  // ranks that sample the same rows together
  bool sleep_while_training = false;       // the backend frees memory while the run trains
  bool calculate_log_probs = true;         // keep what the sampler gave; needed for training/rollout_probs_diff_*
  bool filtered_log_probs = false;         // train on log-probs of what penalties and filters leave
  std::optional<int64_t> seed;             // for sampling; null = trainer.seed
  ValEngine val_engine = ValEngine::kNative;
  bool send_adapter = false;  // servers get the LoRA adapter alone, and load it next to their base
  ValKwargs val_kwargs;
  MultiTurnConfig multi_turn;
  Json params = Json::object();  // the table [rollout.NAME] of the backend in use, e.g. [rollout.replay] path = "..."
  bool operator==(const RolloutConfig&) const = default;
};

#ifdef MORTISE_CONFIG_RECORDS  // read by fields.cpp alone, so that a new text recompiles one file

template <class Keys>
void describe_backend(Keys& keys) {
  keys.compared("name", &RolloutConfig::name,
                "Rollout backend, by plugin name. native samples in this process on the trained weights. replay reads "
                "recorded completions.")
      .plugin("rollout_backend");
  keys.compared("n", &RolloutConfig::n, "Completions per prompt: the size of a group.")
      .at_least(1)
      .at_most(1 << 16)
      .as_in_verl("1")
      .trl("num_generations")
      .read_by(kInGenerate);
}

inline constexpr const char* kGreedy = "rollout.temperature is 0, so completions are greedy";
inline constexpr auto generates_greedily = [](const auto& k) -> bool { return k.config.rollout.temperature <= 0; };

template <class Keys>
void describe_filters(Keys& keys) {
  keys.compared(
          "temperature", &RolloutConfig::temperature,
          "The logits are divided by it when sampling and in every log-probability that is trained on. 0: greedy, "
          "for `mortise generate` and `mortise eval` only. Other values must be at least 1e-6.")
      .at_least(0)
      .at_most(kMostTemperature)
      .as_in_verl("1.0")
      .trl("temperature", "1.0")
      .swift("temperature", "0.9")
      .read_by(kInGenerate);
  keys.compared("top_k", &RolloutConfig::top_k, "Sample from the k most likely tokens. -1 or 0: from all.")
      .at_least(-1)
      .as_in_verl("-1")
      .trl("top_k", "0")
      .swift("top_k", "-1")
      .no_effect(kInGenerate, generates_greedily, kGreedy)
      .read_by(kInGenerate);
  keys.compared("top_p", &RolloutConfig::top_p,
                "Sample from the smallest set of most likely tokens with at least this probability. 1: from all.")
      .above(0)
      .at_most(1)
      .as_in_verl("1")
      .trl("top_p", "1.0")
      .swift("top_p", "1.0")
      .no_effect(kInGenerate, generates_greedily, kGreedy)
      .read_by(kInGenerate);
  keys.compared("min_p", &RolloutConfig::min_p,
                "Leave out tokens with less than this share of the most likely token's probability. 0: none.")
      .at_least(0)
      .at_most(1)
      .as_in_verl("0")
      .trl("min_p", "null")
      .swift("min_p", "0.0")
      .no_effect(kInGenerate, generates_greedily, kGreedy)
      .read_by(kInGenerate);
  keys.compared("typical_p", &RolloutConfig::typical_p,
                "Locally typical sampling: sample from the tokens whose information is nearest to the entropy of the "
                "distribution, up to this probability. 1: from all. Filters apply in the order top_k, top_p, min_p, "
                "typical_p.")
      .above(0)
      .at_most(1)
      .no_effect(kInGenerate, generates_greedily, kGreedy)
      .read_by(kInGenerate);
}

template <class Keys>
void describe_penalties(Keys& keys) {
  keys.compared(
          "repetition_penalty", &RolloutConfig::repetition_penalty,
          "Penalty for repeated tokens. Positive logits of tokens already in the prompt or completion are divided by "
          "it; negative ones are multiplied. It applies before the temperature. Log-probabilities that are trained "
          "on are the model's own, without any penalty. 1: off.")
      .at_least(kLeastPenalty)
      .at_most(kMostPenalty)
      .as_in_verl("1.0")
      .trl("repetition_penalty", "1.0")
      .swift("repetition_penalty", "1.0")
      .read_by(kInGenerate);
  keys.compared("presence_penalty", &RolloutConfig::presence_penalty,
                "Subtracted from the logit of each token already in the completion, before the temperature. May be "
                "negative. 0: off.")
      .at_least(-kMostPenalty)
      .at_most(kMostPenalty)
      .read_by(kInGenerate);
  keys.compared(
          "frequency_penalty", &RolloutConfig::frequency_penalty,
          "Subtracted from the logit of each token, times how often the completion has it. May be negative. 0: off.")
      .at_least(-kMostPenalty)
      .at_most(kMostPenalty)
      .read_by(kInGenerate);
}

template <class Keys>
void describe_ends(Keys& keys) {
  keys.compared("ignore_eos", &RolloutConfig::ignore_eos,
                "Continue to response_length: end-of-sequence tokens and stop_token_ids are never sampled.")
      .as_in_verl("false")
      .read_by(kInGenerate);
  keys.compared(
          "min_new_tokens", &RolloutConfig::min_new_tokens,
          "Before this many tokens, end-of-sequence tokens and stop_token_ids are not sampled, and stop texts do not "
          "count.")
      .at_least(0)
      .no_effect(
          kInTrain | kInSft | kInEval | kInGenerate, [](const auto& k) { return k.config.rollout.ignore_eos; },
          "rollout.ignore_eos already keeps completions from ending early")
      .read_by(kInGenerate);
  keys.compared(
          "stop", &RolloutConfig::stop,
          "Texts that end a completion. The token that completes such a text stays, and the finish reason is stop. "
          "Special tokens count with their text.")
      .read_by(kInGenerate);
  keys.compared("stop_token_ids", &RolloutConfig::stop_token_ids,
                "Token ids that end a completion, in addition to the model's end-of-sequence tokens.")
      .at_least(0)
      .read_by(kInGenerate);
  keys.compared(
          "bad_words", &RolloutConfig::bad_words,
          "Texts that are never sampled. Mortise blocks the tokens that the tokenizer gives for the text alone and "
          "after a space. The same text can still appear in other tokens.")
      .read_by(kInGenerate);
  keys.compared(
          "structured_outputs_regex", &RolloutConfig::structured_outputs_regex,
          "Regular expression that the whole text of each completion matches, also in validation. Tokens that no "
          "matching text continues with are not sampled, and a completion may end only where its text matches. One that "
          "reaches response_length may lack the end. As in vLLM (xgrammar), . is any character, also a line break, and "
          "\\d, \\w and \\s are ASCII. Looking ahead or behind and references to groups are not supported. It wins over "
          "min_new_tokens and bad_words. Log-probabilities that are trained on are the model's own, without the "
          "pattern. Of other backends, vllm and sglang take it. null: any text.")
      .trl("vllm_structured_outputs_regex", "null")
      .trl("vllm_guided_decoding_regex", "null")
      .swift("structured_outputs_regex", "null")
      .swift("vllm_guided_decoding_regex", "null")
      .read_by(kInGenerate);
  keys.free("top_log_probs", &RolloutConfig::top_log_probs,
            "`mortise generate` writes this many of the most likely tokens at each position with their "
            "log-probabilities, at the temperature and unfiltered. Training does not use them.")
      .at_least(0)
      .at_most(1024)
      .no_effect(
          kInTrain | kInEval, [](const auto& k) { return k.config.rollout.top_log_probs != 0; },
          "only `mortise generate` writes them")
      .read_by(kInGenerate);
  keys.compared("response_length", &RolloutConfig::response_length,
                "Longest completion in tokens. null: data.max_response_length.")
      .at_least(1)
      .at_most(1 << 24)
      .as_in_verl("null")
      .trl("max_completion_length")
      .read_by(kInGenerate);
}

template <class Keys>
void describe_decoding(Keys& keys) {
  keys.free("max_num_seqs", &RolloutConfig::max_num_seqs, "Rows decoded at the same time. Changes memory and speed.")
      .at_least(1)
      .as_in_verl("256")
      .read_by(kInGenerate | kInServe);
  keys.free(
          "max_num_batched_tokens", &RolloutConfig::max_num_batched_tokens,
          "Most tokens that one pass of the sampler computes while new prompts enter (chunked prefill). A longer prompt "
          "enters in several passes. Changes memory and speed. null: 256 on the CPU, 2048 on a GPU. On the CPU, less than "
          "8 counts as 8, and more than 256 as 256.")
      .at_least(1)
      .at_most(1 << 24)
      .as_in_verl("")
      .read_by(kInGenerate | kInServe);
  keys.free("kv_cache_mib", &RolloutConfig::kv_cache_mib,
            "Maximum memory for keys and values, in MiB. A row waits until its longest completion fits next to those "
            "of the running rows. A row that can never fit is an error.")
      .at_least(1)
      .at_most(int64_t{1} << 30)
      .read_by(kInGenerate | kInServe);
  keys.compared(
          "reuse_forward_mib", &RolloutConfig::reuse_forward_mib,
          "Maximum memory, in MiB, for what sampling computes of a step's tokens. The first update of the step reads "
          "it instead of running its forward pass through the layers, as long as the weights are those that sampled. "
          "Changes the last bits of the update. If the longest possible rows do not fit, or the run is of a kind "
          "that this does not serve (docs/limits.md), the update computes everything itself; --dry-run says which. "
          "0: it always does.")
      .at_least(0)
      .at_most(int64_t{1} << 30);
  keys.compared(
          "dtype", &RolloutConfig::dtype,
          "Number format of the matrices while decoding. auto: model.dtype. bfloat16 "
          "samples, also in validation, from a rounded copy, which rounds the head too. It reads half the bytes per token, so it is up to twice "
          "as fast if few rows decode a large model. Products are summed in float32, and the trained weights do not "
          "change. The sampler's log-probabilities then differ from the trainer's by about 1e-2; "
          "training/rollout_probs_diff_* shows it.")
      .read_by(kInGenerate | kInServe);
  keys.compared(
          "kernels", &RolloutConfig::kernels,
          "Code that decodes. auto: the fast path with the fastest instruction set of this CPU (avx512bf16 on AMD's from "
          "Zen 4 on, avx512, avx2, else base); with model.dtype float64 the plain path. You can also name the instruction "
          "set. plain: the model's own layers in plain operations over the whole sequence at every token. It is slow. Use "
          "it to find out whether a number depends on the fast path.")
      .read_by(kInGenerate | kInServe);
  keys.compared(
          "deterministic", &RolloutConfig::deterministic,
          "Sample the same tokens from the same weights for any order of requests, max_num_seqs and number of "
          "threads, on one kind of CPU. The fast path (float32 and bfloat16) always does this, at no cost. On the "
          "plain path (float64, or rollout.kernels plain) true computes every row alone on one thread.")
      .read_by(kInGenerate | kInServe);
}

template <class Keys>
void describe_placement(Keys& keys) {
  keys.free("enforce_eager", &RolloutConfig::enforce_eager,
            "Samples on a GPU without CUDA graphs: the host starts each operation by itself, which takes longer and "
            "needs no memory for graphs. false: graphs where they can be made (docs/cuda.md). The CPU has none.")
      .as_in_verl("")
      .swift("vllm_enforce_eager", "false")
      .read_by(kInGenerate | kInServe)
      .no_effect(
          kLearning | kInEval | kInGenerate | kInServe,
          [](const auto& k) { return k.config.rollout.enforce_eager && !may_be_gpu(k.config.model.device); },
          "only a GPU has CUDA graphs (model.device)");
  keys.free(
          "tensor_model_parallel_size", &RolloutConfig::tensor_model_parallel_size,
          "Ranks that sample the same rows together with the backend native (tensor parallel). Each has its part of the "
          "attention heads, of the keys and values, and of the MLP. Must divide the number of ranks, and the model's heads "
          "and the size of its MLP must divide among so many ranks. If actor.tensor_model_parallel_size is the same, "
          "rollouts need no whole layers. 1: every rank samples rows of its own.")
      .at_least(1)
      .at_most(kMostRanks)
      .verl("rollout.tensor_model_parallel_size")
      .trl("vllm_tensor_parallel_size");
  keys.free(
      "sleep_while_training", &RolloutConfig::sleep_while_training,
      "The backend frees the memory that it does not need while the run trains, such as copies of weights that "
      "the next step replaces. native frees its keys and values. Each step then takes the time to make them again.");
}

// A filter bounds the set of tokens that one is drawn from; penalties alone change what all tokens weigh.
inline constexpr auto filters_tokens = [](const RolloutConfig& rollout) -> bool {
  return rollout.top_k > 0 || rollout.top_p < 1 || rollout.min_p > 0 || rollout.typical_p < 1;
};
inline constexpr auto edits_tokens = [](const RolloutConfig& rollout) -> bool {
  return rollout.repetition_penalty != 1 || rollout.presence_penalty != 0 || rollout.frequency_penalty != 0 ||
         rollout.ignore_eos || rollout.min_new_tokens > 0 || !rollout.bad_words.empty();
};

template <class Keys>
void describe_sampled(Keys& keys) {
  keys.compared(
          "over_sampling", &RolloutConfig::over_sampling,
          "Groups that are sampled at the same time, per group that a step learns from. Above 1 the step ends as "
          "soon as data.train_batch_size groups are finished, in the order of their tokens. The others keep their "
          "tokens, with the log-probs that they were sampled with, and continue in the next step with newer "
          "weights. 1: the step waits for every completion.")
      .at_least(1)
      .below(2);
  keys.compared("calculate_log_probs", &RolloutConfig::calculate_log_probs,
                "Keep the sampler's own log-probabilities, to measure training/rollout_probs_diff_* in each step.")
      .as_in_verl("true")
      .read_by(kInGenerate);
  keys.compared(
          "filtered_log_probs", &RolloutConfig::filtered_log_probs,
          "Train on the log-probabilities of the distribution that completions are drawn from: after penalties, "
          "forbidden tokens and the filters top_k, top_p, min_p and typical_p. The step stores the set of tokens "
          "that these keep at each position, and all its log-probs (also the reference's) and entropies are over that set "
          "(the sampling mask of DeepSeek-V3.2, arXiv 2512.02556). false: they are the model's own, over the whole "
          "vocabulary.")
      .no_effect(
          kInTrain, [](const auto& k) { return !filters_tokens(k.config.rollout) && !edits_tokens(k.config.rollout); },
          "no filter or penalty of [rollout] is on");
  keys.compared("seed", &RolloutConfig::seed, "Seed of the sampling. null: trainer.seed.")
      .at_least(0)
      .as_in_verl("null")
      .no_effect(kInGenerate, generates_greedily, kGreedy)
      .read_by(kInGenerate);
  keys.free("val_engine", &RolloutConfig::val_engine,
            "What samples validations. native: this process, with the weights that it trains. rollout: the backend of "
            "rollout.name, which gets the newest weights first, as for training. Take rollout if servers sample.")
      .unread_by(kInSft)
      .no_effect(
          kInTrain | kInEval, [](const auto& k) { return !k.config.data.validates(); }, "data.val_files is not given");
  keys.free("send_adapter", &RolloutConfig::send_adapter,
            "true: rollout servers get the LoRA adapter alone after each update, and load it next to their base "
            "(vLLM and SGLang). false: they get all weights, with the adapter merged.")
      .unread_by(kInSft)
      .no_effect(
          kInTrain, [](const auto& k) { return k.config.rollout.name == RolloutConfig().name; },
          "rollout.name is native, which samples with the trainer's own weights");
  keys.compared(
          "params", &RolloutConfig::params,
          "The table [rollout.NAME] holds the parameters of the backend NAME, if it is in use: rollout.replay.path.")
      .inline_table();
}

// Rules for validation rows, if there are any: without them the whole table has no effect.
inline constexpr auto validates_greedily = [](const auto& k) -> bool {
  return !k.config.data.val_files.empty() && !k.config.rollout.val_kwargs.do_sample;
};

inline constexpr auto validates_unfiltered = [](const auto& k) -> bool {
  const ValKwargs& validation = k.config.rollout.val_kwargs;
  return !k.config.data.val_files.empty() && k.config.data.val_sets.empty() &&
         !(validation.do_sample && validation.temperature > 0);
};

template <class Keys>
void describe_validation(Keys& keys) {
  keys.free("n", &ValKwargs::n, "Completions per validation prompt.")
      .at_least(1)
      .at_most(1 << 16)
      .as_in_verl("1")
      .trl("num_generations_eval");
  keys.free("temperature", &ValKwargs::temperature, "Temperature if do_sample is true. 0: greedy.")
      .at_least(0)
      .at_most(kMostTemperature)
      .no_effect(kInTrain | kInSft | kInEval, validates_greedily,
                 "rollout.val_kwargs.do_sample is false, so validation is greedy");
  keys.free("top_k", &ValKwargs::top_k, "See rollout.top_k.")
      .at_least(-1)
      .no_effect(kInTrain | kInSft | kInEval, validates_unfiltered, "validation is greedy");
  keys.free("top_p", &ValKwargs::top_p, "See rollout.top_p.")
      .above(0)
      .at_most(1)
      .no_effect(kInTrain | kInSft | kInEval, validates_unfiltered, "validation is greedy");
  keys.free("min_p", &ValKwargs::min_p, "See rollout.min_p.")
      .at_least(0)
      .at_most(1)
      .no_effect(kInTrain | kInSft | kInEval, validates_unfiltered, "validation is greedy");
  keys.free("do_sample", &ValKwargs::do_sample,
            "Sample in validation. false: take the most likely token, whatever the temperature.");
  keys.free(
          "pass_k", &ValKwargs::pass_k,
          "The k for which pass@k is reported: the expected best reward of k completions, without bias for any k up to "
          "n. Empty: 1, 2, 4, ... below n, and n.")
      .at_least(1);
}

template <class Catalog>
void describe_rollout_section(Catalog& catalog) {
  auto keys =
      catalog.table("rollout", "How completions are sampled.", [](auto& run) -> RolloutConfig& { return run.rollout; });
  describe_backend(keys);
  describe_filters(keys);
  describe_penalties(keys);
  describe_ends(keys);
  describe_decoding(keys);
  describe_placement(keys);
  describe_sampled(keys);
  auto validation =
      catalog.table("rollout.val_kwargs",
                    "How validation samples. It uses response_length, rollout.stop, rollout.stop_token_ids and "
                    "rollout.structured_outputs_regex; the other options of [rollout] are off.",
                    [](auto& run) -> ValKwargs& { return run.rollout.val_kwargs; });
  validation.no_effect(
      kInTrain | kInEval, [](const auto& k) { return !k.config.data.validates(); }, "data.val_files is not given");
  describe_validation(validation);
  describe_multi_turn_section(catalog);
}

#endif  // MORTISE_CONFIG_RECORDS

}  // namespace mortise
