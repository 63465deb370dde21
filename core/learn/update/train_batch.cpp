#include "learn/update/train_batch.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace mortise {

TrainBatch make_train_batch(const PromptBatch& prompts, const SampleBatch& samples, const AdvantageBatch& advantages) {
  TrainBatch batch;
  for (const Sample& sample : samples.rows) {
    batch.prompt_ids.emplace_back(prompts.prompts[static_cast<size_t>(sample.prompt_index)].token_ids);
    batch.response_ids.emplace_back(sample.token_ids);
  }
  batch.group_index = advantages.group_index;
  batch.row_offsets = advantages.row_offsets;
  batch.response_mask = advantages.response_mask;
  batch.advantages = advantages.advantages;
  const bool have_log_probs = std::all_of(samples.rows.begin(), samples.rows.end(),
                                          [](const Sample& s) { return s.log_prob.size() == s.token_ids.size(); });
  if (have_log_probs) {
    for (const Sample& sample : samples.rows) {
      batch.rollout_log_prob.insert(batch.rollout_log_prob.end(), sample.log_prob.begin(), sample.log_prob.end());
    }
  }
  return batch;
}

namespace {

// Rows that are placed together: those of one group that stand next to each other, as far as they fit.
struct Unit {
  std::vector<int64_t> rows;
  int64_t tokens = 0;  // the prompt counts once
};

std::vector<Unit> make_units(const TrainBatch& batch, std::span<const int64_t> rows, int64_t budget) {
  std::vector<Unit> units;
  int64_t group = -1;
  for (const int64_t row : rows) {
    const auto r = static_cast<size_t>(row);
    const auto prompt_tokens = static_cast<int64_t>(batch.prompt_ids[r].size());
    const bool joins =
        !units.empty() && batch.group_index[r] == group && units.back().tokens + batch.row_tokens(row) <= budget;
    if (!joins) units.push_back({{}, prompt_tokens});
    units.back().rows.push_back(row);
    units.back().tokens += batch.row_tokens(row);
    group = batch.group_index[r];
  }
  return units;
}

bool has_advantage(const TrainBatch& batch, int64_t row) {
  if (batch.advantages.empty()) return true;
  const auto begin = batch.advantages.begin() + batch.row_offsets[static_cast<size_t>(row)];
  return std::any_of(begin, begin + batch.row_tokens(row), [](float advantage) { return advantage != 0.0F; });
}

// Longest unit first into the emptiest micro-batch (Graham 1969); one more micro-batch until all keep the budget.
void place_units(const std::vector<Unit>& units, int64_t budget, std::vector<std::vector<int64_t>>& micro_batches) {
  int64_t total = 0;
  for (const Unit& unit : units) total += unit.tokens;
  auto count = static_cast<size_t>(std::max<int64_t>(1, (total + budget - 1) / budget));
  std::vector<size_t> order(units.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return units[a].tokens > units[b].tokens; });
  for (;; ++count) {
    std::vector<int64_t> load(count, 0);
    std::vector<std::vector<size_t>> bins(count);
    bool fits = true;
    for (const size_t u : order) {
      const auto bin = static_cast<size_t>(std::min_element(load.begin(), load.end()) - load.begin());
      fits = fits && (load[bin] == 0 || load[bin] + units[u].tokens <= budget);
      load[bin] += units[u].tokens;
      bins[bin].push_back(u);
    }
    if (!fits) continue;
    for (auto& bin : bins) {
      if (bin.empty()) continue;
      std::sort(bin.begin(), bin.end());  // rows of a micro-batch keep their order
      std::vector<int64_t>& micro = micro_batches.emplace_back();
      for (const size_t u : bin) micro.insert(micro.end(), units[u].rows.begin(), units[u].rows.end());
    }
    return;
  }
}

// `unit` in pieces of the given sizes (which add up to its rows), each about as long for its size: the longest row left
// goes to the piece whose rows are the shortest so far on the average of the places it has.
std::vector<Unit> deal(const TrainBatch& batch, const Unit& unit, const std::vector<size_t>& sizes) {
  std::vector<int64_t> order = unit.rows;
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return batch.row_tokens(a) > batch.row_tokens(b); });
  std::vector<Unit> pieces(sizes.size());
  for (const int64_t row : order) {
    size_t best = sizes.size();
    const auto load = [&](size_t i) { return static_cast<double>(pieces[i].tokens) / static_cast<double>(sizes[i]); };
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (pieces[i].rows.size() < sizes[i] && (best == sizes.size() || load(i) < load(best))) best = i;
    }
    pieces[best].rows.push_back(row);
    pieces[best].tokens += batch.row_tokens(row);
  }
  const auto prompt = static_cast<int64_t>(batch.prompt_ids[static_cast<size_t>(unit.rows.front())].size());
  for (Unit& piece : pieces) piece.tokens += prompt;
  return pieces;
}

// Groups whole, or where they have more rows than a micro-batch in as few pieces as can be.
std::vector<Unit> make_row_units(const TrainBatch& batch, std::span<const int64_t> rows, size_t most_rows) {
  std::vector<Unit> units;
  for (size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
    const int64_t group = batch.group_index[static_cast<size_t>(rows[begin])];
    while (end < rows.size() && batch.group_index[static_cast<size_t>(rows[end])] == group) ++end;
    const Unit whole{{rows.begin() + static_cast<int64_t>(begin), rows.begin() + static_cast<int64_t>(end)}, 0};
    std::vector<size_t> sizes((end - begin) / most_rows, most_rows);
    if (const size_t rest = (end - begin) % most_rows; rest > 0) sizes.push_back(rest);
    for (Unit& piece : deal(batch, whole, sizes)) units.push_back(std::move(piece));
  }
  return units;
}

// As few micro-batches as hold `most_rows` rows each, alike in tokens: the longest unit left goes whole into the
// emptiest with room for it; where none has, the roomiest takes a part.
void place_rows(const TrainBatch& batch, std::span<const int64_t> rows, size_t most_rows,
                std::vector<std::vector<int64_t>>& micro_batches) {
  const auto shorter = [](const Unit& a, const Unit& b) {
    return std::pair(a.tokens, -a.rows.front()) < std::pair(b.tokens, -b.rows.front());
  };
  std::vector<Unit> heap = make_row_units(batch, rows, most_rows);
  std::make_heap(heap.begin(), heap.end(), shorter);
  std::vector<Unit> bins((rows.size() + most_rows - 1) / most_rows);
  const auto room = [&](const Unit& bin) { return most_rows - bin.rows.size(); };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), shorter);
    Unit unit = std::move(heap.back());
    heap.pop_back();
    Unit *emptiest = nullptr, *roomiest = &bins.front();
    for (Unit& bin : bins) {
      if (room(bin) >= unit.rows.size() && (emptiest == nullptr || bin.tokens < emptiest->tokens)) emptiest = &bin;
      if (room(bin) > room(*roomiest)) roomiest = &bin;
    }
    if (emptiest == nullptr) {
      std::vector<Unit> parts = deal(batch, unit, {room(*roomiest), unit.rows.size() - room(*roomiest)});
      unit = std::move(parts[0]);
      heap.push_back(std::move(parts[1]));
      std::push_heap(heap.begin(), heap.end(), shorter);
      emptiest = roomiest;
    }
    emptiest->rows.insert(emptiest->rows.end(), unit.rows.begin(), unit.rows.end());
    emptiest->tokens += unit.tokens;
  }
  for (Unit& bin : bins) {
    std::sort(bin.rows.begin(), bin.rows.end());
    micro_batches.push_back(std::move(bin.rows));
  }
}

}  // namespace

std::vector<std::vector<int64_t>> plan_micro_batches(const TrainBatch& batch, std::span<const int64_t> rows,
                                                     const MicroBatchOptions& options) {
  const auto most_rows = static_cast<size_t>(options.rows);
  if (options.rows > 0 && rows.size() <= most_rows) return {std::vector<int64_t>(rows.begin(), rows.end())};
  std::vector<std::vector<int64_t>> micro_batches;
  // Rows without advantage mostly get no gradient; in micro-batches of their own they need no backward pass.
  std::vector<int64_t> learned, idle;
  for (const int64_t row : rows) (has_advantage(batch, row) ? learned : idle).push_back(row);
  for (const std::vector<int64_t>& part : {learned, idle}) {
    if (options.rows > 0)
      place_rows(batch, part, most_rows, micro_batches);
    else
      place_units(make_units(batch, part, options.token_budget), options.token_budget, micro_batches);
  }
  return micro_batches;
}

}  // namespace mortise
