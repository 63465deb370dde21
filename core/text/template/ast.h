// The parsed template. Names are numbers (symbols) so that look-up compares integers.
// Thread rule: constant after parsing; any number of renderings may share it.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/template/place.h"
#include "text/template/value.h"

namespace mortise::jinja {

using Symbol = int;

enum class ExprKind {
  kConst,         // value
  kName,          // symbol, name
  kNamespaceRef,  // symbol . text (only as a target)
  kList,          // items
  kTuple,         // items
  kDict,          // items: key, value, key, value ...
  kCondition,     // items: test, then [, else]
  kNot,           // items[0]
  kAnd,           // items[0], items[1]
  kOr,
  kCompare,  // items[0] ops[0] items[1] ops[1] ...
  kBinary,   // ops[0]
  kNegate,
  kPositive,
  kConcat,     // items
  kFilter,     // text, items[0] (absent: the block's text), args
  kTest,       // text, items[0], args
  kCall,       // items[0], args
  kAttribute,  // items[0] . text
  kItem,       // items[0] [ items[1] ]
  kSlice,      // items[0] [ items[1] : items[2] : items[3] ]; null where left out
};

enum class Operator { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow, kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct ArgList {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> keyword;
  ExprPtr star;         // *args
  ExprPtr double_star;  // **kwargs
};

struct Expr {
  ExprKind kind;
  Place place;
  int depth = 1;  // depth of the tree below, itself included
  Value value;
  std::string text;
  Symbol symbol = -1;
  std::vector<ExprPtr> items;
  std::vector<Operator> ops;
  std::unique_ptr<ArgList> args;
};

enum class StmtKind {
  kText,
  kPrint,
  kIf,
  kFor,
  kSet,
  kSetBlock,
  kMacro,
  kCallBlock,
  kFilterBlock,
  kWith,
  kBreak,
  kContinue,
  kGeneration,
};

struct Stmt;
using Body = std::vector<std::unique_ptr<Stmt>>;

struct Param {
  Symbol symbol;
  std::string name;
  ExprPtr fallback;  // null: none
};

struct Stmt {
  StmtKind kind;
  Place place;
  std::string text;        // kText: the text; kMacro: its name
  Symbol symbol = -1;      // kMacro
  ExprPtr expr;            // the printed, iterated, set or called expression; kFilterBlock, kSetBlock: the filters
  ExprPtr target;          // kFor, kSet, kSetBlock
  ExprPtr condition;       // kFor: the `if` behind it
  bool recursive = false;  // kFor
  Body body;
  Body otherwise;                                        // kFor: no items
  std::vector<std::pair<ExprPtr, Body>> branches;        // kIf; the test of `else` is null
  std::vector<std::pair<ExprPtr, ExprPtr>> assignments;  // kWith
  std::vector<Param> params;                             // kMacro, kCallBlock
  bool uses_varargs = false;                             // kMacro, kCallBlock: the body names them
  bool uses_kwargs = false;
  bool uses_caller = false;
};

struct Symbols {
  Symbol loop, caller, varargs, kwargs;
  std::vector<std::string> names;
};

struct Template {
  std::string name;  // in errors
  Body body;
  Symbols symbols;
  bool has_generation = false;
  size_t source_bytes = 0;
};

}  // namespace mortise::jinja
