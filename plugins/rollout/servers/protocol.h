// How one sort of rollout server is spoken to: what a request looks like, what an answer says, how weights get there.
// server_pool.h does everything that is the same for all. Threading: const after setup.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <mortise/cpp/plugin.hpp>

#include "http_calls.h"
#include "weight_image.h"

namespace mortise {

// A copy of a request with its sampling options.
struct ServerRequest {
  std::int64_t id = 0, num_samples = 1, first_row_id = 0, step = 0;
  std::uint64_t seed = 0;
  std::vector<std::int64_t> prompt_ids;
  std::int64_t max_new_tokens = 1, min_new_tokens = 0, top_k = 0;
  double temperature = 1, top_p = 1, min_p = 0, typical_p = 1;
  double repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  bool ignore_eos = false;
  std::vector<std::int64_t> stop_ids;
  std::vector<std::string> stop_strings;
  std::vector<std::vector<std::int64_t>> bad_words;
  std::string regex;  // that the text of each completion matches; empty: any text

  static ServerRequest copy(const mortise_rollout_request& from);
  // A seed for servers that know one number only. Neighbours are far apart: choice i of a request uses seed + i.
  std::int64_t spaced_seed() const;
  // Is a token drawn from anything but the model's distribution at temperature?
  bool changes_distribution() const;
  // Do logits differ from the model's before temperature and filters?
  bool changes_logits() const;
  // End ids are forbidden before this many tokens.
  std::int64_t forced_tokens() const { return ignore_eos ? max_new_tokens : min_new_tokens; }
};

struct ServerSample {
  std::int64_t index = 0;
  std::int32_t finish_reason = 0;    // MORTISE_FINISH_*
  std::int64_t weight_version = -1;  // -1: the answer does not say
  std::vector<std::int64_t> ids;
  std::vector<float> log_prob;           // at temperature, unfiltered; empty: not known
  std::vector<float> filtered_log_prob;  // empty: not known
};

// What the log-probs of a server are.
enum class LogProbs {
  kTempered,   // after temperature, before filters: what training wants
  kRaw,        // before temperature
  kProcessed,  // after temperature and filters
};

// What the probe at the start has found out about a server.
struct ServerFacts {
  std::string model;            // the name that its API wants
  bool is_mortise = false;      // it takes the random key of the run, and samples what the trainer itself would
  bool tells_versions = false;  // each answer has the version of its weights
  std::int64_t max_length = 0;  // tokens of a prompt and its completion together; 0: it does not say
  LogProbs log_probs = LogProbs::kRaw;
  double probe_log_prob = 0;  // what the probe before gave
  std::string identity;       // tells its process from another, if the server has such a name
  // A run has loaded whole weights into it since its start. The probe sees this only if that run named their version.
  bool was_updated = false;
  bool gives_back_version = false;  // it can be asked for the name of the version that it was given last
  bool is_paused = false;           // at the last probe: a run loads weights into it, or ended before it resumed it
  // Names of LoRA adapters on the server, which no other adapter has had: the one that samples, and the one that is
  // being loaded. Empty: none.
  std::string adapter, next_adapter;
  // Those that it may have too, because it was out of use before they were unloaded.
  std::vector<std::string> left_adapters;
  std::int64_t num_ranks = 1;     // its processes that take weights over the network
  bool packs_from_start = false;  // buckets are announced at the start of a connection, not in each update
  bool takes_unique_id = false;   // NCCL's, in the call itself
  std::string own_address;        // this machine's, as the server sees it
  bool may_be_torn = false;       // an update of its weights over the network may have broken off
};

// How the weights get to servers.
enum class WeightTransfer { kFile, kC10d, kNccl, kCudaIpc };

// What carries weights over the network to a server: see mortise_weight_group_options.
struct TransferWay {
  std::string carrier, prefix;
  std::string group = {};          // name of the connection
  std::uint64_t bucket_bytes = 0;  // weights are put together until a broadcast has more bytes; 0: one for each
};

// A weight in the memory of the GPU that a server shares with the trainer: see mortise_shared_piece.
struct SharedWeight {
  std::string device_uuid, handle, counter, event;
  std::int64_t device = 0;
  std::uint64_t num_bytes = 0, offset = 0, counter_offset = 0;
  bool waits_for_event = false;
};

// Where the trainer waits for the ranks of a server.
struct SenderPlace {
  std::string address;
  std::int64_t port = 0, num_ranks = 0;  // num_ranks: with the trainer
  std::string unique_id;                 // NCCL's, or empty
  std::vector<SharedWeight> shared;      // cuda_ipc: the weights of this update, in place of a connection
};

// Why an answer is refused: `what` is empty where it is good. `final`: another try gives the same.
struct Fault {
  std::string what;
  bool is_final = false;
  std::int32_t code = MORTISE_UNAVAILABLE;
  explicit operator bool() const { return !what.empty(); }
};

class Protocol {
 public:
  virtual ~Protocol() = default;
  // The calls that find out about a server, one after the other, and what each answer says. Those that sample come last.
  virtual std::vector<HttpCall> probes(const ServerFacts& facts) const = 0;
  virtual std::string read_probe(std::size_t number, const HttpDone& answer, ServerFacts& facts) const = 0;
  // What the server cannot do for the request, after "<address> cannot "; empty: it can do all.
  virtual std::string refusal(const ServerRequest& request, const ServerFacts& facts) const = 0;
  virtual HttpCall generate(const ServerRequest& request, const ServerFacts& facts) const = 0;
  virtual Fault read_answer(const std::string& body, const ServerRequest& request, const ServerFacts& facts,
                            std::vector<ServerSample>& samples) const = 0;
  // Loads the weights in `folder` under the name `version` (version_names.h), in this order. Empty: the server keeps
  // its own.
  virtual std::vector<HttpCall> weight_calls(const std::string& folder, std::int64_t version) const = 0;
  // Loads the LoRA adapter in `folder` as facts.next_adapter, and unloads all others. Empty: it takes none.
  virtual std::vector<HttpCall> adapter_calls(const std::string& folder, const ServerFacts& facts) const {
    (void)folder, (void)facts;
    return {};
  }
  // The same over the network. `number`: of the connection, which no other of this run has.
  virtual TransferWay transfer_way(const ServerFacts& facts, const std::string& number) const {
    (void)facts, (void)number;
    return {};
  }
  // `place`: of a new connection; null: there is one already.
  virtual std::vector<HttpCall> transfer_calls(const ServerFacts& facts, const TransferWay& way,
                                               const SenderPlace* place, const WeightImage& image,
                                               std::int64_t version) const {
    (void)facts, (void)way, (void)place, (void)image, (void)version;
    return {};
  }
  // A 2xx answer to weight call `number` that is a refusal all the same; empty: it is none.
  virtual std::string read_weight_answer(std::size_t number, const std::string& body) const {
    (void)number, (void)body;
    return "";
  }
  // Whether the server gives back the name of a version as it was given.
  virtual bool takes_marks() const { return false; }
  // Asks for that name, where facts.gives_back_version; -1: none, or not one of ours.
  virtual HttpCall version_call() const { return {}; }
  virtual std::int64_t read_version_answer(const std::string& body) const {
    (void)body;
    return -1;
  }
  // Tells the server's process from one that was started later, where answers do not tell versions.
  virtual HttpCall identity_call() const { return {}; }
  virtual std::string read_identity(const std::string& body) const {
    (void)body;
    return "";
  }
};

// Checks and log-prob rules that all protocols share: see answer_checks.cpp.
Fault check_samples(const ServerRequest& request, const std::vector<ServerSample>& samples);
// Sorts the log-probs that a server gave for the sampled tokens into the fields that they are.
void place_log_probs(const ServerRequest& request, LogProbs kind, std::vector<float> given, ServerSample& sample);

}  // namespace mortise
