// The precompiled header of the rooms without libtorch and of their tests: what nearly all of their files include and
// what costs most to read. A file still includes what it uses (lint_headers_alone checks headers without it).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>
