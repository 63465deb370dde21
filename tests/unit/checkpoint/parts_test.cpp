// One checkpoint written by several ranks: the same state for readers, whatever the number of ranks, and the last good
// checkpoint if one of them fails.
#include "checkpoint/parts.h"

#include <gmock/gmock.h>

#include <memory>

#include "checkpoint/room.h"
#include "foundation/base/tensor_pieces.h"
#include "foundation/formats/json.h"
#include "unit/checkpoint/run_state.h"

namespace mortise {
namespace {

using test::error_of;
using test::fast_env;
using ::testing::HasSubstr;

std::span<const std::byte> bytes_from(const std::vector<float>& values, size_t begin, size_t count) {
  return std::as_bytes(std::span(values).subspan(begin, count));
}

// A run on several ranks: a counter of rank 0, moments of which each rank has a range, a matrix of which each has some
// columns, and weights that all have. If it `has_several`: also numbers of which each rank has two ranges, and columns of a
// tensor with three dimensions.
struct RankState final : Stateful {
  RankState(int64_t at_step, SaveShare of_rank, bool with_several = false)
      : step(at_step), share(of_rank), has_several(with_several) {
    for (int i = 0; i < 30; ++i) moments.push_back(static_cast<float>(step) + 0.25F * static_cast<float>(i));
    for (int i = 0; i < 12; ++i) weights.push_back(static_cast<float>(step) - 0.5F * static_cast<float>(i));
  }
  [[nodiscard]] std::string state_name() const override { return "run"; }
  Result<> save_state(StateWriter& writer) const override {
    writer.put_int("step", step);
    writer.put_bytes("journal", share.rank == 0 ? "of rank 0" : "of another rank");
    const std::array<int64_t, 2> shape{6, 5};
    // Unequal ranges: rank 0 of three has none.
    const auto begin = static_cast<size_t>(30 * share.rank * share.rank / (share.size * share.size));
    const auto end = static_cast<size_t>(30 * (share.rank + 1) * (share.rank + 1) / (share.size * share.size));
    const size_t first = share.size == 3 && share.rank == 1 ? 0 : begin;
    const size_t count = share.size == 3 && share.rank == 0 ? 0 : end - first;
    TensorView own{"", DType::kF32, {static_cast<int64_t>(count)}, bytes_from(moments, first, count), nullptr};
    writer.put_source("moments", DType::kF32, shape,
                      std::make_shared<RankedTensor>(own, static_cast<int64_t>(first), static_cast<int64_t>(count)));
    columns.clear();
    const int64_t first_column = 6 * share.rank / share.size, end_column = 6 * (share.rank + 1) / share.size;
    for (int64_t i = 0; i < 30; ++i) {
      if (i % 6 >= first_column && i % 6 < end_column) columns.push_back(moments[static_cast<size_t>(i)]);
    }
    const int64_t width = end_column - first_column;
    TensorView some{"", DType::kF32, {5, width}, bytes_from(columns, 0, columns.size()), nullptr};
    writer.put_source("numbers_by_column", DType::kF32, std::array<int64_t, 2>{5, 6},
                      std::make_shared<RankedTensor>(some, MatrixColumns{first_column, width}));
    if (has_several) save_several(writer);
    for (const int64_t rows : {1, 2, 3}) {
      const std::array<int64_t, 2> sizes{rows, 2};
      const auto size = static_cast<size_t>(rows * 2);
      TensorView whole{"", DType::kF32, {rows, 2}, bytes_from(weights, 12 - size, size), nullptr};
      writer.put_source("weights" + std::to_string(rows), DType::kF32, sizes, std::make_shared<RankedTensor>(whole));
    }
    return {};
  }
  // The ranks share the first 6 of 10 numbers. All but the last also share the other 4.
  void save_several(StateWriter& writer) const {
    const int64_t last = share.size == 1 ? 1 : share.size - 1;
    const auto range = [&](int64_t begin, int64_t count, int64_t ranks) {
      const int64_t first = begin + count * share.rank / ranks;
      return NumberRange{first, begin + count * (share.rank + 1) / ranks - first};
    };
    std::vector<NumberRange> ranges{range(0, 6, share.size)};
    if (share.rank < last) ranges.push_back(range(6, 4, last));
    several.clear();
    for (const NumberRange& one : ranges)
      several.insert(several.end(), moments.begin() + one.begin, moments.begin() + one.begin + one.count);
    TensorView own{
        "", DType::kF32, {static_cast<int64_t>(several.size())}, bytes_from(several, 0, several.size()), nullptr};
    writer.put_source("several", DType::kF32, std::array<int64_t, 1>{10}, std::make_shared<RankedTensor>(own, ranges));
    const NumberRange mine = range(0, 6, share.size);
    deep.clear();
    for (int64_t i = 0; i < 24; ++i) {
      if (i % 6 >= mine.begin && i % 6 < mine.begin + mine.count) deep.push_back(moments[static_cast<size_t>(i)]);
    }
    TensorView some{"", DType::kF32, {2, 2, mine.count}, bytes_from(deep, 0, deep.size()), nullptr};
    writer.put_source("deep", DType::kF32, std::array<int64_t, 3>{2, 2, 6},
                      std::make_shared<RankedTensor>(some, MatrixColumns{mine.begin, mine.count}));
  }
  Result<> load_several(StateReader& reader) const {
    std::vector<float> numbers(10);
    const TensorView ranges = TRY(reader.get_tensor("several", DType::kF32, std::array<int64_t, 1>{10}));
    TRY(read_tensor_bytes(ranges, 0, std::as_writable_bytes(std::span(numbers))));
    EXPECT_TRUE(std::ranges::equal(numbers, std::span(read_moments).first(10)));
    numbers.resize(24);
    const TensorView columns_of_three = TRY(reader.get_tensor("deep", DType::kF32, std::array<int64_t, 3>{2, 2, 6}));
    TRY(read_tensor_bytes(columns_of_three, 0, std::as_writable_bytes(std::span(numbers))));
    EXPECT_TRUE(std::ranges::equal(numbers, std::span(read_moments).first(24)));
    return {};
  }
  Result<> load_state(StateReader& reader) override {
    step = TRY(reader.get_int("step"));
    EXPECT_EQ(TRY(reader.get_bytes("journal")), "of rank 0");
    const std::array<int64_t, 2> shape{6, 5};
    const TensorView all = TRY(reader.get_tensor("moments", DType::kF32, shape));
    read_moments.resize(30);
    TRY(read_tensor_bytes(all, 0, std::as_writable_bytes(std::span(read_moments))));
    std::array<float, 7> middle{};  // over the ends of pieces
    TRY(read_tensor_bytes(all, 9 * sizeof(float), std::as_writable_bytes(std::span(middle))));
    EXPECT_TRUE(std::ranges::equal(middle, std::span(read_moments).subspan(9, 7)));
    const TensorView matrix = TRY(reader.get_tensor("numbers_by_column", DType::kF32, std::array<int64_t, 2>{5, 6}));
    std::vector<float> numbers(30);
    TRY(read_tensor_bytes(matrix, 0, std::as_writable_bytes(std::span(numbers))));
    EXPECT_EQ(numbers, read_moments) << "the columns of all ranks side by side";
    for (size_t begin = 0; begin + 7 <= numbers.size(); ++begin) {  // over the ends of pieces and rows
      TRY(read_tensor_bytes(matrix, begin * sizeof(float), std::as_writable_bytes(std::span(middle))));
      EXPECT_TRUE(std::ranges::equal(middle, std::span(numbers).subspan(begin, 7))) << begin;
    }
    EXPECT_FALSE(read_tensor_bytes(matrix, 24 * sizeof(float), std::as_writable_bytes(std::span(middle))).ok());
    if (has_several) TRY(load_several(reader));
    for (const int64_t rows : {1, 2, 3}) {
      const std::array<int64_t, 2> sizes{rows, 2};
      const TensorView one = TRY(reader.get_tensor("weights" + std::to_string(rows), DType::kF32, sizes));
      const auto values = one.as<float>();
      read_weights.assign(values.begin(), values.end());
    }
    return {};
  }

  int64_t step;
  SaveShare share;
  bool has_several;
  std::vector<float> moments, weights, read_moments, read_weights;
  mutable std::vector<float> columns, several, deep;  // what save_state() lends
};

CheckpointRequest request_of(RankState& state, const CheckpointPlace& place) {
  StatefulRegistry registry;
  EXPECT_OK(registry.add(state));
  CheckpointRequest request;
  request.place = place;
  request.state = registry.save().value();
  for (int rank = 0; rank < 5; ++rank) {
    request.files.push_back(checkpoint_text_file("huggingface/part_" + std::to_string(rank), std::to_string(rank)));
    request.files.back().rank = rank % state.share.size;
  }
  return request;
}

// Saves as so many ranks, one after another. `env_of_last`: that of the last rank.
Result<SavedCheckpoint> save_on_ranks(Env& env, const Path& dir, int64_t step, int size, Env& env_of_last,
                                      const CheckpointWriterOptions& options = {.keep_last = 1, .sync = true},
                                      bool has_several = false) {
  std::vector<RankState> states;
  for (int rank = 0; rank < size; ++rank) states.emplace_back(step, SaveShare{rank, size}, has_several);
  std::vector<CheckpointRequest> requests;
  for (RankState& state : states) requests.push_back(request_of(state, {step, {}}));
  CheckpointWriter main(env, dir, options);
  const Path temporary = TRY(main.begin(requests[0]));
  std::vector<WrittenPart> parts;
  for (int rank = 0; rank < size; ++rank) {
    CheckpointWriter writer(rank + 1 == size ? env_of_last : env, dir, options);
    auto part = writer.write_part(temporary, requests[static_cast<size_t>(rank)], {rank, size});
    if (!part.ok()) {
      main.abandon(temporary);
      return std::move(part).error();
    }
    parts.push_back(TRY(parse_written_part(written_part_text(*part))));
  }
  return main.commit(temporary, requests[0], parts);
}

void expect_loads(const Path& checkpoint, int64_t step, bool has_several = false) {
  ASSERT_OK_AND_ASSIGN(const Checkpoint opened, Checkpoint::open(default_env(), checkpoint));
  const RankState expected(step, {});
  RankState state(0, {}, has_several);
  StatefulRegistry registry;
  ASSERT_OK(registry.add(state));
  ASSERT_OK(opened.load_into(registry));
  EXPECT_EQ(state.step, step);
  EXPECT_EQ(state.read_moments, expected.moments);
  EXPECT_TRUE(std::ranges::equal(state.read_weights, std::span(expected.weights).subspan(6, 6)));
  for (int rank = 0; rank < 5; ++rank) {
    ASSERT_OK_AND_ASSIGN(const Path file, opened.entry("huggingface/part_" + std::to_string(rank)));
    EXPECT_EQ(default_env().read_file(file).value(), std::to_string(rank));
  }
}

int64_t newest_step(const Path& dir) {
  const auto found = find_newest_valid(default_env(), dir);
  EXPECT_OK(found);
  return found.ok() && found->has_value() ? (*found)->ref.place.step : 0;
}

TEST(CheckpointParts, AnyNumberOfRanksSavesWhatReadersSee) {
  for (const int size : {2, 3, 5}) {
    const test::TempDir dir;
    ASSERT_OK_AND_ASSIGN(const SavedCheckpoint saved, save_on_ranks(fast_env(), dir.path(), 7, size, fast_env()));
    expect_loads(saved.path, 7);
    ASSERT_OK(verify_checkpoint(default_env(), saved.path));
  }
}

// Two ranges of one tensor on a rank lie in its file one behind the other.
TEST(CheckpointParts, ARankMaySaveSeveralRangesAndColumnsOfAnyTensor) {
  for (const int size : {2, 3, 4}) {
    const test::TempDir dir;
    ASSERT_OK_AND_ASSIGN(const SavedCheckpoint saved, save_on_ranks(fast_env(), dir.path(), 7, size, fast_env(),
                                                                    {.keep_last = 1, .sync = true}, true));
    expect_loads(saved.path, 7, true);
    ASSERT_OK_AND_ASSIGN(const Manifest manifest, verify_checkpoint(default_env(), saved.path));
    const Json good = read_json_file(default_env(), saved.path / kStateIndexFile).value();
    EXPECT_EQ(good["version"], 3);
    const auto error_with = [&](const std::string& tensor, const std::function<void(Json&)>& change) {
      Json index = good;
      change(index["tensors"]["run/" + tensor]);
      const auto opened = open_state_shards(default_env(), saved.path, manifest, dump_json(index));
      return opened.ok() ? "" : opened.error().to_string();
    };
    EXPECT_EQ(error_with("several", [](Json&) {}), "");
    EXPECT_THAT(error_with("several", [](Json& one) { one["pieces"].back()["offset"] = 9; }),
                HasSubstr("does not hold"));
    EXPECT_THAT(error_with("several", [](Json& one) { one["pieces"].back()["count"] = 99; }),
                HasSubstr("does not hold"));
    EXPECT_THAT(error_with("several", [](Json& one) { one["pieces"].back().erase("offset"); }),
                HasSubstr("is twice in"));
    EXPECT_THAT(error_with("several",
                           [](Json& one) {
                             one["shape"] = {10 - one["pieces"].back()["count"].get<int64_t>()};
                             one["pieces"].erase(one["pieces"].size() - 1);
                           }),
                HasSubstr("than the index says"));
    EXPECT_THAT(error_with("deep", [](Json& one) { one["shape"] = {24}; }), HasSubstr("of its columns"));
    EXPECT_THAT(error_with("deep", [](Json& one) { one["pieces"][0]["columns"] = 24; }), HasSubstr("of its columns"));
  }
}

// What every rank has is spread by size: 6, 4 and 2 numbers, so 6 on one rank and 4 + 2 on the other.
TEST(CheckpointParts, RanksShareWhatAllOfThemHave) {
  std::vector<uint64_t> bytes;
  for (const int rank : {0, 1}) {
    RankState state(1, {rank, 2});
    const CheckpointRequest request = request_of(state, {1, {}});
    uint64_t sum = 0;
    for (const TensorView& tensor : share_state(request.state, {rank, 2}).shard) {
      if (tensor.name.find("weights") != std::string::npos) sum += tensor.bytes.size();
    }
    bytes.push_back(sum);
  }
  EXPECT_THAT(bytes, testing::ElementsAre(24, 24));
}

TEST(CheckpointParts, TheRoomOfAllRanksIsMeasured) {
  const test::TempDir dir;
  constexpr int kSize = 3;
  std::vector<WrittenPart> parts;
  RankState first(4, {0, kSize});
  const CheckpointRequest request = request_of(first, {4, {}});
  for (int rank = 0; rank < kSize; ++rank) {
    RankState state(4, {rank, kSize});
    ASSERT_OK_AND_ASSIGN(parts.emplace_back(), measure_part(request_of(state, {4, {}}), {rank, kSize}));
  }
  ASSERT_OK_AND_ASSIGN(const uint64_t measured, measure_parts(request, parts));
  ASSERT_OK_AND_ASSIGN(const SavedCheckpoint saved, save_on_ranks(fast_env(), dir.path(), 4, kSize, fast_env()));
  uint64_t bytes = disk_blocks(1);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(saved.path))
    bytes += disk_blocks(entry.is_regular_file() ? entry.file_size() : 1);
  EXPECT_EQ(measured, bytes);
}

// One rank fails at each of its operations: the disk is full there, or an operation fails. The others do not commit.
TEST(CheckpointParts, AFailingRankLeavesTheLastGoodOne) {
  for (const int code : {ENOSPC, EIO}) {
    for (int64_t k = 1;; ++k) {
      const test::TempDir dir;
      ASSERT_OK(save_on_ranks(fast_env(), dir.path(), 1, 3, fast_env()));
      test::FaultEnv env(default_env());
      env.fail_at(k, code);
      const Result<SavedCheckpoint> saved = save_on_ranks(fast_env(), dir.path(), 2, 3, env);
      const bool is_beyond = k > env.num_operations();
      ASSERT_EQ(saved.ok(), is_beyond) << k;
      ASSERT_EQ(newest_step(dir.path()), is_beyond ? 2 : 1) << k;
      ASSERT_THAT(*default_env().list_dir(dir.path()),
                  testing::ElementsAre(is_beyond ? "global_step_2" : "global_step_1", "latest"))
          << k;
      if (!is_beyond) {
        EXPECT_EQ(saved.error().kind, ErrorKind::kDisk) << error_of(saved);
      } else {
        EXPECT_GT(k, 6);
        break;
      }
    }
  }
}

// Rank 0 fails or dies at each of its operations, those of the commit too.
TEST(CheckpointParts, AFailureOfRankZeroLeavesAnOldOrTheNewOne) {
  for (const bool dies : {false, true}) {
    for (int64_t k = 1;; ++k) {
      const test::TempDir dir;
      ASSERT_OK(save_on_ranks(fast_env(), dir.path(), 1, 2, fast_env()));
      test::FaultEnv env(default_env());
      if (dies)
        env.crash_at(k);
      else
        env.fail_at(k);
      const Result<SavedCheckpoint> saved = save_on_ranks(env, dir.path(), 2, 2, fast_env());
      const int64_t step = newest_step(dir.path());
      ASSERT_THAT(step, testing::AnyOf(1, 2)) << k;
      expect_loads(dir.path() / ("global_step_" + std::to_string(step)), step);
      if (saved.ok() && saved->warnings.empty()) {
        ASSERT_EQ(step, 2) << k;
      }
      ASSERT_OK(save_on_ranks(fast_env(), dir.path(), 3, 2, fast_env()));
      ASSERT_THAT(*default_env().list_dir(dir.path()), testing::ElementsAre("global_step_3", "latest")) << k;
      if (k > env.num_operations()) {
        EXPECT_GT(k, 25);
        break;
      }
    }
  }
}

TEST(CheckpointParts, ARankThatDoesNotSeeTheFolderSaysSo) {
  const test::TempDir dir, other;
  RankState state(1, {1, 2});
  const auto part =
      CheckpointWriter(fast_env(), dir.path()).write_part(other / "global_step_1", request_of(state, {1, {}}), {1, 2});
  EXPECT_THAT(error_of(part), HasSubstr("does not see the folder"));
  EXPECT_THAT(error_of(part), HasSubstr("on a disk that all ranks share"));
}

TEST(CheckpointParts, AFileThatRankZeroDoesNotSeeIsNamed) {
  const test::TempDir dir;
  std::vector<RankState> states{{1, {0, 2}}, {1, {1, 2}}};
  CheckpointWriter writer(fast_env(), dir.path());
  const CheckpointRequest request = request_of(states[0], {1, {}});
  ASSERT_OK_AND_ASSIGN(const Path temporary, writer.begin(request));
  std::vector<WrittenPart> parts;
  for (RankState& state : states) {
    ASSERT_OK_AND_ASSIGN(parts.emplace_back(), writer.write_part(temporary, request_of(state, {1, {}}), state.share));
  }
  ASSERT_OK(default_env().unlink(temporary / "huggingface/part_1"));
  EXPECT_THAT(error_of(writer.commit(temporary, request, parts)),
              HasSubstr("rank 0 does not see 'huggingface/part_1'"));
  EXPECT_TRUE(default_env().list_dir(dir.path())->empty());
}

// A file of the right size that holds another type: rank 0 sees it before it commits, so that the last good one stays.
TEST(CheckpointParts, AnIndexThatFitsNoFileIsNotCommitted) {
  const test::TempDir dir;
  ASSERT_OK(save_on_ranks(fast_env(), dir.path(), 1, 2, fast_env()));
  std::vector<RankState> states{{2, {0, 2}}, {2, {1, 2}}};
  CheckpointWriter writer(fast_env(), dir.path(), {.keep_last = 1, .sync = false});
  const CheckpointRequest request = request_of(states[0], {2, {}});
  ASSERT_OK_AND_ASSIGN(const Path temporary, writer.begin(request));
  std::vector<WrittenPart> parts;
  for (RankState& state : states) {
    ASSERT_OK_AND_ASSIGN(parts.emplace_back(), writer.write_part(temporary, request_of(state, {2, {}}), state.share));
    for (StatePiece& piece : parts.back().pieces) piece.dtype = DType::kI32;
  }
  EXPECT_THAT(error_of(writer.commit(temporary, request, parts)), HasSubstr("does not hold"));
  EXPECT_EQ(newest_step(dir.path()), 1);
  EXPECT_THAT(*default_env().list_dir(dir.path()), testing::ElementsAre("global_step_1", "latest"));
}

TEST(CheckpointParts, AMissingRankIsNoCheckpoint) {
  const test::TempDir dir;
  RankState state(1, {1, 2});
  CheckpointWriter writer(fast_env(), dir.path());
  const CheckpointRequest request = request_of(state, {1, {}});
  ASSERT_OK_AND_ASSIGN(const Path temporary, writer.begin(request));
  std::vector<WrittenPart> parts(1);
  ASSERT_OK_AND_ASSIGN(parts[0], writer.write_part(temporary, request, {1, 2}));
  EXPECT_THAT(error_of(writer.commit(temporary, request, parts)), HasSubstr("did not save 'run/moments' exactly once"));
}

TEST(CheckpointParts, OneRankAloneCannotSaveWhatOthersHave) {
  const test::TempDir dir;
  RankState state(1, {1, 2});
  const auto saved = CheckpointWriter(fast_env(), dir.path()).save(request_of(state, {1, {}}));
  EXPECT_THAT(error_of(saved), HasSubstr("lies on several ranks"));
}

// An index that was written by someone else: every disagreement with the files is refused.
TEST(CheckpointParts, AnIndexThatDoesNotFitItsFilesIsRefused) {
  const test::TempDir dir;
  ASSERT_OK_AND_ASSIGN(const SavedCheckpoint saved, save_on_ranks(fast_env(), dir.path(), 1, 2, fast_env()));
  ASSERT_OK_AND_ASSIGN(const Manifest manifest, verify_checkpoint(default_env(), saved.path));
  const Json good = read_json_file(default_env(), saved.path / kStateIndexFile).value();
  const auto error_with = [&](const std::function<void(Json&)>& change) {
    Json index = good;
    change(index["tensors"]["run/moments"]);
    const auto opened = open_state_shards(default_env(), saved.path, manifest, dump_json(index));
    return opened.ok() ? "" : opened.error().to_string();
  };
  EXPECT_EQ(error_with([](Json&) {}), "");
  EXPECT_THAT(error_with([](Json& one) { one["pieces"][0]["file"] = "../state.safetensors"; }),
              HasSubstr("the manifest has no file"));
  EXPECT_THAT(error_with([](Json& one) { one["pieces"][0]["count"] = 3; }), HasSubstr("does not hold 3 numbers"));
  EXPECT_THAT(error_with([](Json& one) { one["pieces"][0]["count"] = -1; }), HasSubstr("does not hold -1 numbers"));
  EXPECT_THAT(error_with([](Json& one) { one["pieces"].erase(0); }), HasSubstr("numbers of 'run/moments' are missing"));
  EXPECT_THAT(error_with([](Json& one) { one["pieces"][1] = one["pieces"][0]; }), HasSubstr("is twice in"));
  EXPECT_THAT(error_with([](Json& one) { one["dtype"] = "F64"; }), HasSubstr("does not hold"));
  EXPECT_THAT(error_with([](Json& one) { one["dtype"] = "F31"; }), HasSubstr("is unknown"));
  EXPECT_THAT(error_with([](Json& one) { one["shape"] = {6, 4}; }), HasSubstr("does not hold"));
  EXPECT_THAT(error_with([](Json& one) {
                one["shape"] = {int64_t{1} << 40, int64_t{1} << 40};
              }),
              HasSubstr("too large"));
  EXPECT_THAT(error_with([](Json& one) { one["pieces"] = Json::array(); }), HasSubstr("has no pieces"));
  Json index = good;
  index["tensors"].erase("run/weights1");
  EXPECT_THAT(error_of(open_state_shards(default_env(), saved.path, manifest, dump_json(index))),
              HasSubstr("has tensors that the index does not name"));
  index["version"] = 4;
  EXPECT_THAT(error_of(open_state_shards(default_env(), saved.path, manifest, dump_json(index))),
              HasSubstr("has version 4"));
}

// The same of pieces that are columns of a matrix.
TEST(CheckpointParts, ColumnsThatDoNotFitTheirFilesAreRefused) {
  const test::TempDir dir;
  ASSERT_OK_AND_ASSIGN(const SavedCheckpoint saved, save_on_ranks(fast_env(), dir.path(), 1, 2, fast_env()));
  ASSERT_OK_AND_ASSIGN(const Manifest manifest, verify_checkpoint(default_env(), saved.path));
  const Json good = read_json_file(default_env(), saved.path / kStateIndexFile).value();
  EXPECT_EQ(good["version"], 2);
  const auto error_with = [&](const std::function<void(Json&)>& change) {
    Json index = good;
    change(index["tensors"]["run/numbers_by_column"]);
    const auto opened = open_state_shards(default_env(), saved.path, manifest, dump_json(index));
    return opened.ok() ? "" : opened.error().to_string();
  };
  EXPECT_EQ(error_with([](Json&) {}), "");
  for (const int64_t columns : {int64_t{-1}, int64_t{0}, int64_t{2}, int64_t{7}, int64_t{1} << 62}) {
    EXPECT_THAT(error_with([&](Json& one) { one["pieces"][0]["columns"] = columns; }), HasSubstr("of its columns"))
        << columns;
  }
  EXPECT_THAT(error_with([](Json& one) { one["pieces"][0].erase("columns"); }), HasSubstr("others have rows"));
  EXPECT_THAT(error_with([](Json& one) { one["shape"] = {30}; }), HasSubstr("of its columns"));
}

// Ranks that disagree about the columns do not commit.
TEST(CheckpointParts, ColumnsThatAreSavedTwiceAreNoCheckpoint) {
  const test::TempDir dir;
  std::vector<RankState> states{{2, {0, 2}}, {2, {1, 2}}};
  CheckpointWriter writer(fast_env(), dir.path());
  const CheckpointRequest request = request_of(states[0], {2, {}});
  ASSERT_OK_AND_ASSIGN(const Path temporary, writer.begin(request));
  std::vector<WrittenPart> parts;
  for (RankState& state : states) {
    ASSERT_OK_AND_ASSIGN(parts.emplace_back(), writer.write_part(temporary, request_of(state, {2, {}}), state.share));
    for (StatePiece& piece : parts.back().pieces) {
      if (piece.num_columns > 0) piece.begin = 0;
    }
  }
  EXPECT_THAT(error_of(writer.commit(temporary, request, parts)),
              HasSubstr("did not save 'run/numbers_by_column' exactly once"));
}

}  // namespace
}  // namespace mortise
