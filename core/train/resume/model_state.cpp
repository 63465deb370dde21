// Writes and reads the exact weights of a model as checkpoint tensors.
#include "train/resume/model_state.h"

#include <ATen/core/grad_mode.h>

#include <map>
#include <memory>

#include "learn/optim/split_state.h"
#include "learn/optim/tensor_state.h"
#include "learn/optim/weight_shards.h"
#include "model/weights/weight_files.h"

namespace mortise {

namespace {

// Numbers of a parameter from `begin` on; not defined if this rank has none.
struct OwnNumbers {
  int64_t begin = 0;
  at::Tensor numbers;
  bool is_in_file = false;
};

// What training changes. The layers' matrices are bfloat16 if there are no masters.
std::vector<NamedParameter> trained_numbers(const Model& model) {
  return model.trains_lora() ? model.trainable() : model.numbers();
}

// The shards of the parameters that are trained. Null: every rank has them.
WeightShards* spread_parameters(const Model& model) { return model.trains_lora() ? nullptr : shards_of(model); }

// The same if ranks share the layers.
const ModelPart* split_parameters(const Model& model) { return model.trains_lora() ? nullptr : model.model_part(); }

// This rank's numbers of the parameters that are spread.
std::map<std::string, OwnNumbers> own_pieces(const WeightShards& shards, int rank) {
  std::map<std::string, OwnNumbers> pieces;
  for (size_t part = 0; part < shards.units().parts.size(); ++part) {
    const std::vector<size_t>& parameters = shards.units().parts[part];
    if (parameters.empty()) continue;
    const auto number = static_cast<int64_t>(part);
    const Shards& cut = shards.shards_of(number);
    int64_t at = 0;
    for (const TensorPart& own : cut.parts(cut.of(rank))) {
      const at::Tensor numbers = shards.numbers(number).narrow(0, at, own.size);
      pieces[shards.parameters()[parameters[own.tensor]].name] = {own.begin, numbers, shards.lies_in_file(number)};
      at += own.size;
    }
    for (const size_t parameter : parameters) pieces[shards.parameters()[parameter].name];  // others have all of it
  }
  return pieces;
}

// The parameters of this rank's part of the layers. `pieces`: of those that are spread over the ranks with the same part.
void save_part(StateWriter& writer, const Model& model, const ModelPart& part,
               const std::map<std::string, OwnNumbers>& pieces) {
  const std::vector<NamedParameter> numbers = part.numbers();
  for (size_t i = 0; i < numbers.size(); ++i) {
    const NamedParameter& parameter = numbers[i];
    const auto piece = pieces.find(parameter.name);
    if (piece == pieces.end())
      put_part(writer, parameter.name, part, i, parameter.tensor.detach(), model.lies_in_file(parameter.tensor));
    else if (piece->second.numbers.defined())
      put_owned_part(writer, parameter.name, part, i, piece->second.numbers.view(parameter.tensor.sizes()),
                     piece->second.is_in_file);
    else
      put_nothing(writer, parameter.name, part, i, stored_type(parameter.tensor.scalar_type()));
  }
}

// The same, read. Numbers that another rank has are left to it.
Result<> load_part(StateReader& reader, const ModelPart& part, const std::map<std::string, OwnNumbers>& pieces) {
  const std::vector<NamedParameter> numbers = part.numbers();
  for (size_t i = 0; i < numbers.size(); ++i) {
    const NamedParameter& parameter = numbers[i];
    const auto piece = pieces.find(parameter.name);
    if (piece == pieces.end())
      TRY(read_part(reader, parameter.name, part, i, parameter.tensor.detach()));
    else if (piece->second.numbers.defined())
      TRY(read_part(reader, parameter.name, part, i, piece->second.numbers.view(parameter.tensor.sizes())));
    else
      TRY(check_part(reader, parameter.name, part, i, stored_type(parameter.tensor.scalar_type())));
  }
  return {};
}

}  // namespace

Result<> ModelState::save_state(StateWriter& writer) const {
  const WeightShards* const spread = spread_parameters(*model_);
  std::map<std::string, OwnNumbers> pieces;
  if (spread != nullptr) pieces = own_pieces(*spread, spread->rank());
  if (const ModelPart* const part = split_parameters(*model_); part != nullptr) {
    save_part(writer, *model_, *part, pieces);
    return {};
  }
  for (const NamedParameter& parameter : trained_numbers(*model_)) {
    const at::Tensor tensor = parameter.tensor.detach();
    const auto piece = pieces.find(parameter.name);
    if (piece == pieces.end()) {
      const TensorView view = view_for_save(tensor, model_->lies_in_file(tensor));
      put_whole(writer, parameter.name, view, /*is_alone=*/false);
      continue;
    }
    const auto& [begin, numbers, is_in_file] = piece->second;
    const TensorView own =
        numbers.defined() ? view_for_save(numbers, is_in_file) : TensorView{"", {}, {0}, {}, nullptr};
    writer.put_source(parameter.name, stored_type(tensor.scalar_type()), tensor.sizes().vec(),
                      std::make_shared<RankedTensor>(own, begin, numbers.defined() ? numbers.numel() : 0));
  }
  for (const NamedParameter& start : model_->adapter_start())
    put_whole(writer, start.name, view_for_save(start.tensor, false), /*is_alone=*/false);
  return {};
}

Result<> ModelState::load_state(StateReader& reader) {
  const at::NoGradGuard no_grad;
  const WeightShards* const spread = spread_parameters(*model_);
  std::map<std::string, OwnNumbers> pieces;
  if (spread != nullptr) pieces = own_pieces(*spread, spread->rank());
  if (const ModelPart* const part = split_parameters(*model_); part != nullptr) {
    TRY(load_part(reader, *part, pieces));
    model_->weights_changed();
    return {};
  }
  for (const NamedParameter& parameter : trained_numbers(*model_)) {
    const at::Tensor tensor = parameter.tensor.detach();
    const TensorView view =
        TRY(reader.get_tensor(parameter.name, stored_type(tensor.scalar_type()), tensor.sizes().vec()));
    const auto piece = pieces.find(parameter.name);
    if (piece == pieces.end())
      TRY(copy_stored(view, "checkpoint", tensor));
    else if (piece->second.numbers.defined())
      TRY(copy_numbers(view, tensor.scalar_type(), piece->second.begin, piece->second.numbers));
  }
  for (const NamedParameter& start : model_->adapter_start()) {
    const TensorView view =
        TRY(reader.get_tensor(start.name, stored_type(start.tensor.scalar_type()), start.tensor.sizes().vec()));
    TRY(copy_stored(view, "checkpoint", start.tensor));
  }
  model_->start_changed();
  model_->weights_changed();
  return {};
}

}  // namespace mortise
