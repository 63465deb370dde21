// core_pch.h and GoogleTest, for test programs.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core_pch.h"
