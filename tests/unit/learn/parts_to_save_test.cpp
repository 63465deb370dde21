// Ranks that share weights write their files part by part: the bytes of whole weights, and a part at a time in memory.
#include "learn/optim/parts_to_save.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <string>

#include "layer_variants.h"
#include "support/counting_allocator.h"

namespace mortise {
namespace {

class BytesFile : public WritableFile {
 public:
  Result<> append(std::span<const std::byte> bytes) override {
    bytes_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return {};
  }
  Result<> sync() override { return {}; }
  Result<> close() override { return {}; }
  [[nodiscard]] const Path& path() const override { return path_; }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  Path path_;
  std::string bytes_;
};

using Files = std::map<std::string, std::string>;  // bytes by name

// Every `size`-th file of a model's folder, from the `rank`-th on.
Files written_files(const Model& model, const SaveOptions& options, size_t rank, size_t size) {
  const std::vector<FolderFile> plan = model.plan_save(options).value();
  Files files;
  for (size_t i = rank; i < plan.size(); i += size) {
    BytesFile file;
    EXPECT_OK(plan[i].write(file));
    files[plan[i].name] = file.bytes();
  }
  return files;
}

// All ranks write at the same time, and then again. The bytes are those of one rank that has all weights.
void expect_files_of_whole_weights(const Variant& variant, const Mesh& mesh, const std::string& dtype,
                                   bool has_masters = true) {
  SCOPED_TRACE(variant.name + ", " + name_of(mesh) + ", " + dtype);
  SaveOptions options{.dtype = dtype, .max_shard_bytes = dtype == "bfloat16" ? 6'000 : 20'000};
  Files expected, got;
  std::mutex mutex;
  test::on_ranks(mesh.num_ranks, [&](Communicator& communicator) {
    Model model = model_of(variant, communicator, mesh, dtype);
    TestPolicy::spread_model(model, {&communicator, mesh.zero_stage});
    if (!has_masters) model.drop_masters();
    ASSERT_TRUE(PartsToSave::is_shared(model));
    {
      const auto whole = WholeWeights::gather({&model}).value();
      if (communicator.is_main()) expected = written_files(model, options, 0, 1);
    }
    PartsToSave parts(model, communicator);
    SaveOptions own = options;
    own.numbers = &parts;
    for (int save = 0; save < 2; ++save) {
      const Files files =
          written_files(model, own, static_cast<size_t>(communicator.rank()), static_cast<size_t>(mesh.num_ranks));
      ASSERT_OK(parts.finish());
      const std::lock_guard lock(mutex);
      got.insert(files.begin(), files.end());
    }
    EXPECT_FALSE(model.is_whole());
  });
  EXPECT_GT(expected.size(), 4U) << "ranks write files with weights at the same time";
  for (const auto& [name, bytes] : expected) EXPECT_TRUE(got[name] == bytes) << name;
}

constexpr Mesh kSpread{.num_ranks = 3, .zero_stage = 3}, kSplit{.num_ranks = 2, .tensor_size = 2},
    kBoth{.num_ranks = 4, .zero_stage = 3, .tensor_size = 2};

TEST(PartsToSave, GiveTheBytesOfWholeWeightsForEveryKindOfLayerAndAdapter) {
  size_t index = 0;
  const Mesh meshes[] = {kSpread, kSplit, kBoth};
  for (const Variant& variant : variants()) {
    if (variant.options) continue;  // they are about passes
    expect_files_of_whole_weights(variant, meshes[index++ % 3], "float64");
  }
}

TEST(PartsToSave, GiveTheBytesOfBfloat16WithAndWithoutMasters) {
  const Variant plain{"three layers", small_config(kShape.vocab, 3)},
      adapted{"an adapter", small_config(kShape.vocab, 3), {}, {"all-linear"}};
  for (const Mesh& mesh : {kSpread, kSplit, kBoth}) {
    for (const bool has_masters : {true, false}) expect_files_of_whole_weights(plain, mesh, "bfloat16", has_masters);
    expect_files_of_whole_weights(adapted, mesh, "bfloat16");
  }
}

// One rank writes one file, of more layers than fit into what is allowed. All memory of the save is gone after it.
void expect_memory_for_one_part(const Variant& variant, const Mesh& mesh, const std::string& dtype) {
  SCOPED_TRACE(variant.name + ", " + name_of(mesh) + ", " + dtype);
  CountingAllocator& tensors = CountingAllocator::install();
  test::on_ranks(mesh.num_ranks, [&](Communicator& communicator) {
    Model model = model_of(variant, communicator, mesh, dtype);
    TestPolicy::spread_model(model, {&communicator, mesh.zero_stage});
    PartsToSave parts(model, communicator);
    ASSERT_OK(communicator.barrier("all have what they keep"));
    const int64_t before = tensors.bytes();
    tensors.reset_peak();
    ASSERT_OK(communicator.barrier("the save"));
    if (communicator.rank() == 0) written_files(model, {.dtype = dtype, .numbers = &parts}, 0, 1);
    ASSERT_OK(parts.finish());
    // The ranks are threads of this process, so this is what all have together: the part that is written, with its base,
    // merged rows and copies, and what ranks send and receive of it. The model has twelve layers.
    EXPECT_LE(tensors.peak() - before, 8 * largest_part(model));
    ASSERT_OK(communicator.barrier("all are done"));
    EXPECT_EQ(tensors.bytes(), before);
    ASSERT_OK(communicator.barrier("all have looked"));
  });
}

TEST(PartsToSave, KeepAPartAtATime) {
  const Variant plain{"many layers", many_layers()};
  Variant adapter{"an adapter", many_layers(), {}, {"q_proj", "down_proj"}}, started = adapter;
  started.name = "PiSSA";
  started.init = LoraInit::kPissa;
  for (const Mesh& mesh : {kSpread, kSplit, kBoth}) {
    for (const Variant& variant : {plain, adapter, started}) {
      for (const char* const dtype : {"float32", "bfloat16"}) expect_memory_for_one_part(variant, mesh, dtype);
    }
  }
}

// The disk of a rank is full in the middle of its file, as soon as it has two pieces.
class FullFile : public BytesFile {
 public:
  Result<> append(std::span<const std::byte> bytes) override {
    if (++num_appends_ == 3) return Error{ErrorKind::kDisk, "no space left", {}, {}};
    return BytesFile::append(bytes);
  }

 private:
  int num_appends_ = 0;
};

// Does one of the files fail? The rank then writes no others.
bool write_until_full(const Model& model, const SaveOptions& options) {
  const std::vector<FolderFile> plan = model.plan_save(options).value();
  for (const FolderFile& one : plan) {
    FullFile file;
    if (!one.write(file).ok()) return true;
  }
  return false;
}

// The other rank's files are complete, and a second save succeeds.
TEST(PartsToSave, ARankWhoseDiskIsFullHelpsTheOthers) {
  const Variant variant{"many layers", many_layers()};
  for (const Mesh& mesh : {kSpread, kSplit, kBoth}) {
    SCOPED_TRACE(name_of(mesh));
    test::on_ranks(mesh.num_ranks, [&](Communicator& communicator) {
      Model model = model_of(variant, communicator, mesh, "float32");
      TestPolicy::spread_model(model, {&communicator, mesh.zero_stage});
      Files expected;
      {
        const auto whole = WholeWeights::gather({&model}).value();
        expected = written_files(model, {.dtype = "float32"}, 0, 1);
      }
      PartsToSave parts(model, communicator);
      const SaveOptions options{.dtype = "float32", .numbers = &parts};
      for (const bool is_full : {true, false}) {
        if (communicator.rank() == 0) EXPECT_TRUE(written_files(model, options, 0, 1) == expected);
        if (communicator.rank() == 1 && is_full) EXPECT_TRUE(write_until_full(model, options));
        if (communicator.rank() == 1 && !is_full) EXPECT_TRUE(written_files(model, options, 0, 1) == expected);
        ASSERT_OK(parts.finish());
      }
    });
  }
}

// One save of all ranks. `victim` fails at the `call`-th message about what ranks want; call 0: nobody fails. Returns the
// messages of a rank. Nobody keeps memory.
int64_t save_with_failure(const Mesh& mesh, int victim, int64_t call) {
  CountingAllocator& tensors = CountingAllocator::install();
  std::atomic<int64_t> num_calls = 0;
  const int64_t before = tensors.bytes();
  test::on_ranks(mesh.num_ranks, [&](Communicator& communicator) {
    const Variant variant{"three layers", small_config(kShape.vocab, 3)};
    Model model = model_of(variant, communicator, mesh, "float32");
    TestPolicy::spread_model(model, {&communicator, mesh.zero_stage});
    auto& rank = dynamic_cast<test::ThreadRank&>(communicator);
    rank.fail_at("gathering weights to save", rank.rank() == victim ? call : 0);
    PartsToSave parts(model, communicator);
    Result<> written;
    const std::vector<FolderFile> plan = model.plan_save({.dtype = "float32", .numbers = &parts}).value();
    for (const FolderFile& one : plan) {
      BytesFile file;
      if (written.ok()) written = one.write(file);
    }
    const Result<> helped = parts.finish();
    if (call == 0) {
      EXPECT_TRUE(written.ok() && helped.ok());
      num_calls = rank.num_calls();
      return;
    }
    ASSERT_FALSE(helped.ok()) << "rank " << rank.rank() << " saved without rank " << victim;
    EXPECT_EQ(helped.error().kind, ErrorKind::kRankFailure);
    EXPECT_EQ(helped.error().what, "rank " + std::to_string(victim) + " lost its connection");
  });
  EXPECT_EQ(tensors.bytes(), before);
  return num_calls;
}

TEST(PartsToSave, ARankThatFailsIsNamedByAllAtAllTimes) {
  for (const Mesh& mesh : {kSpread, kSplit, kBoth}) {
    SCOPED_TRACE(name_of(mesh));
    const int64_t num_calls = save_with_failure(mesh, 0, 0);
    EXPECT_GT(num_calls, 5);
    for (int64_t call = 1; call <= num_calls && !testing::Test::HasFailure(); ++call) {
      SCOPED_TRACE("message " + std::to_string(call));
      save_with_failure(mesh, static_cast<int>(call) % mesh.num_ranks, call);
    }
  }
}

}  // namespace
}  // namespace mortise
