// The device that the list of tests runs on. main() opens it before the first test (device_tests.cpp).
#pragma once

#include "model/device/compute_device.h"

namespace mortise {

extern ComputeDevice device_under_test;

}  // namespace mortise
