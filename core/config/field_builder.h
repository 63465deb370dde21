// How the entries of fields.h are written down: `table.add("lr", &OptimConfig::lr, "Learning rate.").above(0)`.
//
// Private to this room; runs once, at the first look at the list.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "config/fields.h"

namespace mortise {

struct FieldCatalog {
  std::vector<Field> fields;
  std::vector<TableInfo> tables;
};

// One entry being written. Valid until the next add().
class FieldEntry {
 public:
  explicit FieldEntry(Field& field) : field_(field) {}
  FieldEntry& at_least(double min) { return field_.min = min, *this; }
  FieldEntry& above(double min) { return field_.min = min, field_.min_is_open = true, *this; }
  FieldEntry& at_most(double max) { return field_.max = max, *this; }
  FieldEntry& below(double max) { return field_.max = max, field_.max_is_open = true, *this; }
  FieldEntry& items(size_t count) { return field_.num_items = count, *this; }
  FieldEntry& one_of(std::vector<std::string> choices) { return field_.choices = std::move(choices), *this; }
  FieldEntry& plugin(std::string kind) { return field_.plugin_kind = std::move(kind), *this; }
  FieldEntry& or_number() { return field_.takes_number = true, *this; }
  FieldEntry& inline_table() { return field_.inline_params = true, *this; }
  FieldEntry& verl(std::string name) { return field_.verl = std::move(name), *this; }
  FieldEntry& trl(std::string name) { return field_.trl = std::move(name), *this; }

 private:
  Field& field_;
};

// The keys of one table; Owner is RunConfig or RewardConfig, Section the struct of the table.
template <class Owner, class Section>
class FieldTable {
 public:
  FieldTable(FieldCatalog& catalog, std::string name, std::string doc, std::function<Section&(Owner&)> section)
      : catalog_(catalog), name_(std::move(name)), section_(std::move(section)) {
    if (!name_.empty()) catalog_.tables.push_back({name_, std::move(doc)});
  }

  template <class T>
  FieldEntry add(const std::string& leaf, T Section::*member, std::string doc) {
    Field& field = catalog_.fields.emplace_back();
    field.key = name_.empty() ? leaf : name_ + "." + leaf;
    field.doc = std::move(doc);
    auto reference = [section = section_, member](Owner& owner) -> FieldRef { return &(section(owner).*member); };
    if constexpr (std::is_same_v<Owner, RunConfig>) {
      field.in_run = std::move(reference);
    } else {
      field.in_reward = std::move(reference);
    }
    return FieldEntry(field);
  }

 private:
  FieldCatalog& catalog_;
  std::string name_;
  std::function<Section&(Owner&)> section_;
};

void add_run_fields(FieldCatalog& catalog);        // preset, model, data
void add_algorithm_fields(FieldCatalog& catalog);  // algorithm
void add_train_fields(FieldCatalog& catalog);      // actor, ref, critic
void add_engine_fields(FieldCatalog& catalog);     // rollout, reward, trainer, sft, plugins

}  // namespace mortise
