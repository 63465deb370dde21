// See parts_to_save.h.
#include "learn/optim/parts_to_save.h"

#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "model/weights/names.h"
#include "model/weights/weight_units.h"

namespace mortise {
namespace {

constexpr std::string_view kGatheringStage = "gathering weights to save";
constexpr const char* kNothing = "";  // what a rank wants that has written its files

}  // namespace

bool PartsToSave::is_shared(const Model& model) { return shards_of(model) != nullptr || model.model_part() != nullptr; }

PartsToSave::PartsToSave(const Model& model, Communicator& ranks)
    : ranks_(&ranks), shards_(shards_of(model)), split_(model.model_part()) {
  const std::vector<NamedParameter>& parameters = model.stored_parameters();
  const WeightUnits units = weight_units(model.config(), parameters);
  for (size_t part = 0; part < units.parts.size(); ++part) {
    for (const size_t i : units.parts[part]) part_of_[parameters[i].name] = static_cast<int64_t>(part);
  }
  if (split_ == nullptr) return;
  // Biases of layers are split as well.
  for (const size_t i : units.whole) {
    if (const std::optional<int64_t> layer = layer_of(parameters[i].name)) part_of_[parameters[i].name] = *layer + 1;
  }
}

Result<> PartsToSave::reach(const std::string& parameter) {
  const auto found = part_of_.find(parameter);
  if (found == part_of_.end() || found->second == part_) return {};
  leave();
  TRY(gather_wanted(found->second));
  return {};
}

Result<> PartsToSave::finish() {
  leave();
  while (TRY(gather_wanted(-1))) {
  }
  return {};
}

Result<bool> PartsToSave::gather_wanted(int64_t own) {
  std::set<int64_t> wanted;
  for (const std::string& part : TRY(ranks_->exchange(own < 0 ? kNothing : std::to_string(own), kGatheringStage))) {
    if (part != kNothing) wanted.insert(std::stoll(part));
  }
  for (const int64_t part : wanted) TRY(gather(part, part == own));
  return !wanted.empty();
}

Result<> PartsToSave::gather(int64_t part, bool keeps) {
  // Ranks put a part of split layers together from what each has of it.
  const bool keeps_own = keeps || split_ != nullptr;
  if (shards_ != nullptr) TRY(shards_->open_whole(part, keeps_own));
  if (keeps) part_ = part;
  if (split_ == nullptr) return {};
  const Result<> gathered = split_->gather_part(static_cast<size_t>(part), keeps);
  if (shards_ != nullptr) shards_->close_whole(part);
  return gathered;
}

void PartsToSave::leave() {
  if (part_ < 0) return;
  if (split_ != nullptr)
    split_->release_part(static_cast<size_t>(part_));
  else
    shards_->close_whole(part_);
  part_ = -1;
}

}  // namespace mortise
