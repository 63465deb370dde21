// See parts.h.
#include "checkpoint/parts.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "foundation/base/hints.h"
#include "foundation/base/limits.h"
#include "foundation/base/tensor_pieces.h"
#include "foundation/base/text.h"
#include "foundation/formats/json.h"

namespace mortise {
namespace {

constexpr int64_t kIndexVersion = 3;  // the newest
constexpr int64_t kVersionOfMatrices = 2;
constexpr int64_t kVersionWithoutColumns = 1;

int64_t numbers_of(std::span<const int64_t> shape) { return num_elements(shape).value_or(0); }

const RankedTensor* ranked(const TensorView& tensor) { return dynamic_cast<const RankedTensor*>(tensor.source.get()); }

// The rank that writes each of the tensors which every rank has, by name. They are sorted by name.
std::map<std::string, int> writers_of(const StateSnapshot& state, int num_ranks) {
  std::vector<uint64_t> sizes;
  std::vector<std::string> names;
  for (const TensorView& tensor : state.tensors) {
    const RankedTensor* const one = ranked(tensor);
    if (one == nullptr || !one->is_everywhere()) continue;
    sizes.push_back(static_cast<uint64_t>(numbers_of(tensor.shape)) * dtype_bytes(tensor.dtype));
    names.push_back(tensor.name);
  }
  const std::vector<int> ranks = spread_by_size(sizes, num_ranks);
  std::map<std::string, int> writers;
  for (size_t i = 0; i < names.size(); ++i) writers[names[i]] = ranks[i];
  return writers;
}

// How many columns a tensor has if its first dimensions are so many rows; 0 if no dimensions are.
int64_t columns_of(std::span<const int64_t> shape, int64_t num_rows) {
  for (size_t i = 1; i < shape.size(); ++i) {
    if (numbers_of(shape.first(i)) == num_rows) return numbers_of(shape.subspan(i));
  }
  return 0;
}

Json shape_json(std::span<const int64_t> shape) { return Json(std::vector<int64_t>(shape.begin(), shape.end())); }

Result<std::vector<int64_t>> read_shape(const Json& object, std::string_view where) {
  const Json* const list = json_find(object, "shape");
  if (list == nullptr || !list->is_array() || list->size() > limits::kMaxTensorRank)
    return Error{ErrorKind::kData, "key 'shape' is not a list", std::string(where), hints::kDamagedCheckpoint};
  std::vector<int64_t> shape;
  for (const Json& size : *list) {
    if (!size.is_number_integer())
      return Error{ErrorKind::kData, "a size is not an integer", std::string(where), hints::kDamagedCheckpoint};
    shape.push_back(size.get<int64_t>());
  }
  if (!num_elements(shape))
    return Error{ErrorKind::kData, "a shape is too large", std::string(where), hints::kDamagedCheckpoint};
  return shape;
}

Result<DType> read_dtype(const Json& object, std::string_view where) {
  const std::string name = TRY(json_string(object, "dtype", where));
  if (const auto dtype = parse_dtype(name)) return *dtype;
  return Error{ErrorKind::kData, fmt::format("the number format {} is unknown", quote(name)), std::string(where),
               hints::kDamagedCheckpoint};
}

}  // namespace

std::vector<int> spread_by_size(std::span<const uint64_t> sizes, int num_ranks) {
  std::vector<size_t> by_size(sizes.size());
  std::iota(by_size.begin(), by_size.end(), size_t{0});
  std::ranges::stable_sort(by_size, std::ranges::greater(), [&](size_t i) { return sizes[i]; });
  std::vector<uint64_t> loads(static_cast<size_t>(num_ranks), 0);
  std::vector<int> ranks(sizes.size(), 0);
  for (const size_t i : by_size) {
    const auto least = std::ranges::min_element(loads);
    *least += sizes[i];
    ranks[i] = static_cast<int>(least - loads.begin());
  }
  return ranks;
}

std::string written_part_text(const WrittenPart& part) {
  Json entries = Json::array(), pieces = Json::array();
  for (const ManifestEntry& entry : part.entries)
    entries.push_back(Json{{"path", entry.path}, {"bytes", entry.size_bytes}, {"sha256", entry.sha256}});
  for (const StatePiece& piece : part.pieces) {
    Json& value = pieces.emplace_back(Json{{"name", piece.name},
                                           {"dtype", dtype_name(piece.dtype)},
                                           {"shape", shape_json(piece.shape)},
                                           {"begin", piece.begin},
                                           {"count", piece.count},
                                           {"columns", piece.num_columns},
                                           {"file", piece.file}});
    if (piece.offset) value["offset"] = *piece.offset;
  }
  return dump_json(Json{{"entries", std::move(entries)}, {"pieces", std::move(pieces)}});
}

Result<WrittenPart> parse_written_part(std::string_view text) {
  constexpr std::string_view kWhere = "what a rank has saved";
  const Json root = TRY(parse_json(text, kWhere));
  const Json* const entries = json_find(root, "entries");
  const Json* const pieces = json_find(root, "pieces");
  if (entries == nullptr || !entries->is_array() || pieces == nullptr || !pieces->is_array())
    return Error{ErrorKind::kInternal, "rank 0 cannot read another rank's list of saved files", "",
                 "start all ranks from one build of Mortise"};
  WrittenPart part;
  for (const Json& value : *entries) {
    ManifestEntry& entry = part.entries.emplace_back();
    entry.path = TRY(json_string(value, "path", kWhere));
    entry.size_bytes = static_cast<uint64_t>(TRY(json_int(value, "bytes", kWhere)));
    entry.sha256 = TRY(json_string(value, "sha256", kWhere));
  }
  for (const Json& value : *pieces) {
    StatePiece& piece = part.pieces.emplace_back();
    piece.name = TRY(json_string(value, "name", kWhere));
    piece.dtype = TRY(read_dtype(value, kWhere));
    piece.shape = TRY(read_shape(value, kWhere));
    piece.begin = TRY(json_int(value, "begin", kWhere));
    piece.count = TRY(json_int(value, "count", kWhere));
    piece.num_columns = TRY(json_int(value, "columns", kWhere));
    piece.file = TRY(json_string(value, "file", kWhere));
    if (json_find(value, "offset") != nullptr) piece.offset = TRY(json_int(value, "offset", kWhere));
  }
  return part;
}

StateShare share_state(const StateSnapshot& state, const SaveShare& share) {
  StateShare out;
  if (share.size == 1) {
    out.main = state.tensors;
    return out;
  }
  out.file = fmt::format("state-{:05}-of-{:05}.safetensors", share.rank + 1, share.size);
  const std::map<std::string, int> writers = writers_of(state, share.size);
  for (const TensorView& tensor : state.tensors) {
    const RankedTensor* const one = ranked(tensor);
    if (one == nullptr) {
      if (share.rank == 0) out.main.push_back(tensor);
      continue;
    }
    const int64_t all = numbers_of(tensor.shape);
    const bool is_whole = one->is_everywhere();
    const bool is_own = is_whole ? writers.at(tensor.name) == share.rank : one->count() > 0;
    if (all == 0 ? share.rank != 0 : !is_own) continue;
    const std::vector<NumberRange> ranges = is_whole ? std::vector<NumberRange>{{0, all}} : one->ranges();
    int64_t count = 0;
    for (const NumberRange& range : ranges) {
      StatePiece& piece = out.pieces.emplace_back(
          StatePiece{tensor.name, tensor.dtype, tensor.shape, range.begin, range.count, one->num_columns(), out.file});
      if (ranges.size() > 1) piece.offset = count;
      count += range.count;
    }
    TensorView& view = out.shard.emplace_back(one->own());
    view.name = tensor.name;
    view.shape = count == all ? tensor.shape : std::vector<int64_t>{count};
  }
  return out;
}

std::set<std::string> ranked_tensors(const StateSnapshot& state) {
  std::set<std::string> names;
  for (const TensorView& tensor : state.tensors) {
    if (ranked(tensor) != nullptr && numbers_of(tensor.shape) > 0) names.insert(tensor.name);
  }
  return names;
}

Result<std::string> state_index_text(std::span<const WrittenPart> parts, const std::set<std::string>& expected) {
  std::map<std::string, std::vector<const StatePiece*>> by_name;
  for (const std::string& name : expected) by_name[name];
  for (const WrittenPart& part : parts) {
    for (const StatePiece& piece : part.pieces) by_name[piece.name].push_back(&piece);
  }
  int64_t version = kVersionWithoutColumns;
  Json tensors = Json::object();
  for (auto& [name, pieces] : by_name) {
    std::ranges::sort(pieces, {}, &StatePiece::begin);
    Json list = Json::array();
    int64_t next = 0;
    const bool in_columns = !pieces.empty() && pieces.front()->num_columns > 0;
    const int64_t num_rows = in_columns ? pieces.front()->count / pieces.front()->num_columns : 0;
    bool fits = !pieces.empty();
    for (const StatePiece* piece : pieces) {
      fits = fits && piece->begin == next && piece->shape == pieces.front()->shape &&
             piece->dtype == pieces.front()->dtype && (piece->num_columns > 0) == in_columns &&
             (!in_columns || piece->num_columns * num_rows == piece->count);
      next += in_columns ? piece->num_columns : piece->count;
      Json& entry = list.emplace_back(Json{{"file", piece->file}, {"count", piece->count}});
      if (in_columns) entry["columns"] = piece->num_columns;
      if (piece->offset) entry["offset"] = *piece->offset;
      const bool is_newest = piece->offset || (in_columns && piece->shape.size() != 2);
      version = std::max(version, is_newest ? kIndexVersion : in_columns ? kVersionOfMatrices : version);
    }
    if (!fits || next != (in_columns ? columns_of(pieces.front()->shape, num_rows) : numbers_of(pieces.front()->shape)))
      return Error{ErrorKind::kInternal, fmt::format("the ranks did not save {} exactly once", quote(name)), "",
                   "report this: the ranks disagree about who has which part of the state"};
    tensors[name] = Json{{"dtype", dtype_name(pieces.front()->dtype)},
                         {"shape", shape_json(pieces.front()->shape)},
                         {"pieces", std::move(list)}};
  }
  return dump_json(Json{{"version", version}, {"tensors", std::move(tensors)}}, 1) + "\n";
}

namespace {

class ShardReader {
 public:
  ShardReader(Env& env, const Path& folder, const Manifest& manifest)
      : env_(&env), folder_(folder), manifest_(&manifest), where_((folder / kStateIndexFile).string()) {}

  Result<StateShards> read(std::string_view index) {
    const Json root = TRY(parse_json(index, where_));
    if (const int64_t version = TRY(json_int(root, "version", where_)); version < 1 || version > kIndexVersion)
      return Error{ErrorKind::kData,
                   fmt::format("this index has version {}, this program reads 1 to {}", version, kIndexVersion), where_,
                   "use the version of mortise that wrote it"};
    const Json* const tensors = json_find(root, "tensors");
    if (tensors == nullptr || !tensors->is_object()) return refuse("it has no 'tensors'");
    for (const auto& [name, value] : tensors->get_ref<const Json::object_t&>()) TRY(add(name, value));
    for (const auto& [name, place] : places_) {
      if (place.num_used != out_.files[place.file].tensors().size())
        return refuse(fmt::format("{} has tensors that the index does not name", quote(name)));
    }
    return std::move(out_);
  }

 private:
  struct Place {
    size_t file = 0;
    size_t num_used = 0;  // tensors of it that the index has named
  };

  [[nodiscard]] Error refuse(std::string what) const {
    return {ErrorKind::kData, "index of the state: " + std::move(what), where_, hints::kDamagedCheckpoint};
  }

  Result<Place*> open(const std::string& name) {
    const auto known = places_.find(name);
    if (known != places_.end()) return &known->second;
    if (manifest_->find(name) == nullptr) return refuse(fmt::format("the manifest has no file {}", quote(name)));
    out_.files.push_back(TRY(SafetensorsFile::open(*env_, folder_ / name)));
    return &(places_[name] = Place{out_.files.size() - 1});
  }

  // The pieces of one tensor, in their order.
  struct Pieces {
    std::vector<std::span<const std::byte>> found;
    std::map<std::string, int64_t> used;  // numbers of the tensor in each file that are among them
    int64_t rest = 0;                     // numbers that are missing
    int64_t num_in_columns = 0, num_rows = 0;
  };

  Result<> add_piece(const TensorView& tensor, const Json& piece, Pieces& all) {
    const std::string file = TRY(json_string(piece, "file", where_));
    const int64_t count = TRY(json_int(piece, "count", where_));
    const bool is_alone = json_find(piece, "offset") == nullptr;
    const int64_t offset = is_alone ? 0 : TRY(json_int(piece, "offset", where_));
    const TensorView* const stored = out_.files[TRY(open(file))->file].find(tensor.name);
    int64_t& used = all.used[file];
    if (is_alone && used > 0) return refuse(fmt::format("{} is twice in {}", quote(tensor.name), quote(file)));
    if (stored == nullptr || stored->dtype != tensor.dtype || count < 0 || count > all.rest || offset != used ||
        (is_alone ? numbers_of(stored->shape) != count : numbers_of(stored->shape) - offset < count))
      return refuse(fmt::format("{} does not hold {} numbers of {}", quote(file), count, quote(tensor.name)));
    if (json_find(piece, "columns") != nullptr) {
      const int64_t columns = TRY(json_int(piece, "columns", where_));
      const int64_t num_rows = columns > 0 && count % columns == 0 ? count / columns : 0;
      if (!is_alone || columns < 1 || columns > columns_of(tensor.shape, num_rows) ||
          (all.num_in_columns > 0 && num_rows != all.num_rows))
        return refuse(fmt::format("a file has {} numbers of {}, which is not the size of {} of its columns", count,
                                  quote(tensor.name), columns));
      all.num_rows = num_rows;
      ++all.num_in_columns;
    }
    used += count;
    all.rest -= count;
    const auto width = static_cast<size_t>(dtype_bytes(tensor.dtype));
    all.found.push_back(stored->bytes.subspan(static_cast<size_t>(offset) * width, static_cast<size_t>(count) * width));
    return {};
  }

  Result<> add(const std::string& name, const Json& value) {
    TensorView tensor;
    tensor.name = name;
    tensor.dtype = TRY(read_dtype(value, where_));
    tensor.shape = TRY(read_shape(value, where_));
    const Json* const pieces = json_find(value, "pieces");
    if (pieces == nullptr || !pieces->is_array() || pieces->empty())
      return refuse(fmt::format("{} has no pieces", quote(name)));
    Pieces all{{}, {}, numbers_of(tensor.shape), 0, 0};
    for (const Json& piece : *pieces) TRY(add_piece(tensor, piece, all));
    for (const auto& [file, count] : all.used) {
      const TensorView& stored = *out_.files[places_.at(file).file].find(name);
      if (numbers_of(stored.shape) != count)
        return refuse(fmt::format("{} has other numbers of {} than the index says", quote(file), quote(name)));
      ++places_.at(file).num_used;
    }
    if (all.rest != 0) return refuse(fmt::format("{} numbers of {} are missing", all.rest, quote(name)));
    if (all.num_in_columns > 0 && all.num_in_columns != static_cast<int64_t>(all.found.size()))
      return refuse(fmt::format("some files have columns of {}, others have rows", quote(name)));
    if (all.found.size() == 1)
      tensor.bytes = all.found.front();
    else if (all.num_in_columns > 0)
      tensor.source = std::make_shared<JoinedColumns>(std::move(all.found), static_cast<uint64_t>(all.num_rows));
    else
      tensor.source = std::make_shared<JoinedTensor>(std::move(all.found));
    out_.tensors.push_back(std::move(tensor));
    return {};
  }

  Env* env_;
  Path folder_;
  const Manifest* manifest_;
  std::string where_;
  StateShards out_;
  std::map<std::string, Place> places_;
};

}  // namespace

Result<StateShards> open_state_shards(Env& env, const Path& folder, const Manifest& manifest, std::string_view index) {
  return ShardReader(env, folder, manifest).read(index);
}

}  // namespace mortise
