// core_pch.h, GoogleTest, the folders of a test and what many tests include, for test programs. Their size costs little, because
// clang loads only the used parts.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "../tests/support/this_build.h"
#include "core_pch.h"
