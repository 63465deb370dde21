// The modules next to a Python file that its import statements name.
#include "python_imports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include <mortise/cpp/plugin.hpp>

#include "support/temp_dir.h"

namespace mortise {
namespace {

using testing::ElementsAre;

std::vector<std::string> imports_of(const test::TempDir& dir, const std::string& source) {
  dir.write("score.py", source);
  return find_python_imports(dir / "score.py").files;
}

TEST(PythonImports, EveryFormOfTheStatement) {
  const test::TempDir dir;
  for (const char* name : {"a", "b", "c", "d", "e", "f", "other"}) dir.write(std::string(name) + ".py", "");
  EXPECT_THAT(imports_of(dir, "import a, b as other2, json\n"), ElementsAre("a.py", "b.py"));
  EXPECT_THAT(imports_of(dir, "from a import (x,  # of a\n  y as b,\n)\nimport c\n"), ElementsAre("a.py", "c.py"));
  EXPECT_THAT(imports_of(dir, "def f():\n\timport a; from b import *\n\tif 1: import c\r\n"),
              ElementsAre("a.py", "b.py", "c.py"));
  EXPECT_THAT(imports_of(dir, "from a \\\n  import x\nfrom \\\r\n b import x"), ElementsAre("a.py", "b.py"));
  EXPECT_THAT(imports_of(dir, "try:\n  import d\nexcept ImportError:\n  import e\n"), ElementsAre("d.py", "e.py"));
  EXPECT_THAT(imports_of(dir, "x = {1: 2}\nimport f"), ElementsAre("f.py"));
  EXPECT_THAT(imports_of(dir, "\xEF\xBB\xBFimport a\r\nx = 'it goes \\\r\non; import b'\r\nimport c\r\n"),
              ElementsAre("a.py", "c.py"));
}

TEST(PythonImports, TextsCommentsAndOtherWordsAreNone) {
  const test::TempDir dir;
  for (const char* name : {"a", "b", "c"}) dir.write(std::string(name) + ".py", "");
  EXPECT_THAT(imports_of(dir,
                         "'''\nimport a\n\\'''\nimport a\n'''\n# import b\nx = \"import b\"\ny = 'it\\'s;import c'\n"
                         "important = a\nraise b from c\nyield from a\nimport_ = (1,\nb)\n"),
              ElementsAre());
  EXPECT_THAT(imports_of(dir, "x = '''it's \"'''; import a\ny = r'\\''\nimport b\nz = ''\nimport c"),
              ElementsAre("a.py", "b.py", "c.py"));
  EXPECT_THAT(imports_of(dir, "x = 'not closed\nimport a\nfrom\nimport"), ElementsAre("a.py"));
}

// Each of them once, however they import one another.
TEST(PythonImports, PackagesAndWhatTheyImportInTurn) {
  const test::TempDir dir;
  dir.write("pkg/__init__.py", "from .first import f\n");
  dir.write("pkg/first.py", "from . import second\nfrom ..outside import x\nimport score\n");
  dir.write("pkg/second.py", "import helper\nfrom .deep.inner import x\n");
  dir.write("pkg/unused.py", "");
  dir.write("pkg/deep/inner.py", "from ...outside import x\nfrom ..third import x\nfrom .... import helper2\n");
  dir.write("pkg/third.py", "");
  dir.write("outside.py", "");
  dir.write("helper.py", "import score, pkg\n");
  dir.write("helper2.py", "");
  EXPECT_THAT(imports_of(dir, "import pkg.second.nothing\n"),
              ElementsAre("helper.py", "outside.py", "pkg/__init__.py", "pkg/deep/inner.py", "pkg/first.py",
                          "pkg/second.py", "pkg/third.py"));
  EXPECT_THAT(imports_of(dir, "from pkg import *\n"), testing::Contains("pkg/unused.py"));
  EXPECT_THAT(imports_of(dir, "from pkg import third\n"), testing::Contains("pkg/third.py"));
}

TEST(PythonImports, TheFolderIsThatOfTheFileItself) {
  const test::TempDir dir;
  dir.write("real/score.py", "import helper\n");
  dir.write("real/helper.py", "");
  dir.write("linked/helper.py", "");
  std::filesystem::create_symlink("../real/score.py", dir / "linked/score.py");
  EXPECT_EQ(find_python_imports(dir / "linked/score.py").folder, std::filesystem::canonical(dir / "real"));
  EXPECT_THROW(find_python_imports(dir / "none.py"), Failure);
}

}  // namespace
}  // namespace mortise
