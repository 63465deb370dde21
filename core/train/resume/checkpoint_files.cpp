// See checkpoint_files.h.
#include "train/resume/checkpoint_files.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "config/show.h"
#include "foundation/base/tensor_pieces.h"
#include "foundation/formats/sha256.h"
#include "model/weights/stored_dtype.h"
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

}  // namespace

int64_t rank_file_bytes(int64_t weight_bytes, int num_ranks) {
  const int64_t num_files = std::min<int64_t>(num_ranks, weight_bytes / kSmallestRankFile);
  return num_files <= 1 ? 0 : (weight_bytes + num_files - 1) / num_files;
}

Result<PolicyPlan> plan_policy(const CheckpointSource& source) {
  const int num_ranks = source.run.ranks.size();
  SaveOptions options = save_options(source.run.config);
  PolicyPlan plan;
  // An adapter that is saved alone is whole on every rank.
  if (options.lora == LoraSave::kMerged && PartsToSave::is_shared(*source.policy.model))
    plan.parts = std::make_unique<PartsToSave>(*source.policy.model, source.run.ranks);
  options.numbers = plan.parts.get();
  plan.files = TRY(source.policy.model->plan_save(options));
  // "stored" keeps the files of the folder that was read.
  if (options.max_shard_bytes == 0 && options.dtype != kStoredDtype) {
    options.max_shard_bytes = rank_file_bytes(weight_bytes_of(plan.files), num_ranks);
    if (options.max_shard_bytes > 0) plan.files = TRY(source.policy.model->plan_save(options));
  }
  plan.ranks = writers_of_files(plan.files, num_ranks);
  return plan;
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
  const CheckpointPlace place{source.progress.counters.step, {}};
  const auto make = [&]() -> Result<CheckpointRequest> {
    return checkpoint_request(source, plan, place, TRY(source.stateful.save()));
  };
  const Result<CheckpointRequest> request = make();
  const auto measure = [&]() -> Result<std::string> {
    const Result<WrittenPart> measured = request.ok() ? measure_part(*request, save_share(ranks)) : request.error();
    TRY(plan.finish());
    return written_part_text(TRY(measured));
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
