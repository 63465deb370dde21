/* read_sampling: the sampling options of a rollout request, copied into a struct of yours.
 *
 * The struct has members of these names, of which the last three are vectors:
 *   max_new_tokens, min_new_tokens, temperature, top_k, top_p, min_p, typical_p, repetition_penalty, presence_penalty,
 *   frequency_penalty, ignore_eos, stop_ids, stop_strings, bad_words
 * Options that are off, or that an older host does not have, get their neutral values. See kinds/rollout_backend.h.
 */
#ifndef MORTISE_CPP_SAMPLING_HPP_
#define MORTISE_CPP_SAMPLING_HPP_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../kinds/rollout_backend.h"

namespace mortise {

template <class Options>
void read_sampling(const mortise_sampling& from, Options& out) {
  mortise_sampling in{};
  std::memcpy(&in, &from, std::min<std::size_t>(sizeof in, from.struct_size));
  const auto or_one = [](double value) { return value == 0 ? 1.0 : value; };
  out.max_new_tokens = in.max_new_tokens;
  out.min_new_tokens = in.min_new_tokens;
  out.temperature = in.temperature;
  out.top_k = in.top_k;
  out.top_p = in.top_p;
  out.min_p = in.min_p;
  out.typical_p = or_one(in.typical_p);
  out.repetition_penalty = or_one(in.repetition_penalty);
  out.presence_penalty = in.presence_penalty;
  out.frequency_penalty = in.frequency_penalty;
  out.ignore_eos = in.ignore_eos != 0;
  out.stop_ids.clear();
  if (in.stop_ids != nullptr) out.stop_ids.assign(in.stop_ids, in.stop_ids + in.num_stop_ids);
  out.stop_strings.clear();
  for (std::uint64_t i = 0; in.stop_strings != nullptr && i < in.num_stop_strings; ++i)
    out.stop_strings.emplace_back(in.stop_strings[i].data, in.stop_strings[i].size);
  out.bad_words.clear();
  const std::int64_t* ids = in.bad_word_ids;
  for (std::uint64_t i = 0; in.bad_word_lengths != nullptr && i < in.num_bad_words; ++i) {
    const std::int64_t length = std::max<std::int64_t>(0, in.bad_word_lengths[i]);
    out.bad_words.emplace_back(ids, ids + length);
    ids += length;
  }
}

}  // namespace mortise

#endif  // MORTISE_CPP_SAMPLING_HPP_
