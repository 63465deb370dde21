// What each of several ranks writes of one checkpoint, and how the tensors of their state become one again.
//
//   state.safetensors                tensors that rank 0 alone saves
//   state-00001-of-00004.safetensors   what rank 0 writes of the others: whole tensors, and pieces with one axis
//   state.safetensors.index.json     {"version": 2, "tensors": {"object/key": {"dtype": "F32", "shape": [8, 4],
//                                     "pieces": [{"file": "state-00001-of-00004.safetensors", "count": 16}, ...]}}}
//
// The pieces of a tensor are in the order of its numbers. Or each has all rows of some columns of a matrix: then they have
// "columns", how many these are, and are in the order of the columns. Of tensors with more dimensions, the first ones are
// the rows of that matrix. If a file has several pieces of a tensor, they lie there one behind the other, and each has
// "offset", the numbers before it. A rank that has nothing to write makes no file.
// Version 1 has no columns and no offsets, version 2 no offsets, and columns of matrices only. The lowest version is written.
// Thread rule: functions of values.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/manifest.h"
#include "foundation/base/stateful.h"
#include "foundation/formats/safetensors.h"

namespace mortise {

// Which of the ranks that write or check a checkpoint together this process is. One rank has everything.
struct SaveShare {
  int rank = 0;
  int size = 1;
};

// Some numbers of a tensor, in a file of one rank.
struct StatePiece {
  std::string name;  // "object/key"
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;    // the whole tensor's
  int64_t begin = 0, count = 0;  // numbers of it
  int64_t num_columns = 0;  // not 0: `count` numbers are all rows of so many columns, and `begin` is the first column
  std::string file;
  std::optional<int64_t> offset = {};  // numbers of the tensor that lie before it in this file, if there are others
};

// The rank that gets each of these sizes, so that all get about as many bytes: the largest first, to the rank with least.
// All ranks compute the same.
[[nodiscard]] std::vector<int> spread_by_size(std::span<const uint64_t> sizes, int num_ranks);

// What a rank has written. The one that commits the checkpoint needs it of all.
struct WrittenPart {
  std::vector<ManifestEntry> entries;
  std::vector<StatePiece> pieces;
};
[[nodiscard]] std::string written_part_text(const WrittenPart& part);
Result<WrittenPart> parse_written_part(std::string_view text);

// The tensors of a snapshot that this rank writes.
struct StateShare {
  std::vector<TensorView> main;    // into state.safetensors; empty but for rank 0
  std::vector<TensorView> shard;   // into `file`
  std::vector<StatePiece> pieces;  // what `shard` holds
  std::string file;
};
// Tensors that every rank has are spread so that all write about the same number of bytes. All ranks decide alike.
[[nodiscard]] StateShare share_state(const StateSnapshot& state, const SaveShare& share);
// Those of `state` that ranks save together (RankedTensor).
[[nodiscard]] std::set<std::string> ranked_tensors(const StateSnapshot& state);

// The index of what all ranks have written. An Error if a number of one of the tensors `expected` is missing or is there
// twice.
Result<std::string> state_index_text(std::span<const WrittenPart> parts, const std::set<std::string>& expected);

// The files that an index names, and the tensors in them. Views borrow from `files` and remain valid when these move.
struct StateShards {
  std::vector<SafetensorsFile> files;
  std::vector<TensorView> tensors;  // those in several pieces have a source
};
// `index` is the text of the index in `folder`. Refuses files that the manifest does not name, and any tensor, size or
// type that differs from the index.
Result<StateShards> open_state_shards(Env& env, const Path& folder, const Manifest& manifest, std::string_view index);

}  // namespace mortise
