// See checkpoint_files.h.
#include "train/resume/checkpoint_files.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "config/show.h"
#include "foundation/base/tensor_pieces.h"
#include "foundation/formats/sha256.h"
#include "model/weights/names.h"
#include "model/weights/weight_files.h"
#include "train/loop/decision.h"
#include "train/resume/pack_lock.h"
#include "train/resume/run_inputs.h"
#include "train/run/run_options.h"

namespace mortise {

namespace {

constexpr std::string_view kMeasureStage = "measuring the next checkpoint";

int64_t weight_bytes_of(std::span<const FolderFile> files) {
  int64_t bytes = 0;
  for (const FolderFile& file : files) bytes += file.weight_bytes;
  return bytes;
}

// The largest file first, to the rank that has least to write. Files without weights are rank 0's.
std::vector<int> writers_of_files(std::span<const FolderFile> files, int num_ranks) {
  std::vector<size_t> order(files.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater{}, [&](size_t i) { return files[i].weight_bytes; });
  std::vector<int64_t> loads(static_cast<size_t>(num_ranks), 0);
  std::vector<int> writers(files.size(), 0);
  for (const size_t i : order) {
    if (files[i].weight_bytes == 0) continue;
    const auto least = std::ranges::min_element(loads);
    *least += files[i].weight_bytes;
    writers[i] = static_cast<int>(least - loads.begin());
  }
  return writers;
}

// The part of a spread model in which each of its parameters lies.
std::map<std::string, int64_t> parts_by_name(const Model& model) {
  std::map<std::string, int64_t> parts;
  const std::vector<NamedParameter>& parameters = model.stored_parameters();
  const WeightUnits units = weight_units(model.config(), parameters);
  for (size_t part = 0; part < units.parts.size(); ++part) {
    for (const size_t i : units.parts[part]) parts[parameters[i].name] = static_cast<int64_t>(part);
  }
  // Every rank has these, but of split layers only its part of their biases.
  for (const size_t i : units.whole) {
    const std::string& name = parameters[i].name;
    parts[name] = model.model_part() != nullptr ? layer_of(name).value_or(-2) + 1 : -1;
  }
  return parts;
}

}  // namespace

int64_t rank_file_bytes(int64_t weight_bytes, int num_ranks) {
  const int64_t num_files = std::min<int64_t>(num_ranks, weight_bytes / kSmallestRankFile);
  return num_files <= 1 ? 0 : (weight_bytes + num_files - 1) / num_files;
}

Result<double> largest_written_share(Env& env, const RunConfig& config, int64_t weight_bytes, int num_ranks) {
  const SaveOptions options = save_options(config);
  const bool keeps_files = options.max_shard_bytes == 0 && options.dtype == "stored";
  const int64_t shard =
      options.max_shard_bytes > 0 ? options.max_shard_bytes : rank_file_bytes(weight_bytes, num_ranks);
  int64_t num_files = shard > 0 ? (weight_bytes + shard - 1) / shard : 1;
  if (keeps_files) num_files = static_cast<int64_t>(TRY(list_weight_files(env, config.model.path)).files.size());
  num_files = std::max<int64_t>(1, num_files);
  const int64_t of_one = (num_files + num_ranks - 1) / num_ranks;
  return static_cast<double>(of_one) / static_cast<double>(num_files);
}

Result<PolicyPlan> plan_policy(const CheckpointSource& source) {
  const int num_ranks = source.run.ranks.size();
  SaveOptions options = save_options(source.run.config);
  PolicyPlan plan{TRY(source.policy.model->plan_save(options)), {}};
  // "stored" keeps the files of the folder that was read.
  if (options.max_shard_bytes == 0 && options.dtype != "stored") {
    options.max_shard_bytes = rank_file_bytes(weight_bytes_of(plan.files), num_ranks);
    if (options.max_shard_bytes > 0) plan.files = TRY(source.policy.model->plan_save(options));
  }
  plan.ranks = writers_of_files(plan.files, num_ranks);
  return plan;
}

Result<WholeWeights> gather_for(const CheckpointSource& source, const PolicyPlan& plan) {
  const Model& model = *source.policy.model;
  if (model.is_whole() && shards_of(model) == nullptr) return WholeWeights::gather({});
  // If an adapter is saved alone, no file has weights.
  const std::map<std::string, int64_t> parts = parts_by_name(model);
  std::set<int64_t> kept;
  bool keeps_all = false;
  for (size_t i = 0; i < plan.files.size(); ++i) {
    if (plan.ranks[i] != source.run.ranks.rank()) continue;
    for (const std::string& name : plan.files[i].parameters) {
      const auto found = parts.find(name);
      keeps_all = keeps_all || found == parts.end();
      if (found != parts.end()) kept.insert(found->second);
    }
  }
  if (weight_bytes_of(plan.files) == 0) return WholeWeights::gather({});
  return WholeWeights::gather({&model}, [=](int64_t part) { return keeps_all || kept.contains(part); });
}

Result<CheckpointRequest> checkpoint_request(const CheckpointSource& source, const PolicyPlan& plan,
                                             const CheckpointPlace& place, StateSnapshot state) {
  CheckpointRequest request;
  request.place = place;
  request.state = std::move(state);
  for (size_t i = 0; i < plan.files.size(); ++i)
    request.files.push_back({"huggingface/" + plan.files[i].name, plan.files[i].write, plan.ranks[i]});
  if (!source.run.ranks.is_main()) return request;
  const Path& folder = source.policy.folder->tokenizer_path;
  for (const std::string& name : TRY(list_tokenizer_files(folder, source.run.env)))
    request.files.push_back(checkpoint_text_file("huggingface/" + name, TRY(source.run.env.read_file(folder / name))));
  request.files.push_back(checkpoint_text_file(std::string(kSettingsFile), config_to_toml(source.run.loaded)));
  request.files.push_back(
      checkpoint_text_file(std::string(kPackLockFile), pack_lock_text(source.registry, source.run.loaded)));
  return request;
}

namespace {

Result<> hash_tensor(const std::string& name, const TensorView& tensor, Sha256& all) {
  constexpr uint64_t kChunk = uint64_t{1} << 20;
  std::vector<std::byte> bytes(kChunk);
  const uint64_t size = static_cast<uint64_t>(num_elements(tensor.shape).value_or(0)) * dtype_bytes(tensor.dtype);
  all.update(fmt::format("{} {} ", name, size));
  for (uint64_t begin = 0; begin < size; begin += kChunk) {
    const auto chunk = std::span(bytes).first(static_cast<size_t>(std::min(kChunk, size - begin)));
    TRY(read_tensor_bytes(tensor, begin, chunk));
    all.update(std::span<const std::byte>(chunk));
  }
  return {};
}

}  // namespace

Result<std::string> digest_of_shared(const CheckpointSource& source, const StateSnapshot& state) {
  Sha256 all;
  const Model& policy = *source.policy.model;
  // Weights that are spread have one owner each. The others only receive them.
  if (shards_of(policy) == nullptr)
    all.update(policy.model_part() != nullptr ? digests_of_part(policy).common : TRY(digest_of_model(policy)));
  for (const TensorView& tensor : state.tensors) {
    const auto* const ranked = dynamic_cast<const RankedTensor*>(tensor.source.get());
    if (ranked != nullptr && ranked->is_everywhere()) TRY(hash_tensor(tensor.name, tensor, all));
  }
  return to_hex(all.finish());
}

Result<std::string> digest_of_own_part(const CheckpointSource& source, const StateSnapshot& state) {
  Sha256 all;
  if (shards_of(*source.policy.model) == nullptr) all.update(digests_of_part(*source.policy.model).own);
  for (const TensorView& tensor : state.tensors) {
    const auto* const ranked = dynamic_cast<const RankedTensor*>(tensor.source.get());
    if (ranked != nullptr && ranked->held() != nullptr) TRY(hash_tensor(tensor.name, *ranked->held(), all));
  }
  return to_hex(all.finish());
}

SaveShare save_share(const Communicator& ranks) { return {ranks.rank(), ranks.size()}; }

Result<uint64_t> measure_next_checkpoint(const CheckpointSource& source) {
  Communicator& ranks = source.run.ranks;
  const PolicyPlan plan = TRY(plan_policy(source));
  const auto whole = TRY(gather_for(source, plan));
  const CheckpointPlace place{source.progress.counters.step, {}};
  const auto make = [&]() -> Result<CheckpointRequest> {
    return checkpoint_request(source, plan, place, TRY(source.stateful.save()));
  };
  const Result<CheckpointRequest> request = make();
  const auto measure = [&]() -> Result<std::string> {
    if (!request.ok()) return request.error();
    return written_part_text(TRY(measure_part(*request, save_share(ranks))));
  };
  const std::vector<std::string> texts = TRY(on_every_rank(ranks, kMeasureStage, measure));
  uint64_t bytes = 0;
  const auto add = [&]() -> Result<> {
    std::vector<WrittenPart> parts;
    for (const std::string& text : texts) parts.push_back(TRY(parse_written_part(text)));
    bytes = TRY(measure_parts(*request, parts));
    return {};
  };
  TRY(do_on_main_rank(ranks, kMeasureStage, add));
  return bytes;
}

}  // namespace mortise
