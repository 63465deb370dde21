// See sampling.h. Without filters: inverse of the cumulative distribution over chunks, then inside one chunk. With
// them: the kept set is every (logit, index) at or above a threshold pair, found by selection (top_k) and by a
// histogram of mass over distance from the maximum (top_p); typical_p selects among those by weight.
#include "generate/sample/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "generate/sample/row_edits.h"

namespace mortise {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

int64_t num_chunks(const LogitRow& row) { return (row.padded_size + kChunkLogits - 1) / kChunkLogits; }
int64_t chunk_size(const LogitRow& row, int64_t chunk) {
  return std::min(kChunkLogits, row.padded_size - chunk * kChunkLogits);
}

struct RowTotal {
  float max = kNever;
  double sum = 0;  // sum of exp((logit - max) * inverse_temperature)
};

// Joins the chunks; scratch.floats gets exp((chunk_max - max) * inverse_temperature) for each.
RowTotal join_chunks(const Kernels& kernels, const LogitRow& row, float inverse_temperature, SamplingScratch& scratch) {
  const int64_t chunks = num_chunks(row);
  const int64_t padded = (chunks + 15) / 16 * 16;
  RowTotal total;
  for (int64_t c = 0; c < chunks; ++c) total.max = std::max(total.max, row.chunk_max[c]);
  scratch.floats.resize(static_cast<size_t>(padded + kChunkLogits));
  float* const scale = scratch.floats.data();
  std::copy_n(row.chunk_max, chunks, scale);
  std::fill(scale + chunks, scale + padded, kNever);
  kernels.exp_scaled(scale, padded, total.max, inverse_temperature, scale);
  for (int64_t c = 0; c < chunks; ++c)
    total.sum += static_cast<double>(scale[c]) * static_cast<double>(row.chunk_sum[c]);
  return total;
}

bool is_barred(std::span<const int64_t> barred, int64_t id) { return std::ranges::find(barred, id) != barred.end(); }

// exp of a chunk's logits relative to `max`, barred ones 0, into `out`; returns their sum.
double chunk_masses(const Kernels& kernels, const LogitRow& row, int64_t chunk, float max, float inverse_temperature,
                    std::span<const int64_t> barred, float* out) {
  const int64_t begin = chunk * kChunkLogits;
  const int64_t size = chunk_size(row, chunk);
  kernels.exp_scaled(row.logits + begin, size, max, inverse_temperature, out);
  for (const int64_t id : barred) {
    if (id >= begin && id < begin + size) out[id - begin] = 0.0F;
  }
  double sum = 0;
  for (int64_t i = 0; i < size; ++i) sum += static_cast<double>(out[i]);
  return sum;
}

float log_prob_of(const LogitRow& row, int64_t id, const RowTotal& total, float inverse_temperature) {
  return static_cast<float>((static_cast<double>(row.logits[id]) - static_cast<double>(total.max)) *
                                static_cast<double>(inverse_temperature) -
                            std::log(total.sum));
}

SampledToken take_largest(const LogitRow& row, std::span<const int64_t> barred, const RowTotal& total) {
  float best = kNever;
  int64_t id = -1;
  for (int64_t c = 0; c < num_chunks(row); ++c) {
    if (id >= 0 && row.chunk_max[c] <= best) continue;
    for (int64_t i = c * kChunkLogits; i < std::min(row.vocab_size, (c + 1) * kChunkLogits); ++i) {
      if ((id < 0 || row.logits[i] > best) && (barred.empty() || !is_barred(barred, i))) {
        best = row.logits[i];
        id = i;
      }
    }
  }
  return {id, log_prob_of(row, id, total, 1.0F), 0.0F};
}

// Forbidden tokens are the only filter. The mass of each chunk is known; chunks with a forbidden id are summed again.
SampledToken sample_all(const Kernels& kernels, const LogitRow& row, float inverse_temperature,
                        std::span<const int64_t> barred, double uniform, const RowTotal& total,
                        SamplingScratch& scratch) {
  const int64_t chunks = num_chunks(row);
  scratch.doubles.resize(static_cast<size_t>(chunks));
  double* const mass = scratch.doubles.data();
  float* const inside = scratch.floats.data() + (chunks + 15) / 16 * 16;
  for (int64_t c = 0; c < chunks; ++c) {
    mass[c] = static_cast<double>(scratch.floats[static_cast<size_t>(c)]) * static_cast<double>(row.chunk_sum[c]);
  }
  for (const int64_t id : barred) {
    const int64_t c = id / kChunkLogits;
    mass[c] = chunk_masses(kernels, row, c, total.max, inverse_temperature, barred, inside);
  }
  double all = 0;
  for (int64_t c = 0; c < chunks; ++c) all += mass[c];
  double target = uniform * all;
  int64_t chunk = -1;
  int64_t last = -1;  // with any mass: where rounding may leave us
  for (int64_t c = 0; c < chunks && chunk < 0; ++c) {
    if (mass[c] <= 0.0) continue;
    last = c;
    if (target < mass[c])
      chunk = c;
    else
      target -= mass[c];
  }
  if (chunk < 0) chunk = last;
  if (chunk < 0) return take_largest(row, barred, total);  // all that is allowed underflows
  chunk_masses(kernels, row, chunk, total.max, inverse_temperature, barred, inside);
  int64_t pick = -1;
  for (int64_t i = 0; i < chunk_size(row, chunk); ++i) {
    const double p = static_cast<double>(inside[i]);
    if (p <= 0.0) continue;
    pick = i;
    if (target < p) break;
    target -= p;
  }
  if (pick < 0) return take_largest(row, barred, total);
  const int64_t id = chunk * kChunkLogits + pick;
  const double distance =
      (static_cast<double>(row.logits[id]) - static_cast<double>(total.max)) * static_cast<double>(inverse_temperature);
  return {id, static_cast<float>(distance - std::log(total.sum)), static_cast<float>(distance - std::log(all))};
}

// (logit, index) at or above which a token is kept.
struct Threshold {
  float logit = kNever;
  int64_t index = 0;
  [[nodiscard]] bool keeps(float value, int64_t i) const { return value > logit || (value == logit && i >= index); }
};

// Calls visit(value, index) for every allowed token at or above `least`, chunk by chunk, skipping chunks all below.
template <class Visit>
void visit_from(const LogitRow& row, std::span<const int64_t> barred, float least, Visit visit) {
  for (int64_t c = 0; c < num_chunks(row); ++c) {
    if (row.chunk_max[c] < least) continue;
    for (int64_t i = c * kChunkLogits; i < std::min(row.vocab_size, (c + 1) * kChunkLogits); ++i) {
      if (row.logits[i] >= least && row.logits[i] > kNever && (barred.empty() || !is_barred(barred, i))) {
        visit(row.logits[i], i);
      }
    }
  }
}

// The k-th largest allowed logit. The maxima of chunks give a lower bound that leaves few candidates.
float kth_largest(const LogitRow& row, std::span<const int64_t> barred, int64_t k, SamplingScratch& scratch) {
  k = std::min(k, row.vocab_size);
  const int64_t chunks = num_chunks(row);
  float least = kNever;
  std::vector<float>& values = scratch.floats;
  const int64_t rank = k + static_cast<int64_t>(barred.size());  // a barred id may be its chunk's maximum
  if (rank <= chunks) {
    values.assign(row.chunk_max, row.chunk_max + chunks);
    std::nth_element(values.begin(), values.begin() + (rank - 1), values.end(), std::greater<>());
    least = values[static_cast<size_t>(rank - 1)];
  }
  values.clear();
  visit_from(row, barred, least, [&](float value, int64_t) { values.push_back(value); });
  if (static_cast<int64_t>(values.size()) <= k) return least;
  std::nth_element(values.begin(), values.begin() + (k - 1), values.end(), std::greater<>());
  return values[static_cast<size_t>(k - 1)];
}

// Cuts the tail of the tokens after `from` whose mass is within 1 - top_p of theirs.
Threshold cut_tail(const LogitRow& row, std::span<const int64_t> barred, const Threshold& from, float max,
                   double inverse_temperature, double top_p, SamplingScratch& scratch) {
  constexpr int64_t kBuckets = 1024;
  constexpr double kRange = 104.0;  // exp(-104) is below any float
  std::vector<double>& mass = scratch.doubles;
  mass.assign(kBuckets, 0.0);
  const auto distance_of = [&](float value) {
    return (static_cast<double>(max) - static_cast<double>(value)) * inverse_temperature;
  };
  const auto bucket_of = [](double distance) {
    return static_cast<int64_t>(std::min(static_cast<double>(kBuckets - 1), distance * (kBuckets / kRange)));
  };
  double all = 0;
  visit_from(row, barred, from.logit, [&](float value, int64_t) {
    const double d = distance_of(value);
    const double p = std::exp(-d);
    mass[static_cast<size_t>(bucket_of(d))] += p;
    all += p;
  });
  const double limit = (1.0 - top_p) * all;
  double below = 0;
  int64_t bucket = kBuckets - 1;
  while (bucket > 0 && below + mass[static_cast<size_t>(bucket)] <= limit) below += mass[static_cast<size_t>(bucket--)];
  std::vector<int64_t>& inside = scratch.indices;
  inside.clear();
  visit_from(row, barred, from.logit, [&](float value, int64_t i) {
    if (bucket_of(distance_of(value)) == bucket) inside.push_back(i);
  });
  std::ranges::sort(inside, [&](int64_t a, int64_t b) {
    return row.logits[a] != row.logits[b] ? row.logits[a] < row.logits[b] : a < b;
  });
  for (size_t i = 0; i + 1 < inside.size(); ++i) {
    below += std::exp(-distance_of(row.logits[inside[i]]));
    if (below > limit) return {row.logits[inside[i]], inside[i]};
  }
  return inside.empty() ? from : Threshold{row.logits[inside.back()], inside.back()};
}

double entropy_of(std::span<const double> mass, double all) {
  double entropy = 0;
  for (const double m : mass) {
    if (m > 0) entropy += m / all * (std::log(all) - std::log(m));
  }
  return entropy;
}

// How far the information of a kept token may be from the entropy: the distance at which the mass of the nearer tokens
// reaches typical_p of `all`. mass[i] is relative to the best. A selection by weight, linear on average.
double typical_limit(std::span<const double> mass, double all, double typical_p, SamplingScratch& scratch) {
  std::vector<std::pair<double, double>>& items = scratch.distances;
  items.clear();
  const double entropy = entropy_of(mass, all);
  for (const double m : mass) {
    if (m > 0) items.emplace_back(std::abs(std::log(all) - std::log(m) - entropy), m);
  }
  auto begin = items.begin();
  auto end = items.end();
  double below = 0;  // mass of the items before `begin`
  while (end - begin > 1) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, [](const auto& a, const auto& b) { return a.first < b.first; });
    double left = 0;
    for (auto item = begin; item != middle; ++item) left += item->second;
    if (below + left >= typical_p * all) {
      end = middle;
    } else {
      below += left;
      begin = middle;
    }
  }
  return begin < end ? begin->first : 0.0;
}

// Drops untypical tokens from scratch.indices and scratch.doubles. Returns the mass of the rest.
double keep_typical(double all, double typical_p, SamplingScratch& scratch) {
  std::vector<double>& mass = scratch.doubles;
  const double entropy = entropy_of(mass, all);
  const double limit = typical_limit(mass, all, typical_p, scratch);
  double left = 0;
  size_t kept = 0;
  for (size_t i = 0; i < mass.size(); ++i) {
    if (mass[i] <= 0 || std::abs(std::log(all) - std::log(mass[i]) - entropy) > limit) continue;
    scratch.indices[kept] = scratch.indices[i];
    mass[kept++] = mass[i];
    left += mass[kept - 1];
  }
  scratch.indices.resize(kept);
  mass.resize(kept);
  return left;
}

SampledToken sample_filtered(const LogitRow& row, const SamplingParams& params, std::span<const int64_t> barred,
                             double uniform, const RowTotal& total, SamplingScratch& scratch) {
  const double inverse_temperature = 1.0 / params.temperature;
  float max = kNever;
  visit_from(row, barred, kNever, [&](float value, int64_t) { max = std::max(max, value); });
  Threshold threshold;
  if (params.top_k > 0) threshold.logit = kth_largest(row, barred, params.top_k, scratch);
  if (params.top_p < 1.0) {
    threshold = cut_tail(row, barred, threshold, max, inverse_temperature, params.top_p, scratch);
  }
  const auto mass_of = [&](float value) {
    return std::exp((static_cast<double>(value) - static_cast<double>(max)) * inverse_temperature);
  };
  scratch.indices.clear();
  scratch.doubles.clear();
  double all = 0;
  visit_from(row, barred, threshold.logit, [&](float value, int64_t i) {
    if (!threshold.keeps(value, i)) return;
    const double p = mass_of(value);
    if (p < params.min_p) return;  // the best has mass 1
    scratch.indices.push_back(i);
    scratch.doubles.push_back(p);
    all += p;
  });
  if (scratch.indices.empty()) return take_largest(row, barred, total);
  if (params.typical_p < 1.0) all = keep_typical(all, params.typical_p, scratch);
  double target = uniform * all;
  size_t pick = 0;
  for (size_t i = 0; i < scratch.doubles.size(); ++i) {
    if (scratch.doubles[i] <= 0.0) continue;
    pick = i;
    if (target < scratch.doubles[i]) break;
    target -= scratch.doubles[i];
  }
  const int64_t id = scratch.indices[pick];
  const double distance = (static_cast<double>(row.logits[id]) - static_cast<double>(max)) * inverse_temperature;
  return {id, log_prob_of(row, id, total, params.inverse_temperature()), static_cast<float>(distance - std::log(all))};
}

}  // namespace

SampledToken sample_token(const Kernels& kernels, const LogitRow& row, const DrawInput& input,
                          SamplingScratch& scratch) {
  const SamplingParams& params = *input.params;
  const float inverse_temperature = params.inverse_temperature();
  const auto draw = [&](const LogitRow& from, std::span<const int64_t> barred, const RowTotal& total) {
    if (params.greedy()) return take_largest(from, barred, total);
    if (params.filters()) return sample_filtered(from, params, barred, input.uniform, total, scratch);
    return sample_all(kernels, from, inverse_temperature, barred, input.uniform, total, scratch);
  };
  // With many forbidden tokens, a copy without them is cheaper than a search for each token.
  constexpr size_t kFewBars = 8;
  const bool is_changed = (params.penalises() && !input.edits.seen.empty()) || !input.edits.allowed.empty();
  if (!is_changed && input.edits.barred.size() <= kFewBars) {
    return draw(row, input.edits.barred, join_chunks(kernels, row, inverse_temperature, scratch));
  }
  const RowTotal own = join_chunks(kernels, row, inverse_temperature, scratch);
  const LogitRow changed = edit_row(kernels, row, params, input.edits, scratch);
  SampledToken token = draw(changed, {}, join_chunks(kernels, changed, inverse_temperature, scratch));
  token.log_prob = log_prob_of(row, token.id, own, inverse_temperature);
  return token;
}

void append_top_log_probs(const Kernels& kernels, const LogitRow& row, const SamplingParams& params, int64_t count,
                          SamplingScratch& scratch, std::vector<TokenLogProb>& out) {
  count = std::min(count, row.vocab_size);
  if (count <= 0) return;
  const float inverse_temperature = params.inverse_temperature();
  const RowTotal total = join_chunks(kernels, row, inverse_temperature, scratch);
  const float least = kth_largest(row, {}, count, scratch);
  std::vector<int64_t>& ids = scratch.indices;
  ids.clear();
  visit_from(row, {}, least, [&](float, int64_t i) { ids.push_back(i); });
  std::ranges::sort(ids, [&](int64_t a, int64_t b) {
    return row.logits[a] != row.logits[b] ? row.logits[a] > row.logits[b] : a < b;
  });
  ids.resize(std::min(ids.size(), static_cast<size_t>(count)));
  for (const int64_t id : ids) out.push_back({id, log_prob_of(row, id, total, inverse_temperature)});
}

}  // namespace mortise
