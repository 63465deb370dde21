// Places groups and rows into micro-batches, the longest first.
#include "learn/update/micro_batches.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace mortise {

namespace {

// Rows to place together: adjacent rows of one group, as far as they fit.
struct Unit {
  std::vector<int64_t> rows;
  int64_t tokens = 0;  // the prompt counts once
};

std::vector<Unit> make_units(const StepTable& table, std::span<const int64_t> rows, int64_t budget) {
  std::vector<Unit> units;
  int64_t group = -1;
  for (const int64_t row : rows) {
    const auto prompt_tokens = static_cast<int64_t>(table.row(row).prompt_ids.size());
    const bool joins =
        !units.empty() && table.row(row).group == group && units.back().tokens + table.row_tokens(row) <= budget;
    if (!joins) units.push_back({{}, prompt_tokens});
    units.back().rows.push_back(row);
    units.back().tokens += table.row_tokens(row);
    group = table.row(row).group;
  }
  return units;
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

// The same without another order: a micro-batch is full if the next unit does not fit.
void place_in_order(const std::vector<Unit>& units, int64_t budget, std::vector<std::vector<int64_t>>& micro_batches) {
  int64_t load = 0;
  for (const Unit& unit : units) {
    const bool joins = load > 0 && load + unit.tokens <= budget;
    std::vector<int64_t>& micro = joins ? micro_batches.back() : micro_batches.emplace_back();
    micro.insert(micro.end(), unit.rows.begin(), unit.rows.end());
    load = (joins ? load : 0) + unit.tokens;
  }
}

// `unit` in pieces of the given sizes (which add up to its rows), each about as long for its size: the longest row left
// goes to the piece whose rows are the shortest so far on the average of the places it has.
std::vector<Unit> deal(const StepTable& table, const Unit& unit, const std::vector<size_t>& sizes) {
  std::vector<int64_t> order = unit.rows;
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return table.row_tokens(a) > table.row_tokens(b); });
  std::vector<Unit> pieces(sizes.size());
  for (const int64_t row : order) {
    size_t best = sizes.size();
    const auto load = [&](size_t i) { return static_cast<double>(pieces[i].tokens) / static_cast<double>(sizes[i]); };
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (pieces[i].rows.size() < sizes[i] && (best == sizes.size() || load(i) < load(best))) best = i;
    }
    pieces[best].rows.push_back(row);
    pieces[best].tokens += table.row_tokens(row);
  }
  const auto prompt = static_cast<int64_t>(table.row(unit.rows.front()).prompt_ids.size());
  for (Unit& piece : pieces) piece.tokens += prompt;
  return pieces;
}

// Groups whole, or where they have more rows than a micro-batch in as few pieces as can be.
std::vector<Unit> make_row_units(const StepTable& table, std::span<const int64_t> rows, size_t most_rows) {
  std::vector<Unit> units;
  for (size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
    const int64_t group = table.row(rows[begin]).group;
    while (end < rows.size() && table.row(rows[end]).group == group) ++end;
    const Unit whole{{rows.begin() + static_cast<int64_t>(begin), rows.begin() + static_cast<int64_t>(end)}, 0};
    std::vector<size_t> sizes((end - begin) / most_rows, most_rows);
    if (const size_t rest = (end - begin) % most_rows; rest > 0) sizes.push_back(rest);
    for (Unit& piece : deal(table, whole, sizes)) units.push_back(std::move(piece));
  }
  return units;
}

// As few micro-batches as hold `most_rows` rows each, alike in tokens: the longest unit left goes whole into the
// emptiest with room for it; where none has, the roomiest takes a part.
void place_rows(const StepTable& table, std::span<const int64_t> rows, size_t most_rows,
                std::vector<std::vector<int64_t>>& micro_batches) {
  const auto shorter = [](const Unit& a, const Unit& b) {
    return std::pair(a.tokens, -a.rows.front()) < std::pair(b.tokens, -b.rows.front());
  };
  std::vector<Unit> heap = make_row_units(table, rows, most_rows);
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
      std::vector<Unit> parts = deal(table, unit, {room(*roomiest), unit.rows.size() - room(*roomiest)});
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

bool has_advantage(const StepTable& table, int64_t row) {
  return table.has<column::Advantages>() &&
         std::ranges::any_of(table.of_row<column::Advantages>(row), [](float advantage) { return advantage != 0.0F; });
}

std::vector<std::vector<int64_t>> plan_micro_batches(const StepTable& table, std::span<const int64_t> rows,
                                                     const MicroBatchOptions& options) {
  const auto most_rows = static_cast<size_t>(options.rows);
  if (options.rows > 0 && rows.size() <= most_rows) return {std::vector<int64_t>(rows.begin(), rows.end())};
  std::vector<std::vector<int64_t>> micro_batches;
  const bool knows_idle = options.sets_idle_rows_apart && table.has<column::Advantages>();
  std::vector<int64_t> learned, idle;
  for (const int64_t row : rows) (!knows_idle || has_advantage(table, row) ? learned : idle).push_back(row);
  for (const std::vector<int64_t>& part : {learned, idle}) {
    if (options.rows > 0)
      place_rows(table, part, most_rows, micro_batches);
    else
      (options.keeps_order ? place_in_order : place_units)(make_units(table, part, options.token_budget),
                                                           options.token_budget, micro_batches);
  }
  return micro_batches;
}

std::vector<int64_t> all_rows(const StepTable& table) {
  std::vector<int64_t> rows(static_cast<size_t>(table.num_rows()));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

}  // namespace mortise
