// Addresses that a kernel gets. On a GPU they must be of its memory; an emulated kernel would take the host's as well.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <type_traits>

#include "cuda/module.h"

namespace mortise::test {

class DevicePointers {
 public:
  // Null: nothing is looked at.
  static inline std::function<bool(const void*)> is_of_device;  // NOLINT: kernels are plain functions

  // All arguments of a kernel. Ends the process if one has an address of the host. The device's memory is open.
  template <class... Arguments>
  static void look(const Arguments&... arguments) {
    if (is_of_device) look_at(arguments...);
  }

 private:
  static void look_at() {}
  // A table of tensors, and how many it has.
  template <class... Rest>
  static void look_at(const MortiseCudaStepTensor* const& rows, const int64_t& count, const Rest&... rest) {
    all(rows);
    for (int64_t i = 0; i < count; ++i)
      all(rows[i].gradient, rows[i].master, rows[i].exp_avg, rows[i].exp_avg_sq, rows[i].weights);
    look_at(rest...);
  }
  // mortise_cuda_sample: a table of edits, with as many rows as the logits.
  static void look_at(const float* const& logits, const int64_t& num_rows, const int64_t& /*stride*/,
                      const int32_t& /*vocab*/, const MortiseCudaDraw* const& draws, const MortiseCudaEdited& edited,
                      MortiseCudaDrawn* const& drawn, void* const& /*stream*/) {
    all(logits, draws, drawn, edited.edits, edited.logits, edited.totals);
    for (int64_t i = 0; edited.edits != nullptr && i < num_rows; ++i) {
      const MortiseCudaEdits& row = edited.edits[i];
      all(row.seen, row.tail, row.words, row.ends);
    }
  }
  template <class First, class... Rest>
  static void look_at(const First& first, const Rest&... rest) {
    one(first);
    look_at(rest...);
  }

  template <class T>
  static void one(const T& argument) {
    static_assert(std::is_pointer_v<T> || !std::is_class_v<T> || kHasNoPointers<T>, "name the pointers of this struct");
    if constexpr (std::is_pointer_v<T>) all(argument);
  }
  static void one(const MortiseCudaIn& in) { all(in.numbers); }
  static void one(const MortiseCudaOut& out) { all(out.numbers); }
  static void one(const MortiseCudaRotation& rotation) { all(rotation.cosines, rotation.sines); }
  static void one(const MortiseCudaHeadNorms& norms) { all(norms.q_weight, norms.k_weight); }
  static void one(const MortiseCudaCopies& copies) { all(copies.begins, copies.places); }
  static void one(const MortiseCudaHeadRows& rows) { all(rows.q, rows.k, rows.v); }
  static void one(const MortiseCudaExpertPairs& pairs) { all(pairs.order, pairs.tiles); }
  static void one(const MortiseCudaPages& pages) { all(pages.keys, pages.values, pages.table); }
  static void one(const MortiseCudaEdited& edited) { all(edited.edits, edited.logits, edited.totals); }

  template <class T>
  static constexpr bool kHasNoPointers = std::is_same_v<T, MortiseCudaHeadScale> ||
                                         std::is_same_v<T, MortiseCudaAdamW> || std::is_same_v<T, MortiseCudaHeads> ||
                                         std::is_same_v<T, MortiseCudaClamp> || std::is_same_v<T, MortiseCudaScores>;

  template <class... Pointers>
  static void all(const Pointers*... pointers) {
    for (const void* const pointer : {static_cast<const void*>(pointers)...}) {
      if (pointer == nullptr || is_of_device(pointer)) continue;
      std::fputs("a kernel gets an address of the host\n", stderr);
      std::abort();
    }
  }
};

}  // namespace mortise::test
