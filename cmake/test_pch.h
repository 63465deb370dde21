// core_pch.h, GoogleTest and the folders of a test, for test programs.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../tests/support/test_folders.h"
#include "core_pch.h"
