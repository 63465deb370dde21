// Impossible tables in memory: the host refuses each one by its fault, before it calls a slot.
#include "plugin/host/table.h"

#include <functional>

#include "mortise/kinds/reward.h"
#include "plugin/host/host_services.h"
#include "plugin/host/instance.h"
#include "test_packs.h"

namespace mortise {
namespace {

using test::error_of;
using testing::AllOf;
using testing::HasSubstr;

int32_t create_nothing(const mortise_host*, mortise_call*, void**) noexcept { return MORTISE_OK; }
void destroy_nothing(void*) noexcept {}

struct Head {
  MORTISE_VTABLE_HEAD
};

// A good table with one parameter, to be spoilt.
struct Table {
  mortise_param param{};
  const mortise_param* params[1] = {&param};
  const char* choices[1] = {"one"};
  Head vtable{};
  mortise_descriptor descriptor{};
  const mortise_descriptor* plugins[1] = {&descriptor};
  mortise_pack pack{};

  Table() {
    param.struct_size = sizeof param;
    param.type = MORTISE_PARAM_F64;
    param.name = "factor";
    vtable.struct_size = sizeof vtable;
    vtable.create = create_nothing;
    vtable.destroy = destroy_nothing;
    descriptor.struct_size = sizeof descriptor;
    descriptor.kind = MORTISE_KIND_REWARD;
    descriptor.name = "one";
    descriptor.num_params = 1;
    descriptor.params = params;
    descriptor.vtable = &vtable;
    pack.struct_size = sizeof pack;
    pack.num_plugins = 1;
    pack.id = "test.table";
    pack.version = "1.0.0";
    pack.plugins = plugins;
  }
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;
};

std::string fault(const std::function<void(Table&)>& spoil) {
  Table table;
  spoil(table);
  PackInfo info;
  info.path = "/packs/x.so";
  const auto read = read_table(table.pack, info);
  if (read.ok()) return "ok";
  EXPECT_EQ(read.error().where, "/packs/x.so");
  EXPECT_EQ(read.error().next, "build the pack again with this SDK");
  return read.error().what;
}

TEST(TableTest, AGoodOneIsRead) {
  EXPECT_EQ(fault([](Table&) {}), "ok");
}

// What lies behind a struct of 0.1 is not of it.
TEST(TableTest, FieldsOfMinor2AreReadOnlyWhereTheyAre) {
  Table table;
  const char* metrics[] = {"a=b", nullptr};
  table.param.type = MORTISE_PARAM_TEXT;
  table.param.role = MORTISE_ROLE_FILE;
  table.descriptor.update_metrics = metrics;
  PackInfo info;
  const auto read = [&] { return read_table(table.pack, info).value().plugins[0]; };
  EXPECT_EQ(read().params[0].role, ParamRole::kFile);
  EXPECT_EQ(read().update_metrics, std::vector<std::string>{"a=b"});
  table.param.role = 99;
  EXPECT_EQ(read().params[0].role, ParamRole::kPlain);
  table.param.role = MORTISE_ROLE_FILE;
  table.param.struct_size = 64;
  table.descriptor.struct_size = 80;
  EXPECT_EQ(read().params[0].role, ParamRole::kPlain);
  EXPECT_TRUE(read().update_metrics.empty());
}

// Only a pack of a minor that this program does not know may have larger structs than it.
TEST(TableTest, ALaterMinorMayHaveGrown) {
  Table table;
  for (uint32_t* size : {&table.pack.struct_size, &table.descriptor.struct_size, &table.param.struct_size}) *size += 64;
  PackInfo info;
  info.abi_minor = MORTISE_ABI_MINOR + 1;
  EXPECT_OK(read_table(table.pack, info));
  info.abi_minor = MORTISE_ABI_MINOR;
  EXPECT_THAT(error_of(read_table(table.pack, info)), HasSubstr("too large"));
}

// A source of ABI 0 that was compiled with newer headers has their minor in its table, and no other excuse.
TEST(TableTest, MinorsOfATableOfAbi0) {
  PackInfo note, table;
  note.abi = table.abi = 0;
  note.abi_minor = 2, note.min_host_minor = 1;
  EXPECT_OK(compare_with_note(table, note));
  table.min_host_minor = 99;
  EXPECT_THAT(error_of(compare_with_note(table, note)), HasSubstr("ABI minors"));
  table.min_host_minor = 0, note.abi_minor = 9;
  EXPECT_THAT(error_of(compare_with_note(table, note)), HasSubstr("ABI minors"));
}

TEST(TableTest, EveryFaultIsNamed) {
  const std::pair<std::function<void(Table&)>, const char*> faults[] = {
      {[](Table& t) { t.pack.struct_size = 8; }, "it is too small"},
      {[](Table& t) { t.pack.struct_size = sizeof t.pack + 1; }, "it is too large"},
      {[](Table& t) { t.descriptor.struct_size = UINT32_MAX; }, "a plugin descriptor is too large"},
      {[](Table& t) { t.param.struct_size = 1U << 31; }, "a parameter of 'one' is too large"},
      {[](Table& t) { t.pack.id = nullptr; }, "no id or version"},
      {[](Table& t) { t.pack.version = nullptr; }, "no id or version"},
      {[](Table& t) { t.pack.abi_minor = UINT32_MAX; }, "ABI minors"},
      {[](Table& t) { t.pack.min_host_minor = 1U << 31; }, "ABI minors"},
      {[](Table& t) { t.pack.plugins = nullptr; }, "plugins"},
      {[](Table& t) { t.pack.num_plugins = 1U << 20; }, "plugins"},
      {[](Table& t) { t.plugins[0] = nullptr; }, "a plugin descriptor is null or too small"},
      {[](Table& t) { t.descriptor.struct_size = 8; }, "a plugin descriptor is null or too small"},
      {[](Table& t) { t.descriptor.name = nullptr; }, "a plugin without kind or name"},
      {[](Table& t) { t.descriptor.kind = nullptr; }, "a plugin without kind or name"},
      {[](Table& t) { t.descriptor.vtable = nullptr; }, "plugin 'one' has no vtable"},
      {[](Table& t) { t.descriptor.coupling = 9; }, "plugin 'one' has an unknown coupling"},
      {[](Table& t) { t.descriptor.params = nullptr; }, "parameters of 'one'"},
      {[](Table& t) { t.params[0] = nullptr; }, "a parameter of 'one' is null or too small"},
      {[](Table& t) { t.param.struct_size = 4; }, "a parameter of 'one' is null or too small"},
      {[](Table& t) { t.param.name = nullptr; }, "a parameter of 'one' has no name"},
      {[](Table& t) { t.param.type = 9; }, "parameter 'factor' has an unknown type"},
      {[](Table& t) { t.param.num_choices = 1; }, "choices of 'factor'"},
  };
  for (const auto& [spoil, says] : faults) EXPECT_THAT(fault(spoil), HasSubstr(says));
}

// --- vtables ---------------------------------------------------------------------------------------------------------

std::string creation(const std::function<void(Head&)>& spoil, int32_t abi_minor = MORTISE_ABI_MINOR) {
  Table table;
  spoil(table.vtable);
  PackInfo pack;
  pack.abi_minor = abi_minor;
  PluginInfo plugin;
  plugin.kind = MORTISE_KIND_REWARD;
  InstanceIdentity identity;
  identity.label = "reward one@test.table 1.0.0 (abc)";
  return error_of(PluginInstance::create(LoadedPlugin{&pack, &plugin, &table.vtable}, identity, {}));
}

TEST(TableTest, AVtableHasWhatEveryInstanceNeeds) {
  EXPECT_EQ(creation([](Head&) {}), "ok");
  EXPECT_THAT(creation([](Head& v) { v.struct_size = 8; }),
              AllOf(HasSubstr("reward one@test.table 1.0.0 (abc)"), HasSubstr("its vtable is too small")));
  const auto enlarge = [](Head& v) { v.struct_size = 4096; };
  EXPECT_THAT(creation(enlarge), HasSubstr("its vtable is too large"));
  EXPECT_EQ(creation(enlarge, MORTISE_ABI_MINOR + 1), "ok");
  EXPECT_THAT(creation([](Head& v) { v.create = nullptr; }), HasSubstr("lacks create or destroy"));
  EXPECT_THAT(creation([](Head& v) { v.destroy = nullptr; }), HasSubstr("lacks create or destroy"));
}

}  // namespace
}  // namespace mortise
