// call_tokens: a TokenBatch through the C ABI, every buffer and struct in guarded memory.
#include <cstring>
#include <deque>
#include <tuple>
#include <type_traits>

#include "conformance/guarded_memory.h"
#include "conformance/token_batch.h"
#include "plugin/host/abi_struct.h"
#include "plugin/host/kinds/input_columns.h"

namespace mortise::check {
namespace {

class TokenArguments {
 public:
  TokenArguments(const PluginInfo& info, const TokenBatch& batch, const TokenCall& how)
      : info_(info), batch_(batch), how_(how) {}

  // A struct of the ABI as its own host fills it: with nothing after its last field, or with unknown fields.
  template <class T>
  T* make(const char* name) {
    GuardedMemory& memory = memory_.emplace_back(name, sizeof(T) + how_.tail_bytes, alignof(T));
    std::memset(memory.data(), 0x5D, memory.size());
    T* out = memory.as<T>();
    *out = T{};
    out->struct_size = static_cast<uint32_t>(memory.size());
    return out;
  }

  template <class T>
  const T* array(const char* name, const std::vector<T>& values) {
    GuardedMemory& memory = memory_.emplace_back(name, values.size() * sizeof(T), alignof(T));
    if (!values.empty()) std::memcpy(memory.data(), values.data(), memory.size());
    inputs_.push_back(&memory);
    return memory.as<T>();
  }

  const mortise_layout* layout() {
    auto* out = make<mortise_layout>("layout");
    out->num_rows = batch_.num_rows();
    out->num_tokens = batch_.num_tokens();
    out->row_offsets = array("row_offsets", batch_.row_offsets);
    out->row_id = array("row_id", batch_.row_id);
    out->group_index = array("group_index", batch_.group_index);
    return out;
  }

  template <class T>
  const mortise_tensor* input(const char* name, const std::vector<T>& values, std::vector<int64_t> shape) {
    GuardedMemory& memory = memory_.emplace_back(name, values.size() * sizeof(T) + how_.byte_offset);
    if (!values.empty()) std::memcpy(memory.data() + how_.byte_offset, values.data(), values.size() * sizeof(T));
    inputs_.push_back(&memory);
    return tensor(memory, sizeof(T) == 4 ? MORTISE_FLOAT : MORTISE_UINT, sizeof(T) * 8, std::move(shape));
  }
  // The columns that the kind sees, by its one table. A column that may be absent is there only if the plugin asks for it or
  // the case gives everything; masks always are.
  template <class In>
  void fill(In& in) {
    const auto each = [&]<class C>(const InputField<C, In>& field) {
      in.*field.field = column<C, In>(field.is_optional);
    };
    std::apply([&](const auto&... field) { (each(field), ...); }, InputFields<In>::kAll);
  }

  const mortise_tensor* output(const std::string& name) {
    const auto n = static_cast<size_t>(batch_.num_tokens());
    GuardedMemory& memory = memory_.emplace_back(name, n * sizeof(float) + how_.byte_offset);
    for (size_t t = 0; t < n; ++t) values_of(memory)[t] = how_.prefill;
    outputs_.push_back(&memory);
    return tensor(memory, MORTISE_FLOAT, 32, {batch_.num_tokens()});
  }

  void protect_inputs() {
    for (GuardedMemory* memory : inputs_) memory->make_read_only();
  }
  // Copies what came into outputs, in the order in which they were made, to `out` at the given places.
  void collect(std::span<const size_t> places, TokenResult& result) {
    const auto n = static_cast<size_t>(batch_.num_tokens());
    for (size_t k = 0; k < outputs_.size(); ++k) {
      const float* values = values_of(*outputs_[k]);
      result.out[places[k]].assign(values, values + n);
      if (result.damage.empty()) result.damage = outputs_[k]->damage();
    }
  }

 private:
  template <class C, class In>
  const mortise_tensor* column(bool is_optional) {
    constexpr bool kIsRow = C::level == Level::kRow;
    const int64_t size = kIsRow ? batch_.num_rows() : batch_.num_tokens();
    const std::string name(C::name);
    if constexpr (std::is_same_v<typename C::Value, uint8_t>) {
      return input(name.c_str(), kIsRow ? batch_.row_valid : batch_.mask, {size});
    } else {
      const bool is_required = info_.requires_input(C::name);
      if (is_optional && !is_required && !how_.optional_inputs) return nullptr;
      // The engine multiplies these into the weights of a loss that does not take them itself.
      constexpr bool kIsStage =
          std::is_same_v<C, column::RolloutIsWeights> && std::is_same_v<In, mortise_policy_loss_in>;
      if (kIsStage && !is_required && !info_.consumes_stage(C::name)) return nullptr;
      return input(name.c_str(), (kIsRow ? batch_.rows : batch_.tokens).at(name), {size});
    }
  }
  float* values_of(const GuardedMemory& memory) const {
    return reinterpret_cast<float*>(memory.data() + how_.byte_offset);
  }
  const mortise_tensor* tensor(const GuardedMemory& memory, uint8_t code, size_t bits, std::vector<int64_t> shape) {
    auto& sizes = shapes_.emplace_back(std::move(shape));
    auto& strides = shapes_.emplace_back(sizes.size(), 1);
    if (sizes.size() == 2) strides[0] = sizes[1];
    mortise_tensor& out = tensors_.emplace_back();
    out = {memory.data(),
           how_.device,
           0,
           static_cast<int32_t>(sizes.size()),
           code,
           static_cast<uint8_t>(bits),
           1,
           sizes.data(),
           strides.data(),
           how_.byte_offset};
    return &out;
  }

  const PluginInfo& info_;
  const TokenBatch& batch_;
  const TokenCall& how_;
  std::deque<GuardedMemory> memory_;
  std::deque<std::vector<int64_t>> shapes_;
  std::deque<mortise_tensor> tensors_;
  std::vector<GuardedMemory*> inputs_, outputs_;
};

void call_policy_loss(const Instance& instance, TokenArguments& args, const TokenCall& how, TokenResult& result) {
  auto* in = args.make<mortise_policy_loss_in>("the inputs' struct");
  in->layout = args.layout();
  args.fill(*in);
  in->step = 3;
  in->update_index = 5;
  auto* out = args.make<mortise_policy_loss_out>("the outputs' struct");
  std::vector<size_t> places = {0};
  out->loss = args.output("loss");
  if (how.gradient) {
    out->grad_log_prob = args.output("grad_log_prob");
    places.push_back(1);
  }
  if (how.entropy_gradient) {
    out->grad_entropy = args.output("grad_entropy");
    places.push_back(2);
  }
  args.protect_inputs();
  const auto& vtable = instance.subject().vtable<mortise_policy_loss_vtable>();
  const auto slot = catchable(vtable.compute);
  result.call = instance.subject().run(0, [&](mortise_call* call) { return slot(instance.self(), call, in, out); });
  args.collect(places, result);
}

void call_kl_estimator(const Instance& instance, TokenArguments& args, const TokenCall& how, TokenResult& result) {
  auto* in = args.make<mortise_kl_estimator_in>("the inputs' struct");
  in->layout = args.layout();
  args.fill(*in);
  auto* out = args.make<mortise_kl_estimator_out>("the outputs' struct");
  std::vector<size_t> places = {0};
  out->kl = args.output("kl");
  if (how.gradient) {
    out->grad_log_prob = args.output("grad_log_prob");
    places.push_back(1);
  }
  args.protect_inputs();
  const auto slot = catchable(instance.subject().vtable<mortise_kl_estimator_vtable>().compute);
  result.call = instance.subject().run(0, [&](mortise_call* call) { return slot(instance.self(), call, in, out); });
  args.collect(places, result);
}

void call_advantages(const Instance& instance, TokenArguments& args, const TokenBatch& batch, const TokenCall& how,
                     TokenResult& result) {
  auto* in = args.make<mortise_advantage_estimator_in>("the inputs' struct");
  in->layout = args.layout();
  args.fill(*in);
  if (how.optional_inputs || instance.subject().info().requires_input("rewards")) {
    std::vector<float> rewards;
    for (size_t row = 0; row < batch.row_id.size(); ++row) {
      rewards.push_back(batch.rows.at("reward_0")[row]);
      rewards.push_back(batch.rows.at("reward_1")[row]);
    }
    in->rewards = args.input("rewards", rewards, {batch.num_rows(), 2});
    in->reward_weights = args.input("reward_weights", std::vector<float>{1, 1}, {2});
  }
  in->step = 3;
  auto* out = args.make<mortise_advantage_estimator_out>("the outputs' struct");
  out->advantages = args.output("advantages");
  out->returns = args.output("returns");
  args.protect_inputs();
  const auto slot = catchable(instance.subject().vtable<mortise_advantage_estimator_vtable>().compute);
  result.call = instance.subject().run(0, [&](mortise_call* call) { return slot(instance.self(), call, in, out); });
  const size_t places[] = {0, 1};
  args.collect(places, result);
}

}  // namespace

TokenResult call_tokens(const Instance& instance, const TokenBatch& batch, const TokenCall& how) {
  TokenResult result;
  TokenArguments args(instance.subject().info(), batch, how);
  const uint32_t kind = instance.subject().kind();
  if (kind == kPolicyLoss) call_policy_loss(instance, args, how, result);
  if (kind == kKlEstimator) call_kl_estimator(instance, args, how, result);
  if (kind == kAdvantage) call_advantages(instance, args, batch, how, result);
  return result;
}

}  // namespace mortise::check
