/* mortise.state/1 in C++: what an instance must keep across a resume.
 *
 *     struct Running : mortise::OutcomeEstimator {
 *       std::string save_state() const { ... }             // bytes of your own format
 *       void load_state(std::string_view bytes) { ... }    // throws Failure(MORTISE_DATA_LOSS, ...) for anything else
 *       const void* extension(const char* id) override { return mortise::state_extension<Running>(id); }
 *     };
 *
 * `T` must be the class that the plugin's macro names. Saved with every checkpoint, loaded right after create.
 * [control]
 */
#ifndef MORTISE_CPP_STATE_HPP_
#define MORTISE_CPP_STATE_HPP_

#include "plugin.hpp"

namespace mortise {
namespace detail {

template <class T>
struct StateOf {
  static std::int32_t save(void* self, mortise_call* call, const mortise_state_sink* sink) MORTISE_NOEXCEPT {
    return run<T>(self, call, [&](const T& plugin, Call) {
      const std::string bytes = plugin.save_state();
      sink->write(sink->context, {bytes.data(), bytes.size()});
    });
  }
  static std::int32_t load(void* self, mortise_call* call, mortise_bytes bytes) MORTISE_NOEXCEPT {
    return run<T>(self, call, [&](T& plugin, Call) {
      plugin.load_state(bytes.size == 0 ? std::string_view()
                                        : std::string_view(static_cast<const char*>(bytes.data), bytes.size));
    });
  }
  static constexpr mortise_state table = {sizeof(mortise_state), 0, save, load};
};

}  // namespace detail

template <class T>
const void* state_extension(const char* id) {
  return std::string_view(id) == MORTISE_EXT_STATE ? &detail::StateOf<T>::table : nullptr;
}

}  // namespace mortise

#endif  // MORTISE_CPP_STATE_HPP_
