// Keeps an optimizer's state, shares it over ranks, and saves and loads it.
#include "learn/optim/optimizer.h"

#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <set>

#include "foundation/base/tensor_pieces.h"
#include "foundation/metrics/op_timer.h"
#include "learn/optim/group_step.h"
#include "learn/optim/resting_state.h"
#include "learn/optim/rounded_step.h"
#include "learn/optim/split_state.h"
#include "learn/optim/tensor_state.h"
#include "learn/optim/unit_size.h"
#include "learn/optim/weight_shards.h"
#include "model/tensor/torch_guard.h"
#include "model/weights/weight_files.h"

namespace mortise {

namespace {

int64_t numel_of(const StateTensor& state) {
  int64_t numel = 1;
  for (const int64_t size : state.shape) numel *= size;
  return numel;
}

std::string key_of(const StateTensor& state, const OptimizedParameter& parameter) {
  return fmt::format("{}.{}", state.name, parameter.name);
}

// The states that each parameter has, from keys as key_of() makes them.
using StatesByParameter = std::map<std::string, std::set<std::string>>;

StatesByParameter states_by_parameter(const std::vector<std::string>& keys) {
  StatesByParameter states;
  for (const std::string& key : keys) {
    const size_t dot = key.find('.');
    if (dot != std::string::npos) states[key.substr(dot + 1)].insert(key.substr(0, dot));
  }
  return states;
}

// The first parameter of `some` that `others` lack; null if there is none.
const std::string* first_without(const StatesByParameter& some, const StatesByParameter& others) {
  const auto found = std::ranges::find_if(some, [&](const auto& one) { return !others.contains(one.first); });
  return found == some.end() ? nullptr : &found->first;
}

// An Error if other parameters are frozen than in the run that saved the state. Another optimizer has other states of
// the same parameters, and a model without the adapter that was trained has other parameters: load_state() then says
// which state is missing.
Result<> check_frozen(const StatesByParameter& saved, const StatesByParameter& own, const std::string& table,
                      const std::string& where) {
  bool is_same_model = false;
  for (const auto& [name, states] : own) {
    const auto before = saved.find(name);
    if (before == saved.end()) continue;
    if (before->second != states) return {};
    is_same_model = true;
  }
  if (!is_same_model) return {};
  const std::string* frozen = first_without(saved, own);
  const std::string* trained = first_without(own, saved);
  if (frozen == nullptr && trained == nullptr) return {};
  const std::string what =
      frozen != nullptr
          ? fmt::format("'{}.groups' freezes {}, which the run of the checkpoint trained", table, *frozen)
          : fmt::format("'{}.groups' does not freeze {}, which the run of the checkpoint froze", table, *trained);
  return Error{
      ErrorKind::kConfig, what, where,
      fmt::format("set {}.groups back, or start a new run with model.path = \"{}/huggingface\"", table, where)};
}

}  // namespace

Optimizer::Optimizer(std::vector<OptimizedParameter> parameters, std::unique_ptr<const UpdateRule> rule,
                     double weight_decay, std::string state_name, const ZeroOptions& zero, StateMemory memory)
    : parameters_(std::move(parameters)),
      rule_(std::move(rule)),
      weight_decay_(weight_decay),
      state_name_(std::move(state_name)),
      zero_(zero) {
  c10::NoGradGuard no_grad;
  if (zero_.tensor != nullptr && !rule_->steps_numbers())
    group_ = std::make_unique<GroupStep>(*zero_.tensor, parameters_);
  for (size_t i = 0; i < parameters_.size(); ++i)
    layout_.push_back(rule_->state_of(group_ != nullptr ? group_->whole(i) : parameters_[i]));
  make_units();
  if (is_sharded()) {
    parts_ = parts_of(zero_.communicator->rank());
  } else {
    for (size_t i = 0; i < parameters_.size(); ++i) parts_.push_back({i, 0, parameters_[i].tensor.numel()});
  }
  if (group_ != nullptr) {
    std::vector<size_t> own;
    for (const OwnPart& part : parts_) own.push_back(part.parameter);
    group_->deal(own);
  }
  if (memory == StateMemory::kHost) resting_ = std::make_unique<RestingState>();
  if (memory != StateMemory::kLater) (void)make_state();  // cannot fail without files
}

Optimizer::Optimizer(Optimizer&& other) noexcept = default;
Optimizer::~Optimizer() = default;

Result<> Optimizer::make_state() {
  c10::NoGradGuard no_grad;
  for (const OwnPart& part : parts_) {
    std::vector<at::Tensor>& tensors = state_.emplace_back();
    if (group_ != nullptr && !group_->has_state(part.parameter)) continue;
    for (const StateTensor& state : layout_[part.parameter]) {
      const at::IntArrayRef whole = state.shape;
      const std::vector<int64_t> piece{state_range_of(part.begin, part.size, state).size()};
      const at::IntArrayRef sizes = cuts_parameters() ? at::IntArrayRef(piece) : whole;
      const at::TensorOptions options = parameters_[part.parameter].tensor.options().dtype(state.dtype);
      if (files_ != nullptr)
        tensors.push_back(TRY(files_->zeros(sizes, options.device(at::kCPU))));
      else
        tensors.push_back(at::zeros(sizes, resting_ != nullptr ? options.device(at::kCPU) : options));
    }
  }
  if (resting_ != nullptr) resting_->begin(state_);
  return {};
}

Result<> Optimizer::rest() {
  if (resting_ == nullptr) return {};
  const auto leave = [this]() -> Result<> {
    resting_->rest(state_);
    return {};
  };
  return guard_torch("the optimizer's state goes to the host's memory", leave, MemoryUse::kUpdates);
}

Result<> Optimizer::offload(std::shared_ptr<Offload> files) {
  files_ = std::move(files);
  return make_state();
}

void Optimizer::make_units() {
  if (zero_.stage <= 0 || zero_.communicator == nullptr || zero_.communicator->size() == 1 || parameters_.empty())
    return;
  if (zero_.weights == nullptr) return make_bucket_units();
  const WeightUnits& spread = zero_.weights->units();
  add_spread_unit(spread.whole, -1);
  for (size_t part = 0; part < spread.parts.size(); ++part)
    add_spread_unit(spread.parts[part], static_cast<int64_t>(part));
}

void Optimizer::make_bucket_units() {
  const int num_ranks = zero_.communicator->size();
  const auto element = static_cast<int64_t>(parameters_.front().tensor.element_size());
  const int64_t most_bytes = zero_.bucket_bytes.value_or(unit_size(cut(), num_ranks, element));
  std::vector<int64_t> loads(static_cast<size_t>(num_ranks), 0);
  for (const auto& [begin, end] : backward_groups(parameters_, most_bytes)) {
    std::vector<size_t> members(end - begin);
    std::iota(members.begin(), members.end(), begin);
    const std::vector<int64_t> sizes = sizes_of(members);
    units_.push_back({std::move(members), Shards(sizes, cut(), loads)});
  }
}

std::vector<int64_t> Optimizer::sizes_of(std::span<const size_t> parameters) const {
  std::vector<int64_t> sizes;
  for (const size_t i : parameters) sizes.push_back(parameters_[i].tensor.numel());
  return sizes;
}

// `indices`: of the model's parameters, some of which may be frozen. What a rank steps is what it owns of the weights.
void Optimizer::add_spread_unit(std::span<const size_t> indices, int64_t part) {
  std::vector<size_t> own, places;
  for (size_t place = 0; place < indices.size(); ++place) {
    const std::string& name = zero_.weights->parameters()[indices[place]].name;
    const auto found = std::ranges::find(parameters_, name, &OptimizedParameter::name);
    if (found == parameters_.end()) continue;
    own.push_back(static_cast<size_t>(found - parameters_.begin()));
    places.push_back(place);
  }
  if (own.empty()) return;
  const Shards shards =
      part < 0 ? Shards(sizes_of(own), zero_.communicator->size(), cut()) : zero_.weights->shards_of(part).only(places);
  units_.push_back({own, shards, part, places});
}

std::vector<Optimizer::OwnPart> Optimizer::parts_of(int rank) const {
  std::vector<OwnPart> parts;
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    int64_t at = 0;
    const Shards& shards = units_[unit].shards;
    for (const TensorPart& part : shards.parts(shards.of(rank))) {
      OwnPart& own = parts.emplace_back(OwnPart{units_[unit].parameters[part.tensor], part.begin, part.size, unit, at});
      at += part.size;
      if (units_[unit].part < 0) continue;
      const Shards& weights = zero_.weights->shards_of(units_[unit].part);
      own.at_weights = weights.begin_of(units_[unit].places[part.tensor]) + part.begin - weights.of(rank).begin;
    }
  }
  return parts;
}

at::Tensor Optimizer::weights_of(const OwnPart& part) const {
  const bool is_spread = is_sharded() && units_[part.unit].part >= 0;
  at::Tensor tensor = parameters_[part.parameter].tensor.detach();
  if (rounded_ != nullptr && is_sharded() && !is_spread) tensor = rounded_->numbers(tensor);
  if (is_spread) {
    const at::Tensor own = zero_.weights->numbers(units_[part.unit].part).narrow(0, part.at_weights, part.size);
    return cuts_parameters() ? own : own.view(tensor.sizes());
  }
  return cuts_parameters() ? tensor.view({-1}).narrow(0, part.begin, part.size) : tensor;
}

FlatRange Optimizer::state_range_of(int64_t begin, int64_t size, const StateTensor& state) const {
  if (!cuts_parameters()) return {0, numel_of(state)};
  return {begin / state.numbers_each, (begin + size + state.numbers_each - 1) / state.numbers_each};
}

// Undefined if there is none.
at::Tensor Optimizer::gradient_of(const OwnPart& part) const {
  const at::Tensor& tensor = parameters_[part.parameter].tensor;
  if (!is_sharded()) return tensor.grad();
  const at::Tensor& own = units_[part.unit].own_gradient;
  if (!own.defined()) return {};
  const at::Tensor flat = own.narrow(0, part.at, part.size);
  return cuts_parameters() ? flat : flat.view(tensor.sizes());
}

std::vector<std::pair<size_t, at::Tensor>> Optimizer::own_gradients() const {
  std::vector<std::pair<size_t, at::Tensor>> out;
  for (const OwnPart& part : parts_) {
    if (at::Tensor gradient = gradient_of(part); gradient.defined())
      out.emplace_back(part.parameter, std::move(gradient));
  }
  return out;
}

void Optimizer::zero_grad() {
  for (OptimizedParameter& parameter : parameters_) {
    if (parameter.tensor.grad().defined()) parameter.tensor.mutable_grad().zero_();
  }
}

namespace {

// One norm for each block of the tensors, in order.
std::vector<double> block_norms(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> blocks;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor flat = tensor.reshape({-1});
    for (int64_t begin = 0; begin < flat.numel(); begin += Shards::kBlock)
      blocks.push_back(flat.narrow(0, begin, std::min(Shards::kBlock, flat.numel() - begin)));
  }
  std::vector<double> norms;
  if (blocks.empty()) return norms;
  const at::Tensor all =
      at::stack(at::_foreach_norm(blocks)).to(at::TensorOptions().device(at::kCPU).dtype(at::kDouble));
  norms.assign(all.const_data_ptr<double>(), all.const_data_ptr<double>() + all.numel());
  return norms;
}

double norm_of(std::span<const double> norms) {
  double sum_of_squares = 0.0;
  for (const double norm : norms) sum_of_squares += norm * norm;
  return std::sqrt(sum_of_squares);
}

}  // namespace

// The norm of each gradient, which one rank has if the gradients are sharded. Of split layers: of what this rank counts for.
Result<std::vector<double>> Optimizer::parameter_norms() const {
  c10::NoGradGuard no_grad;
  std::vector<double> norms(parameters_.size(), 0.0);
  for (const OwnPart& part : parts_) {
    at::Tensor gradient = gradient_of(part);
    if (!gradient.defined()) continue;
    const TensorSplit& split = zero_.tensor->split(zero_.tensor->find(parameters_[part.parameter].name));
    if (split.is_split()) gradient = split.counted(gradient, zero_.tensor->ranks()->rank());
    norms[part.parameter] = norm_of(block_norms({gradient}));
  }
  if (is_sharded()) TRY(zero_.communicator->all_reduce_sum(std::span(norms), "gradient norm"));
  return norms;
}

// A part begins and ends with blocks, so that the blocks of all ranks are those of the whole tensors.
Result<double> Optimizer::grad_norm() const {
  if (zero_.tensor != nullptr) return grad_norm_of_parts(parameters_, TRY(parameter_norms()), *zero_.tensor);
  if (!is_sharded()) return global_grad_norm(parameters_);
  c10::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const OwnPart& part : parts_) gradients.push_back(gradient_of(part));
  const std::vector<double> own = block_norms(gradients);
  std::string bytes(own.size() * sizeof(double), '\0');
  if (!own.empty()) std::memcpy(bytes.data(), own.data(), bytes.size());
  const std::vector<std::string> all = TRY(zero_.communicator->exchange(bytes, "gradient norm"));
  // In the order of the parameters, whatever the units are.
  std::vector<std::vector<double>> by_parameter(parameters_.size());
  for (int rank = 0; rank < zero_.communicator->size(); ++rank) {
    std::vector<double> norms(all[static_cast<size_t>(rank)].size() / sizeof(double));
    if (!norms.empty()) std::memcpy(norms.data(), all[static_cast<size_t>(rank)].data(), norms.size() * sizeof(double));
    auto next = norms.begin();
    for (const OwnPart& part : parts_of(rank)) {
      const int64_t count = std::min((part.size + Shards::kBlock - 1) / Shards::kBlock, norms.end() - next);
      by_parameter[part.parameter].insert(by_parameter[part.parameter].end(), next, next + count);
      next += count;
    }
  }
  std::vector<double> norms;
  for (const std::vector<double>& one : by_parameter) norms.insert(norms.end(), one.begin(), one.end());
  return norm_of(norms);
}

// What this rank has of a state tensor: all, or the range of its part of the parameter, which may be empty.
void Optimizer::put_state(StateWriter& writer, size_t parameter, size_t state) const {
  const StateTensor& layout = layout_[parameter][state];
  const std::string key = key_of(layout, parameters_[parameter]);
  if (group_ != nullptr) return put_group_state(writer, parameter, state);
  if (zero_.tensor != nullptr) return put_split_state(writer, parameter, state);
  const DType dtype = dtype_of_scalar(layout.dtype);
  if (!is_sharded()) {  // a part is a parameter
    const bool is_alone = zero_.communicator == nullptr || zero_.communicator->size() == 1;
    put_whole(writer, key, view_for_save(state_[parameter][state], files_ != nullptr), is_alone);
    return;
  }
  TensorView own{"", dtype, {0}, {}, nullptr};
  FlatRange range;
  for (size_t i = 0; zero_.saves && i < parts_.size(); ++i) {
    if (parts_[i].parameter != parameter) continue;
    range = state_range_of(parts_[i].begin, parts_[i].size, layout);
    own = view_for_save(state_[i][state].view({-1}), files_ != nullptr);
  }
  writer.put_source(key, dtype, layout.shape, std::make_shared<RankedTensor>(own, range.begin, range.size()));
}

std::optional<size_t> Optimizer::part_of(size_t parameter) const {
  const auto found = std::ranges::find(parts_, parameter, &OwnPart::parameter);
  return found == parts_.end() ? std::nullopt : std::optional(static_cast<size_t>(found - parts_.begin()));
}

void Optimizer::put_split_state(StateWriter& writer, size_t parameter, size_t state) const {
  const StateTensor& layout = layout_[parameter][state];
  const std::string key = key_of(layout, parameters_[parameter]);
  const size_t place = zero_.tensor->find(parameters_[parameter].name);
  const std::optional<size_t> own = part_of(parameter);
  const bool is_in_file = files_ != nullptr;
  if (!is_sharded())
    put_part(writer, key, *zero_.tensor, place, state_[*own][state], is_in_file);
  else if (own)
    put_owned_part(writer, key, *zero_.tensor, place, state_[*own][state], is_in_file);
  else
    put_nothing(writer, key, *zero_.tensor, place, dtype_of_scalar(layout.dtype));
}

Result<> Optimizer::read_split_state(StateReader& reader, size_t parameter, size_t state) {
  const StateTensor& layout = layout_[parameter][state];
  const std::string key = key_of(layout, parameters_[parameter]);
  const size_t place = zero_.tensor->find(parameters_[parameter].name);
  const std::optional<size_t> own = part_of(parameter);
  if (!own) {
    TRY(reader.get_tensor(key, dtype_of_scalar(layout.dtype), zero_.tensor->whole_sizes(place).vec()));
    return {};
  }
  TRY(read_part(reader, key, *zero_.tensor, place, state_[*own][state]));
  if (files_ != nullptr) files_->release(state_[*own][state]);
  return {};
}

// One rank of each group has the state of a whole parameter. Without ZeRO, the same rank of another group has it too.
void Optimizer::put_group_state(StateWriter& writer, size_t parameter, size_t state) const {
  const StateTensor& layout = layout_[parameter][state];
  const std::string key = key_of(layout, parameters_[parameter]);
  const std::optional<size_t> own = part_of(parameter);
  const bool has_state = own && group_->has_state(parameter);
  TensorView view{"", dtype_of_scalar(layout.dtype), {0}, {}, nullptr};
  if (has_state) view = view_for_save(state_[*own][state], files_ != nullptr);
  if (!is_sharded() && !group_->is_split(parameter)) return put_whole(writer, key, view, /*is_alone=*/false);
  const TensorRanks& ranks = *zero_.tensor->ranks();
  const bool is_turn = is_sharded() || static_cast<int>(parameter) % ranks.num_groups() == ranks.group();
  const bool writes = has_state && group_->is_owner(parameter) && is_turn;
  const auto ranked = std::make_shared<RankedTensor>(writes ? view : TensorView{"", view.dtype, {0}, {}, nullptr}, 0,
                                                     writes ? numel_of(layout) : 0);
  if (has_state && !is_sharded()) ranked->hold_in_common(view);
  writer.put_source(key, view.dtype, layout.shape, ranked);
}

Result<> Optimizer::read_group_state(StateReader& reader, size_t parameter, size_t state) {
  const StateTensor& layout = layout_[parameter][state];
  const std::string key = key_of(layout, parameters_[parameter]);
  const TensorView view = TRY(reader.get_tensor(key, dtype_of_scalar(layout.dtype), layout.shape));
  const std::optional<size_t> own = part_of(parameter);
  if (!own || !group_->has_state(parameter)) return {};
  TRY(copy_numbers(view, layout.dtype, 0, state_[*own][state]));
  if (files_ != nullptr) files_->release(state_[*own][state]);
  return {};
}

Result<> Optimizer::save_state(StateWriter& writer) const {
  writer.put_int("num_updates", num_updates());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    for (size_t state = 0; state < layout_[i].size(); ++state) put_state(writer, i, state);
  }
  return {};
}

// Every rank reads its own parts from the files of the checkpoint, which it maps.
Result<> Optimizer::load_state(StateReader& reader) {
  const c10::NoGradGuard no_grad;
  open_.reset();
  num_updates_ = TRY(reader.get_int("num_updates"));
  std::vector<std::string> own;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    for (const StateTensor& state : layout_[i]) own.push_back(key_of(state, parameters_[i]));
  }
  TRY(check_frozen(states_by_parameter(reader.unread_keys()), states_by_parameter(own), state_name_, reader.where()));
  for (size_t i = 0; i < parameters_.size(); ++i) {
    for (size_t state = 0; state < layout_[i].size(); ++state) {
      const StateTensor& layout = layout_[i][state];
      if (group_ != nullptr) {
        TRY(read_group_state(reader, i, state));
        continue;
      }
      if (zero_.tensor != nullptr) {
        TRY(read_split_state(reader, i, state));
        continue;
      }
      const TensorView view =
          TRY(reader.get_tensor(key_of(layout, parameters_[i]), dtype_of_scalar(layout.dtype), layout.shape));
      for (size_t part = 0; part < parts_.size(); ++part) {
        if (parts_[part].parameter != i) continue;
        const FlatRange range = state_range_of(parts_[part].begin, parts_[part].size, layout);
        TRY(copy_numbers(view, layout.dtype, range.begin, state_[part][state]));
        if (files_ != nullptr) files_->release(state_[part][state]);
      }
    }
  }
  return {};
}

int64_t state_bytes(const UpdateRule& rule, const std::vector<OptimizedParameter>& parameters) {
  int64_t bytes = 0;
  for (const OptimizedParameter& parameter : parameters) {
    for (const StateTensor& state : rule.state_of(parameter))
      bytes += numel_of(state) * static_cast<int64_t>(c10::elementSize(state.dtype));
  }
  return bytes;
}

void fill_absent_gradients(const std::vector<OptimizedParameter>& parameters) {
  for (const OptimizedParameter& parameter : parameters) {
    at::Tensor& grad = parameter.tensor.mutable_grad();
    if (!grad.defined()) grad = at::zeros_like(parameter.tensor.detach());
  }
}

double global_grad_norm(const std::vector<OptimizedParameter>& parameters) {
  c10::NoGradGuard no_grad;
  std::vector<at::Tensor> grads;
  for (const OptimizedParameter& parameter : parameters) {
    if (parameter.tensor.grad().defined()) grads.push_back(parameter.tensor.grad());
  }
  return norm_of(block_norms(grads));
}

double clip_factor(double norm, double max_norm) {
  if (max_norm <= 0.0) return 1.0;
  const double factor = max_norm / (norm + 1e-6);
  return factor < 1.0 ? factor : 1.0;
}

}  // namespace mortise
