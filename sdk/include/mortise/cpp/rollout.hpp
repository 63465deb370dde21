/* RolloutBackend: completions for prompts, from anywhere.
 *
 * submit() takes requests (copy what you keep; read_sampling of sampling.hpp copies the options), poll() works or waits
 * and hands finished sequences to the sink until the sink says stop. A backend that holds a copy of the weights derives
 * from WeightedRolloutBackend and gets them again after each update. All methods may throw; the exception becomes the
 * slot's status. See kinds/rollout_backend.h for the life of a backend and the threads.
 */
#ifndef MORTISE_CPP_ROLLOUT_HPP_
#define MORTISE_CPP_ROLLOUT_HPP_

#include "plugin.hpp"
#include "sampling.hpp"

namespace mortise {

class RolloutBackend : public Plugin {
 public:
  virtual void set_version(std::int64_t version, Call call) = 0;
  // How many of the requests it accepted, from the first on.
  virtual std::uint64_t submit(Span<const mortise_rollout_request* const> requests, Call call) = 0;
  // How many sequences are still outstanding.
  virtual std::uint64_t poll(const mortise_rollout_sink& sink, std::int64_t timeout_ns, Call call) = 0;
  virtual void abort(std::int64_t request_id, Call call) = 0;
  virtual void sleep(std::int32_t, Call) {}
  virtual void wake(Call) {}
};

// A block of one weight. Borrowed: copy what you keep.
struct WeightShard {
  std::string_view name;            // "model.layers.0.mlp.up_proj.weight"
  const mortise_tensor& data;       // the block: contiguous, its own shape
  Span<const std::int64_t> shape;   // shape of the whole weight
  Span<const std::int64_t> offset;  // where the block begins in it, one entry per dimension
  // True if the block is the whole weight.
  bool whole() const {
    for (std::int64_t d = 0; d < shape.size(); ++d)
      if (data.shape[d] != shape[d]) return false;
    return true;
  }
};

// After each update of the policy: begin_update, update_weight for every block of every weight, end_update. Sequences
// that are sampled after end_update have the new version. Until then the old weights are in use.
class WeightedRolloutBackend : public RolloutBackend {
 public:
  virtual void begin_update(std::int64_t version, Call call) = 0;
  virtual void update_weight(const WeightShard& shard, Call call) = 0;
  virtual void end_update(Call call) = 0;
};

namespace detail {

// The three slots of a backend with its own weights; null for any other.
template <class T, bool = std::is_base_of<WeightedRolloutBackend, T>::value>
struct WeightSlots {
  static constexpr decltype(mortise_rollout_backend_vtable::begin_update) begin_update = nullptr;
  static constexpr decltype(mortise_rollout_backend_vtable::update_weight) update_weight = nullptr;
  static constexpr decltype(mortise_rollout_backend_vtable::end_update) end_update = nullptr;
};

template <class T>
struct WeightSlots<T, true> {
  static std::int32_t begin_update(void* self, mortise_call* raw, std::int64_t version) MORTISE_NOEXCEPT {
    return run<T>(self, raw, [&](T& plugin, Call call) { plugin.begin_update(version, call); });
  }
  static std::int32_t update_weight(void* self, mortise_call* raw, mortise_text name, const mortise_tensor* shard,
                                    const std::int64_t* global_shape, const std::int64_t* offset) MORTISE_NOEXCEPT {
    return run<T>(self, raw, [&](T& plugin, Call call) {
      const std::int64_t dims = shard->ndim;
      plugin.update_weight({view(name), *shard, {global_shape, dims}, {offset, dims}}, call);
    });
  }
  static std::int32_t end_update(void* self, mortise_call* raw) MORTISE_NOEXCEPT {
    return run<T>(self, raw, [&](T& plugin, Call call) { plugin.end_update(call); });
  }
};

template <class T>
struct RolloutBackendPlugin {
  static_assert(std::is_base_of_v<RolloutBackend, T>,
                "MORTISE_ROLLOUT_BACKEND takes a class that derives from mortise::RolloutBackend");
  static std::int32_t set_version(void* self, mortise_call* raw, std::int64_t version) MORTISE_NOEXCEPT {
    return run<T>(self, raw, [&](T& plugin, Call call) { plugin.set_version(version, call); });
  }
  static std::int32_t submit(void* self, mortise_call* raw, const mortise_rollout_request* const* requests,
                             std::uint64_t num_requests, std::uint64_t* accepted) MORTISE_NOEXCEPT {
    return run<T>(self, raw, [&](T& plugin, Call call) {
      *accepted = 0;
      *accepted = plugin.submit({requests, std::int64_t(num_requests)}, call);
    });
  }
  static std::int32_t poll(void* self, mortise_call* raw, const mortise_rollout_sink* sink, std::int64_t timeout_ns,
                           std::uint64_t* outstanding) MORTISE_NOEXCEPT {
    return run<T>(self, raw, [&](T& plugin, Call call) { *outstanding = plugin.poll(*sink, timeout_ns, call); });
  }
  static std::int32_t abort(void* self, mortise_call* raw, std::int64_t request_id) MORTISE_NOEXCEPT {
    return run<T>(self, raw, [&](T& plugin, Call call) { plugin.abort(request_id, call); });
  }
  static std::int32_t sleep(void* self, mortise_call* raw, std::int32_t level) MORTISE_NOEXCEPT {
    return run<T>(self, raw, [&](T& plugin, Call call) { plugin.sleep(level, call); });
  }
  static std::int32_t wake(void* self, mortise_call* raw) MORTISE_NOEXCEPT {
    return run<T>(self, raw, [&](T& plugin, Call call) { plugin.wake(call); });
  }
  static constexpr mortise_rollout_backend_vtable vtable = {sizeof(mortise_rollout_backend_vtable),
                                                            0,
                                                            create<T>,
                                                            destroy<T>,
                                                            get_extension<T>,
                                                            set_version,
                                                            WeightSlots<T>::begin_update,
                                                            WeightSlots<T>::update_weight,
                                                            WeightSlots<T>::end_update,
                                                            submit,
                                                            poll,
                                                            abort,
                                                            sleep,
                                                            wake};
  static mortise_descriptor describe(const char* name) {
    return detail::describe<T>(MORTISE_KIND_ROLLOUT_BACKEND, name, MORTISE_COUPLING_TOKEN, &vtable);
  }
};

}  // namespace detail
}  // namespace mortise

#define MORTISE_ROLLOUT_BACKEND(name, ...) MORTISE_PLUGIN(name, RolloutBackendPlugin<__VA_ARGS__>)

#endif  // MORTISE_CPP_ROLLOUT_HPP_
