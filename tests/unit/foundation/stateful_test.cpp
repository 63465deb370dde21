// Saving and restoring objects, and that nothing is lost silently.
#include "foundation/base/stateful.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/temp_dir.h"

namespace mortise {
namespace {

using test::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Thing final : Stateful {
  explicit Thing(std::string name) : name_(std::move(name)) {}
  [[nodiscard]] std::string state_name() const override { return name_; }
  Result<> save_state(StateWriter& writer) const override {
    writer.put_bool("flag", flag);
    writer.put_int("steps", steps);
    writer.put_uint("seed", seed);
    writer.put_double("rate", rate);
    writer.put_text("text", text);
    writer.put_bytes("bytes", bytes);
    const std::array<int64_t, 2> shape{2, 2};
    writer.put_tensor("moment", DType::kF32, shape, std::as_bytes(std::span(moment)));
    if (write_extra) writer.put_int("extra", 1);
    return {};
  }
  Result<> load_state(StateReader& reader) override {
    flag = TRY(reader.get_bool("flag"));
    steps = TRY(reader.get_int("steps"));
    seed = TRY(reader.get_uint("seed"));
    rate = TRY(reader.get_double("rate"));
    text = TRY(reader.get_text("text"));
    bytes = TRY(reader.get_bytes("bytes"));
    const std::array<int64_t, 2> shape{2, columns};
    const TensorView tensor = TRY(reader.get_tensor("moment", DType::kF32, shape));
    std::copy(tensor.as<float>().begin(), tensor.as<float>().end(), moment.begin());
    return {};
  }

  std::string name_;
  bool flag = true, write_extra = false;
  int64_t steps = std::numeric_limits<int64_t>::min(), columns = 2;
  uint64_t seed = std::numeric_limits<uint64_t>::max();
  double rate = 0.1;
  std::string text = "caf\xC3\xA9", bytes = std::string("\0\xFF", 2);
  std::array<float, 4> moment{1, 2, 3, 4};
};

// Objects that came with a later version do not shut out the checkpoints of before.
TEST(Stateful, AnObjectMayBeNewerThanTheCheckpoint) {
  struct Newer final : Stateful {
    [[nodiscard]] std::string state_name() const override { return "newer"; }
    [[nodiscard]] bool may_be_missing() const override { return true; }
    Result<> save_state(StateWriter& writer) const override {
      writer.put_int("n", 3);
      return {};
    }
    Result<> load_state(StateReader& reader) override {
      n = TRY(reader.get_int("n"));
      return {};
    }
    int64_t n = 0;
  } newer;
  Thing thing("thing");
  StatefulRegistry before, now;
  ASSERT_OK(before.add(thing));
  ASSERT_OK(now.add(thing));
  ASSERT_OK(now.add(newer));
  const StateSnapshot old_one = *before.save(), new_one = *now.save();
  ASSERT_OK(now.load(old_one, "here"));
  EXPECT_EQ(newer.n, 0);
  ASSERT_OK(now.load(new_one, "here"));
  EXPECT_EQ(newer.n, 3);
  EXPECT_THAT(error_of(before.load(new_one, "here")), HasSubstr("state of 'newer', which this run does not have"));
  EXPECT_OK(before.load(new_one, "here", {"newer"}));  // the caller drops it
}

TEST(Stateful, RoundTrip) {
  Thing a("a.one"), b("b");
  a.rate = -std::numeric_limits<double>::infinity();
  b.moment[3] = 9;
  StatefulRegistry registry;
  ASSERT_OK(registry.add(a));
  ASSERT_OK(registry.add(b));
  ASSERT_OK_AND_ASSIGN(const StateSnapshot snapshot, registry.save());
  Thing a2("a.one"), b2("b");
  a2.flag = b2.flag = false, a2.steps = b2.steps = 0, a2.seed = 0, a2.rate = 0, a2.text = a2.bytes = "", b2.moment = {};
  StatefulRegistry other;
  ASSERT_OK(other.add(b2));
  ASSERT_OK(other.add(a2));
  ASSERT_OK(other.load(snapshot, "here"));
  EXPECT_TRUE(a2.flag && b2.flag);
  EXPECT_EQ(a2.steps, a.steps);
  EXPECT_EQ(a2.seed, a.seed);
  EXPECT_EQ(a2.rate, a.rate);
  EXPECT_EQ(a2.text, a.text);
  EXPECT_EQ(a2.bytes, a.bytes);
  EXPECT_EQ(b2.moment, b.moment);
}

TEST(Stateful, RefusesWhatIsMissingUnknownUnreadOrOfAnotherKind) {
  Thing thing("thing");
  thing.write_extra = true;
  StatefulRegistry registry;
  ASSERT_OK(registry.add(thing));
  ASSERT_OK_AND_ASSIGN(StateSnapshot snapshot, registry.save());
  EXPECT_THAT(error_of(registry.load(snapshot, "ckpt")), HasSubstr("'thing/extra' was saved but is not read"));

  snapshot.scalars["thing"].erase("extra");
  EXPECT_OK(registry.load(snapshot, "ckpt"));
  thing.columns = 3;
  EXPECT_THAT(error_of(registry.load(snapshot, "ckpt")),
              HasSubstr("'thing/moment' is F32[2,2], this run needs F32[2,3]"));
  thing.columns = 2;
  snapshot.scalars["thing"]["rate"] = int64_t{1};
  EXPECT_THAT(error_of(registry.load(snapshot, "ckpt")), HasSubstr("'thing/rate' is not a float"));
  snapshot.scalars["thing"].erase("rate");
  EXPECT_THAT(error_of(registry.load(snapshot, "ckpt")), HasSubstr("ckpt: state 'thing/rate' is missing"));
  snapshot.scalars["thing"]["rate"] = 1.0;
  snapshot.tensors.clear();
  EXPECT_THAT(error_of(registry.load(snapshot, "ckpt")), HasSubstr("'thing/bytes' is missing"));

  Thing second("second");
  ASSERT_OK(registry.add(second));
  EXPECT_THAT(error_of(registry.load(snapshot, "ckpt")), HasSubstr("no state of 'second'"));
  snapshot.scalars["second"];
  snapshot.scalars["third"];
  EXPECT_THAT(error_of(registry.load(snapshot, "ckpt")), HasSubstr("state of 'third', which this run does not have"));
}

TEST(Stateful, RefusesBadNamesAndMisuse) {
  Thing one("one"), twin("one"), bad("Not ok");
  StatefulRegistry registry;
  ASSERT_OK(registry.add(one));
  EXPECT_THAT(error_of(registry.add(twin)), HasSubstr("two objects"));
  EXPECT_THAT(error_of(registry.add(bad)), HasSubstr("characters"));
  EXPECT_THAT(registry.names(), ElementsAre("one"));

  StateSnapshot snapshot;
  StateWriter twice("w", &snapshot);
  twice.put_int("a", 1);
  twice.put_double("a", 2);
  EXPECT_THAT(error_of(twice.status()), HasSubstr("key 'a' twice"));
  StateWriter short_tensor("w2", &snapshot);
  const std::array<int64_t, 1> shape{3};
  short_tensor.put_tensor("t", DType::kF32, shape, {});
  EXPECT_THAT(error_of(short_tensor.status()), HasSubstr("has 0 bytes for shape [3]"));
  StateWriter not_text("w3", &snapshot);
  not_text.put_text("t", "\xFF");
  EXPECT_THAT(error_of(not_text.status()), HasSubstr("not UTF-8"));
}

TEST(TensorView, SizesAndNames) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kI64, DType::kI32, DType::kI16,
                            DType::kI8, DType::kU64, DType::kU32, DType::kU16, DType::kU8, DType::kBool})
    EXPECT_EQ(parse_dtype(dtype_name(dtype)), dtype);
  EXPECT_EQ(dtype_bytes(DType::kBF16), 2u);
  EXPECT_EQ(parse_dtype("f32"), std::nullopt);
  EXPECT_EQ(num_elements(std::vector<int64_t>{}), 1);
  EXPECT_EQ(num_elements(std::vector<int64_t>{3, 0, 5}), 0);
  EXPECT_EQ(num_elements(std::vector<int64_t>{int64_t{1} << 32, int64_t{1} << 32}), std::nullopt);
  EXPECT_EQ(num_elements(std::vector<int64_t>{-1}), std::nullopt);
  const std::vector<int32_t> values{1, 2, 3};
  const TensorView view = view_of<int32_t>("v", values);
  EXPECT_EQ(view.dtype, DType::kI32);
  EXPECT_THAT(view.as<int32_t>(), ElementsAre(1, 2, 3));
}

// Lists of numbers and texts, in the state of one object.
struct Lists final : Stateful {
  [[nodiscard]] std::string state_name() const override { return "lists"; }
  Result<> save_state(StateWriter& writer) const override {
    writer.put_vector("doubles", doubles);
    writer.put_vector("bytes", bytes);
    writer.put_vector("ids", ids);
    writer.put_texts("texts", texts);
    return {};
  }
  Result<> load_state(StateReader& reader) override {
    doubles = TRY(reader.get_vector<double>("doubles"));
    bytes = TRY(reader.get_vector<uint8_t>("bytes"));
    ids = TRY(reader.get_vector<int64_t>("ids"));
    texts = TRY(reader.get_texts("texts"));
    return {};
  }
  std::vector<double> doubles;
  std::vector<uint8_t> bytes;
  std::vector<int64_t> ids;
  std::vector<std::string> texts;
};

TEST(Stateful, ListsReadBackExactly) {
  StatefulRegistry registry;
  Lists lists;
  ASSERT_OK(registry.add(lists));
  const std::vector<std::string> texts{"", std::string("\0\xFF", 2), "caf\xC3\xA9", ""};
  lists.doubles = {0.1, -std::numeric_limits<double>::infinity()};
  lists.bytes = {1, 0, 255};
  lists.texts = texts;
  ASSERT_OK_AND_ASSIGN(const StateSnapshot snapshot, registry.save());
  lists.doubles.clear(), lists.bytes.clear(), lists.texts.clear();
  lists.ids = {7};
  ASSERT_OK(registry.load(snapshot, "here"));
  EXPECT_THAT(lists.doubles, ElementsAre(0.1, -std::numeric_limits<double>::infinity()));
  EXPECT_THAT(lists.bytes, ElementsAre(1, 0, 255));
  EXPECT_TRUE(lists.ids.empty());
  EXPECT_EQ(lists.texts, texts);
}

TEST(Stateful, RefusesListsOfAnotherKindAndTextsThatDoNotAddUp) {
  StateSnapshot snapshot;
  StateWriter writer("lists", &snapshot);
  writer.put_vector("ids", std::vector<int64_t>{1, 2});
  writer.put_bytes("texts", "abc");
  writer.put_vector("texts.ends", std::vector<int64_t>{2, 1, 3});
  std::sort(snapshot.tensors.begin(), snapshot.tensors.end(),
            [](const TensorView& a, const TensorView& b) { return a.name < b.name; });
  StateReader reader("lists", &snapshot, "here");
  EXPECT_THAT(error_of(reader.get_vector<float>("ids")), HasSubstr("'lists/ids' is I64[2], not a list of F32"));
  EXPECT_THAT(error_of(reader.get_texts("texts")), HasSubstr("'lists/texts' is not a list of texts"));
}

}  // namespace
}  // namespace mortise
