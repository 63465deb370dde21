// What the parameters of a Python reward are, without an interpreter.
#include "python_signature.h"

#include <gmock/gmock.h>

namespace mortise {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(PythonSignature, NamesWhatHasNoDefault) {
  const auto found = find_python_signature(
      "import re\n\ndef helper(x):\n    def reward(inner): pass\n    return x\n\n"
      "async def reward(prompts, completions: list[str], *,\n           answer: dict[str, int], level=(1, 2), "
      "deep={'a': 1}, **kwargs):\n"
      "    '''def reward(not_this)'''\n    return [1.0]\n",
      "");
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->name, "reward");
  EXPECT_THAT(found->names, ElementsAre("prompts", "completions", "answer", "level", "deep"));
  EXPECT_THAT(found->required, ElementsAre("prompts", "completions", "answer"));
  EXPECT_THAT(find_python_signature("def f(): pass\n", "f")->names, IsEmpty());
  EXPECT_THAT(find_python_signature("def f(a, /, b, *rest,): pass", "")->required, ElementsAre("a", "b"));
}

TEST(PythonSignature, SaysNothingWhereAnInterpreterMaySeeAnother) {
  EXPECT_FALSE(find_python_signature("@wrap\ndef f(a): pass\n", "f"));
  EXPECT_FALSE(find_python_signature("@wrap(1)\n@more\nasync def f(a): pass\n", ""));
  EXPECT_FALSE(find_python_signature("def f(a): pass\nf = partial(f, 1)\n", "f"));
  EXPECT_FALSE(find_python_signature("class Reward:\n    def f(self, a): pass\n", "f"));
  EXPECT_FALSE(find_python_signature("def f(a): pass\ndef g(a): pass\n", "")) << "two, and none has a usual name";
  EXPECT_FALSE(find_python_signature("def f(a): pass\n", "g"));
  EXPECT_FALSE(find_python_signature("", ""));
  EXPECT_EQ(find_python_signature("def f(a): pass\ndef f(b): pass\n", "f")->required, std::vector<std::string>{"b"});
}

}  // namespace
}  // namespace mortise
